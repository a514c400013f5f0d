"""Measure a baseline through the service, and keep it in the environment's folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.output import Output
from assay.cli.progress import counting
from assay.domain.errors import AssayError
from assay.domain.states import MeasurementKind
from assay.environments.catalog import BASELINES, Environment

if TYPE_CHECKING:
    from assay.client import Client
    from assay.client.experiments import Stream
    from assay.contracts.environment import BaselineBody, BaselineFailure

POLL_SECONDS = 1.0
#: Lines of a failed seed's log that are printed.
LOG_LINES = 20
#: Of its end, so many bytes are kept while it is read.
LOG_BYTES = 64 << 10


def measure_baseline(
    client: Client,
    out: Output,
    environment: str,
    profile: str,
    seeds: Sequence[int],
    hardware_class: str | None = None,
    conditions: str | None = None,
    timeout: float | None = None,
    *,
    again: bool = False,
) -> BaselineBody:
    """Ask for the measurements and wait for them; `again` repeats seeds that failed before.

    Where no seed has a result yet, the first one is measured alone: code that crashes on it is
    not started on the others.

    Raises:
        WaitTimeout: `timeout` seconds passed first; the measurements go on.
        AssayError: a seed failed. No further one is asked for.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    waiting = _Waiting(client, environment, profile, deadline)
    first = client.environments.calibrate(
        environment,
        profile,
        seeds[:1],
        hardware_class=hardware_class,
        conditions=conditions,
        again=again,
    )
    where = {"hardware_class": first.hardware_class, "conditions": first.conditions}
    if not again:
        waiting.stop_at_failure(first, seeds, final=True)
    with counting(out, f"baseline of {environment}, {profile}", len(seeds)) as show:
        if not set(seeds).intersection(first.seeds):
            waiting.wait(first, seeds[:1], lambda _: show(0))
        body = client.environments.calibrate(environment, profile, seeds, **where, again=again)
        return waiting.wait(body, seeds, show)


@dataclass(frozen=True)
class _Waiting:
    """Waits for seeds of a baseline, and stops where one failed."""

    client: Client
    environment: str
    profile: str
    deadline: float | None

    def wait(
        self, body: BaselineBody, seeds: Sequence[int], show: Callable[[int], None]
    ) -> BaselineBody:
        """Wait until all these seeds are measured. Raises as `measure_baseline` does."""
        from assay.client import WaitTimeout

        while True:
            self.stop_at_failure(body, seeds)
            pending = len(set(seeds).intersection(body.pending_seeds))
            show(len(seeds) - pending)
            if not pending:
                return body
            if self.deadline is not None and time.monotonic() >= self.deadline:
                raise WaitTimeout("the baseline was not measured in time; the service goes on")
            self.client.sleep(POLL_SECONDS)
            body = self.client.environments.baseline(
                self.environment,
                self.profile,
                hardware_class=body.hardware_class,
                conditions=body.conditions,
            )

    def stop_at_failure(
        self, body: BaselineBody, seeds: Sequence[int], *, final: bool = False
    ) -> None:
        """Raise AssayError if one of these seeds failed; if `final`, in a way that stays so.

        What failed for reasons of infrastructure is measured again whenever it is asked for.
        """
        for failed in body.failures:
            retryable = failed.failure is not None and failed.failure.retryable
            if failed.seed in seeds and not (final and retryable):
                raise AssayError(self._why(body, failed), code="baseline_failed")

    def _why(self, body: BaselineBody, failed: BaselineFailure) -> str:
        from assay.analysis.text import clean, counted

        said = f"seed {failed.seed} of the baseline of {self.environment}, {self.profile} failed"
        stage = "train"
        if failed.failure is not None:
            stage = failed.failure.stage
            said += f" at {stage} ({failed.failure.code}): {clean(failed.failure.message)}"
        lines = self._end_of_log(failed.measurement, "score" if stage == "score" else "train")
        said += f"\nIts log ({failed.measurement}) "
        said += "is empty." if not lines else "ends:\n" + "\n".join(f"  {line}" for line in lines)
        if body.pending:
            said += f"\n{counted(body.pending, 'seed')} asked for before will still be measured."
        return said + (
            "\nCorrect the code, or measure the seed again: "
            f"assay env calibrate {self.environment} --profile {self.profile} --again"
        )

    def _end_of_log(self, measurement: str, stream: Stream) -> list[str]:
        from assay.analysis.text import clean

        end, offset = b"", 0
        while True:
            piece = self.client.measurements.logs(measurement, stream=stream, offset=offset)
            if piece.next_offset == offset:
                break
            end, offset = (end + piece.data)[-LOG_BYTES:], piece.next_offset
        return clean(end.decode(errors="replace")).rstrip().splitlines()[-LOG_LINES:]


def wait_for_baseline(
    client: Client, out: Output, batch: str, deadline: float | None = None
) -> bool:
    """Wait until the baseline, and the base, that a finished batch is compared with are whole.

    Return false if `deadline`, on the monotonic clock, passed first. A batch that was cancelled or
    has no result has nothing to compare, so it is not waited for.
    """
    body = client.batches.get(batch)
    if body.state != "finished" or body.best is None or not body.seeds_to_come:
        return True
    total = body.seeds_to_come
    with counting(out, f"baseline of {body.environment}, {body.profile}", total) as show:
        while pending := body.seeds_to_come:
            show(max(0, total - pending))
            if deadline is not None and time.monotonic() >= deadline:
                return False
            client.sleep(POLL_SECONDS)
            body = client.batches.get(batch)
        show(total)
    return True


def write_baseline(
    environment: Environment, body: BaselineBody, controls: Mapping[str, Any] | None = None
) -> Path:
    """Put a measured baseline into `baseline.json`, beside those of other profiles and classes."""
    path = environment.folder / BASELINES
    known = {p: dict(classes) for p, classes in environment.committed_baselines().items()}
    known.setdefault(body.profile, {})[body.hardware_class] = entry_of(environment, body, controls)
    unfinished = path.with_name(f"{BASELINES}.unfinished")
    unfinished.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    os.replace(unfinished, path)
    return path


def entry_of(
    environment: Environment, body: BaselineBody, controls: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what `baseline.json` says of a measured baseline, and of which measurements it is.

    `conditions` is null where none are known. `measurements` is empty where no service stored any.
    `controls` are figures by name; without `kind` and `measurements` they are taken for scores
    that no service stored.
    """
    facts = {"id": body.conditions, "facts": body.facts}
    entry = {
        "metric": body.metric,
        "mean": body.mean,
        "spread": body.spread,
        "values": body.values,
        "seeds": body.seeds,
        "kind": body.kind,
        "conditions": None if body.conditions is None else facts,
        "measurements": body.measurements,
        "environment": environment.id,
        "codebase": environment.codebase_hash,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if controls:
        unstored: dict[str, Any] = {"kind": MeasurementKind.SCORE.value, "measurements": []}
        entry["controls"] = {name: {**unstored, **each} for name, each in controls.items()}
    return entry

"""Measure a baseline through the service, and keep it in the environment's folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.output import Output
from assay.cli.progress import counting
from assay.domain.errors import AssayError
from assay.environments.catalog import BASELINES, Environment

if TYPE_CHECKING:
    from assay.client import Client
    from assay.contracts.environment import BaselineBody

POLL_SECONDS = 1.0


def measure_baseline(
    client: Client,
    out: Output,
    environment: str,
    profile: str,
    seeds: Sequence[int],
    hardware_class: str | None = None,
    timeout: float | None = None,
) -> BaselineBody:
    """Ask for the measurements and wait for them.

    Raises:
        WaitTimeout: `timeout` seconds passed first; the measurements go on.
        AssayError: no measurement succeeded.
    """
    from assay.client import WaitTimeout

    deadline = None if timeout is None else time.monotonic() + timeout
    body = client.environments.calibrate(
        environment, profile, seeds, hardware_class=hardware_class
    )
    with counting(out, f"baseline of {environment}, {profile}", len(seeds)) as show:
        while True:
            show(len(seeds) - min(body.pending, len(seeds)))
            if not body.pending:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout("the baseline was not measured in time; the service goes on")
            client.sleep(POLL_SECONDS)
            body = client.environments.baseline(
                environment, profile, hardware_class=body.hardware_class
            )
    if body.mean is None:
        raise AssayError(
            f"none of the {body.failed} baseline measurements of {environment}, {profile} "
            "succeeded; see: assay worker list, and the measurements' logs",
            code="baseline_failed",
        )
    return body


def write_baseline(
    environment: Environment, body: BaselineBody, controls: Mapping[str, Any] | None = None
) -> Path:
    """Put a measured baseline into `baseline.json`, beside those of other profiles and classes."""
    path = environment.folder / BASELINES
    known = {p: dict(classes) for p, classes in environment.committed_baselines().items()}
    known.setdefault(body.profile, {})[body.hardware_class] = {
        "metric": body.metric,
        "mean": body.mean,
        "spread": body.spread,
        "values": body.values,
        "seeds": body.seeds,
        "environment": environment.id,
        "codebase": environment.codebase_hash,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if controls:
        known[body.profile][body.hardware_class]["controls"] = dict(controls)
    unfinished = path.with_name(f"{BASELINES}.unfinished")
    unfinished.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    os.replace(unfinished, path)
    return path

"""What is done with answers: a policy, the service that follows it, and what came of each case."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.client import Client
from assay.contracts.batch import AttemptBody, BatchRequest, ExperimentBody, MeasurementBody
from assay.contracts.report import ExecutionRow
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from benchmarks.execution_rate import author
from benchmarks.execution_rate.corpus import Case
from tests.support.service import ServiceProcess
from tests.support.workloads import uncapped_copy

PROFILE = "tiny"
#: Longer than any selection of cases takes.
PATIENCE_S = 2 * 3600.0
_LOOK_S = 1.0
#: Characters of a log that a person is shown.
_TAIL = 1_500


@dataclass(frozen=True)
class Policy:
    """Options of a batch. `executes`: the faults that it gets to a result in spite of."""

    name: str
    options: Mapping[str, Any]
    calls: Mapping[str, int]
    executes: frozenset[str]


#: Faults that an author who is told of them finds.
REPAIRED = ("context", "syntax", "import", "shape", "protected", "late", "malformed")
FIRST_DIFF = Policy(
    "first diff that applies",
    {"preflight": "off", "samples": 1, "revisions": 0, "repairs": 0},
    dict.fromkeys(("none", *REPAIRED, "hopeless"), 1),
    frozenset({"none"}),
)
FEEDBACK = Policy(
    "preflight, revision, repair",
    {"preflight": "smoke", "samples": 1, "revisions": 2, "repairs": 1},
    {"none": 1, **dict.fromkeys(REPAIRED, 2), "hopeless": 3},
    frozenset({"none", *REPAIRED}),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a case. `evidence` is for a person, where it is not what was expected."""

    case: Case
    state: str
    failure: str
    calls: int
    repairs: int
    evidence: str = ""

    @property
    def executed(self) -> bool:
        """Whether it has a result."""
        return self.state == "succeeded"


@dataclass
class Run:
    """All cases under one policy; seconds are those of attempts, from start to end."""

    policy: Policy
    outcomes: list[Outcome] = field(default_factory=list)
    rows: list[ExecutionRow] = field(default_factory=list)
    wasted_s: float = 0.0
    scored_s: float = 0.0
    smoke_s: float = 0.0
    smokes: int = 0
    elapsed_s: float = 0.0
    sandbox: str = ""
    #: Requests that the scripted author has seen; the ledger must know of as many.
    requests: int = 0

    @property
    def executed(self) -> int:
        """Cases with a result."""
        return sum(outcome.executed for outcome in self.outcomes)

    @property
    def rate(self) -> float:
        """The execution rate."""
        return self.executed / len(self.outcomes)

    @property
    def calls(self) -> int:
        """Requests to the scripted author, by the ledger."""
        return sum(outcome.calls for outcome in self.outcomes)

    def problems(self) -> list[str]:
        """What is not as the faults of the cases say."""
        found = []
        for outcome in self.outcomes:
            fault = outcome.case.fault
            if outcome.executed != (fault in self.policy.executes):
                ended = outcome.failure or "executed"
                found.append(f"{outcome.case.name} ({fault}): {ended}\n{outcome.evidence}")
            elif outcome.calls != self.policy.calls[fault]:
                wanted = self.policy.calls[fault]
                found.append(
                    f"{outcome.case.name} ({fault}): {outcome.calls} calls instead of {wanted}"
                )
        if self.requests != self.calls:
            found.append(f"{self.requests} requests, of which the ledger has {self.calls}")
        return [f"{self.policy.name}: {problem}" for problem in found]


def measure(policy: Policy, cases: Sequence[Case], folder: Path, *, sandbox: str = "auto") -> Run:
    """Put cases through a service of their own, one batch per environment."""
    environments = sorted({case.environment for case in cases})
    copies = folder / "environments"
    for name in environments:  # prepared here, so that no attempt's seconds hold it
        # Some published ideas cost nearly as much as the cap on compute allows.
        environment = Environment.load(uncapped_copy(name, copies) / name)
        prepare_data(environment, PROFILE, folder / "cache")
    service = ServiceProcess(folder, sandbox=sandbox, env={"ASSAY_ENVIRONMENTS": str(copies)})
    with author.Author(cases) as scripted:
        ready = service.start()
        try:
            with service.client() as client:
                run = Run(policy, sandbox=str(ready["sandbox"]))
                batches = _submit(client, scripted, policy, cases, isolated=ready["isolated"])
                run.elapsed_s = _wait(client, list(batches), policy)
                _collect(client, batches, run)
        finally:
            service.stop()
    run.requests = scripted.asked.total()
    return run


def _submit(
    client: Client,
    scripted: author.Author,
    policy: Policy,
    cases: Sequence[Case],
    *,
    isolated: bool,
) -> dict[str, list[Case]]:
    """The cases by batch, in its order."""
    options = {"baseline_seeds": 0, "novelty": "allow", "allow_unisolated": not isolated}
    found = {}
    for environment in sorted({case.environment for case in cases}):
        mine = [case for case in cases if case.environment == environment]
        request = {
            "environment": environment,
            "profile": PROFILE,
            "executor": scripted.executor,
            "ideas": [{"text": author.idea_of(c), "client_key": c.name} for c in mine],
            "options": options | dict(policy.options),
        }
        batch = client.batches.create(BatchRequest.model_validate(request))
        found[batch.id] = mine
    return found


def _wait(client: Client, batches: list[str], policy: Policy) -> float:
    """Seconds until all have finished."""
    began, shown = time.monotonic(), -1
    while True:
        bodies = [client.batches.get(batch) for batch in batches]
        counts = [body.counts for body in bodies]
        ended = sum(c.succeeded + c.failed + c.cancelled for c in counts)
        seconds = time.monotonic() - began
        if ended != shown:
            total = sum(c.total for c in counts)
            line = f"{policy.name}: {ended} of {total} after {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
            shown = ended
        if all(body.finished_at is not None for body in bodies):
            return seconds
        if seconds > PATIENCE_S:
            raise TimeoutError(f"{policy.name}: not finished after {seconds:.0f} s: {counts}")
        time.sleep(_LOOK_S)


def _collect(client: Client, batches: Mapping[str, list[Case]], run: Run) -> None:
    measured: dict[str, MeasurementBody] = {}
    for batch, cases in batches.items():
        by_name = {case.name: case for case in cases}
        calls = Counter(call.implementation for call in client.batches.calls(batch))
        for experiment in client.experiments.list(batch=batch):
            case = by_name[experiment.idea.client_key or ""]
            run.outcomes.append(
                _outcome(client, experiment, case, calls[experiment.implementation], run.policy)
            )
            for measurement in client.measurements.list(experiment=experiment.id):
                measured[measurement.id] = measurement
    run.outcomes.sort(key=lambda outcome: outcome.case.name)
    _add_seconds(run, measured.values())
    run.rows = client.reports.execution(batches=list(batches)).data


def _add_seconds(run: Run, measured: Iterable[MeasurementBody]) -> None:
    for measurement in measured:
        if measurement.kind == "smoke":
            run.smokes += 1
            run.smoke_s += sum(map(_seconds, measurement.attempts))
            continue
        for attempt in measurement.attempts:
            if attempt.state == "succeeded":
                run.scored_s += _seconds(attempt)
            else:
                run.wasted_s += _seconds(attempt)


def _seconds(attempt: AttemptBody) -> float:
    if attempt.started_at is None or attempt.finished_at is None:
        return 0.0
    return (attempt.finished_at - attempt.started_at).total_seconds()


def _outcome(
    client: Client, experiment: ExperimentBody, case: Case, calls: int, policy: Policy
) -> Outcome:
    failure = experiment.failure
    found = Outcome(
        case,
        experiment.state,
        f"{failure.stage}/{failure.code}" if failure else "",
        calls,
        len(experiment.repairs),
    )
    if found.executed == (case.fault in policy.executes):
        return found
    evidence = _evidence(client, experiment)
    return Outcome(case, found.state, found.failure, calls, found.repairs, evidence)


def _evidence(client: Client, experiment: ExperimentBody) -> str:
    """What the service has on an experiment: why it failed, its samples, its log."""
    said = [f"  {experiment.failure.message}"] if experiment.failure else []
    for sample in client.implementations.get(experiment.implementation).samples:
        log = (sample.patch_log or "")[-_TAIL:]
        said.append(f"  revision {sample.revision}: {sample.state} {sample.code or ''}\n{log}")
    if experiment.measurements:
        said.append(f"  log:\n{client.experiments.logs(experiment.id).text[-_TAIL:]}")
    return "\n".join(said)

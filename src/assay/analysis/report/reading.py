"""Read the record of a search from the API.

`assay search report` reads it over HTTP, the dashboard's export in the process of the API itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal

from assay.analysis.report.record import EpochRecord, Payment, SearchRecord
from assay.client import Client
from assay.contracts.batch import CallFacts, ExperimentBody
from assay.contracts.search import SearchBody
from assay.domain.isolation import is_offline
from assay.search.trajectories import read_diffs


def read_record(
    client: Client, search: str, say: Callable[[str], None] = lambda _: None
) -> SearchRecord:
    """Read all that is stored of a search; it may be under way. `say` is told what is read."""
    body = client.searches.get(search)
    say(f"reading {search}: {body.epochs_finished} of {body.epochs} epochs finished")
    private, payments = _ideator(client, body)
    epochs: list[EpochRecord] = []
    for epoch in client.searches.epochs(search):
        if epoch.batch is None:
            continue
        batch = client.batches.get(epoch.batch)
        experiments = list(client.experiments.list(batch=epoch.batch))
        record = EpochRecord(
            epoch.number, batch, experiments, epoch.ideas, private.get(epoch.number, 0)
        )
        epochs.append(record)
        if not is_offline(body.executor):
            calls = client.batches.calls(epoch.batch)
            payments += [_payment(call, "executor") for call in calls if call.finished_at]
    diffs = _diffs(client, [e for epoch in epochs for e in epoch.experiments])
    environment = client.environments.get(body.environment)
    payments.sort(key=lambda payment: payment.at)
    return SearchRecord(body, environment, epochs, diffs, payments)


def _ideator(client: Client, search: SearchBody) -> tuple[dict[int, int], list[Payment]]:
    """Return how many characters the ideator thought in private by epoch, and what it cost."""
    private: dict[int, int] = defaultdict(int)
    payments: list[Payment] = []
    if is_offline(search.ideator):
        return private, payments
    for call in client.searches.calls(search.id):
        private[call.epoch] += call.thinking_length or 0
        if call.finished_at is not None:
            payments.append(_payment(call, "ideator"))
    return private, payments


def _payment(call: CallFacts, whose: str) -> Payment:
    cost = Decimal(0) if call.is_replay else None
    cost = cost if call.cost_usd is None else Decimal(call.cost_usd)
    return Payment(call.finished_at or call.started_at, cost, whose)


def _diffs(client: Client, experiments: list[ExperimentBody]) -> dict[str, str]:
    """Return the diff of each experiment with a codebase."""
    found: dict[str, str] = {}
    for batch in dict.fromkeys(experiment.batch for experiment in experiments):
        found |= read_diffs(client, batch, experiments, confirmations=True)
    for experiment in experiments:
        if experiment.codebase is not None and experiment.id not in found:
            found[experiment.id] = client.experiments.diff(experiment.id)
    return found

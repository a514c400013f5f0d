"""Does confirmation tell good edits from lucky and from overfitted ones?

    make bench-confirmation
    python -m benchmarks.confirmation [--seeds 5] [--edits NAME …]

Submits seven edits of `nanogpt` `tiny`, whose true effect is known, to an embedded service: three
that gain, three without effect, and one that fits the search split alone (`attack.py`). What
scores better than the baseline is confirmed, as `assay experiment confirm` does. Prints the
results, the confirmation and the leaderboard; the last line is JSON, with `right` for every edit:

    good        confirmed better, and may be claimed
    neutral     may not be claimed
    overfitted  better in search, not better where confirmed, and may not be claimed

With five seeds about a quarter of an hour on two cores. The exit status is 1 if anything is not
right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from assay.analysis import experiment_table, rank
from assay.client import Client
from assay.contracts.batch import (
    BatchBody,
    BatchRequest,
    ComparisonBody,
    EventBody,
    ExperimentBody,
)
from assay.domain.metrics import Direction
from assay.environments.catalog import Environment
from benchmarks.confirmation.edits import GOOD, OVERFITTED, Edit, chosen
from tests.support.measuring import ROOT
from tests.support.service import running

POLL_SECONDS = 1.0
BETTER = "better"
WIDTH = 140

#: Experiments by the name of their edit.
Found = Mapping[str, ExperimentBody]


def search_batch(environment: Environment, edits: Sequence[Edit], seeds: int) -> BatchRequest:
    """Return the batch that puts the edits to the test."""
    return BatchRequest.model_validate(
        {
            "environment": environment.name,
            "profile": "tiny",
            "ideas": [
                {"text": edit.idea(environment.codebase), "client_key": edit.name}
                for edit in edits
            ],
            "options": {
                "seeds": list(range(seeds)),
                "baseline_seeds": seeds,
                "allow_unisolated": True,
            },
        }
    )


def measured(client: Client, batch: BatchBody) -> list[ExperimentBody]:
    """Return a batch's experiments when they and their baseline are measured."""
    client.batches.wait(batch.id, on_event=_say)
    while client.batches.get(batch.id).seeds_to_come:
        client.sleep(POLL_SECONDS)
    return sorted(client.experiments.list(batch=batch.id), key=lambda each: each.position)


def _say(event: EventBody) -> None:
    state = event.data.get("state")
    if event.experiment and state in ("succeeded", "failed"):
        print(f"{event.experiment}: {state}", file=sys.stderr, flush=True)


def worth_confirming(experiments: Sequence[ExperimentBody]) -> list[str]:
    """Return the experiments whose result is better than the baseline's, decided or not."""
    return [e.id for e in experiments if e.comparison is not None and e.comparison.effect > 0]


def row_of(
    edit: Edit, searched: ExperimentBody, confirmed: ExperimentBody | None, claimed: bool
) -> dict[str, Any]:
    """Return what became of an edit, and whether that is right."""
    first = searched.comparison
    second = confirmed.comparison if confirmed is not None else None
    row: dict[str, Any] = {
        "edit": edit.name,
        "class": edit.kind,
        "search": _figures(first),
        "confirmed": _figures(second),
        "gap": round(first.effect - second.effect, 4) if first and second else None,
        "claimed": claimed,
        "right": is_right(edit.kind, _verdict(first), _verdict(second), claimed),
    }
    failures = [e.failure.code for e in (searched, confirmed) if e is not None and e.failure]
    return row | ({"failed": failures} if failures else {})


def is_right(kind: str, search: str | None, confirmed: str | None, claimed: bool) -> bool:
    """Whether verdicts and claim are those that an edit of this class should get."""
    if kind == GOOD:
        return claimed and confirmed == BETTER
    if kind == OVERFITTED:
        # One that was not confirmed, or not better in search, has shown nothing.
        return not claimed and search == BETTER and confirmed not in (None, BETTER)
    return not claimed


def _verdict(comparison: ComparisonBody | None) -> str | None:
    return comparison.verdict if comparison is not None else None


def _figures(comparison: ComparisonBody | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "effect": comparison.effect,
        "low": comparison.low,
        "high": comparison.high,
        "p": comparison.p,
        "n": comparison.n,
        "baseline_n": comparison.baseline_n,
        "verdict": comparison.verdict,
    }


def leaderboard_is_right(names: Sequence[str], kinds: Mapping[str, str]) -> bool:
    """Whether the good edits are the first ones."""
    good = sum(kinds[name] == GOOD for name in names)
    return all(kinds[name] == GOOD for name in names[:good])


def by_edit(edits: Sequence[Edit], experiments: Sequence[ExperimentBody]) -> dict[str, Any]:
    """Return experiments by the name of their edit, which is their idea's `client_key`."""
    found = {e.idea.client_key: e for e in experiments}
    return {edit.name: found[edit.name] for edit in edits}


def run(client: Client, environment: Environment, edits: Sequence[Edit], seeds: int) -> Any:
    """Search, confirm, print the tables; return the figures."""
    direction = environment.manifest.metric.direction
    searched = measured(client, client.batches.create(search_batch(environment, edits, seeds)))
    _show(searched, direction, "Search")
    wanted = worth_confirming(searched)
    confirmed: list[ExperimentBody] = []
    if wanted:
        first, *rest = wanted
        confirmed = measured(client, client.experiments.confirm(first, beside=rest, seeds=seeds))
        _show(confirmed, direction, "Confirmation")
    claimed = {e.idea.confirms for e in confirmed if e.claimed}
    again = {e.idea.confirms: e for e in confirmed}
    # Read anew: the confirmation has given results another place.
    final = [client.experiments.get(e.id) for e in searched]
    _show(final, direction, "Leaderboard")
    names = {experiment.id: name for name, experiment in by_edit(edits, final).items()}
    order = [names[e.id] for e in rank(final, direction)]
    rows = [
        row_of(edit, e, again.get(e.id), e.id in claimed)
        for edit, e in zip(edits, by_edit(edits, final).values(), strict=True)
    ]
    return {
        "leaderboard": order,
        "leaderboard_right": leaderboard_is_right(order, {e.name: e.kind for e in edits}),
        "edits": rows,
    }


def _show(experiments: Sequence[ExperimentBody], direction: Direction, title: str) -> None:
    metric = experiments[0].metric_name
    table = experiment_table(experiments, direction, metric=metric, title=title, width=WIDTH - 1)
    Console(width=WIDTH).print(table)


def main() -> int:
    """Run it; the exit status is 1 if anything is not right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="of search, and of confirmation")
    parser.add_argument("--edits", nargs="*", default=[], metavar="NAME", help="only these")
    parser.add_argument("--cpus", type=int, default=2, help="trainings side by side (default: 2)")
    given = parser.parse_args()
    edits = chosen(given.edits)
    environment = Environment.load(ROOT / "environments" / "nanogpt")
    with tempfile.TemporaryDirectory(prefix="assay-confirmation-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(folder / "service", cpus=given.cpus) as service, service.client() as client:
            figures = run(client, environment, edits, given.seeds)
    right = figures["leaderboard_right"] and all(row["right"] for row in figures["edits"])
    summary = {
        "name": "confirmation",
        "environment": environment.id,
        "seeds": given.seeds,
        "alternative": "the verdicts of the search itself",
        "right": right,
    }
    print(json.dumps(summary | figures))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

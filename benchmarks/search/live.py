"""Live searches, side by side: what happened, and no claim beyond it.

    python -m benchmarks.search live --stop-after 60

Drives evolution (the default), greedy and best-of-n with the offline ideator on seeds 0, 1 and 2,
each for 40 experiments of `nanogpt` `tiny`, in an embedded service, one after the other. At the
end of each, the two best are confirmed on three fresh seeds, scored on the sealed split. Searches
share what they measure alike, so hours say little about a strategy; measurements do.

The service keeps its data in .assay/live-search, so an interrupted command continues where it
stopped. `--stop-after` ends it between two searches. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assay.client import Client
from assay.contracts.batch import BatchOptions, ExperimentBody
from assay.contracts.search import SearchBody, SearchRequest
from assay.domain.states import ExperimentState, MeasurementKind, SearchState
from assay.llm import open_ideator
from assay.llm.offline.settings import Settings
from assay.search import SearchConfig, drive
from tests.support.measuring import ROOT
from tests.support.service import running

FOLDER = ROOT / ".assay" / "live-search"
ENVIRONMENT, PROFILE = "nanogpt", "tiny"
EXPERIMENTS, SEEDS = 40, 3
#: Of the searches. The baseline has as many as a search has by default.
BASELINE_SEEDS = 5
CONFIRMED, FRESH_SEEDS = 2, 3
IDEATOR, EXECUTOR = "offline:ideator", "offline:literal"


class Contender(NamedTuple):
    """A strategy with its settings, and how many ideas it is asked for at once."""

    strategy: str
    batch_size: int
    settings: dict[str, Any]


#: The default, what is better where noise is small, and ideas without feedback.
CONTENDERS = (
    Contender("evolution", 8, {}),
    Contender("greedy", 8, {}),
    Contender("best-of-n", 8, {}),
)


def live(stop: Callable[[], bool], *, folder: Path = FOLDER, cpus: int = 2) -> dict[str, Any]:
    """Drive what is not finished, print a table of what is, and return the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with running(folder / "data", cpus=cpus) as service, service.client() as client:
        for seed in range(SEEDS):
            for contender in CONTENDERS:
                if stop():
                    break
                search = _driven(client, folder / "searches.json", contender, seed)
                rows.append(row_of(client, search))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table_of(rows))
    return {
        "name": "search-live",
        "environment": ENVIRONMENT,
        "profile": PROFILE,
        "searches": rows,
    }


def _driven(client: Client, index: Path, contender: Contender, seed: int) -> SearchBody:
    """The finished search of a contender: made if the index lacks it, and driven to its end."""
    known: dict[str, str] = json.loads(index.read_text()) if index.exists() else {}
    name = f"{contender.strategy} {seed}"
    if name not in known:
        known[name] = client.searches.create(_request(contender, seed)).id
        index.write_text(json.dumps(known, indent=1))
    search = client.searches.get(known[name])
    if search.state == SearchState.RUNNING:
        drive(client, search.id, open_ideator(IDEATOR, os.environ))
    return client.searches.get(search.id)


def _request(contender: Contender, seed: int) -> SearchRequest:
    options = BatchOptions(baseline_seeds=BASELINE_SEEDS, allow_unisolated=True)
    made = SearchConfig.make(contender.strategy, contender.settings, options, pause=False)
    config = made.model_copy(update={"confirm": CONFIRMED, "confirm_seeds": FRESH_SEEDS})
    return SearchRequest(
        environment=ENVIRONMENT,
        profile=PROFILE,
        strategy=contender.strategy,
        epochs=EXPERIMENTS // contender.batch_size,
        batch_size=contender.batch_size,
        seed=seed,
        ideator=IDEATOR,
        executor=EXECUTOR,
        config=config.record(),
    )


def row_of(client: Client, search: SearchBody) -> dict[str, Any]:
    """Return what became of a search: counts, its best by the search, and what was confirmed."""
    ideas: list[ExperimentBody] = []
    confirmed: list[ExperimentBody] = []
    for batch in client.batches.list(search=search.id):
        found = confirmed if batch.kind == MeasurementKind.CONFIRM else ideas
        found += client.experiments.list(batch=batch.id)
    effects = [e.comparison.effect for e in ideas if e.comparison is not None]
    results = [e for e in confirmed if e.comparison is not None]
    winner = max(results, key=_effect, default=None)
    compared = None if winner is None else winner.comparison
    return {
        "strategy": search.strategy,
        "seed": search.seed,
        "ideas": len(ideas),
        "failed": sum(e.state == ExperimentState.FAILED for e in ideas),
        "again": sum(e.idea.operator == "remeasure" for e in ideas),
        "codebases": len({e.codebase for e in ideas if e.codebase}),
        "found": round(max(effects, default=0.0), 4),
        "confirmed": None if compared is None else round(compared.effect, 4),
        "interval": None if compared is None else [compared.low, compared.high],
        "claimed": any(e.claimed for e in results),
        "winner": None if winner is None else _settings(winner),
    }


def _effect(experiment: ExperimentBody) -> float:
    return 0.0 if experiment.comparison is None else experiment.comparison.effect


def _settings(experiment: ExperimentBody) -> str:
    """The line of the offline ideator that says what the idea changes."""
    found = Settings.read(experiment.idea.text)
    return "" if found is None else found.format()


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| strategy | seed | ideas | failed | again | codebases | found | confirmed "
        "| 95 % interval | claimed | the winner changes |",
        "|---" * 11 + "|",
    ]
    for row in rows:
        low, high = row["interval"] or (None, None)
        interval = "" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"
        confirmed = "" if row["confirmed"] is None else f"{row['confirmed']:+.3f}"
        cells = [row["strategy"], row["seed"], row["ideas"], row["failed"], row["again"]]
        cells += [row["codebases"], f"{row['found']:+.3f}", confirmed, interval]
        cells += ["yes" if row["claimed"] else "no", row["winner"] or ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)

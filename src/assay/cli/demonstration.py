"""What `assay demo` shows, on a service that is already there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.text import Text

from assay.analysis import best_table, clean, experiment_table, failure_table, idea_title, rank
from assay.analysis.text import counted
from assay.cli.baseline import wait_for_baseline
from assay.cli.batch import summary
from assay.cli.expectation import (
    IDLE,
    Expectation,
    Speed,
    measure_speed,
    rounds_of,
    slots,
)
from assay.cli.output import Output
from assay.cli.searching import LineObserver, follow_batch
from assay.cli.watch import follow
from assay.client import Client
from assay.contracts.batch import (
    BatchBody,
    BatchOptions,
    BatchRequest,
    EventBody,
    ExperimentBody,
    IdeaRequest,
)
from assay.contracts.environment import EnvironmentBody, ProfileBody
from assay.contracts.search import SearchBody, SearchRequest
from assay.contracts.worker import WorkerBody
from assay.domain.errors import AssayError
from assay.llm import OfflineIdeator, ProposedIdea
from assay.llm.offline.settings import Settings
from assay.search import Ask, SearchConfig, drive
from assay.search.ask import Setting

IDEAS = 10
NEEDED = 8
SEED = 7
SEEDS_TRIED = 2000
BASELINE_SEEDS = 5
#: On one seed, beside so few of the baseline, only effects of five spreads can be told from luck.
IDEA_SEEDS = (0, 1)
SEARCH_EPOCHS = 2
SEARCH_BATCH = 4
SEARCH_SEED = 1
DIFF_LINES = 60


class Demonstration:
    """Ten ideas against a measured baseline, then two epochs of search."""

    def __init__(
        self,
        client: Client,
        out: Output,
        environment: str,
        profile: str,
        *,
        measure_speed: Callable[[int], Speed] = measure_speed,
    ) -> None:
        self._client = client
        self._out = out
        self._environment = client.environments.get(environment)
        self._profile = profile
        self._batch: BatchBody | None = None
        self._search: SearchBody | None = None
        self._experiments: list[ExperimentBody] = []
        self._measure_speed = measure_speed
        #: Measurements of the ideas, and of the search.
        self._planned = (0, 0)
        #: How long it takes; None where nobody knows how much work a measurement is.
        self.expectation: Expectation | None = None

    def run(self) -> list[str]:
        """Do it all and return what did not come out as promised."""
        self._say_who_proposes()
        self._expect()
        self._measure(self._ideas())
        self._show_results()
        self._go_searching()
        return [*unmet(self._experiments), *unmet_by_search(self._search)]

    def record(self) -> dict[str, Any]:
        """Everything that was shown, as data."""
        return {
            "batch": self._batch,
            "experiments": self._experiments,
            "search": self._search,
        }

    def _say_who_proposes(self) -> None:
        self._out.say(
            "Ideas come from `offline:`, which is not a language model: it draws edits that "
            f"{self._environment.name} declares, with a fixed seed, and needs no key."
        )

    def _expect(self) -> None:
        """Say how long this will take."""
        workers = [w for w in self._client.workers.list() if w.state == "active"]
        hardware_class = workers[0].hardware_class if workers else ""
        rounds = rounds_of(self._environment.name, self._profile, hardware_class)
        if rounds is None:
            return
        self._planned = self._to_measure()
        total = sum(self._planned)
        speed = self._measure_speed(self._slots(workers)) if total else IDLE
        self.expectation = Expectation(total, speed, rounds=rounds)
        self._out.say(str(self.expectation))
        warning = self.expectation.too_slow(float(self._profile_body().budget["seconds"]))
        if warning is not None:
            self._out.say(warning)

    def _to_measure(self) -> tuple[int, int]:
        """How many measurements the ideas and the search still need: an earlier demo on the same
        data may have made all of them, or some."""
        environment, profile = self._environment.id, self._profile
        for search in self._client.searches.list():
            made = (search.environment, search.profile, search.seed, search.state)
            if made == (environment, profile, SEARCH_SEED, "finished"):
                return 0, 0
        measured = [
            m
            for m in self._client.measurements.list(environment=environment)
            if m.profile == profile and m.state in ("succeeded", "failed")
        ]
        of_ideas = (IDEAS - 1) * len(IDEA_SEEDS) + BASELINE_SEEDS  # one fits nowhere
        of_search = SEARCH_EPOCHS * SEARCH_BATCH
        beyond = max(0, len(measured) - of_ideas)
        return max(0, of_ideas - len(measured)), max(0, of_search - beyond)

    def _slots(self, workers: Sequence[WorkerBody]) -> int:
        """How many measurements the service makes at once."""
        profile = self._profile_body()
        return sum(
            slots(
                worker.cpus,
                worker.memory_bytes,
                need_cpus=profile.cpus,
                need_memory_gb=profile.memory_gb,
            )
            for worker in workers
        )

    def _profile_body(self) -> ProfileBody:
        return next(p for p in self._environment.profiles if p.name == self._profile)

    def _part(self, planned: int) -> AbstractContextManager[Callable[[int], float] | None]:
        """What gives the seconds left while a part of the demo is followed."""
        return nullcontext() if self.expectation is None else self.expectation.part(planned)

    def _ideas(self) -> list[IdeaRequest]:
        files = self._client.environments.codebase(self._environment.name).files
        setting = Setting(self._environment, self._profile, files)
        return [
            IdeaRequest(text=idea.text, operator=idea.operator)
            for idea in choose_ideas(self._environment, setting)
        ]

    def _measure(self, ideas: list[IdeaRequest]) -> None:
        request = BatchRequest(
            environment=self._environment.name,
            profile=self._profile,
            ideas=ideas,
            ideator="offline:knobs",
            options=BatchOptions(
                seeds=list(IDEA_SEEDS),
                baseline_seeds=BASELINE_SEEDS,
                allow_unisolated=True,  # these edits come with Assay
            ),
        )
        batch = self._client.batches.create(request)
        self._out.say(
            f"{batch.id}: {counted(len(ideas), 'idea')}, each on "
            f"{counted(len(IDEA_SEEDS), 'seed')}; the baseline on {BASELINE_SEEDS}"
        )
        with self._part(self._planned[0]) as left:
            follow(self._client, batch.id, self._out, left=left)
            wait_for_baseline(self._client, self._out, batch.id)
        self._batch = self._client.batches.get(batch.id)
        self._experiments = list(self._client.experiments.list(batch=batch.id))

    def _show_results(self) -> None:
        if self._batch is None or self._out.as_json:
            return
        environment = self._environment
        self._out.show(*summary(self._batch, environment.unit))
        self._out.show(
            experiment_table(
                self._experiments,
                environment.direction,
                metric=environment.metric,
                title="Read back from the API, best first",
                width=self._out.out.width,
            )
        )
        self._show_best_diff()
        if any(e.failure for e in self._experiments):
            self._out.show(failure_table(self._experiments, title="Failed"))

    def _show_best_diff(self) -> None:
        ranked = rank(self._experiments, self._environment.direction)
        if not ranked or ranked[0].metric is None:
            return
        best = ranked[0]
        lines = clean(self._client.experiments.diff(best.id)).splitlines()
        self._out.show(f"The best idea's diff ({idea_title(best.idea.text)}):")
        self._out.show(Text("\n".join(lines[:DIFF_LINES])))
        if len(lines) > DIFF_LINES:
            self._out.show(f"… {len(lines) - DIFF_LINES} more lines")
        self._out.show("")

    def _go_searching(self) -> None:
        config = SearchConfig.make(
            "evolution",
            options=BatchOptions(baseline_seeds=BASELINE_SEEDS, allow_unisolated=True),
        )
        search = self._client.searches.create(
            SearchRequest(
                environment=self._environment.name,
                profile=self._profile,
                strategy="evolution",
                seed=SEARCH_SEED,
                epochs=SEARCH_EPOCHS,
                batch_size=SEARCH_BATCH,
                config=config.record(),
            )
        )
        self._out.say(
            f"{search.id}: evolutionary search, {SEARCH_EPOCHS} epochs of {SEARCH_BATCH} ideas"
        )
        # Search wants sound ideas; the first batch has shown how failures look.
        ideator = OfflineIdeator(misfit_share=0.0, crash_share=0.0)
        observer = LineObserver(self._out, self._client)
        self._search = drive(
            self._client, search.id, ideator, observer, wait=self._follow_epoch, pause=False
        )
        if not self._out.as_json:
            self._out.show(best_table(self._search.best, title="Best so far"))

    def _follow_epoch(
        self, client: Client, batch: str, on_event: Callable[[EventBody], None]
    ) -> BatchBody:
        with self._part(self._planned[1] // SEARCH_EPOCHS) as left:
            return follow_batch(self._out, client, batch, on_event, left)


def choose_ideas(environment: EnvironmentBody, setting: Setting) -> Sequence[ProposedIdea]:
    """Ten ideas of the offline ideator: one that fits nowhere, one that crashes, eight edits.

    Seeds are tried in a fixed order, so the choice is the same every time.

    Raises:
        AssayError: the environment does not declare what this takes.
    """
    kinds = {recipe.name: recipe.kind for recipe in environment.recipes}
    for seed in range(SEED, SEED + SEEDS_TRIED):
        request = setting.request(Ask("seed", IDEAS, seed), IDEAS, seed)
        ideas = asyncio.run(OfflineIdeator().propose(request))
        found = [_kind(idea, kinds) for idea in ideas]
        if [found.count(k) for k in ("misfit", "crash", "edit")] == [1, 1, NEEDED]:
            return ideas
    raise AssayError(
        f"{environment.name} declares too few edits, misfits or crashes for the demo; "
        "see its environment.toml"
    )


def _kind(idea: ProposedIdea, kinds: dict[str, Any]) -> str:
    settings = Settings.read(idea.text) or Settings()
    found = {kinds[name] for name in settings.recipes}
    return next((kind for kind in ("misfit", "crash") if kind in found), "edit")


def unmet(experiments: Sequence[ExperimentBody]) -> list[str]:
    """What the demo promises of its batch and these experiments do not show."""
    scored = [e for e in experiments if e.metric is not None]
    stages = {e.failure.stage for e in experiments if e.failure}
    better = [e for e in scored if e.comparison and e.comparison.verdict == "better"]
    promises = {
        f"at least {NEEDED} ideas scored ({len(scored)} were)": len(scored) >= NEEDED,
        "an idea that is called better than the baseline": bool(better),
        "an idea that failed at implement": "implement" in stages,
        "an idea that failed at train": "train" in stages,
    }
    return [f"missing: {promise}" for promise, kept in promises.items() if not kept]


def unmet_by_search(search: SearchBody | None) -> list[str]:
    """What the demo promises of its search and this one does not show."""
    if search is None:
        return ["missing: the search"]
    missing = []
    if search.state != "finished":
        missing.append(f"missing: a finished search (it is {search.state})")
    if len(search.best) != SEARCH_EPOCHS or any(b.best_so_far is None for b in search.best):
        missing.append(f"missing: a best result for each of {SEARCH_EPOCHS} epochs")
    return missing

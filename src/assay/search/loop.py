"""The loop that drives a search (paper §4.1, Algorithm 1) through the API.

All it knows stands in the service's record: the search with its config, the epochs with their
ideas, the batches with their results. An epoch's ideas are stored before they are submitted, and
submitting is exactly once, so the loop may be killed anywhere and started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from assay.client import Client, Conflict
from assay.contracts.batch import BaseBody, BatchBody, EventBody, IdeaRequest
from assay.contracts.environment import BaselineBody, EnvironmentBody
from assay.contracts.search import EpochBody, SearchBody
from assay.domain.isolation import is_offline
from assay.domain.metrics import Sample, mean, reward
from assay.domain.rounding import shown, shown_or_none
from assay.domain.states import BatchState, Driver, MeasurementKind, SearchState
from assay.llm.ideation import Baseline, Ideator, Trajectory
from assay.llm.recorded_ideas import RecordedIdeas
from assay.search import warm_start
from assay.search.ask import SearchError, Setting, fit_epoch, propose
from assay.search.calls import Ledger
from assay.search.config import SearchConfig
from assay.search.confirming import to_confirm
from assay.search.pausing import FAILURES, SearchPaused, common_failure, pause_request
from assay.search.plan import Ask, Remeasure, Situation
from assay.search.strategy import open_strategy
from assay.search.trajectories import TrajectoryReader
from assay.search.warm_start import Here

__all__ = ["Observer", "SearchError", "drive"]

BASELINE_POLL_SECONDS = 1.0


class Observer:
    """Told how a search goes on. Every method does nothing here."""

    def epoch_started(self, search: SearchBody, number: int) -> None:
        """The loop has come to an epoch, new or stored."""

    def asking(self, number: int, asks: Sequence[Ask]) -> None:
        """The ideator is about to be asked."""

    def stored(self, number: int, ideas: Sequence[IdeaRequest]) -> None:
        """The ideas of an epoch are in the service's record."""

    def submitted(self, number: int, batch: str) -> None:
        """An epoch's ideas are a batch."""

    def event(self, number: int, event: EventBody) -> None:
        """Something changed in the batch of an epoch."""

    def epoch_finished(self, search: SearchBody, number: int) -> None:
        """The batch of an epoch is finished; `search.best` tells of it."""

    def waiting_for_baseline(self, baseline: BaselineBody) -> None:
        """The baseline is being measured; no epoch after the first starts before."""

    def confirming(self, batch: str) -> None:
        """The best results are measured again, as a batch of their own."""


Wait = Callable[[Client, str, Callable[[EventBody], None]], BatchBody]


def wait_for(client: Client, batch: str, on_event: Callable[[EventBody], None]) -> BatchBody:
    """Wait for a batch without showing anything."""
    return client.batches.wait(batch, on_event=on_event)


def drive(
    client: Client,
    search: str,
    ideator: Ideator,
    observer: Observer | None = None,
    *,
    wait: Wait = wait_for,
    pause: bool | None = None,
    driver: Driver = Driver.CLIENT,
    recorded: RecordedIdeas | None = None,
) -> SearchBody:
    """Drive a search to its last epoch, from wherever its record stands, and return it.

    A search that somebody cancelled is returned as it is; one that is paused goes on. `pause`:
    whether it may pause; None: as its record says. `driver`: who calls this. A client takes a
    search over that the service paused. `recorded`: a folder that keeps the answers of the
    ideator, or gives them. The ideator is closed at the end.

    Raises:
        SearchPaused: one code ended most of an epoch, or a person paused it; that is stored.
        SearchError: the ideator or the baseline failed, or the cap on cost is reached.
        Conflict: the service drives the search (`driven_by_service`).
        ClientError: the service failed for longer than the client retries.
    """
    with asyncio.Runner() as runner:
        try:
            seen = observer or Observer()
            loop = _Loop(client, search, ideator, seen, wait, runner, recorded)
            if driver is Driver.CLIENT:
                loop.take_over()
            return loop.go_on(pause=pause)
        finally:
            runner.run(ideator.aclose())


class _Loop:
    def __init__(
        self,
        client: Client,
        search: str,
        ideator: Ideator,
        observer: Observer,
        wait: Wait,
        runner: asyncio.Runner,
        recorded: RecordedIdeas | None,
    ) -> None:
        self._client = client
        self._search = client.searches.get(search)
        self._config = SearchConfig.read(self._search.config)
        self._strategy = open_strategy(self._search.strategy, self._config.strategy)
        environment = client.environments.get(self._search.environment)
        base = None if self._search.base is None else self._search.base.codebase
        files = client.environments.codebase(self._search.environment, base=base).files
        if base is not None:
            environment = _without_misfits(environment, files)
        self._setting = Setting(environment, self._search.profile, files, self._search.seed)
        self._ideator = ideator
        self._observer = observer
        self._wait = wait
        self._runner = runner
        self._trajectories = TrajectoryReader(
            client, environment.direction, with_curves=not is_offline(ideator.name)
        )
        self._baseline: Baseline | None = None
        self._batches: dict[int, BatchBody] = {}
        self._started: dict[int, str] = {}
        self._ledger = Ledger(client, self._search.id, ideator, recorded)
        self._may_pause = self._config.pause

    def go_on(self, *, pause: bool | None) -> SearchBody:
        """Every epoch that is not finished, in order, also those that are added meanwhile."""
        self._may_pause = self._config.pause if pause is None else pause
        number = 0
        while self._search.state == SearchState.RUNNING:
            if number < self._search.epochs:
                self._epoch(number)
                number += 1
            else:
                self._confirm()
                finish = self._client.searches.finish
                self._search = finish(self._search.id, epochs=self._search.epochs)
                self._config = SearchConfig.read(self._search.config)
        return self._search

    def _refresh(self) -> None:
        """Read the record again: somebody may have paused, extended or cancelled the search."""
        self._search = self._client.searches.get(self._search.id)
        self._config = SearchConfig.read(self._search.config)

    def _stop_if_paused(self) -> None:
        """Raises SearchPaused: the search is paused, and so asks for no more."""
        self._refresh()
        pause = self._search.open_pause
        if pause is not None:
            raise SearchPaused(pause.message)

    def take_over(self) -> None:
        """Store that a client drives the search, and that it continues if it was paused."""
        is_paused = self._search.open_pause is not None
        is_ours = self._search.driver == Driver.CLIENT
        if (is_paused or not is_ours) and self._search.state == SearchState.RUNNING:
            self._search = self._client.searches.resume(self._search.id)

    def _confirm(self) -> None:
        """Confirm the best results, if the search is to. No ideator sees what comes of it."""
        if not self._config.confirm:
            return
        found = self._confirmation()
        if found is None:
            self._stop_if_paused()
            found = self._submit_confirmation()
        if found is None:
            return
        self._observer.confirming(found.id)
        if found.finished_at is None:
            found = self._wait(self._client, found.id, lambda _: None)
        self._wait_for_baseline(found)

    def _wait_for_baseline(self, batch: BatchBody) -> None:
        """Wait until results can be compared: a batch is finished before its baseline is."""
        while batch.seeds_to_come:
            self._client.sleep(BASELINE_POLL_SECONDS)
            batch = self._client.batches.get(batch.id)

    def _confirmations(self) -> list[BatchBody]:
        """The batches that confirm results of this search, newest first."""
        listed = self._client.batches.list(search=self._search.id)
        of_kind = (b for b in listed if b.kind == MeasurementKind.CONFIRM)
        return [b for b in of_kind if b.state != BatchState.CANCELLED]

    def _confirmation(self) -> BatchBody | None:
        """The batch that confirms the results of all epochs; None before it is submitted."""
        last = max(self._batches.values(), key=lambda batch: batch.created_at)
        made = (b for b in self._confirmations() if b.created_at >= last.created_at)
        return next(made, None)

    def _submit_confirmation(self) -> BatchBody | None:
        """None if no result improves on the baseline, or all that do were confirmed before."""
        epochs = list(self._client.searches.epochs(self._search.id))
        for epoch in epochs:
            if epoch.batch is not None:
                self._wait_for_baseline(self._client.batches.get(epoch.batch))
        results = (result for epoch in epochs for result in self._trajectories.outcomes(epoch))
        earlier = self._confirmations()
        known = {
            experiment.idea.confirms
            for batch in earlier
            for experiment in self._client.experiments.list(batch=batch.id)
        }
        chosen = [e for e in to_confirm(results, self._config.confirm) if e not in known]
        if not chosen:
            return None
        again = f"-{self._search.epochs}" if earlier else ""
        return self._client.experiments.confirm(
            chosen[0],
            beside=chosen[1:],
            seeds=self._config.confirm_seeds,
            search=self._search.id,
            idempotency_key=f"confirm-{self._search.id}{again}",
        )

    def _epoch(self, number: int) -> None:
        batch = self._submitted(number)
        body = self._client.batches.get(batch)
        if body.finished_at is None:
            self._overlap(number + 1)
            body = self._wait(self._client, batch, partial(self._observer.event, number))
        self._batches[number] = body
        self._refresh()
        self._observer.epoch_finished(self._search, number)

    def _submitted(self, number: int) -> str:
        """The batch of an epoch, which is asked for and submitted unless it was before."""
        if number in self._started:
            return self._started[number]
        self._observer.epoch_started(self._search, number)
        stored = self._stored(number)
        if stored is None:
            self._stop_if_paused()
            # Where epochs overlap, the one before still runs, and the one before that has ended.
            self._pause_after(number - 1 if number - 1 in self._batches else number - 2)
            stored = self._store(number)
        batch = self._started[number] = stored.batch or self._submit(number)
        self._observer.submitted(number, batch)
        return batch

    def _overlap(self, number: int) -> None:
        """Submit the next epoch while the one before runs, where the strategy allows.

        It waits where the epoch before the one that runs is a reason to pause, and in a pause.
        """
        allowed = self._strategy.overlaps and self._config.overlap
        if not allowed or number >= self._search.epochs:
            return
        self._refresh()
        if self._search.state != SearchState.RUNNING:
            return
        with suppress(SearchPaused):  # raised again when the epoch that runs has ended
            self._submitted(number)

    def _pause_after(self, number: int) -> None:
        """Stop before more is asked for, if one code ended most of an epoch. Once per epoch.

        Raises:
            SearchPaused: it did.
        """
        epoch = self._stored(number) if self._may_pause else None
        known = {p.epoch for p in self._search.pauses if p.reason == FAILURES}
        if epoch is None or number in known:
            return
        experiments = self._trajectories.experiments(epoch)
        found = common_failure(experiments, self._search.executor)
        if found is None:
            return
        request = pause_request(self._search.id, number, found)
        self._search = self._client.searches.pause_after(self._search.id, number, request)
        raise SearchPaused(request.message)

    def _stored(self, number: int) -> EpochBody | None:
        epochs = self._client.searches.epochs(self._search.id)
        return next((epoch for epoch in epochs if epoch.number == number), None)

    def _store(self, number: int) -> EpochBody:
        asks = self._strategy.plan(self._situation(number))
        assert not isinstance(asks, Remeasure), "only asynchronous strategies measure again"
        told = self._baseline if any(ask.known for ask in asks) else None
        self._observer.asking(number, asks)
        ideas = self._runner.run(self._ask(number, asks, told))
        try:
            stored = self._client.searches.put_epoch(self._search.id, number, fit_epoch(ideas))
        except Conflict:
            # Another loop was faster. Its ideas count; ours are forgotten.
            there = self._stored(number)
            if there is None:
                raise
            stored = there
        self._observer.stored(number, stored.ideas)
        return stored

    async def _ask(
        self, number: int, asks: Sequence[Ask], told: Baseline | None
    ) -> list[IdeaRequest]:
        """The ideas of an epoch, one ask after the other: they begin with the same prompt, which
        a provider has in its cache once the first is answered."""
        answered = self._ledger.answered(number)
        ideas: list[IdeaRequest] = []
        for position, ask in enumerate(asks):
            ideas += await propose(
                self._ideator,
                self._setting,
                ask,
                partial(self._ledger.record, number, ask, position, answered),
                baseline=told,
                hint=self._ledger.hint(number),
            )
        return ideas

    def _submit(self, number: int) -> str:
        options = self._config.options
        return self._client.searches.submit_epoch(self._search.id, number, options).id

    def _situation(self, number: int) -> Situation:
        # Results are shown beside the baseline, and verdicts are final once it is whole.
        waits = number > 0 and self._strategy.needs_baseline
        baseline = self._baseline_reward() if waits else None
        return Situation(
            epoch=number,
            batch_size=self._search.batch_size,
            seed=self._search.seed,
            trajectories=() if self._strategy.overlaps else self._tried(number),
            baseline_reward=baseline,
        )

    def _tried(self, number: int) -> tuple[Trajectory, ...]:
        """What was tried before an epoch, each batch of it finished."""
        epochs = sorted(
            (e for e in self._client.searches.epochs(self._search.id) if e.number < number),
            key=lambda e: e.number,
        )
        own = tuple(t for e in epochs for t in self._trajectories.of(e))
        return (*self._warm_start(), *own)

    def _warm_start(self) -> tuple[Trajectory, ...]:
        """What the searches and batches tried that this one was told of."""
        sources = self._config.warm_start
        if not sources:
            return ()
        return warm_start.read(self._client, self._trajectories, sources, self._here())

    def _here(self) -> Here:
        """Where this search measures; before its first batch, where it would now."""
        on: BatchBody | BaselineBody
        search = self._search
        if 0 in self._batches:
            on = self._batches[0]
        else:
            on = self._client.environments.baseline(
                search.environment,
                search.profile,
                hardware_class=search.hardware_class,
                conditions=search.conditions,
            )
        return Here(search.environment, search.profile, on.hardware_class, on.conditions)

    def _baseline_reward(self) -> float:
        """The baseline's reward, once all its measurements have finished.

        A half-measured baseline would make the choice of what to exploit depend on timing, and so
        would seeds that somebody else asks for: the search's own count. One that failed is left
        out. With a base, it is the base's reward: that is what ideas are to beat.
        """
        if self._search.base is not None:
            return self._base_reward(self._search.base)
        name, profile = self._search.environment, self._search.profile
        batch = self._batches[0]
        hardware, on = batch.hardware_class, batch.conditions
        environments = self._client.environments
        wanted = set(range(self._config.options.baseline_seeds or self._default_seeds()))
        body = environments.baseline(name, profile, hardware_class=hardware, conditions=on)
        if not wanted <= {*body.seeds, *(each.seed for each in body.failures)}:
            seeds = sorted(wanted)
            body = environments.calibrate(
                name, profile, seeds, hardware_class=hardware, conditions=on
            )
        while wanted.intersection(body.pending_seeds):
            self._observer.waiting_for_baseline(body)
            self._client.sleep(BASELINE_POLL_SECONDS)
            body = environments.baseline(name, profile, hardware_class=hardware, conditions=on)
        measured = zip(body.seeds, body.values, strict=True)
        values = [value for seed, value in measured if seed in wanted]
        if not values:
            raise SearchError(
                f"no baseline measurement of {name}, {profile}, {hardware} succeeded, so nothing "
                "can be compared with it; see: assay env calibrate --help",
                code="baseline_failed",
            )
        sample = Sample.of(values)
        assert sample is not None
        self._baseline = Baseline(shown(sample.mean), shown_or_none(sample.spread), len(values))
        return reward(self._setting.environment.reward, mean(values))

    def _base_reward(self, base: BaseBody) -> float:
        """The reward of the search's base, once all its measurements have finished."""
        while True:
            batch = self._client.batches.get(self._batches[0].id)
            same = (each.measured for each in batch.bases if each.codebase == base.codebase)
            found = next(same, None)
            if found is None or not found.pending:
                break
            self._client.sleep(BASELINE_POLL_SECONDS)
        if found is None or found.mean is None:
            raise SearchError(
                f"no measurement of the base {base.name or base.codebase} succeeded, so nothing "
                "can be compared with it; start a search with another base",
                code="baseline_failed",
            )
        return reward(self._setting.environment.reward, found.mean)

    def _default_seeds(self) -> int:
        profiles = self._setting.environment.profiles
        return next(p.baseline_seeds for p in profiles if p.name == self._search.profile)


def _without_misfits(environment: EnvironmentBody, files: Mapping[str, str]) -> EnvironmentBody:
    """An environment with the knobs and recipes alone that fit a base.

    They were declared for the environment's own code, and a base may have changed their lines.
    """

    def holds(name: str, text: str) -> bool:
        return files.get(name, "").count(text) == 1

    knobs = [
        knob
        for knob in environment.knobs
        if files.get(knob.file, "").splitlines().count(knob.line) == 1
    ]
    recipes = [
        recipe
        for recipe in environment.recipes
        if recipe.kind == "misfit" or all(holds(e.file, e.search) for e in recipe.edits)
    ]
    return environment.model_copy(update={"knobs": knobs, "recipes": recipes})

"""The loop that drives a search (paper §4.1, Algorithm 1) through the API.

All it knows stands in the service's record: the search with its config, the epochs with their
ideas, the batches with their results. An epoch's ideas are stored before they are submitted, and
submitting is exactly once, so the loop may be killed anywhere and started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial

from assay.client import Client, Conflict
from assay.contracts.batch import BatchBody, EventBody, IdeaRequest
from assay.contracts.environment import BaselineBody
from assay.contracts.search import EpochBody, SearchBody
from assay.domain.metrics import mean, reward
from assay.domain.states import SearchState
from assay.llm.ideation import Ideator
from assay.search.ask import SearchError, Setting, fit_epoch, propose
from assay.search.config import SearchConfig
from assay.search.ledger import Ledger
from assay.search.pausing import SearchPaused, common_failure, pause_request
from assay.search.plan import Ask, Situation
from assay.search.strategy import open_strategy
from assay.search.trajectories import TrajectoryReader

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
) -> SearchBody:
    """Drive a search to its last epoch, from wherever its record stands, and return it.

    A search that somebody cancelled is returned as it is; one that is paused goes on. `pause`:
    whether it may pause; None: as its record says. The ideator is closed at the end.

    Raises:
        SearchPaused: one code ended most of an epoch; the pause is stored.
        SearchError: the ideator or the baseline failed, or the cap on cost is reached.
        ClientError: the service failed for longer than the client retries.
    """
    with asyncio.Runner() as runner:
        try:
            loop = _Loop(client, search, ideator, observer or Observer(), wait, runner)
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
    ) -> None:
        self._client = client
        self._search = client.searches.get(search)
        self._config = SearchConfig.read(self._search.config)
        self._strategy = open_strategy(self._search.strategy, self._config.strategy)
        environment = client.environments.get(self._search.environment)
        files = client.environments.codebase(self._search.environment).files
        self._setting = Setting(environment, self._search.profile, files)
        self._ideator = ideator
        self._observer = observer
        self._wait = wait
        self._runner = runner
        self._trajectories = TrajectoryReader(client)
        self._batches: dict[int, BatchBody] = {}
        self._ledger = Ledger(ideator.name)
        self._may_pause = self._config.pause

    def go_on(self, *, pause: bool | None) -> SearchBody:
        """Every epoch that is not finished, in order."""
        self._may_pause = self._config.pause if pause is None else pause
        self._resume()
        for number in range(self._search.epochs):
            if self._search.state != SearchState.RUNNING:
                return self._search
            self._epoch(number)
        if self._search.state == SearchState.RUNNING:
            self._search = self._client.searches.finish(self._search.id)
        return self._search

    def _resume(self) -> None:
        """Store that a search that is paused goes on."""
        is_paused = any(known.resumed_at is None for known in self._search.pauses)
        if is_paused and self._search.state == SearchState.RUNNING:
            self._search = self._client.searches.resume(self._search.id)

    def _epoch(self, number: int) -> None:
        self._observer.epoch_started(self._search, number)
        stored = self._stored(number)
        if stored is None:
            self._pause_after(number - 1)
            stored = self._store(number)
        batch = stored.batch or self._submit(number)
        self._observer.submitted(number, batch)
        body = self._client.batches.get(batch)
        if body.finished_at is None:
            body = self._wait(self._client, batch, partial(self._observer.event, number))
        self._batches[number] = body
        self._search = self._client.searches.get(self._search.id)
        self._observer.epoch_finished(self._search, number)

    def _pause_after(self, number: int) -> None:
        """Stop before more is asked for, if one code ended most of an epoch. Once per epoch.

        Raises:
            SearchPaused: it did.
        """
        epoch = self._stored(number) if self._may_pause else None
        if epoch is None or number in {known.epoch for known in self._search.pauses}:
            return
        experiments = self._trajectories.experiments(epoch)
        found = common_failure(experiments, self._search.executor)
        if found is None:
            return
        request = pause_request(self._search.id, number, found)
        self._search = self._client.searches.pause(self._search.id, number, request)
        raise SearchPaused(request.message)

    def _stored(self, number: int) -> EpochBody | None:
        epochs = self._client.searches.epochs(self._search.id)
        return next((epoch for epoch in epochs if epoch.number == number), None)

    def _store(self, number: int) -> EpochBody:
        asks = self._strategy.plan(self._situation(number))
        self._observer.asking(number, asks)
        self._ledger.limit(self._money_left())
        ideas: list[IdeaRequest] = []
        for ask in asks:
            asked = propose(self._ideator, self._setting, ask, self._ledger.on_try)
            ideas += self._runner.run(asked)
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

    def _submit(self, number: int) -> str:
        options = self._config.options
        left = self._money_left()
        if left is not None:
            options = options.model_copy(update={"max_cost_usd": left})
        return self._client.searches.submit_epoch(self._search.id, number, options).id

    def _situation(self, number: int) -> Situation:
        if not number:
            return Situation(0, self._search.batch_size, self._search.seed)
        epochs = sorted(
            (e for e in self._client.searches.epochs(self._search.id) if e.number < number),
            key=lambda e: e.number,
        )
        return Situation(
            epoch=number,
            batch_size=self._search.batch_size,
            seed=self._search.seed,
            trajectories=tuple(t for e in epochs for t in self._trajectories.of(e)),
            baseline_reward=self._baseline_reward() if self._strategy.needs_baseline else None,
        )

    def _baseline_reward(self) -> float:
        """The baseline's reward, once all its measurements have finished.

        A half-measured baseline would make the choice of what to exploit depend on timing, and so
        would seeds that somebody else asks for: the search's own count. One that failed is left
        out.
        """
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
        return reward(self._setting.environment.reward, mean(values))

    def _default_seeds(self) -> int:
        profiles = self._setting.environment.profiles
        return next(p.baseline_seeds for p in profiles if p.name == self._search.profile)

    def _money_left(self) -> Decimal | None:
        """What is left of the cap; None without one. Unknown prices count as nothing."""
        cap = self._config.max_cost_usd
        if cap is None:
            return None
        used = (Decimal(batch.usage.cost_usd or 0) for batch in self._batches.values())
        spent = sum(used, self._ledger.spent)
        return max(Decimal(0), cap - spent)

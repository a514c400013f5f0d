"""Drive a search through the API: `drive`, and the loop of strategies that work in epochs.

The loop of asynchronous strategies is in `slots.py`; what both do to the record is in `steps.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from assay.client import Client
from assay.contracts.batch import BatchBody, EventBody
from assay.contracts.search import EpochBody, SearchBody
from assay.domain.states import Driver
from assay.llm.ideation import Baseline, Ideator, Trajectory
from assay.llm.recorded_ideas import RecordedIdeas
from assay.search.ask import SearchError
from assay.search.changes import Changes, Clock
from assay.search.observer import Observer
from assay.search.pausing import FAILURES, SearchPaused, common_failure, pause_request
from assay.search.plan import Remeasure, Situation
from assay.search.slots import SlotLoop
from assay.search.steps import Steps, Wait
from assay.search.trajectories import without_results

__all__ = ["Observer", "SearchError", "drive"]


def wait_for(client: Client, batch: str, on_event: Callable[[EventBody], None]) -> BatchBody:
    """Wait for a batch without showing anything."""
    return client.batches.wait(batch, on_event=on_event)


class _Loop(Protocol):
    def advance(self) -> None:
        """Finish every epoch that the search has now, if nobody cancels it."""


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
    clock: Clock | None = None,
    changes: Changes | None = None,
) -> SearchBody:
    """Drive a search to its last epoch, from wherever its record stands, and return it.

    A search that somebody cancelled is returned as it is; one that is paused goes on. `pause`:
    whether it may pause; None: as its record says. `driver`: who calls this. A client takes a
    search over that the service paused. `recorded`: a folder that keeps the answers of the
    ideator, or gives them. The ideator is closed at the end. An asynchronous strategy waits by
    `clock`, and for news of its batches by `changes`; the default looks once a second.

    Raises:
        SearchPaused: one code ended most of an epoch, or a person paused it; that is stored.
        SearchError: the ideator or the baseline failed, or the cap on cost is reached.
        Conflict: the service drives the search (`driven_by_service`).
        ClientError: the service failed for longer than the client retries.
    """
    with asyncio.Runner() as runner:
        try:
            steps = Steps(client, search, ideator, observer or Observer(), wait, recorded)
            if driver is Driver.CLIENT:
                _take_over(steps)
            may_pause = steps.config.pause if pause is None else pause
            loop: _Loop
            if steps.strategy.slots is None:
                loop = _EpochLoop(steps, runner, may_pause=may_pause)
            else:
                time = clock or Clock()
                slots = SlotLoop(steps, time, changes or time.poll, may_pause=may_pause)
                loop = _InRunner(slots, runner)
            _go_on(steps, loop)
            return steps.search
        finally:
            runner.run(ideator.aclose())


def _go_on(steps: Steps, loop: _Loop) -> None:
    """Every epoch that is not finished, also those that are added meanwhile."""
    while steps.is_running:
        loop.advance()
        if steps.is_running:
            steps.confirm()
            steps.finish()


def _take_over(steps: Steps) -> None:
    """Store that a client drives the search, and that it continues if it was paused."""
    is_paused = steps.search.open_pause is not None
    is_ours = steps.search.driver == Driver.CLIENT
    if (is_paused or not is_ours) and steps.is_running:
        steps.search = steps.client.searches.resume(steps.search.id)


class _InRunner:
    """A loop of coroutines as one that blocks."""

    def __init__(self, loop: SlotLoop, runner: asyncio.Runner) -> None:
        self._loop = loop
        self._runner = runner

    def advance(self) -> None:
        """See `_Loop.advance`."""
        self._runner.run(self._loop.advance())


class _EpochLoop:
    """One epoch after the other: all its experiments end before the next is decided."""

    def __init__(self, steps: Steps, runner: asyncio.Runner, *, may_pause: bool) -> None:
        self._steps = steps
        self._runner = runner
        self._may_pause = may_pause
        self._started: dict[int, str] = {}
        self._number = 0
        self._told: Baseline | None = None

    def advance(self) -> None:
        """See `_Loop.advance`."""
        while self._steps.is_running and self._number < self._steps.search.epochs:
            self._epoch(self._number)
            self._number += 1

    def _epoch(self, number: int) -> None:
        steps = self._steps
        batch = self._submitted(number)
        body = steps.client.batches.get(batch)
        if body.finished_at is None:
            self._overlap(number + 1)
            body = steps.wait(steps.client, batch, partial(steps.observer.event, number))
        steps.batches[number] = body
        steps.refresh()
        steps.observer.epoch_finished(steps.search, number)

    def _submitted(self, number: int) -> str:
        """The batch of an epoch, which is asked for and submitted unless it was before."""
        if number in self._started:
            return self._started[number]
        steps = self._steps
        steps.observer.epoch_started(steps.search, number)
        stored = steps.stored(number)
        if stored is None:
            steps.stop_if_paused()
            # Where epochs overlap, the one before still runs, and the one before that has ended.
            self._pause_after(number - 1 if number - 1 in steps.batches else number - 2)
            stored = self._store(number)
        batch = self._started[number] = stored.batch or steps.submit(number).id
        steps.observer.submitted(number, batch)
        return batch

    def _overlap(self, number: int) -> None:
        """Submit the next epoch while the one before runs, where the strategy allows.

        It waits where the epoch before the one that runs is a reason to pause, and in a pause.
        """
        steps = self._steps
        allowed = steps.strategy.overlaps and steps.config.overlap
        if not allowed or number >= steps.search.epochs:
            return
        steps.refresh()
        if not steps.is_running:
            return
        with suppress(SearchPaused):  # raised again when the epoch that runs has ended
            self._submitted(number)

    def _pause_after(self, number: int) -> None:
        """Stop before more is asked for, if one code ended most of an epoch. Once per epoch.

        Raises:
            SearchPaused: it did.
        """
        steps = self._steps
        epoch = steps.stored(number) if self._may_pause else None
        known = {p.epoch for p in steps.search.pauses if p.reason == FAILURES}
        if epoch is None or number in known:
            return
        experiments = steps.trajectories.experiments(epoch)
        found = common_failure(experiments, steps.search.executor)
        if found is None:
            return
        request = pause_request(steps.search.id, f"ideas of epoch {number}", found)
        steps.search = steps.client.searches.pause_after(steps.search.id, number, request)
        raise SearchPaused(request.message)

    def _store(self, number: int) -> EpochBody:
        steps = self._steps
        situation = self._situation(number)
        asks = steps.strategy.plan(situation)
        assert not isinstance(asks, Remeasure), "only asynchronous strategies measure again"
        steps.observer.asking(number, asks)
        told = self._told if any(ask.known for ask in asks) else None
        ideas = self._runner.run(steps.ask(number, asks, told))
        stored = steps.store(number, ideas)
        steps.observer.stored(number, stored.ideas)
        return stored

    def _situation(self, number: int) -> Situation:
        # Results are shown beside the baseline, and verdicts are final once it is whole.
        steps = self._steps
        waits = number > 0 and steps.strategy.needs_baseline
        measured = steps.measured_baseline() if waits else None
        self._told = None if measured is None else measured.told
        return Situation(
            epoch=number,
            batch_size=steps.search.batch_size,
            seed=steps.search.seed,
            trajectories=self._tried(number),
            baseline_reward=None if measured is None else measured.reward,
        )

    def _tried(self, number: int) -> tuple[Trajectory, ...]:
        """What was tried before an epoch, each batch of it finished.

        Where epochs overlap, the ideas alone, so that it does not depend on which have ended.
        """
        steps = self._steps
        epochs = [epoch for epoch in steps.epochs() if epoch.number < number]
        if steps.strategy.overlaps:
            return tuple(idea for epoch in epochs for idea in without_results(epoch))
        own = tuple(t for epoch in epochs for t in steps.trajectories.of(epoch))
        return (*steps.warm_start(), *own)

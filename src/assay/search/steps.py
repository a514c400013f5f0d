"""What every loop does to the record of a search: read it, ask, store, submit, confirm.

`loop.py` drives strategies that work in epochs with it, `slots.py` asynchronous ones. All that
they know stands in the service's record: the search with its config, the epochs with their ideas,
the batches with their results. An epoch's ideas are stored before they are submitted, and
submitting is exactly once, so a loop may be killed anywhere and started again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from assay.client import Client, Conflict
from assay.contracts.batch import BatchBody, BatchOptions, EventBody, IdeaRequest
from assay.contracts.environment import BaselineBody, EnvironmentBody
from assay.contracts.search import EpochBody
from assay.domain.isolation import is_offline
from assay.domain.states import BatchState, MeasurementKind, SearchState
from assay.llm.ideation import Baseline, Ideator, Trajectory
from assay.llm.recorded_ideas import RecordedIdeas
from assay.llm.together import all_ended
from assay.search import warm_start
from assay.search.ask import Setting, fit_epoch, propose
from assay.search.baseline import POLL_SECONDS, Measured, wait_for_baseline
from assay.search.calls import Ledger
from assay.search.config import SearchConfig
from assay.search.confirming import to_confirm
from assay.search.observer import Observer
from assay.search.pausing import SearchPaused
from assay.search.plan import Ask
from assay.search.strategy import open_strategy
from assay.search.threads import in_thread
from assay.search.trajectories import TrajectoryReader
from assay.search.warm_start import Here

#: Waits for a batch and tells of its events.
Wait: TypeAlias = Callable[[Client, str, Callable[[EventBody], None]], BatchBody]


class Steps:
    """A search while it is driven.

    Attributes:
        search: Its record, as it was read last.
        batches: Bodies of the batches of its epochs by number, as far as they are known. What
            they say of hardware, conditions and time of submission does not change.
    """

    def __init__(
        self,
        client: Client,
        search: str,
        ideator: Ideator,
        observer: Observer,
        wait: Wait,
        recorded: RecordedIdeas | None,
    ) -> None:
        self.client = client
        self.search = client.searches.get(search)
        self.config = SearchConfig.read(self.search.config)
        self.strategy = open_strategy(self.search.strategy, self.config.strategy)
        environment = client.environments.get(self.search.environment)
        base = None if self.search.base is None else self.search.base.codebase
        files = client.environments.codebase(self.search.environment, base=base).files
        if base is not None:
            environment = _without_misfits(environment, files)
        self.setting = Setting(environment, self.search.profile, files, self.search.seed)
        self.observer = observer
        self.wait = wait
        self.trajectories = TrajectoryReader(
            client, environment.direction, with_curves=not is_offline(ideator.name)
        )
        self.batches: dict[int, BatchBody] = {}
        self._ideator = ideator
        self._ledger = Ledger(client, self.search.id, ideator, recorded)

    @property
    def is_running(self) -> bool:
        """Whether the search has neither finished nor been cancelled, as far as is known."""
        return self.search.state == SearchState.RUNNING

    def refresh(self) -> None:
        """Read the record again: somebody may have paused, extended or cancelled the search."""
        self.search = self.client.searches.get(self.search.id)
        self.config = SearchConfig.read(self.search.config)

    def stop_if_paused(self) -> None:
        """Raises SearchPaused: the search is paused, and so asks for no more."""
        self.refresh()
        pause = self.search.open_pause
        if pause is not None:
            raise SearchPaused(pause.message)

    def finish(self) -> None:
        """Declare that no further epoch will come, unless somebody extended the search."""
        finish = self.client.searches.finish
        self.search = finish(self.search.id, epochs=self.search.epochs)
        self.config = SearchConfig.read(self.search.config)

    def epochs(self) -> list[EpochBody]:
        """All epochs in the record, from 0."""
        return sorted(self.client.searches.epochs(self.search.id), key=lambda e: e.number)

    def stored(self, number: int) -> EpochBody | None:
        """An epoch in the record; None before it is there."""
        epochs = self.client.searches.epochs(self.search.id)
        return next((epoch for epoch in epochs if epoch.number == number), None)

    async def ask(
        self,
        number: int,
        asks: Sequence[Ask],
        told: Baseline | None,
        *,
        at_once: bool = False,
    ) -> list[IdeaRequest]:
        """The ideas of an epoch.

        One ask comes after the other: they begin with the same prompt, which a provider has in
        its cache once the first is answered. With `at_once` they are asked together, which is
        faster; if one fails the others still end, since they are paid for. Answers that arrived
        before are taken from the record. Raises as `propose`.
        """
        answered = await in_thread(partial(self._ledger.answered, number))
        asked = [
            propose(
                self._ideator,
                self.setting,
                ask,
                partial(self._ledger.record, number, ask, position, answered),
                baseline=told,
                hint=self._ledger.hint(number),
            )
            for position, ask in enumerate(asks)
        ]
        if not at_once:
            return [idea for each in asked for idea in await each]
        return [idea for ideas in await all_ended(asked) for idea in ideas]

    def store(self, number: int, ideas: Sequence[IdeaRequest]) -> EpochBody:
        """Store the ideas of an epoch. If another loop was faster, its ideas count."""
        try:
            return self.client.searches.put_epoch(self.search.id, number, fit_epoch(ideas))
        except Conflict:
            there = self.stored(number)
            if there is None or not there.ideas:
                raise
            return there

    def submit(self, number: int, options: BatchOptions | None = None) -> BatchBody:
        """Submit the stored ideas of an epoch, once. `options`: None for those of the search."""
        chosen = self.config.options if options is None else options
        return self.client.searches.submit_epoch(self.search.id, number, chosen)

    def measured_baseline(self) -> Measured:
        """The baseline once it is whole. Epoch 0 must be submitted. Raises SearchError."""
        where = (self.client, self.search, self.config, self.setting)
        return wait_for_baseline(*where, self.batches[0], self.observer)

    def warm_start(self) -> tuple[Trajectory, ...]:
        """What the searches and batches tried that this one was told of."""
        sources = self.config.warm_start
        if not sources:
            return ()
        return warm_start.read(self.client, self.trajectories, sources, self._here())

    def _here(self) -> Here:
        """Where this search measures; before its first batch, where it would now."""
        on: BatchBody | BaselineBody
        search = self.search
        if 0 in self.batches:
            on = self.batches[0]
        else:
            on = self.client.environments.baseline(
                search.environment,
                search.profile,
                hardware_class=search.hardware_class,
                conditions=search.conditions,
            )
        return Here(search.environment, search.profile, on.hardware_class, on.conditions)

    def confirm(self) -> None:
        """Confirm the best results, if the search is to. No ideator sees what comes of it."""
        if not self.config.confirm:
            return
        found = self._confirmation()
        if found is None:
            self.stop_if_paused()
            found = self._submit_confirmation()
        if found is None:
            return
        self.observer.confirming(found.id)
        if found.finished_at is None:
            found = self.wait(self.client, found.id, lambda _: None)
        self._wait_for_verdicts(found)

    def _wait_for_verdicts(self, batch: BatchBody) -> None:
        """Wait until results can be compared: a batch is finished before its baseline is."""
        while batch.seeds_to_come:
            self.client.sleep(POLL_SECONDS)
            batch = self.client.batches.get(batch.id)

    def _confirmations(self) -> list[BatchBody]:
        """The batches that confirm results of this search, newest first."""
        listed = self.client.batches.list(search=self.search.id)
        of_kind = (b for b in listed if b.kind == MeasurementKind.CONFIRM)
        return [b for b in of_kind if b.state != BatchState.CANCELLED]

    def _confirmation(self) -> BatchBody | None:
        """The batch that confirms the results of all epochs; None before it is submitted."""
        last = max(self.batches.values(), key=lambda batch: batch.created_at)
        made = (b for b in self._confirmations() if b.created_at >= last.created_at)
        return next(made, None)

    def _submit_confirmation(self) -> BatchBody | None:
        """None if no result improves on the baseline, or all that do were confirmed before."""
        epochs = self.epochs()
        for epoch in epochs:
            if epoch.batch is not None:
                self._wait_for_verdicts(self.client.batches.get(epoch.batch))
        results = (result for epoch in epochs for result in self.trajectories.outcomes(epoch))
        earlier = self._confirmations()
        known = {
            experiment.idea.confirms
            for batch in earlier
            for experiment in self.client.experiments.list(batch=batch.id)
        }
        chosen = [e for e in to_confirm(results, self.config.confirm) if e not in known]
        if not chosen:
            return None
        again = f"-{self.search.epochs}" if earlier else ""
        return self.client.experiments.confirm(
            chosen[0],
            beside=chosen[1:],
            seeds=self.config.confirm_seeds,
            search=self.search.id,
            idempotency_key=f"confirm-{self.search.id}{again}",
        )


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

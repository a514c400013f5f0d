"""The loop of asynchronous strategies: it decides whenever a slot is free, or soon will be.

`loop.drive` runs it. A decision is an epoch: it is stored before the ideator is asked, then its
ideas, then they are submitted. So a loop that starts again carries the stored decisions out, and
takes none of them twice. Several may be asked for at once; only one is taken at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from assay.client import Conflict
from assay.contracts.batch import BatchBody, BatchOptions, ExperimentBody, IdeaRequest
from assay.contracts.search import EpochBody, SeenBaseline
from assay.domain.errors import AssayError
from assay.domain.states import BatchState
from assay.search.ask import SearchError
from assay.search.changes import Changes, Clock
from assay.search.decisions import DecisionLog, chunk, record
from assay.search.pace import Pace
from assay.search.pausing import FAILURES, SearchPaused, common_failure, pause_request
from assay.search.plan import Remeasure
from assay.search.steps import Steps
from assay.search.threads import in_thread
from assay.search.trajectories import is_provisional

#: Decisions that are asked for at the same time.
MOST_ASKED = 8
#: Without news, the batches are looked at after so many seconds.
LONGEST_WAIT = 30.0
#: Codes of a refusal where another loop was faster.
_TAKEN = ("epoch_exists", "epoch_out_of_order")


@dataclass
class _Running:
    """A batch with experiments that have not ended."""

    batch: str
    total: int
    ended: int = 0
    #: Whether more experiments have ended than were read.
    is_news: bool = True


@dataclass
class _State:
    """What the loop knows beside the log."""

    asking: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    running: dict[int, _Running] = field(default_factory=dict)
    #: Experiments of finished decisions.
    ended: dict[int, Sequence[ExperimentBody]] = field(default_factory=dict)
    #: Finished batches that are not read yet, or whose verdicts may change.
    unread: dict[int, str] = field(default_factory=dict)
    #: Finished decisions of which the observer does not know.
    untold: list[int] = field(default_factory=list)


class SlotLoop:
    """Keeps as many experiments under way as the strategy has slots."""

    def __init__(self, steps: Steps, clock: Clock, changes: Changes, *, may_pause: bool) -> None:
        assert steps.strategy.slots is not None
        self._steps = steps
        self._clock = clock
        self._changes = changes
        self._may_pause = may_pause
        self._slots = steps.strategy.slots
        self._chunk = chunk(steps.search, self._slots)
        self._log = DecisionLog(self._chunk, steps.search.seed)
        self._pace = Pace(self._slots)
        self._looked = clock.now()
        self._state = _State()
        self._gate = asyncio.Semaphore(MOST_ASKED)
        self._baseline: SeenBaseline | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def advance(self) -> None:
        """Take and carry out every decision that the search has now, until all have ended.

        It returns early where somebody cancels the search.

        Raises:
            SearchPaused: most of the last experiments failed alike, or a person paused it.
            SearchError: the ideator or the baseline failed, or a cap is reached.
        """
        try:
            await self._read_record()
            while self._steps.is_running and not self._is_done():
                if not await self._step() and self._steps.is_running:
                    await self._wait()
        except Exception as error:
            # What is being asked for is paid for: its ideas are submitted before the loop ends.
            await self._settle()
            await in_thread(self._steps.refresh)
            # What the service refuses of a search that somebody has ended is no error.
            if self._steps.is_running or not isinstance(error, AssayError):
                raise
        finally:
            await self._abandon()

    async def _step(self) -> bool:
        """Do what can be done now. Returns whether anything was."""
        has_news = await self._look()
        has_news |= self._collect()
        while self._has_room():
            if not await self._decide():
                break
            has_news = True
        await self._tell()
        return has_news

    def _is_done(self) -> bool:
        state = self._state
        all_taken = len(self._log) >= self._steps.search.epochs
        return all_taken and not state.asking and not state.running

    # -- the record -------------------------------------------------------------------------

    async def _read_record(self) -> None:
        """Continue what the record holds and this loop does not know yet."""
        if not len(self._log):
            self._log.learn(await in_thread(self._steps.warm_start))
        epochs = (await in_thread(self._steps.epochs))[len(self._log) :]
        if not epochs:
            return
        bodies = await in_thread(self._all_batches)
        for epoch in epochs:
            if epoch.decision is None:
                raise SearchError(
                    f"epoch {epoch.number} was stored without a decision, and "
                    f"{self._steps.search.strategy} decides its epochs; start a new search"
                )
            self._log.append(epoch.decision)
            if epoch.batch is not None:
                self._started(epoch.number, bodies[epoch.batch])
        await self._read_results()
        for epoch in epochs:
            self._steps.observer.epoch_started(self._steps.search, epoch.number)
            if epoch.batch is None:
                self._carry_out(epoch.number, epoch)

    def _all_batches(self) -> dict[str, BatchBody]:
        listed = self._steps.client.batches.list(search=self._steps.search.id)
        return {batch.id: batch for batch in listed}

    def _started(self, number: int, body: BatchBody) -> None:
        """Take note of the batch of a decision."""
        self._steps.batches[number] = body
        if body.finished_at is None:
            self._state.running[number] = _Running(body.id, body.counts.total, _ended(body))
        else:
            self._state.unread[number] = body.id

    async def _look(self) -> bool:
        """Read which experiments have ended. Returns whether any has."""
        running = self._state.running
        now = self._clock.now()
        passed, self._looked = now - self._looked, now
        if not running:
            return False
        under_way, ended_now = self._under_way(), 0
        bodies = await in_thread(self._unfinished)
        finished = []
        for number, run in list(running.items()):
            body = bodies.get(run.batch)
            if body is None:
                body = await in_thread(partial(self._steps.client.batches.get, run.batch))
            ended = _ended(body)
            if ended > run.ended:
                ended_now += ended - run.ended
                run.ended, run.is_news = ended, True
            if body.finished_at is not None:
                self._steps.batches[number] = body
                self._state.unread[number] = run.batch
                del running[number]
                finished.append(number)
        self._pace.passed(passed, under_way, ended_now)
        self._state.untold += sorted(finished)
        return ended_now > 0 or bool(finished)

    async def _tell(self) -> None:
        """Tell the observer of finished decisions, after more were taken: it may take its time."""
        untold, self._state.untold = self._state.untold, []
        if untold:
            await in_thread(self._steps.refresh)
        for number in untold:
            tell = self._steps.observer.epoch_finished
            await in_thread(partial(tell, self._steps.search, number))

    def _under_way(self) -> int:
        """How many experiments have been submitted and have not ended."""
        return sum(run.total - run.ended for run in self._state.running.values())

    def _unfinished(self) -> dict[str, BatchBody]:
        search, state = self._steps.search.id, BatchState.RUNNING.value
        listed = self._steps.client.batches.list(search=search, state=state)
        return {batch.id: batch for batch in listed}

    async def _read_results(self) -> None:
        """Learn from the experiments that ended since they were read last."""
        state = self._state
        news = {number: run.batch for number, run in state.running.items() if run.is_news}
        reader = self._steps.trajectories
        for number, batch in sorted({**news, **state.unread}.items()):
            run = state.running.get(number)
            if run is not None:
                run.is_news = False
            experiments = await in_thread(partial(reader.listed, batch))
            found = await in_thread(partial(reader.ended, number, experiments))
            # A verdict may change until the baseline is whole: such a result is read again.
            final = [past for past in found if not is_provisional(past)]
            self._log.learn(final)
            if number in state.unread:
                state.ended[number] = experiments
                if len(final) == len(found):
                    del state.unread[number]
            elif run is not None and len(final) < len(found):
                run.is_news = True

    # -- decisions --------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """Whether a decision is due, as far as is known without asking the service."""
        state = self._state
        if len(self._log) >= self._steps.search.epochs or len(state.asking) >= MOST_ASKED:
            return False
        asked = sum(self._log[number].ideas for number in state.asking)
        return self._under_way() + asked < self._pace.target()

    async def _decide(self) -> bool:
        """Take the next decision. Returns whether it could be taken.

        The first ones fill the slots and know no results; then the baseline comes first, since
        experiments that go before it would leave it without a slot.
        """
        sees_results = self._log.ideas >= self._slots
        if sees_results and not self._has_baseline():
            return False
        steps = self._steps
        await in_thread(steps.stop_if_paused)
        if not steps.is_running or len(self._log) >= steps.search.epochs:
            return False
        await self._read_results()
        if self._may_pause:
            await self._pause_for_failures()
        number = len(self._log)
        pending = sorted({*self._state.asking, *self._state.running})
        baseline = self._baseline if sees_results else None
        draft = self._log.draft(pending, baseline, sees_results=sees_results or number == 0)
        decision = steps.strategy.plan(self._log.situation(number, draft))
        request = record(decision, draft)
        put = steps.client.searches.put_decision
        try:
            stored = await in_thread(partial(put, steps.search.id, number, request))
        except Conflict as refused:
            if refused.code not in _TAKEN:
                raise
            # Another loop was faster: its decisions count.
            await self._read_record()
            if len(self._log) == number:
                raise
            return True
        self._log.append(request)
        steps.observer.epoch_started(steps.search, number)
        self._carry_out(number, stored)
        return True

    def _has_baseline(self) -> bool:
        """Whether results can be compared; if not, the baseline is waited for meanwhile."""
        if self._baseline is not None or not self._steps.strategy.needs_baseline:
            return True
        if self._measuring is None and 0 in self._steps.batches:
            self._measuring = asyncio.create_task(self._measure())
        return False

    async def _measure(self) -> None:
        measured = await in_thread(self._steps.measured_baseline)
        told = measured.told
        self._baseline = SeenBaseline(
            reward=measured.reward,
            mean=None if told is None else told.mean,
            spread=None if told is None else told.spread,
            seeds=0 if told is None else told.seeds,
        )

    async def _pause_for_failures(self) -> None:
        """Stop before more is decided, if one code ended most of the last experiments.

        As many are looked at as there are slots, and none twice.

        Raises:
            SearchPaused: it did.
        """
        steps, ended = self._steps, self._state.ended
        paused = [p.epoch for p in steps.search.pauses if p.reason == FAILURES]
        after = max((epoch for epoch in paused if epoch is not None), default=-1)
        numbers = sorted((number for number in ended if number > after), reverse=True)
        window: list[ExperimentBody] = []
        for number in numbers:
            window += ended[number]
            if len(window) >= self._slots:
                break
        else:
            return
        found = common_failure(window, steps.search.executor)
        if found is None:
            return
        request = pause_request(steps.search.id, "of the last ideas", found)
        pause = partial(steps.client.searches.pause_after, steps.search.id, numbers[0], request)
        steps.search = await in_thread(pause)
        raise SearchPaused(request.message)

    # -- ideas ------------------------------------------------------------------------------

    def _carry_out(self, number: int, epoch: EpochBody) -> None:
        """Begin to ask for the ideas of a decision, unless they are stored, and submit them."""
        self._state.asking[number] = asyncio.create_task(self._ask_and_submit(number, epoch))

    async def _ask_and_submit(self, number: int, epoch: EpochBody) -> None:
        steps = self._steps
        async with self._gate:
            if not epoch.ideas:
                ideas = await self._ideas(number)
                epoch = await in_thread(partial(steps.store, number, ideas))
                steps.observer.stored(number, epoch.ideas)
            body = await in_thread(partial(steps.submit, number, self._options(number)))
        self._started(number, body)
        steps.observer.submitted(number, body.id)

    async def _ideas(self, number: int) -> list[IdeaRequest]:
        decision = self._log.decided(number)
        if isinstance(decision, Remeasure):
            self._steps.observer.remeasuring(number, decision)
            return _again(decision)
        self._steps.observer.asking(number, decision)
        begun = self._clock.now()
        told = self._log.told(number) if any(ask.known for ask in decision) else None
        ideas = await self._steps.ask(number, decision, told, at_once=True)
        self._pace.answered(self._clock.now() - begun)
        return ideas

    def _options(self, number: int) -> BatchOptions:
        """How the ideas of a decision are measured."""
        options, again = self._steps.config.options, self._log[number].remeasure
        if again is None:
            return options
        return options.model_copy(update={"seeds": more_seeds(options.seeds, again.seeds)})

    def _collect(self) -> bool:
        """Forget what has been asked for. Returns whether anything has; raises what it raised."""
        done = [number for number, task in self._state.asking.items() if task.done()]
        tasks = [self._state.asking.pop(number) for number in done]
        measuring = self._measuring
        if measuring is not None and measuring.done():
            self._measuring = None
            tasks.append(measuring)
        errors = [error for task in tasks if (error := _error(task)) is not None]
        if errors:
            raise errors[0]
        return bool(tasks)

    async def _wait(self) -> None:
        """Wait until ideas have come, a batch has changed or the baseline is there."""
        state = self._state
        batches = [run.batch for run in state.running.values()]
        news = asyncio.ensure_future(self._changes(batches, LONGEST_WAIT))
        tasks: set[asyncio.Future[None]] = {news, *state.asking.values()}
        if self._measuring is not None:
            tasks.add(self._measuring)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not news.done():
                news.cancel()
        if news.done():
            news.result()

    async def _settle(self) -> None:
        """Let what is being asked for end."""
        await asyncio.gather(*self._state.asking.values(), return_exceptions=True)
        self._state.asking.clear()

    async def _abandon(self) -> None:
        """End what is under way here, if anything is."""
        measuring = [] if self._measuring is None else [self._measuring]
        for task in (*self._state.asking.values(), *measuring):
            task.cancel()
        await self._settle()


def _error(task: asyncio.Task[None]) -> BaseException | None:
    """What a task that is done ended with."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _ended(body: BatchBody) -> int:
    counts = body.counts
    return counts.succeeded + counts.failed + counts.cancelled


def _again(decision: Remeasure) -> list[IdeaRequest]:
    """The ideas whose codebases are measured on more seeds."""
    return [
        IdeaRequest(
            text=past.idea_text,
            operator="remeasure",
            parents=[past.id],
            codebase=past.codebase,
        )
        for past in decision.trajectories
    ]


def more_seeds(seeds: Sequence[int], count: int) -> list[int]:
    """Return the seeds and the smallest others, so that there are `count` of them."""
    chosen = list(dict.fromkeys(seeds))
    other = 0
    while len(chosen) < count:
        if other not in chosen:
            chosen.append(other)
        other += 1
    return chosen

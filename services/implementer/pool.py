"""Many ideas at once: an event loop in a thread of its own, fed with ids of experiments.

Several processes may do this side by side: whoever begins an idea holds a lease of it, which the
pool renews. An idea that is no longer held, because it was cancelled or taken over, is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.domain.errors import AssayError, Fenced, Unavailable
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import FailureStage
from assay.llm import Executor, recording
from assay.llm.interface import ModelError
from assay.storage import calls, implementations
from assay.storage.implementations import Ahead, Waiting, Work
from assay.telemetry.logs import keep
from services.implementer.asking import NoLongerWantedError
from services.implementer.context import Context
from services.implementer.executors import executor_of
from services.implementer.judges import Judges
from services.implementer.judging import Files, Judge, Patched
from services.implementer.loop import Loop, Shared, conclude, given, take_up
from services.implementer.loop_thread import LoopThread
from services.implementer.places import Places
from services.implementer.turns import FairThreads, Turn, current

log = logging.getLogger(__name__)
#: Faults of our own (a full disk, an unreachable store) after which an idea is given up.
MAX_FAULTS = 5
THREADS = 2
#: More ideas are looked for when no more than this share of what a batch had under way is.
REFILL = 0.9
#: So often is looked whether a batch that was far enough ahead of measuring may go on.
AHEAD_SECONDS = 1.0
#: Leases are renewed this many times before they would run out.
RENEWALS = 6

OpenExecutor = Callable[[Context, str], Executor]


def _nobody(_experiment: str) -> None:
    """Nobody wants to know."""


class ImplementPool:
    """Implements experiments concurrently. A slow idea blocks no other.

    `open_executor` makes the executor of a batch from its name, `shared` is what all loops have in
    common, and `on_concluded` is called with every experiment whose outcome was stored. Answers
    are judged by `judge`, or else in child processes of the pool's own.
    """

    def __init__(
        self,
        context: Context,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        open_executor: OpenExecutor = executor_of,
        shared: Shared | None = None,
        on_concluded: Callable[[str], None] = _nobody,
        judge: Judge | None = None,
    ) -> None:
        self._context = context
        self._open_executor = open_executor
        self._on_concluded = on_concluded
        # Few threads for the database: ideas wait for models, not for these, and more would only
        # crowd out whoever reports results.
        shares = context.settings.shares
        threads = FairThreads(THREADS, "implementer", lambda owner: shares.get(owner, 1.0))
        self._thread = LoopThread("implementer", threads, loop)
        self._loop = self._thread.loop
        #: Numbers ideas in the order in which they are begun.
        self._numbers = itertools.count()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = Places(context.settings.concurrent_ideas, context.settings.ideas_ahead)
        #: How many ideas of each batch were under way after the last look for more.
        self._of_batch_then: Counter[str] = Counter()
        #: Those that have begun, and so are held.
        self._begun: set[str] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._executors: dict[str, Executor] = {}
        self._shared = shared or Shared.of(context)
        self._judges = Judges()
        self._judge = judge or self._judges.judge
        self._finding: asyncio.Task[None] | None = None
        self._find_again = False
        #: Ideas that met a fault: not before the next rescan.
        self._resting: set[str] = set()
        self._stopping = False
        #: Of its own: renewals must not wait for work that is waiting itself.
        self._renewing = ThreadPoolExecutor(1, "renewals")
        #: Whether the last look found more than there were places for.
        self._is_more = False
        #: Batches that were far enough ahead of measuring at the last look.
        self._far_ahead: set[str] = set()

    def start(self) -> None:
        """Start the thread, which also takes up what an earlier process left unfinished."""
        self._thread.start(self._rescan(), self._go_on(), self._keep_leases())

    def stop(self) -> None:
        """Stop; unfinished ideas are taken up by another process, or the next."""
        if not self._thread.is_running:
            return
        self._stopping = True
        self._thread.stop(self._close_executors)
        self._judges.close()
        try:
            with self._context.write() as session:
                implementations.release(session, self._context.holder)
        except AssayError as error:
            log.warning("the leases of ideas are left to run out: %s", error)

    def look_at(self, _key: str) -> None:
        """There is something new to implement. What is taken up next is for all batches to share,
        so that which one it is does not matter."""
        self._thread.call(self._find_soon)

    def look_again(self) -> None:
        """Stop implementing what was cancelled."""
        self._thread.call(lambda: self._later(self._check_leases()))

    def rescan(self) -> None:
        """Look for work now: messages may have been missed."""
        self._thread.call(self._find_soon)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _close_executors(self) -> None:
        for executor in self._executors.values():
            await executor.aclose()

    async def _rescan(self) -> None:
        """Look for work that no message announced: after a restart, or when one was lost."""
        while True:
            self._resting.clear()
            self._find_soon()
            self._later(self._sweep())
            await asyncio.sleep(self._context.settings.rescan_seconds)

    async def _go_on(self) -> None:
        """Look for work when a batch that was far enough ahead of measuring no longer is."""
        while True:
            await asyncio.sleep(AHEAD_SECONDS)
            if not self._far_ahead:
                continue
            try:
                self._places.see(await asyncio.to_thread(self._ahead))
            except Exception as error:  # the next one will do it
                log.warning("cannot look how far ideas are implemented: %s", error)
                continue
            if not self._far_ahead.issubset(self._places.ahead()):
                self._find_soon()

    def _ahead(self) -> dict[str, Ahead]:
        with self._context.db.read() as session:
            return implementations.ahead(session)

    async def _sweep(self) -> None:
        """Close the calls of processes that are gone, so that no cap counts them for ever."""

        def sweep() -> None:
            with self._context.write() as session:
                calls.sweep(self._context.db, session)

        try:
            await asyncio.to_thread(sweep)
        except Exception as error:  # the next one will do it
            log.warning("cannot close calls that were left open: %s", error)

    def _find_soon(self) -> None:
        """Look for work once; whoever asks meanwhile makes it look once more."""
        if self._stopping:
            return
        self._find_again = True
        if self._finding is None or self._finding.done():
            self._finding = self._loop.create_task(self._find())

    async def _find(self) -> None:
        while self._find_again:
            self._find_again = False
            free = self._places.free
            if free <= 0:
                return  # the next idea that is done looks again
            try:
                known = [*self._tasks, *self._resting]
                self._places.see(await asyncio.to_thread(self._ahead))
                full, far_ahead = self._places.full(), self._places.ahead()
                found = await asyncio.to_thread(self._unfinished, free, known, full, far_ahead)
            except Exception as error:  # without this look, lost messages would stay lost
                log.warning("cannot look for ideas to implement: %s", error)
                return
            self._is_more = bool(full)
            self._far_ahead = set(far_ahead)
            for each in found:
                if self._places.is_full(each.batch) or self._places.is_full_of(each.owner):
                    self._is_more = True
                elif each.is_new and self._places.is_ahead(each.batch):
                    self._far_ahead.add(each.batch)
                else:
                    self._look_at(each)
            if len(found) == free:
                self._is_more = True
                # Those that were passed over took the places of others in this list.
                self._find_again |= not self._far_ahead.issubset(far_ahead)
            self._of_batch_then = self._places.of_batch.copy()

    def _unfinished(
        self, limit: int, known: list[str], full: list[str], far_ahead: list[str]
    ) -> list[Waiting]:
        db, holder = self._context.db, self._context.holder
        with db.read() as session:
            return implementations.unfinished(
                db, session, holder, limit=limit, known=known, full=full, far_ahead=far_ahead
            )

    def _look_at(self, waiting: Waiting) -> None:
        if waiting.id in self._tasks or self._stopping:
            return
        turn = Turn(waiting.owner, waiting.batch, waiting.priority, next(self._numbers))
        task = self._loop.create_task(self._implement(waiting.id, turn))
        self._tasks[waiting.id] = task
        self._places.add(waiting.owner, waiting.batch)
        task.add_done_callback(lambda _: self._forget(waiting))

    def _forget(self, waiting: Waiting) -> None:
        self._tasks.pop(waiting.id, None)
        self._begun.discard(waiting.id)
        self._places.add(waiting.owner, waiting.batch, -1)
        left = self._places.of_batch[waiting.batch]
        if self._is_more and left <= REFILL * self._of_batch_then[waiting.batch]:
            self._find_soon()

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._context.settings.idea_lease_seconds / RENEWALS)
            await self._check_leases()

    async def _check_leases(self) -> None:
        """Renew the leases of what is being implemented; drop what is not held any more."""
        begun = set(self._begun)
        if not begun:
            return
        try:
            held = await self._loop.run_in_executor(self._renewing, self._renew)
        except Exception as error:  # the leases last a while longer
            log.warning("cannot renew the leases of ideas: %s", error)
            return
        for experiment_id in begun - held:
            if (task := self._tasks.get(experiment_id)) is not None:
                log.info("%s is not to be implemented here any more", experiment_id)
                task.cancel()

    def _renew(self) -> set[str]:
        context = self._context
        with context.write() as session:
            return implementations.renew(
                context.db, session, context.holder, context.settings.idea_lease
            )

    async def _implement(self, experiment_id: str, turn: Turn) -> None:
        current.set(turn)  # for the database work of this task, and of what it starts
        keep(experiment=experiment_id)  # for the lines of this task, and of what it calls
        try:
            taken = await asyncio.to_thread(take_up, self._context, experiment_id)
            if taken is None:
                return
            work, baseline = taken
            self._begun.add(experiment_id)
        except Exception as error:  # the next rescan takes it up again
            self._resting.add(experiment_id)
            log.exception("cannot take up %s", experiment_id)
            await asyncio.to_thread(self._count_fault, experiment_id, error)
            return
        try:
            outcome = await self._outcome(work, baseline)
            # Also if it is dropped while it waits for a thread: what was paid for is recorded.
            await asyncio.shield(asyncio.to_thread(self._conclude, work, outcome))
        except NoLongerWantedError:
            log.info("%s was cancelled while it was being implemented", experiment_id)
        except Fenced as error:
            log.warning("dropped: %s", error)
        except Exception as error:
            self._resting.add(experiment_id)
            log.exception("implementing %s was interrupted", experiment_id)
            await asyncio.to_thread(self._count_fault, experiment_id, error)

    async def _outcome(self, work: Work, baseline: Files) -> Patched | Failure:
        if work.given is not None:
            return await given(self._context, work.given)
        executor = self._executor(work.executor)
        shared, judge = self._shared, self._judge
        outcome = await Loop(self._context, work, executor, baseline, shared, judge).run()
        if isinstance(outcome, Patched) and outcome.request is not None:
            recording.note(executor, outcome.request, won=True)
        return outcome

    def _conclude(self, work: Work, outcome: Patched | Failure) -> None:
        conclude(self._context, work, outcome)
        self._on_concluded(work.experiment)

    def _executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = self._open_executor(self._context, name)
        return self._executors[name]

    def _count_fault(self, experiment_id: str, error: Exception) -> None:
        """Leave the idea for the next rescan, but not for ever.

        A store that cannot be used now is waited for, however long that takes: ideas that were
        accepted must not be lost to a full disk.
        """
        if isinstance(error, Unavailable):
            return
        last = MAX_FAULTS if not isinstance(error, ModelError) else 1
        failure = Failure(FailureStage.IMPLEMENT, FailureCode.INFRASTRUCTURE, str(error))
        try:
            with self._context.write() as session:
                holder = self._context.holder
                if implementations.count_fault(session, experiment_id, holder) >= last:
                    implementations.give_up(
                        self._context.db, session, experiment_id, failure, holder
                    )
        except AssayError as fault:
            log.warning("cannot record a fault of %s: %s", experiment_id, fault)

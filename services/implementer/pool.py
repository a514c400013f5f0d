"""Many ideas at once: an event loop in a thread of its own, fed with ids of experiments."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.domain.errors import AssayError, Unavailable
from assay.domain.states import Failure, FailureStage
from assay.llm import Executor, open_executor
from assay.llm.interface import ModelError
from assay.storage import implementations
from services.implementer.context import Context
from services.implementer.loop import Loop, NoLongerWantedError, conclude, take_up

log = logging.getLogger(__name__)
#: Faults of our own (a full disk, an unreachable store) after which an idea is given up.
MAX_FAULTS = 5
THREADS = 2


class ImplementPool:
    """Implements experiments concurrently. A slow idea blocks no other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        # Few threads for the database and for patching: ideas wait for models, not for these, and
        # more would only crowd out whoever reports results.
        self._loop.set_default_executor(ThreadPoolExecutor(THREADS, "implementer"))
        self._thread = threading.Thread(target=self._serve, name="implementer", daemon=True)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._executors: dict[str, Executor] = {}
        self._limit = asyncio.Semaphore(context.settings.concurrent_ideas)

    def start(self) -> None:
        """Start the thread, which also takes up what an earlier process left unfinished."""
        self._thread.start()
        self._soon(self._rescan())

    def stop(self) -> None:
        """Stop; unfinished ideas are taken up by the next process."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def look_at(self, experiment_id: str) -> None:
        """Implement the experiment, or stop implementing it if it was cancelled."""
        self._loop.call_soon_threadsafe(self._look_at, experiment_id)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _shut_down(self) -> None:
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for executor in self._executors.values():
            await executor.aclose()

    async def _rescan(self) -> None:
        """Look for work that no message announced: after a restart, or when one was lost."""
        while True:
            try:
                found = await asyncio.to_thread(self._unfinished)
            except Exception as error:  # without this look, lost messages would stay lost
                log.warning("cannot look for ideas to implement: %s", error)
                found = []
            for experiment_id in found:
                if experiment_id not in self._tasks:
                    self._look_at(experiment_id)
            await asyncio.sleep(self._context.settings.rescan_seconds)

    def _unfinished(self) -> list[str]:
        with self._context.db.read() as session:
            return implementations.unfinished(session)

    def _look_at(self, experiment_id: str) -> None:
        task = self._tasks.get(experiment_id)
        if task is not None:
            self._soon(self._cancel_unwanted(experiment_id, task))
            return
        task = self._loop.create_task(self._implement(experiment_id))
        self._tasks[experiment_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(experiment_id, None))

    async def _cancel_unwanted(self, experiment_id: str, task: asyncio.Task[None]) -> None:
        def wanted() -> bool:
            with self._context.db.read() as session:
                return implementations.is_wanted(session, experiment_id)

        if not await asyncio.to_thread(wanted):
            task.cancel()

    async def _implement(self, experiment_id: str) -> None:
        async with self._limit:
            try:
                taken = await asyncio.to_thread(take_up, self._context, experiment_id)
                if taken is None:
                    return
                work, baseline = taken
            except Exception as error:  # the next rescan takes it up again
                log.exception("cannot take up %s", experiment_id)
                await asyncio.to_thread(self._count_fault, experiment_id, error)
                return
            try:
                executor = self._executor(work.executor)
                outcome = await Loop(self._context, work, executor, baseline).run()
                await asyncio.to_thread(conclude, self._context, work, outcome)
            except NoLongerWantedError:
                log.info("%s was cancelled while it was being implemented", experiment_id)
            except Exception as error:
                log.exception("implementing %s was interrupted", experiment_id)
                await asyncio.to_thread(self._count_fault, experiment_id, error)

    def _executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = open_executor(name, self._context.variables)
        return self._executors[name]

    def _count_fault(self, experiment_id: str, error: Exception) -> None:
        """Leave the idea for the next rescan, but not for ever.

        A store that cannot be used now is waited for, however long that takes: ideas that were
        accepted must not be lost to a full disk.
        """
        if isinstance(error, Unavailable):
            return
        last = MAX_FAULTS if not isinstance(error, ModelError) else 1
        failure = Failure(FailureStage.IMPLEMENT, "infrastructure", str(error), retryable=True)
        try:
            with self._context.write() as session:
                if implementations.count_fault(session, experiment_id) >= last:
                    implementations.give_up(self._context.db, session, experiment_id, failure)
        except AssayError as fault:
            log.warning("cannot record a fault of %s: %s", experiment_id, fault)

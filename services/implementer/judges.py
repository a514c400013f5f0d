"""Judge answers in child processes, so that no answer holds up others or the service.

Parsing and compiling hold the interpreter's lock for as long as they take, and cannot be
interrupted in a thread. The children are started once and reused. They are new interpreters, not
forks: they share no memory, descriptor or variable with the service, which holds keys.

Limits are processor time and address space, both kept by the kernel, so that a busy machine is
never an answer's fault. An answer that exceeds them is refused as `too_costly`. A child that ends
for another reason (killed by an operator, or for want of memory) is replaced, and the answer is
judged again.

Batches take turns, so that one with many answers, or slow ones, delays another by a few judgements
at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from assay.domain.errors import Unavailable
from assay.domain.failure_codes import FailureCode
from services.implementer.judge import receive, send
from services.implementer.judging import Files, Judgement, Rejected
from services.implementer.limits import Line, ModelLimits

log = logging.getLogger(__name__)
MEMORY_BYTES = 1 << 30
"""Address space of a child: more than a hundred times what an ordinary answer takes."""
QUICK_SECONDS, SLOW_SECONDS = 1.0, 10.0
"""Processor time of a judgement. Nearly all take milliseconds; one that exceeds the first bound is
repeated under the second, where it holds up only its like."""
QUICK, SLOW = 3, 1
"""Children for each bound."""
MOST_LONG = 1000
"""Batches that are remembered for a slow answer."""
TRIES = 3
"""Children that may end under one answer without having exceeded a limit."""
STALLED_SECONDS = 300.0
"""A child that is silent for so long, although its processor time is bounded, was stopped."""
_LEAVE_SECONDS = 0.2
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from services.implementer.judge import main; main()"
)
_CRASHES = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE
}  # fmt: skip


class _Exceeded(Exception):
    """The answer exceeded a limit of its child."""


class _OutOfTime(_Exceeded):
    """More time may help."""


class _Died(Exception):
    """The child ended, or stalled, for a reason of its own."""


@dataclass(frozen=True)
class Question:
    """What a child is asked: see `judging.judge`."""

    answer: str
    baseline: Files
    protected: tuple[str, ...]
    compiles: bool


class Judges:
    """A pool of child processes that judge answers. `judge` has the shape that a loop expects.

    `quick_seconds`, `slow_seconds` (processor time) and `memory_bytes` bound one judgement;
    `quick` is how many children judge under the first bound. They start as answers come. All calls
    come from one event loop.
    """

    def __init__(
        self,
        *,
        quick: int = QUICK,
        quick_seconds: float = QUICK_SECONDS,
        slow_seconds: float = SLOW_SECONDS,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._quick = _Lane(quick, quick_seconds, memory_bytes)
        self._slow = _Lane(SLOW, slow_seconds, memory_bytes)
        self._long: OrderedDict[str, None] = OrderedDict()

    @property
    def pids(self) -> list[int]:
        """The process ids of the children."""
        return [*self._quick.pids, *self._slow.pids]

    async def judge(
        self,
        batch: str,
        answer: str,
        baseline: Files,
        protected: tuple[str, ...],
        *,
        compiles: bool,
    ) -> Judgement:
        """Return the judgement of an answer, in the turn of its batch; see `judging.judge`.

        After an answer that exceeds `quick_seconds`, others of its batch are given
        `slow_seconds` at once, until one of them proves quick.

        Raises:
            Unavailable: the children keep being killed, or `close` was called.
        """
        question = Question(answer, baseline, protected, compiles)
        try:
            async with self._quick.turn(batch):
                # It may have changed while this answer waited.
                if batch not in self._long:
                    try:
                        judgement, _ = await self._quick.run(question)
                    except _OutOfTime:
                        log.info(
                            "an answer takes long to judge: it is judged again, with more time"
                        )
                        self._note(batch, is_long=True)
                    else:
                        return judgement
            async with self._slow.turn(batch):
                judgement, seconds = await self._slow.run(question)
        except _Exceeded as exceeded:
            if isinstance(exceeded, _OutOfTime):
                self._note(batch, is_long=True)
            return Judgement(None, Rejected(FailureCode.TOO_COSTLY, self._slow.verdict()))
        self._note(batch, is_long=seconds > self._quick.seconds)
        return judgement

    def _note(self, batch: str, *, is_long: bool) -> None:
        """Remember how long the last answer of a batch took."""
        self._long.pop(batch, None)
        if is_long:
            self._long[batch] = None
            if len(self._long) > MOST_LONG:
                self._long.popitem(last=False)

    def close(self) -> None:
        """End the children, whatever they are doing, and wait until they are gone."""
        self._quick.close()
        self._slow.close()


class _Lane:
    """Children with one bound, each asked by one thread at a time."""

    def __init__(self, size: int, seconds: float, memory_bytes: int) -> None:
        # Of their own: the loop's other threads must not wait for judgements. A child is killed
        # when the thread that started it ends (see `judge.main`), and these end with `close`.
        self._threads = ThreadPoolExecutor(size, "judges")
        # No more at once than there are threads, whose own queue knows nothing of batches.
        self._line = Line(ModelLimits(concurrent_calls=size))
        self.seconds = seconds
        self._memory_bytes = memory_bytes
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        self._all: set[_Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [child.pid for child in self._all]

    def verdict(self) -> str:
        """What the model is told of an answer that exceeded the limits."""
        return (
            f"The edit takes more than {self.seconds:g} seconds of processor time or "
            f"{self._memory_bytes >> 20} MiB of memory to apply and compile. Send a smaller and "
            "plainer one: no generated tables, no deeply nested blocks or expressions (each "
            "`finally` inside another doubles the compiled code), fewer hunks."
        )

    @contextlib.asynccontextmanager
    async def turn(self, batch: str) -> AsyncIterator[None]:
        """Wait until there is a child for an answer of this batch."""
        ticket = await self._line.enter(batch, 0)
        try:
            yield
        finally:
            self._line.leave(ticket, None, None)

    async def run(self, question: Question) -> tuple[Judgement, float]:
        """The judgement and the processor time it took, in seconds. To be called in a `turn`.

        Raises _Exceeded, and Unavailable where children keep dying or the lane is closed.
        """
        if self._closed:
            raise Unavailable("the implementer is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, question)

    def _ask(self, question: Question) -> tuple[Judgement, float]:
        crashes = 0
        for _ in range(TRIES):
            child = self._take()
            try:
                judged = child.ask(question, self.seconds)
            except BaseException as error:
                ended = self._discard(child)
                if isinstance(error, _Died) and not self._closed:
                    if ended == -signal.SIGXCPU:
                        raise _OutOfTime from None
                    crashes += -ended in _CRASHES
                    log.warning("a judging process ended with code %d: judged again", ended)
                    continue
                if isinstance(error, _Died):
                    break
                raise
            self._idle.put(child)
            return judged
        if crashes == TRIES:
            raise _Exceeded  # each of several interpreters gave way under it
        raise Unavailable("the processes that judge answers are being killed")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children = list(self._all)
        for child in children:
            child.kill()
        self._threads.shutdown(cancel_futures=True)
        for child in children:
            self._discard(child)

    def _take(self) -> _Child:
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                break
            if child.is_alive:
                return child
            self._discard(child)
        with self._lock:
            if self._closed:
                raise Unavailable("the implementer is stopping")
            child = _Child(self._memory_bytes)
            self._all.add(child)
        return child

    def _discard(self, child: _Child) -> int:
        """End a child; returns its exit code."""
        code = child.end()
        with self._lock:
            self._all.discard(child)
        return code


class _Child:
    """A running interpreter that judges one answer after the other."""

    def __init__(self, memory_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-S", "-s", "-c", _START, *map(os.path.abspath, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            # Ctrl-C in a terminal is for the service, which ends its children itself.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._baseline: Files | None = None
        self._memory_bytes = memory_bytes

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Question, seconds: float) -> tuple[Judgement, float]:
        """The judgement and the seconds it took.

        Raises _Died, _Exceeded, and RuntimeError with the child's traceback.
        """
        # The baseline is the same object for all ideas of a batch.
        is_known = self._baseline is question.baseline
        request = {
            "answer": question.answer,
            "baseline": None if is_known else question.baseline,
            "protected": question.protected,
            "compiles": question.compiles,
            "seconds": seconds,
            "memory_bytes": self._memory_bytes,
        }
        try:
            send(self._in, request)
            self._await_reply()
            reply = receive(self._out)
        except (OSError, EOFError) as error:
            raise _Died from error
        self._baseline = question.baseline
        if "error" in reply:
            raise RuntimeError(f"judging an answer failed:\n{reply['error']}")
        if "memory" in reply:
            raise _Exceeded
        files = reply["changed"]
        if files is not None:
            gone = set(reply["gone"])
            kept = {name: text for name, text in question.baseline.items() if name not in gone}
            files = kept | files
        rejected = None
        if reply["rejected"] is not None:
            code, log = reply["rejected"]
            rejected = Rejected(FailureCode(code), log)
        return Judgement(files, rejected, reply["diff"], reply["canonical"]), reply["seconds"]

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Wait until the child is gone: it has closed its end, or is killed."""
        with contextlib.suppress(OSError):  # it did not read all of a request
            self._in.close()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._out.close()
        return code

    def _await_reply(self) -> None:
        waiting = select.poll()
        waiting.register(self._out, select.POLLIN)
        if not waiting.poll(STALLED_SECONDS * 1000):
            raise EOFError

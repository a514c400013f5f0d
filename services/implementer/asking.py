"""Ask a model, with every request in the ledger before it is sent and after it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import fmean

from sqlalchemy.orm import Session

from assay.contracts.caps import Caps
from assay.domain.errors import Unavailable
from assay.domain.isolation import is_offline
from assay.llm import Completion, Executor, ImplementRequest, ModelName, Usage, price
from assay.llm.executors import RequestId
from assay.llm.interface import ModelError, Try
from assay.llm.recording import ReplayMiss, TooLate, is_replay
from assay.llm.retry import billed
from assay.storage import calls, caps, implementations, samples, schema, webhooks
from assay.storage.calls import CallEnd, CallStart
from assay.storage.implementations import Work
from assay.storage.samples import Answer, Key, Verdict
from services.implementer.context import Context
from services.implementer.judging import Rejected, malformed
from services.implementer.limits import CallGate, Gates

#: Tokens of an answer, until answers have shown how long they are.
FIRST_GUESS = 2_000
#: Pause before a cap is looked at again that calls under way may still leave room under.
CAP_PAUSE_S = 1.0
#: For so long, and so often, an answer that was paid for is tried to be stored.
STORE_PATIENCE_S, STORE_PAUSE_S = 30.0, 1.0


class CapReachedError(Exception):
    """No new call may start: a cap is reached. The message says which, and what was used."""

    def __init__(self, reached: caps.Reached) -> None:
        super().__init__(str(reached))
        self.code = reached.code
        self.reached = reached


class NoLongerWantedError(Exception):
    """The experiment was cancelled while it was being implemented."""


class _NoRoomYetError(Exception):
    """Calls under way may use up what is left under a cap, or leave some of it."""


class Lengths:
    """How long the answers of models are, to say beforehand what a call will cost."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[int]] = {}

    def note(self, model: str, tokens: int) -> None:
        """An answer had so many tokens."""
        self._seen.setdefault(model, deque(maxlen=100)).append(tokens)

    def expected(self, model: str) -> int:
        """Tokens that the next answer may have."""
        seen = self._seen.get(model)
        return round(fmean(seen)) if seen else FIRST_GUESS


def caps_of(context: Context, session: Session, work: Work) -> Caps:
    """All caps that an experiment is under."""
    return caps.all_of(session, work.payer, work.options, context.settings.caps)


@dataclass
class Asking:
    """Makes the calls of one implementation."""

    context: Context
    work: Work
    executor: Executor
    gates: Gates
    lengths: Lengths

    async def ask(
        self, request: ImplementRequest, *, is_repair: bool = False
    ) -> Answer | Rejected:
        """The answer to a request, stored; or why there is none.

        Raises:
            CapReachedError: a cap allows no new call.
            NoLongerWantedError: the experiment was cancelled.
            Fenced: another process took the idea over.
        """
        while True:
            call = _Call(self, request, self.executor.identify(request), is_repair)
            try:
                return await call.make()
            except _NoRoomYetError:
                await asyncio.sleep(CAP_PAUSE_S)

    async def write(self, action: Callable[[Session], None]) -> None:
        """Carry a transaction out, if the idea still is this process's."""

        def transaction() -> None:
            with self.context.write() as session:
                action(session)
                implementations.check_held(session, self.work)

        await asyncio.to_thread(transaction)

    async def tell_of_cap(self, reached: caps.Reached) -> None:
        """Tell webhooks that a cap stopped this implementation."""
        db, payer = self.context.db, self.work.payer
        await self.write(lambda session: webhooks.tell_of_cap(db, session, payer, reached))

    def check_caps(self, session: Session) -> None:
        """Raise unless a call may start."""
        if is_offline(self.work.executor):
            return
        db, payer = self.context.db, self.work.payer
        allowed = caps_of(self.context, session, self.work)
        has_gpus = self.work.manifest.profiles[self.work.profile].gpus > 0
        kinds = caps.KINDS if has_gpus else caps.KINDS[:1]
        reached = caps.reached(db, session, payer, allowed, kinds=kinds)
        if reached is None:
            return
        settled = caps.reached(db, session, payer, allowed, under_way=False, kinds=kinds)
        if settled is None:
            raise _NoRoomYetError
        raise CapReachedError(settled)


@dataclass
class _Call:
    """One call: a request, and another as long as that helps."""

    asking: Asking
    request: ImplementRequest
    id: RequestId
    is_repair: bool
    gate: CallGate | None = None
    key: Key = field(init=False)
    model: ModelName = field(init=False)

    def __post_init__(self) -> None:
        work = self.asking.work
        self.key = (work.implementation, self.request.sample, self.request.revision)
        self.model = ModelName.parse(work.executor)

    async def make(self) -> Answer | Rejected:
        asking = self.asking
        self.gate = asking.gates.open(asking.work.executor, self.id.prefix, asking.work.batch)
        try:
            completion = await asking.executor.implement(
                self.request, on_try=self._on_try, gate=self.gate
            )
        except ModelError as error:
            # What is refused at first will be refused to all samples.
            is_final = self.request.revision == 0 or isinstance(error, ReplayMiss)
            is_final = is_final and not isinstance(error, TooLate)
            rejected = Rejected(error.code, str(error), is_final=is_final)
            await self._end(Verdict("failed", rejected.code, rejected.message))
            return rejected
        except asyncio.CancelledError:
            await asyncio.shield(self._end(Verdict("cancelled")))
            raise
        return _answer(completion)

    async def _end(self, verdict: Verdict) -> None:
        db = self.asking.context.db

        def action(session: Session) -> None:
            row = session.get(schema.Sample, self.key)
            if row is not None and row.state == "calling":
                samples.ended(db, session, self.key, verdict)

        await self.asking.write(action)

    async def _on_try(self, event: Try) -> None:
        if event.phase == "started":
            try:
                await self.asking.write(lambda session: self._start(session, event))
            except CapReachedError as stopped:  # which rolled its transaction back
                await self.asking.tell_of_cap(stopped.reached)
                raise
        elif event.phase == "answering":
            if self.gate is not None:
                self.gate.answering()
        else:
            await self._insist(lambda session: self._finish(session, event))

    async def _insist(self, action: Callable[[Session], None]) -> None:
        """Write what has been paid for, also if the database is away for a moment."""
        clock = asyncio.get_running_loop().time
        until = clock() + STORE_PATIENCE_S
        while True:
            try:
                return await self.asking.write(action)
            except Unavailable:
                if clock() >= until:
                    raise
                await asyncio.sleep(STORE_PAUSE_S)

    def _start(self, session: Session, event: Try) -> None:
        asking, request = self.asking, self.request
        if not implementations.is_wanted(session, asking.work.experiment):
            raise NoLongerWantedError
        asking.check_caps(session)
        version = asking.executor.prompt_version(request)
        samples.calling(asking.context.db, session, self.key, version, is_repair=self.is_repair)
        start = CallStart(
            id=event.id,
            sample=request.sample,
            revision=request.revision,
            number=event.number,
            model=asking.work.executor,
            request_hash=self.id.hash,
            prompt_version=version,
            reserved_usd=self._expected_cost(),
            is_replay=is_replay(asking.executor),
        )
        calls.before(session, asking.work.payer, start)

    def _expected_cost(self) -> Decimal | None:
        if is_replay(self.asking.executor):
            return Decimal(0)
        tokens = self.asking.lengths.expected(self.asking.work.executor)
        return price(self.model, Usage(self.id.tokens, tokens))

    def _finish(self, session: Session, event: Try) -> None:
        usage = billed(event, self.id.tokens)
        completion, error = event.completion, event.error
        free = is_replay(self.asking.executor)
        end = CallEnd(
            state=event.phase,
            code=error.code.value if error else None,
            message=str(error) if error else None,
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            is_estimate=usage.estimated,
            cost_usd=Decimal(0) if free else price(self.model, usage),
            seconds=event.seconds,
            request_id=completion.request_id if completion else None,
        )
        calls.after(session, event.id, end)
        if completion is not None:
            self.asking.lengths.note(self.asking.work.executor, usage.output_tokens)
            samples.answered(session, self.key, _answer(completion))


def _answer(completion: Completion) -> Answer:
    return Answer(completion.text, completion.thinking or None, malformed(completion))

"""The calls of a search's ideator: written down before they are made, their answers as they come.

The service keeps them, so that whoever resumes a search finds the answers that arrived, and pays
for none of them again. A folder may keep them as well, to give them again without a provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from assay.client import Client, Conflict
from assay.contracts.batch import MAX_IDEAS, MAX_THINKING
from assay.contracts.search import (
    MAX_ANSWER,
    AnswerRequest,
    IdeatorCallBody,
    IdeatorCallEndRequest,
    IdeatorCallRequest,
)
from assay.domain.ids import new_id
from assay.llm.idea_answers import read_answer
from assay.llm.ideation import CallRecord, Ideator, IdeatorCall
from assay.llm.interface import Completion, Stop, Try, Usage
from assay.llm.recorded_ideas import RecordedIdeas
from assay.llm.retry import billed
from assay.search.ask import SearchError, storable
from assay.search.plan import Ask
from assay.search.threads import in_thread

Answered: TypeAlias = Mapping[str, IdeatorCallBody]
#: Pause before a cap is looked at again that calls under way may still leave room under.
CAP_PAUSE_SECONDS = 1.0
_MAX_MESSAGE = 2_000


class Ledger:
    """The calls of one search's ideator. `recorded`: a folder that keeps or gives answers."""

    def __init__(
        self,
        client: Client,
        search: str,
        ideator: Ideator,
        recorded: RecordedIdeas | None = None,
    ) -> None:
        self._client = client
        self._search = search
        self._version = ideator.prompt_version
        self._recorded = recorded
        #: Tells the calls of this loop from those of others.
        self.loop = new_id("loop")
        self._writing = asyncio.Lock()

    def hint(self, epoch: int) -> str:
        """How a person reads the answers for an epoch."""
        return f"read its answers: assay search answers {self._search} --epoch {epoch}"

    def answered(self, epoch: int) -> Answered:
        """The calls for an epoch that were answered before, by their place."""
        found = self._client.searches.calls(self._search, epoch=epoch, answered=True)
        return {call.place: call for call in found}

    def record(
        self, epoch: int, ask: Ask, position: int, answered: Answered, round_: int
    ) -> CallRecord:
        """The record of one round of an ask; `position` tells the asks of an epoch apart."""
        return _Round(self, epoch, ask, f"{position}.{round_}", answered)

    def kept(self, epoch: int, place: str, call: IdeatorCall) -> Completion | None:
        """The answer in the folder, if answers come from there. Raises ReplayMiss."""
        if self._recorded is None or not self._recorded.is_replay:
            return None
        return self._recorded.answer(epoch, place, call)

    async def begin(self, call: str, request: IdeatorCallRequest) -> None:
        """Write down that a request is about to be sent.

        Raises:
            SearchError: it must not be: a cap is reached, or the search has ended.
        """
        while True:
            try:
                await self._write(
                    partial(self._client.searches.begin_call, self._search, call, request)
                )
                return
            except Conflict as refused:
                if refused.code != "calls_under_way":
                    code = refused.code or SearchError.code
                    raise SearchError(str(refused), code=code) from refused
            await asyncio.sleep(CAP_PAUSE_SECONDS)

    async def end(self, call: str, request: IdeatorCallEndRequest) -> None:
        """Write down what came of a request."""
        await self._write(partial(self._client.searches.end_call, self._search, call, request))

    def keep(self, epoch: int, place: str, call: IdeatorCall, completion: Completion) -> None:
        """Keep an answer in the folder, if there is one."""
        if self._recorded is not None and not self._recorded.is_replay:
            self._recorded.keep(epoch, place, call, completion)

    @property
    def prompt_version(self) -> str:
        """That of the ideator."""
        return self._version

    async def _write(self, action: Callable[[], object]) -> None:
        """Carry a request out in a thread, one at a time: answers stream meanwhile."""
        async with self._writing:
            await in_thread(action)


@dataclass(frozen=True)
class _Round:
    """The record of the calls of one round of an ask. `at` is the place of the round."""

    ledger: Ledger
    epoch: int
    ask: Ask
    at: str
    known: Answered

    async def answered(self, call: IdeatorCall) -> Completion | None:
        """See `CallRecord.answered`. A recorded answer is in the ledger as one that is free."""
        kept = self.known.get(self._place(call))
        same = kept is not None and (kept.asked, kept.operator) == (call.asked, self.ask.operator)
        # Without an idea it is no answer.
        if kept is not None and same and kept.ideas:
            return _completion(kept)
        completion = self.ledger.kept(self.epoch, self._place(call), call)
        if completion is not None:
            started = Try(new_id("call"), 1, "started")
            await self._begin(call, started, is_replay=True)
            done = replace(
                started, phase="returned", completion=completion, usage=completion.usage
            )
            await self.ledger.end(started.id, _end(call, done, self.ledger.loop))
        return completion

    async def on_try(self, call: IdeatorCall, attempt: Try) -> None:
        """See `CallRecord.on_try`. Raises SearchError: the call must not be made."""
        if attempt.phase == "started":
            await self._begin(call, attempt)
        elif attempt.phase != "answering":
            if attempt.completion is not None:
                self.ledger.keep(self.epoch, self._place(call), call, attempt.completion)
            await self.ledger.end(attempt.id, _end(call, attempt, self.ledger.loop))

    async def _begin(self, call: IdeatorCall, attempt: Try, *, is_replay: bool = False) -> None:
        request = IdeatorCallRequest(
            epoch=self.epoch,
            place=self._place(call),
            operator=self.ask.operator,
            asked=call.asked,
            number=attempt.number,
            request_hash=call.request_hash,
            prompt_version=self.ledger.prompt_version,
            input_tokens=call.prompt.tokens,
            output_tokens=call.output_tokens,
            loop=self.ledger.loop,
            is_replay=is_replay,
        )
        await self.ledger.begin(attempt.id, request)

    def _place(self, call: IdeatorCall) -> str:
        return f"{self.at}.{call.number}{'r' if call.is_repair else ''}"


def _completion(call: IdeatorCallBody) -> Completion:
    """An answer that was kept. What it cost is in the ledger, under the call that brought it."""
    assert call.text is not None
    stop: Stop = "refused" if call.stop == "refused" else "end"
    return Completion(
        text=call.text,
        thinking=call.thinking or "",
        stop="truncated" if call.stop == "truncated" else stop,
        usage=Usage(),
        model=call.model,
    )


def _end(call: IdeatorCall, attempt: Try, loop: str) -> IdeatorCallEndRequest:
    assert attempt.phase in ("returned", "failed", "cancelled")
    used, error, completion = (
        billed(attempt, call.prompt.tokens),
        attempt.error,
        attempt.completion,
    )
    return IdeatorCallEndRequest(
        state=attempt.phase,
        loop=loop,
        code=error.code.value if error else None,
        message=storable(str(error))[:_MAX_MESSAGE] if error else None,
        input_tokens=used.input_tokens,
        cached_input_tokens=used.cached_input_tokens,
        cache_write_tokens=used.cache_write_tokens,
        output_tokens=used.output_tokens,
        is_estimate=used.estimated,
        seconds=attempt.seconds,
        request_id=completion.request_id if completion else None,
        answer=_answer(completion) if completion else None,
    )


def _answer(completion: Completion) -> AnswerRequest:
    read = read_answer(completion.text, truncated=completion.stop == "truncated")
    return AnswerRequest(
        ideas=min(len(read.ideas), MAX_IDEAS),
        unread=len(read.unread),
        stop=completion.stop,
        text=storable(completion.text)[:MAX_ANSWER],
        thinking=storable(completion.thinking)[:MAX_THINKING] or None,
        thinking_length=len(completion.thinking),
    )

"""Who may call a model when: limits per model, fair between batches, adaptive on refusals.

A model has at most `concurrent_calls` under way, and at most so many requests and tokens in a
minute. While a provider refuses more than a few of them (429), the window of concurrent calls
shrinks and new calls wait as long as the provider asks; it opens again as calls come through.
A slot that gets free goes to the batch with the fewest calls under way.

Limits hold within one process: where several implement ideas, each has its share to be set.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from assay.llm.interface import ModelError, RateLimited, Usage
from assay.llm.names import ModelName

#: The last calls that are looked at, and how many refusals among them mean that it is too many:
#: single refusals come and go, and are answered by that call's own pause. Where every tenth call
#: is refused by chance, eight of 24 come once in 600 looks, and five of 16 once in 60: that kept
#: the window at two thirds.
RECENT, TOO_MANY = 24, 8
SHRINK = 0.7
#: Up to this share of the window that was refused, it opens with every call that comes through;
#: beyond, only by one per window of calls.
CAREFUL = 0.8
LONGEST_HOLD_S = 60.0
#: Providers keep a prompt for minutes after its last use.
WARM_S = 240.0
#: The crowd waits no longer than this for the call that goes ahead.
LONGEST_WARM_UP_S = 20.0
BURST_S = 6.0


class ModelLimits(BaseModel):
    """What one process may ask of a model, or of all models of a provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrent_calls: int = Field(64, ge=1)
    requests_per_minute: float | None = Field(None, gt=0)
    tokens_per_minute: float | None = Field(
        None, gt=0, description="Input and output; input that came from the cache is not counted."
    )


def limits_for(model: str, configured: Mapping[str, ModelLimits]) -> ModelLimits:
    """The limits of a model: by its whole name, its name without address, or its provider."""
    name = ModelName.parse(model)
    for key in (model, f"{name.provider}:{name.model}", str(name.provider)):
        if key in configured:
            return configured[key]
    return ModelLimits()


class Bucket:
    """So many units per minute, a few seconds' worth of them at once."""

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60
        self._most = max(1.0, self._rate * BURST_S)
        self._level = self._most
        self._at = 0.0

    def wait(self, now: float, units: float) -> float:
        """Seconds until that many units may be taken. More than fit wait for a full bucket."""
        self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now
        missing = min(units, self._most) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, units: float) -> None:
        """Take units, also more than there are; negative ones are given back."""
        self._level = min(self._most, self._level - units)


@dataclass(eq=False)
class Ticket:
    """A call that waits for a slot, has it, or had it."""

    batch: str
    tokens: int
    granted: asyncio.Future[None]
    refused: bool = False


class Line:
    """The calls of one model: those under way, and those in line by batch."""

    def __init__(self, limits: ModelLimits) -> None:
        self.window = float(limits.concurrent_calls)
        self.under_way: Counter[str] = Counter()
        self._most = float(limits.concurrent_calls)
        self._ceiling = self._most
        self._line: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._recent: deque[Ticket] = deque(maxlen=RECENT)
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        per_minute = limits.requests_per_minute, limits.tokens_per_minute
        self._requests, self._tokens = (Bucket(n) if n else None for n in per_minute)

    async def enter(self, batch: str, tokens: int) -> Ticket:
        """Wait for a slot."""
        ticket = Ticket(batch, tokens, asyncio.get_running_loop().create_future())
        self._line.setdefault(batch, deque()).append(ticket)
        self._serve()
        try:
            await ticket.granted
        except asyncio.CancelledError:
            if ticket.granted.done() and not ticket.granted.cancelled():
                self._free(batch)
            elif ticket in (line := self._line.get(batch, deque())):
                line.remove(ticket)
            self._serve()
            raise
        return ticket

    def leave(self, ticket: Ticket, error: ModelError | None, usage: Usage | None) -> None:
        """Give a slot back, and learn from how the call went."""
        self._free(ticket.batch)
        if self._tokens is not None and usage is not None:
            used = usage.input_tokens + usage.cache_write_tokens + usage.output_tokens
            self._tokens.take(used - ticket.tokens)
        if isinstance(error, RateLimited):
            ticket.refused = True
            self._refused(error)
        elif error is None and usage is not None and usage.output_tokens:
            self._came_through()
        self._serve()

    def _free(self, batch: str) -> None:
        self.under_way[batch] -= 1
        if not self.under_way[batch]:
            del self.under_way[batch]

    def _refused(self, error: RateLimited) -> None:
        # Of the calls that were let in last: a provider refuses at once, others take their time.
        if sum(ticket.refused for ticket in self._recent) < TOO_MANY:
            return
        self._ceiling = self.window
        self.window = max(1.0, min(self.window, self.under_way.total() + 1.0) * SHRINK)
        self._recent.clear()
        hold = min(error.retry_after_s or 1.0, LONGEST_HOLD_S)
        self._held_until = max(self._held_until, self._now() + hold)

    def _came_through(self) -> None:
        fast = self.window < CAREFUL * self._ceiling
        self.window = min(self._most, self.window + (1.0 if fast else 1.0 / self.window))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _serve(self) -> None:
        """Give free slots to those in line, as far as the limits allow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (batch := self._next()) is not None and self.under_way.total() < int(self.window):
            ticket = self._line[batch][0]
            pause = self._pause(ticket.tokens)
            if pause > 0:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(pause, self._serve)
                return
            self._line[batch].popleft()
            self._line.move_to_end(batch)
            if ticket.granted.done():  # cancelled, and about to say so
                continue
            for bucket, units in ((self._requests, 1), (self._tokens, ticket.tokens)):
                if bucket is not None:
                    bucket.take(units)
            self.under_way[batch] += 1
            self._recent.append(ticket)
            ticket.granted.set_result(None)

    def _next(self) -> str | None:
        """The batch with the fewest calls under way; among equals, who was not served longest."""
        for batch in [batch for batch, line in self._line.items() if not line]:
            del self._line[batch]
        return min(self._line, key=lambda batch: self.under_way[batch], default=None)

    def _pause(self, tokens: int) -> float:
        now = self._now()
        waits = [self._held_until - now]
        if self._requests is not None:
            waits.append(self._requests.wait(now, 1))
        if self._tokens is not None:
            waits.append(self._tokens.wait(now, tokens))
        return max(waits)


class Warmth:
    """Lets one call put a prompt's prefix into the provider's cache before the crowd comes."""

    def __init__(self, longest_s: float = LONGEST_WARM_UP_S) -> None:
        self._longest_s = longest_s
        self._until = 0.0
        self._began = 0.0
        self._warming = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> bool:
        """Wait while another warms the prefix; True if this call is the one to do it."""
        loop = asyncio.get_running_loop()
        while loop.time() >= self._until:
            if not self._warming:
                self._warming, self._began = True, loop.time()
                return True
            turn = loop.create_future()
            self._waiting.append(turn)
            try:
                async with asyncio.timeout_at(self._began + self._longest_s):
                    await turn
            except TimeoutError:
                return False
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake(1)
                raise
        return False

    def warm(self) -> None:
        """The provider has begun to answer: it has read the prefix."""
        self._until = asyncio.get_running_loop().time() + WARM_S
        self._warming = False
        self._wake(len(self._waiting))

    def give_up(self) -> None:
        """The call that was to warm the prefix came to nothing; the next one tries."""
        self._warming = False
        self._wake(1)

    def _wake(self, most: int) -> None:
        while most and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                most -= 1


@dataclass
class CallGate:
    """The gate of one call; `answering` is to be called when its answer begins."""

    line: Line
    warmth: Warmth
    batch: str
    _ticket: Ticket | None = field(default=None, init=False)
    _warming: bool = field(default=False, init=False)

    async def enter(self, tokens: int) -> None:
        """See `assay.llm.Gate`."""
        self._warming = await self.warmth.enter()
        try:
            self._ticket = await self.line.enter(self.batch, tokens)
        except BaseException:
            self._give_up()
            raise

    def leave(self, error: ModelError | None, usage: Usage | None) -> None:
        """See `assay.llm.Gate`."""
        self._give_up()
        if self._ticket is not None:
            self.line.leave(self._ticket, error, usage)
            self._ticket = None

    def answering(self) -> None:
        """The provider has read the prompt."""
        self._warming = False
        self.warmth.warm()

    def _give_up(self) -> None:
        if self._warming:
            self._warming = False
            self.warmth.give_up()


class Gates:
    """The lines of all models of a process, and which prefixes are warm."""

    #: Prefixes that are remembered; those of one batch are one.
    MOST_PREFIXES = 1000

    def __init__(
        self,
        configured: Mapping[str, ModelLimits],
        *,
        longest_warm_up_s: float = LONGEST_WARM_UP_S,
    ) -> None:
        self._configured = configured
        self._longest_warm_up_s = longest_warm_up_s
        self._lines: dict[str, Line] = {}
        self._warm: OrderedDict[tuple[str, str], Warmth] = OrderedDict()

    def line(self, model: str) -> Line:
        """The line of a model."""
        if model not in self._lines:
            self._lines[model] = Line(limits_for(model, self._configured))
        return self._lines[model]

    def open(self, model: str, prefix: str, batch: str) -> CallGate:
        """The gate of one call."""
        key = (model, prefix)
        warmth = self._warm.setdefault(key, Warmth(self._longest_warm_up_s))
        self._warm.move_to_end(key)
        if len(self._warm) > self.MOST_PREFIXES:
            self._warm.popitem(last=False)
        return CallGate(self.line(model), warmth, batch)

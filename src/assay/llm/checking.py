"""Find out what a model can do, by asking it: `assay model check`.

A handful of short calls, as the executor and the ideator make them, on a codebase of two files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from assay.llm.executors import DEFAULT_LIMITS, ImplementRequest, Limits, ModelExecutor
from assay.llm.factory import open_model
from assay.llm.ideation import IdeationRequest, IdeatorCall, UnreadableAnswer
from assay.llm.interface import Completion, Model, ModelError, Try, Usage
from assay.llm.model_ideator import ModelIdeator
from assay.llm.names import ModelName
from assay.llm.prices import price, price_table
from assay.llm.retry import RetryPolicy
from assay.llm.windows import context_of, window_of
from assay.patching import PatchRefused, apply_answer

State = Literal["yes", "no", "note"]
#: Numbers in the larger file: with them the prompt is long enough for providers to cache it.
_NUMBERS = 1_500
_TEMPERATURE = 1.0


@dataclass(frozen=True)
class Finding:
    """What was found: `yes`, `no` (Assay cannot use the model so), or `note` (it can without)."""

    check: str
    state: State
    detail: str


async def check_model(
    name: ModelName,
    env: Mapping[str, str],
    *,
    timeout_s: float = 120.0,
    context_tokens: int | None = None,
) -> list[Finding]:
    """Ask a model as executor and as ideator, once each, and how it takes options.

    No call is repeated, but an ideator's answer that cannot be read is repaired as in a search.
    After a call that the provider does not answer, no more are made.

    Raises ModelError before any call if a key or package is missing, and ValueError for
    `context_tokens` that are more than the model's window.
    """
    context = context_of(name, context_tokens)
    model = open_model(name, env, policy=RetryPolicy(tries=1), show_thinking=True)
    try:
        asked = await _ask(_Probe(model, timeout_s, context))
    finally:
        await model.aclose()
    return [*asked, _window(name, context), _price(name)]


@dataclass
class _Counted:
    """Counts the calls that returned."""

    returned: int = 0

    async def answered(self, call: IdeatorCall) -> Completion | None:
        """None: nothing was asked before."""
        return None

    async def on_try(self, call: IdeatorCall, attempt: Try) -> None:
        """See `CallRecord.on_try`."""
        self.returned += attempt.phase == "returned"


@dataclass
class _Probe:
    """Makes the calls, and keeps what was answered."""

    model: Model
    timeout_s: float
    context: int

    async def implement(self, limits: Limits) -> Completion:
        executor = ModelExecutor(self.model, DEFAULT_LIMITS, self.timeout_s)
        return await executor.implement(replace(_REQUEST, limits=limits))

    async def propose(self) -> int:
        """Ask for an idea. Returns in how many calls it came."""
        counted = _Counted()
        ideator = ModelIdeator(
            self.model, spare_calls=0, context_tokens=self.context, timeout_s=self.timeout_s
        )
        await ideator.propose(_QUESTION, record=counted)
        return counted.returned


async def _ask(probe: _Probe) -> list[Finding]:
    try:
        first = await probe.implement(Limits())
    except ModelError as error:
        return [Finding("answers", "no", str(error))]
    again, temperature = await _option(probe, "temperature", Limits(temperature=_TEMPERATURE))
    _, effort = await _option(probe, "effort", Limits(effort="low"))
    if not probe.model.takes_temperature:
        temperature = Finding("temperature", "note", "not sent: this model takes none")
    return [
        Finding("answers", "yes", f"as {first.model}"),
        _as_executor(first),
        await _as_ideator(probe),
        _streams(first),
        _usage(first.usage),
        _caching(first.usage, again),
        temperature,
        effort,
    ]


async def _option(probe: _Probe, name: str, limits: Limits) -> tuple[Completion | None, Finding]:
    try:
        completion = await probe.implement(limits)
    except ModelError as error:
        return None, Finding(name, "note", f"refused: {error}")
    return completion, Finding(name, "yes", "accepted")


def _as_executor(completion: Completion) -> Finding:
    try:
        apply_answer(_FILES, completion.text)
    except PatchRefused as refused:
        return Finding("as executor", "no", f"its edit does not apply: {refused}"[:500])
    return Finding("as executor", "yes", "its edit applies")


async def _as_ideator(probe: _Probe) -> Finding:
    try:
        calls = await probe.propose()
    except (ModelError, UnreadableAnswer) as error:
        return Finding("as ideator", "no", str(error))
    if calls > 1:
        return Finding("as ideator", "note", "its idea can be read once its answer is repaired")
    return Finding("as ideator", "yes", "its idea can be read")


def _streams(completion: Completion) -> Finding:
    if completion.streamed:
        return Finding("streaming", "yes", "answers come piece by piece")
    return Finding(
        "streaming", "note", "answers come whole, so a call that is cut off is guessed at"
    )


def _usage(usage: Usage) -> Finding:
    if usage.estimated:
        return Finding("usage", "note", "not reported: tokens are guessed from characters")
    tokens = f"{usage.all_input_tokens:,} tokens read, {usage.output_tokens:,} written"
    return Finding("usage", "yes", f"reported: {tokens}")


def _caching(first: Usage, again: Completion | None) -> Finding:
    found = max(first.cached_input_tokens, again.usage.cached_input_tokens if again else 0)
    if not found:
        return Finding("prompt cache", "note", "no tokens from the cache were reported")
    return Finding("prompt cache", "yes", f"{found:,} tokens of a repeated prompt came from it")


def _window(name: ModelName, context: int) -> Finding:
    window = window_of(name)
    used = f"a call of the ideator takes at most {context:,} (--context-tokens)"
    if window is None:
        return Finding("context window", "note", f"not known; {used}")
    return Finding("context window", "yes", f"{window:,} tokens; {used}")


def _price(name: ModelName) -> Finding:
    if price(name, Usage()) is None:
        return Finding("price", "note", "not known: what it costs is neither counted nor capped")
    return Finding("price", "yes", f"known, of {price_table().date}")


_FILES = {
    "fit.py": "rate = 0.1\n\n\ndef step(w, g):\n    return w - rate * g\n",
    "data.py": "NUMBERS = [\n"
    + "".join(f"    {i * 7919 % 10_000 / 10_000:.4f},\n" for i in range(_NUMBERS))
    + "]\n",
}
_REQUEST = ImplementRequest(
    environment_title="Fit a line",
    files=_FILES,
    protected=("data.py",),
    idea_text="Set the rate in fit.py to 0.05.",
    problem="Fit a line to the numbers in data.py with as little error as possible.",
    budget="1 CPU core; one second",
    profile="tiny",
)
_QUESTION = IdeationRequest(
    operator="seed",
    count=1,
    environment_title=_REQUEST.environment_title,
    problem=_REQUEST.problem,
    metric_name="error",
    metric_goal="lower is better",
    files=_FILES,
    seed=0,
    protected=_REQUEST.protected,
    budget=_REQUEST.budget,
    profile=_REQUEST.profile,
)

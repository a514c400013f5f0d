"""What models may cost: an estimate before anything starts, a cap, and a question."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from assay.cli.command import Declined
from assay.cli.output import Output
from assay.domain.errors import InvalidInput
from assay.domain.isolation import NO_MODEL, is_offline

if TYPE_CHECKING:
    from assay.client import Client
    from assay.contracts.batch import BatchOptions
    from assay.contracts.caps import SearchSpending
    from assay.llm.names import ModelName

DEFAULT_CAP = Decimal(5)
#: An answer of an ideator with several ideas and its thinking, in tokens.
_IDEATOR_ANSWER = 12_000
_IDEAS_PER_CALL = 8


def agree_on_cost(
    client: Client,
    out: Output,
    *,
    environment: str,
    ideas: int,
    options: BatchOptions,
    caps: SearchSpending,
    executor: str,
    yes: bool,
    ideator: str | None = None,
    epochs: int = 1,
    context_tokens: int | None = None,
) -> SearchSpending:
    """Print what the models may cost, set a cap where none is, and ask. Returns the caps.

    Nothing is printed, capped or asked where no model takes part.

    Raises:
        InvalidInput: a model's name is wrong, or its context too large.
        Declined: the answer was no.
    """
    parts = []
    if executor != NO_MODEL and not is_offline(str(writer := parse_model(executor))):
        parts.append(_of_executor(client, environment, writer, ideas * epochs, options))
    if ideator is not None and not is_offline(str(thinker := parse_model(ideator))):
        parts.append(_of_ideator(thinker, epochs, ideas, context_tokens))
    if not parts:
        return caps
    unpriced = [name for name in (executor, ideator) if name and not _has_price(name)]
    caps = _with_default(caps, executor, ideator, unpriced)
    for part in parts:
        out.say(part)
    _say_caps(out, caps, unpriced)
    _ask(out, yes=yes)
    return caps


def agree_on_benchmark_cost(
    client: Client,
    out: Output,
    *,
    environment: str,
    ideators: Sequence[str],
    executors: Sequence[str],
    ideas: int,
    options: BatchOptions,
    most: Decimal | None,
    default: Decimal,
    yes: bool,
) -> Decimal | None:
    """Print what each model may cost, and ask. Returns the cap on all of them together.

    Without one, it is `default` if every model has a price, and none otherwise.

    Raises:
        InvalidInput: there is a cap, and no price is known for a model.
        Declined: the answer was no.
    """
    names = list(dict.fromkeys([*ideators, *executors]))
    unpriced = [name for name in names if not _has_price(name)]
    if unpriced and most is not None:
        raise InvalidInput(
            f"--max-cost: no price is known for {', '.join(unpriced)}, so this cap could not be "
            "kept; leave it out"
        )
    writers = [parse_model(name) for name in executors if not is_offline(name)]
    thinkers = [parse_model(name) for name in ideators if not is_offline(name)]
    if not writers and not thinkers:
        return most
    for thinker in thinkers:
        out.say(_of_ideator(thinker, 1, ideas, None))
    for writer in writers:
        out.say(_of_executor(client, environment, writer, ideas * len(ideators), options))
    if most is None and not unpriced:
        most = default
    from assay.contracts.caps import SearchSpending

    _say_caps(out, SearchSpending(max_cost_usd=most), unpriced)
    _ask(out, yes=yes)
    return most


def _ask(out: Output, *, yes: bool) -> None:
    """Raises Declined: the answer was no."""
    if out.interactive and not yes:
        import typer

        if not typer.confirm("Go on?", err=True):
            raise Declined


def _say_caps(out: Output, caps: SearchSpending, unpriced: Sequence[str]) -> None:
    for name in unpriced:
        out.say(f"No price is known for {name}, so what it spends is not capped.")
    for cap, whose, flag in (
        (caps.max_cost_usd, "model", "--max-cost"),
        (caps.max_ideator_cost_usd, "ideator", "--max-ideator-cost"),
        (caps.max_executor_cost_usd, "executor", "--max-executor-cost"),
    ):
        if cap is not None:
            out.say(f"No {whose} call starts once {cap} USD are spent ({flag}).")
    if caps.max_gpu_hours is not None:
        hours = f"{caps.max_gpu_hours:g} GPU-hours"
        out.say(f"No measurement is asked for beyond {hours} (--max-gpu-hours).")


def _with_default(
    caps: SearchSpending, executor: str, ideator: str | None, unpriced: Sequence[str]
) -> SearchSpending:
    """The caps; where no dollars are capped, with one on the calls whose price is known."""
    dollars = ("max_cost_usd", "max_ideator_cost_usd", "max_executor_cost_usd")
    if any(getattr(caps, name) is not None for name in dollars):
        return caps
    if not unpriced:
        name = "max_cost_usd"
    elif executor not in unpriced:
        name = "max_executor_cost_usd"
    elif ideator is not None and ideator not in unpriced:
        name = "max_ideator_cost_usd"
    else:
        return caps
    return caps.model_copy(update={name: DEFAULT_CAP})


def parse_model(name: str) -> ModelName:
    """Raises InvalidInput: the name is not `provider:model[@base_url]`."""
    from assay.llm.names import ModelName

    try:
        return ModelName.parse(name)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def _has_price(name: str) -> bool:
    """Return whether a price is known for a model. Raises as `parse_model`."""
    from assay.llm.interface import Usage
    from assay.llm.prices import price

    if name == NO_MODEL:
        return True
    return price(parse_model(name), Usage()) is not None


def _of_executor(
    client: Client, environment: str, model: ModelName, ideas: int, options: BatchOptions
) -> str:
    from assay.analysis.text import counted
    from assay.llm.prices import estimate

    files = client.environments.codebase(environment).files

    guess = estimate(
        model,
        ideas=ideas,
        samples=options.samples,
        revisions=options.revisions,
        codebase_characters=sum(map(len, files.values())),
    )
    calls = f"{guess.calls_low} to {guess.calls_high} calls"
    if options.repairs:
        calls += f" and at most {counted(ideas * options.repairs, 'repair')}"
    return f"{model}: {counted(ideas, 'idea')}, {calls}, {_between(guess.low, guess.high)}"


def _of_ideator(model: ModelName, epochs: int, ideas: int, context_tokens: int | None) -> str:
    from assay.analysis.text import counted
    from assay.llm.interface import Usage
    from assay.llm.prices import price
    from assay.llm.windows import context_of

    try:
        context = context_of(model, context_tokens)
    except ValueError as error:
        raise InvalidInput(f"--context-tokens: {error}") from None
    # Low: as few calls as there can be, without experiments to show. High: two questions per
    # epoch, each with a call to spare, and a full context that no provider caches.
    few = -(-ideas // _IDEAS_PER_CALL) * epochs
    many = (-(-ideas // _IDEAS_PER_CALL) + 2) * epochs
    small = price(model, Usage(5_000, _IDEATOR_ANSWER // 4))
    large = price(model, Usage(context - _IDEATOR_ANSWER, _IDEATOR_ANSWER))
    cost = _between(small and small * few, large and large * many)
    return f"{model}: ideas for {counted(epochs, 'epoch')}, {cost}"


def _between(low: Decimal | None, high: Decimal | None) -> str:
    if low is None or high is None:
        return "price unknown"
    return f"{low:.2f} to {high:.2f} USD"

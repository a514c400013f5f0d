"""What models may cost: an estimate before anything starts, a cap, and a question."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from assay.cli.command import Declined
from assay.cli.output import Output
from assay.domain.errors import InvalidInput
from assay.domain.isolation import NO_MODEL, is_offline

if TYPE_CHECKING:
    from assay.client import Client
    from assay.contracts.batch import BatchOptions
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
    executor: str,
    yes: bool,
    ideator: str | None = None,
    epochs: int = 1,
    context_tokens: int | None = None,
) -> BatchOptions:
    """Print what the models may cost, set a cap, and ask. Options come back with the cap.

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
        return options
    cap = options.max_cost_usd
    if cap is None and has_price(executor):
        cap = DEFAULT_CAP
    for part in parts:
        out.say(part)
    if cap is None:
        out.say(f"No price is known for {executor}, so what it spends is not capped.")
    else:
        out.say(f"No model call starts once {cap} USD are spent (--max-cost).")
    if options.max_gpu_hours is not None:
        hours = f"{options.max_gpu_hours:g} GPU-hours"
        out.say(f"No measurement is asked for beyond {hours} (--max-gpu-hours).")
    if out.interactive and not yes:
        import typer

        if not typer.confirm("Go on?", err=True):
            raise Declined
    return options.model_copy(update={"max_cost_usd": cap})


def parse_model(name: str) -> ModelName:
    """Raises InvalidInput: the name is not `provider:model[@base_url]`."""
    from assay.llm.names import ModelName

    try:
        return ModelName.parse(name)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def has_price(name: str) -> bool:
    """Return whether a price is known for a model. Raises as `parse_model`."""
    from assay.llm.interface import Usage
    from assay.llm.prices import price

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
    return f"{model}: ideas for {epochs} epochs, {cost}"


def _between(low: Decimal | None, high: Decimal | None) -> str:
    if low is None or high is None:
        return "price unknown"
    return f"{low:.2f} to {high:.2f} USD"

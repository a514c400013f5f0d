"""What calls cost, by the list prices in `prices.toml`."""

import functools
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from typing import Any

from assay.llm.interface import Usage
from assay.llm.names import ModelName, Provider

_MILLION = Decimal(1_000_000)
_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True)
class Rates:
    """US dollars per million tokens, by kind."""

    input: Decimal
    cached: Decimal
    cache_write: Decimal
    output: Decimal


@dataclass(frozen=True)
class PriceTable:
    """`date` says when the prices were noted; `note` what they are worth."""

    date: str
    note: str
    models: dict[str, dict[str, Any]]


@functools.cache
def price_table() -> PriceTable:
    """The table as shipped."""
    text = resources.files("assay.llm").joinpath("prices.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    models = {
        f"{provider}:{model}": entry
        for provider in (Provider.ANTHROPIC, Provider.OPENAI)
        for model, entry in data[provider].items()
    }
    return PriceTable(data["date"], data["note"], models)


def price(model: ModelName, usage: Usage) -> Decimal | None:
    """US dollars for `usage`, or None where the price is not known.

    A model behind an address of its own has no list price, whatever its name. Offline is free.
    """
    if model.provider is Provider.OFFLINE:
        return Decimal(0)
    return _price_of_calls(model, usage, 1)


def _rates(model: ModelName, input_tokens: int) -> Rates | None:
    if model.base_url is not None:
        return None
    entry = _entry(model)
    if entry is None:
        return None
    long = entry.get("long")
    chosen = long if long and input_tokens > long["above"] else entry
    return Rates(
        input=Decimal(chosen["input"]),
        cached=Decimal(chosen["cached"]),
        cache_write=Decimal(chosen.get("cache_write", chosen["input"])),
        output=Decimal(chosen["output"]),
    )


def undated(name: str) -> str:
    """Return a model's name without the date at its end."""
    return _DATED.sub("", name)


def long_input_above(model: ModelName) -> int | None:
    """Return from how many input tokens on a call has a higher price; None if none is known."""
    entry = None if model.base_url is not None else _entry(model)
    above = (entry or {}).get("long", {}).get("above")
    return None if above is None else int(above)


def _entry(model: ModelName) -> dict[str, Any] | None:
    models = price_table().models
    key = f"{model.provider}:{model.model}"
    return models.get(key) or models.get(undated(key))


@dataclass(frozen=True)
class Estimate:
    """Between what and what a batch may cost. Prices are None where they are not known."""

    calls_low: int
    calls_high: int
    tokens_low: Usage
    tokens_high: Usage
    low: Decimal | None
    high: Decimal | None


def estimate(
    model: ModelName,
    *,
    ideas: int,
    samples: int,
    codebase_characters: int,
    revisions: int = 2,
    idea_characters: int = 3_000,
    answer_tokens: tuple[int, int] = (600, 8_000),
) -> Estimate:
    """What turning `ideas` into codebases may cost.

    Low: one call per idea suffices, the codebase is cached after the first, a token has four
    characters. High: every sample is drawn and revised `revisions` times, nothing is cached, a
    token has three characters. `answer_tokens` are a short and a long answer, with thinking.
    """
    if model.provider is Provider.OFFLINE:
        return Estimate(ideas, ideas * samples, Usage(), Usage(), Decimal(0), Decimal(0))
    short, long = answer_tokens
    prefix, rest = codebase_characters // 4, idea_characters // 4
    low = Usage(
        input_tokens=ideas * rest,
        output_tokens=ideas * short,
        cached_input_tokens=max(0, ideas - 1) * prefix,
        cache_write_tokens=prefix if ideas else 0,
    )
    calls = ideas * samples * (1 + revisions)
    # A revision reads the answer it revises, and a log about as long as the idea.
    revision = (idea_characters // 3 + long) * revisions // (1 + revisions)
    high_call = Usage((codebase_characters + idea_characters) // 3 + revision, long)
    one = price(model, high_call)
    return Estimate(
        calls_low=ideas,
        calls_high=calls,
        tokens_low=low,
        tokens_high=Usage(calls * high_call.input_tokens, calls * long),
        low=_price_of_calls(model, low, ideas),
        high=None if one is None else one * calls,
    )


def _price_of_calls(model: ModelName, usage: Usage, calls: int) -> Decimal | None:
    """The price of equal calls together: long-input prices go by the single call."""
    rates = _rates(model, usage.all_input_tokens // max(1, calls))
    if rates is None:
        return None
    return (
        rates.input * usage.input_tokens
        + rates.cached * usage.cached_input_tokens
        + rates.cache_write * usage.cache_write_tokens
        + rates.output * usage.output_tokens
    ) / _MILLION

"""How much a model can read in one call, by the table in `windows.toml`."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from assay.llm.names import ModelName, Provider
from assay.llm.prices import long_input_above, undated

#: For models that the table does not know: what servers of open models offer at least.
UNKNOWN_WINDOW = 64_000
#: More is used only where it is asked for: every call of an epoch reads the whole context.
MOST_BY_DEFAULT = 200_000
#: Less holds no codebase and no answer.
LEAST = 8_000


@functools.cache
def _table() -> dict[str, int]:
    text = resources.files("assay.llm").joinpath("windows.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return {
        f"{provider}:{model}": int(tokens)
        for provider in (Provider.ANTHROPIC, Provider.OPENAI)
        for model, tokens in data[provider].items()
    }


def known_models() -> frozenset[str]:
    """The names in the table, as `provider:model`."""
    return frozenset(_table())


def window_of(model: ModelName) -> int | None:
    """Return the context window in tokens; None where it is not known.

    A model behind an address of its own is not known, whatever its name: its server decides.
    """
    if model.base_url is not None:
        return None
    key = f"{model.provider}:{model.model}"
    return _table().get(key) or _table().get(undated(key))


def context_of(model: ModelName, asked: int | None = None) -> int:
    """Return how many tokens prompt and answer of a call may have together.

    Without `asked`: the window, but no more than `MOST_BY_DEFAULT` and than what is billed at the
    ordinary price; `UNKNOWN_WINDOW` for a model that is not in the table.

    Raises:
        ValueError: `asked` is more than the model's window, or too little for any prompt.
    """
    window = window_of(model)
    if asked is None:
        most = [MOST_BY_DEFAULT, UNKNOWN_WINDOW if window is None else window]
        above = long_input_above(model)
        return min([*most, above] if above else most)
    if asked < LEAST:
        raise ValueError(f"a context of {asked} tokens is too little; give {LEAST} or more")
    if window is not None and asked > window:
        raise ValueError(f"{model} has a context window of {window} tokens, not {asked}")
    return asked

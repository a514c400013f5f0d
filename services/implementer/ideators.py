"""Ideators of searches that the service drives, and what is refused before one is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.domain.errors import InvalidInput
from assay.domain.isolation import is_offline
from assay.llm import Ideator, MissingKey, ModelError, ModelName, open_ideator
from assay.search import SearchConfig, open_strategy
from assay.search.config import IdeatorOptions
from services.implementer.context import Context
from services.implementer.submission import check_address

_FIELD = "/ideator"
_WHERE = (
    "where the service runs: for `assay serve`, or in server mode for the API and for every "
    "implement worker"
)


def ideator_of(context: Context, name: str, options: IdeatorOptions) -> Ideator:
    """What proposes ideas here, with the keys of this process. Raises as `open_ideator`."""
    tokens = options.context_tokens
    return open_ideator(name, context.variables, limits=options.limits, context_tokens=tokens)


def check(context: Context, strategy: str, ideator: str, config: Mapping[str, Any]) -> None:
    """Refuse a search that the service could not drive.

    Raises:
        InvalidInput: the strategy or its settings are unknown, or the ideator has no key or
            package here.
    """
    known = SearchConfig.read(config)
    open_strategy(strategy, known.strategy)
    try:
        name = ModelName.parse(ideator)
        check_address(context, name, _FIELD)
        ideator_of(context, ideator, known.ideator)
    except MissingKey as error:
        message = f"{ideator} has no key in the service; set {error.variable} {_WHERE}"
        raise InvalidInput.field(_FIELD, message, "missing_key") from None
    except ModelError as error:
        message = f"{error} Install it {_WHERE}."
        raise InvalidInput.field(_FIELD, message, "model_unavailable") from None
    except ValueError as error:
        raise InvalidInput.field(_FIELD, str(error), "unknown_model") from None
    if context.settings.replay is not None and not is_offline(ideator):
        message = "the service replays answers and asks no model; drive the search with a client"
        raise InvalidInput.field(_FIELD, message, "model_unavailable")

"""Ideators of searches that the service drives, and what is refused before one is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.domain.errors import InvalidInput
from assay.domain.isolation import is_offline
from assay.llm import Ideator, MissingKey, ModelError, ModelName, Usage, open_ideator, price
from assay.search import SearchConfig, open_strategy
from assay.search.config import IdeatorOptions
from assay.storage import caps
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


def check(
    context: Context, owner: str, strategy: str, ideator: str, config: Mapping[str, Any]
) -> None:
    """Refuse a search that the service could not drive.

    Raises:
        InvalidInput: the strategy or its settings are unknown, the ideator has no key or package
            here, or what it costs could not be held to a cap.
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
    if not is_offline(ideator):
        _check_money(context, owner, name, known)


def _check_money(context: Context, owner: str, name: ModelName, config: SearchConfig) -> None:
    if context.settings.replay is not None:
        message = "the service replays answers and asks no model; drive the search with a client"
        raise InvalidInput.field(_FIELD, message, "model_unavailable")
    if config.max_cost_usd is not None and price(name, Usage()) is None:
        message = f"no price is known for {name}, so --max-cost could not be kept; leave it out"
        raise InvalidInput.field(_FIELD, message, "price_unknown")
    own = caps.of_owner(context.settings.caps, owner)
    if own.max_cost_usd is not None or own.max_cost_usd_per_day is not None:
        message = (
            f"what {owner!r} may spend is capped (ASSAY_IMPLEMENTER_CAPS), and calls of ideators "
            "do not count against that cap; drive the search with a client and its own key"
        )
        raise InvalidInput.field(_FIELD, message, "cap_not_kept")

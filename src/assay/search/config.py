"""A search's `config` as the service keeps it: all that the loop needs to resume."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.contracts.base import Dollars
from assay.contracts.batch import BatchOptions
from assay.domain.errors import InvalidInput
from assay.search.strategy import open_strategy


class SearchConfig(BaseModel):
    """`strategy`: every setting of the strategy with its value. `options`: those of each batch.

    `max_cost_usd` is for the whole search: what is left of it becomes the cap of the next batch.
    `pause`: the loop stops when one code ended most of an epoch.
    """

    model_config = ConfigDict(extra="forbid")

    strategy: dict[str, Any] = {}
    options: BatchOptions = BatchOptions()
    max_cost_usd: Dollars | None = None
    pause: bool = True

    @classmethod
    def make(
        cls,
        strategy: str,
        settings: Mapping[str, Any] | None = None,
        options: BatchOptions | None = None,
        max_cost_usd: Decimal | None = None,
        *,
        pause: bool = True,
    ) -> SearchConfig:
        """A config with every default written out, so that a later default changes no old search.

        Raises:
            InvalidInput: the strategy or one of its settings is unknown.
        """
        full = open_strategy(strategy, settings).config
        return cls(
            strategy=dict(full),
            options=options or BatchOptions(),
            max_cost_usd=max_cost_usd,
            pause=pause,
        )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> SearchConfig:
        """Raises InvalidInput: the record holds something else."""
        try:
            return cls.model_validate(config)
        except ValidationError as error:
            first = error.errors()[0]
            place = "/".join(map(str, first["loc"]))
            raise InvalidInput.field(f"/config/{place}", first["msg"]) from None

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return self.model_dump(mode="json")

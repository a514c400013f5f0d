"""A search's `config` as the service keeps it: all that the loop needs to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay.contracts.batch import MAX_SEEDS, BatchOptions, Effort, MaxTokens, Temperature
from assay.domain.errors import InvalidInput
from assay.llm.executors import Limits
from assay.llm.windows import LEAST
from assay.search.strategy import open_strategy


class IdeatorOptions(BaseModel):
    """How the ideator is asked. What is None is not sent, or left to the model's window.

    `context_tokens`: what prompt and answer of one call may have together.
    """

    model_config = ConfigDict(extra="forbid")

    context_tokens: Annotated[int, Field(ge=LEAST)] | None = None
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    effort: Effort | None = None

    @property
    def limits(self) -> Limits:
        """What is sent with each call."""
        return Limits(self.max_tokens, self.temperature, self.effort)


class SearchConfig(BaseModel):
    """`strategy`: every setting of the strategy with its value. `options`: those of each batch.

    `ideator`: how it is asked. `pause`: the loop stops when one code ended most of an epoch.
    `warm_start`: ids of searches and batches whose experiments the ideator is told of. `confirm`:
    so many of the best results are confirmed at the end, each on `confirm_seeds` fresh seeds.
    """

    model_config = ConfigDict(extra="forbid")

    strategy: dict[str, Any] = {}
    options: BatchOptions = BatchOptions()
    pause: bool = True
    confirm: int = Field(0, ge=0, le=1_000)
    confirm_seeds: int = Field(5, ge=1, le=MAX_SEEDS)
    ideator: IdeatorOptions = IdeatorOptions()
    warm_start: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _without_older(cls, record: Any) -> Any:
        """Leave out what older records have: a cap, which is the search's own, and a bound in
        characters, where the model's window counts."""
        if not isinstance(record, dict):
            return record
        record = {name: value for name, value in record.items() if name != "max_cost_usd"}
        strategy = record.get("strategy")
        if not isinstance(strategy, dict) or "context_chars" not in strategy:
            return record
        rest = {name: value for name, value in strategy.items() if name != "context_chars"}
        return {**record, "strategy": rest}

    @classmethod
    def make(
        cls,
        strategy: str,
        settings: Mapping[str, Any] | None = None,
        options: BatchOptions | None = None,
        *,
        pause: bool = True,
        ideator: IdeatorOptions | None = None,
        warm_start: Sequence[str] = (),
    ) -> SearchConfig:
        """A config with every default written out, so that a later default changes no old search.

        Raises:
            InvalidInput: the strategy or one of its settings is unknown.
        """
        full = open_strategy(strategy, settings).config
        return cls(
            strategy=dict(full),
            options=options or BatchOptions(),
            pause=pause,
            ideator=ideator or IdeatorOptions(),
            warm_start=list(warm_start),
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

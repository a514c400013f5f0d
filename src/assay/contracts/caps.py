"""Caps: how much a batch, a search, an owner may spend, in all or in a day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from pydantic import Field

from assay.contracts.base import Dollars, GpuHours, Request, Resource

Scope = Literal["batch", "search", "ideator", "executor", "owner", "day"]
Kind = Literal["cost_usd", "gpu_hours"]
DAY: Scope = "day"


class Spending(Request):
    """What may be spent; without a number, as much as it takes."""

    max_cost_usd: Dollars | None = Field(None, description="Dollars of model calls.")
    max_gpu_hours: GpuHours | None = Field(None, description="Hours of GPUs.")


class SearchSpending(Spending):
    """What a search may spend, in all and by what the dollars are for."""

    max_ideator_cost_usd: Dollars | None = Field(
        None, description="Of the dollars, those for calls that propose ideas."
    )
    max_executor_cost_usd: Dollars | None = Field(
        None, description="Of the dollars, those for calls that write code."
    )


class OwnerSpending(Spending):
    """What an owner may spend, in all and in a day (UTC)."""

    max_cost_usd_per_day: Dollars | None = None
    max_gpu_hours_per_day: GpuHours | None = None


@dataclass(frozen=True)
class Limit:
    """One cap."""

    scope: Scope
    kind: Kind
    most: Decimal | float
    whose: str


@dataclass(frozen=True)
class Caps:
    """All caps that hold for one call."""

    batch: Spending = field(default_factory=Spending)
    search: SearchSpending = field(default_factory=SearchSpending)
    owner: OwnerSpending = field(default_factory=OwnerSpending)

    def limits(self, batch: str | None, search: str | None, owner: str) -> Iterator[Limit]:
        """Those that are set, the narrowest first. A call of an ideator is in no batch."""
        day = Spending(
            max_cost_usd=self.owner.max_cost_usd_per_day,
            max_gpu_hours=self.owner.max_gpu_hours_per_day,
        )
        part: tuple[Scope, Spending, str] = (
            "executor" if batch else "ideator",
            Spending(
                max_cost_usd=self.search.max_executor_cost_usd
                if batch
                else self.search.max_ideator_cost_usd
            ),
            f"the {'executor' if batch else 'ideator'} of the search {search}",
        )
        scopes: tuple[tuple[Scope, Spending, str], ...] = (
            ("batch", self.batch, f"the batch {batch}"),
            part,
            ("search", self.search, f"the search {search}"),
            ("day", day, f"owner {owner!r}, today (UTC),"),
            ("owner", self.owner, f"owner {owner!r}"),
        )
        for scope, spending, whose in scopes:
            if spending.max_cost_usd is not None:
                yield Limit(scope, "cost_usd", spending.max_cost_usd, whose)
            if spending.max_gpu_hours is not None:
                yield Limit(scope, "gpu_hours", spending.max_gpu_hours, whose)


class CapBody(Resource):
    """A cap of a batch, and how much of it is used; calls under way count as expected."""

    scope: str = Field(description="batch, executor, search, owner or day.")
    kind: str = Field(description="cost_usd or gpu_hours.")
    limit: str
    used: str
    reached: bool

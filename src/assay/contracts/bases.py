"""Names of codebases that later batches may start from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from assay.contracts.base import Request, Resource, Storable

#: What `assay env promote` names a base, unless it is told another name.
DEFAULT_NAME = "best"
#: Lower case, so that no two names look alike; no `_`, which ids of experiments have.
BaseName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9.-]{0,62}$", min_length=1, max_length=63), Storable()
]


class PromoteRequest(Request):
    """Give a name to the codebase of a confirmed result."""

    name: BaseName = DEFAULT_NAME


class PromotionBody(Resource):
    """A codebase under a name. The latest of a name counts, the others are its history."""

    object: Literal["promotion"] = "promotion"
    environment: str = Field(description="The version it belongs to; another has its own names.")
    name: str
    number: int = Field(description="Of the name, from 1.")
    is_current: bool = Field(description="Whether it is what the name stands for.")
    codebase: str
    profile: str = Field(description="The profile under which it was confirmed.")
    owner: str = Field(description="Who promoted it.")
    experiment: str | None = Field(description="Whose codebase it is; null if it is not yours.")
    confirmation: str | None = Field(
        description="The experiment that confirmed it; null if it is not yours."
    )
    created_at: datetime

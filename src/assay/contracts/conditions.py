"""Conditions as the API shows them: which results may be compared."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from assay.contracts.base import Name, Request, Resource, ShortName


class ConditionsBody(Resource):
    """Facts that results made under these conditions share."""

    object: Literal["conditions"] = "conditions"
    id: str
    hardware_class: str
    facts: dict[str, str]
    workers: list[str] = Field(description="Names of live workers that have these facts.")
    created_at: datetime


class EquivalenceBody(Resource):
    """What is known of conditions beside others, for an environment and profile."""

    object: Literal["equivalence"] = "equivalence"
    environment: str
    profile: str
    conditions: str
    equals: str = Field(description="What they are compared with.")
    state: str = Field(
        description="first (others are compared with these), pending (controls are measured), "
        "equal or different."
    )
    differences: list[str] = Field(description="The facts in which the two differ.")
    evidence: dict[str, Any] = Field(
        {}, description="What the unmodified codebase reached under both."
    )
    declared_by: str | None = Field(None, description="The operator who said so.")
    created_at: datetime
    decided_at: datetime | None


class SeparationRequest(Request):
    """Take back that conditions were declared equal to others."""

    profile: Name
    conditions: ShortName


class EquivalenceRequest(Request):
    """Take conditions for equal to others. Baselines of both must be measured."""

    profile: Name
    conditions: ShortName
    equals: ShortName
    despite_difference: bool = Field(
        False, description="Also if chance does not explain how their baselines differ."
    )

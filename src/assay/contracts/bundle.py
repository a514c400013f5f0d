"""What a bundle of an experiment says of it: `record.json`, for people and for `run.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from assay.contracts.base import Resource
from assay.contracts.batch import ComparisonBody

#: The folder of each tree in a bundle, and the names of its other files.
CODEBASE, ENVIRONMENT = "codebase", "environment"
RECORD, README, RUN = "record.json", "README.md", "run.py"
REQUIREMENTS, IDEA, CHANGES = "requirements.txt", "idea.txt", "changes.diff"
#: Facts about a result that name the data it was trained and scored on, by split.
DATA = {"train": "train", "held_out": "search", "sealed": "sealed"}


class BundledSeed(Resource):
    """A result on one seed. Numbers are rounded as the API shows them."""

    seed: int
    measurement: str
    kind: str
    metric: float
    metrics: dict[str, float]
    artifact: str | None = Field(description="Hash of what training left.")
    provenance: dict[str, Any]


class BundleRecord(Resource):
    """All that measuring an experiment again takes, and what was measured."""

    object: Literal["bundle"] = "bundle"
    experiment: str
    environment: str = Field(description="`name@hash`.")
    environment_tree: str = Field(description="Hash of the folder `environment`.")
    codebase: str = Field(description="Hash of the files in the folder `codebase`.")
    codebase_files: list[str]
    profile: str
    command: list[str] = Field(description="The entry point of the training.")
    metric_name: str
    direction: str
    metric: float
    comparison: ComparisonBody | None
    hardware_class: str
    conditions: str | None = Field(description="Null if none were recorded.")
    facts: dict[str, str] = Field(description="Of the conditions, those that decide.")
    recorded: dict[str, str] = Field(description="Other facts of the worker that measured.")
    held_out_key: str | None = Field(
        description="Fingerprint of the key that held-out data was generated with; `none` without "
        "one, null if it was not recorded."
    )
    seeds: list[BundledSeed]
    created_at: datetime

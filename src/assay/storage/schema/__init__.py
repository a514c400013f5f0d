"""The tables. Vocabulary of the glossary; constraints carry the guarantees:

- an idea is stored once: UNIQUE(batch, client_key), UNIQUE(batch, position);
- identical work is measured once: UNIQUE over what makes a measurement;
- one live attempt per measurement: partial unique index;
- one result per measurement: it is the primary key;
- terminal states never change: triggers (see the first migration);
- curve points and log bytes are stored once: keyed by sequence number and byte offset.
"""

from assay.storage.schema.annotations import Annotation, Tag
from assay.storage.schema.base import Base
from assay.storage.schema.calls import IdeatorCall, ModelCall, Repair
from assay.storage.schema.ideas import (
    Batch,
    Codebase,
    Environment,
    Epoch,
    Experiment,
    Idea,
    Implementation,
    Promotion,
    Sample,
    Search,
    VerdictFit,
)
from assay.storage.schema.measurements import (
    LIVE_ATTEMPT_SQL,
    LIVE_MEASUREMENT_SQL,
    Artifacts,
    Attempt,
    ConditionSet,
    CurvePoint,
    Equivalence,
    ExperimentMeasurement,
    Lease,
    LogChunk,
    Measurement,
    Rescore,
    Result,
    Shape,
    SystemPoint,
    Worker,
)
from assay.storage.schema.service import (
    Event,
    IdempotencyKey,
    Leader,
    Outbox,
    SearchEvent,
)
from assay.storage.schema.webhooks import Delivery, Unjudged, Webhook

__all__ = [
    "LIVE_ATTEMPT_SQL",
    "LIVE_MEASUREMENT_SQL",
    "Annotation",
    "Artifacts",
    "Attempt",
    "Base",
    "Batch",
    "Codebase",
    "ConditionSet",
    "CurvePoint",
    "Delivery",
    "Environment",
    "Epoch",
    "Equivalence",
    "Event",
    "Experiment",
    "ExperimentMeasurement",
    "Idea",
    "IdeatorCall",
    "IdempotencyKey",
    "Implementation",
    "Leader",
    "Lease",
    "LogChunk",
    "Measurement",
    "ModelCall",
    "Outbox",
    "Promotion",
    "Repair",
    "Rescore",
    "Result",
    "Sample",
    "Search",
    "SearchEvent",
    "Shape",
    "SystemPoint",
    "Tag",
    "Unjudged",
    "VerdictFit",
    "Webhook",
    "Worker",
]

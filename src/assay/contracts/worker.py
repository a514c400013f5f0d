"""What a worker and the implementer API say to each other.

A worker authenticates with its own token, reports over HTTP and holds no other credential. Every
report about an attempt carries the lease token of that attempt; a report with a stale token is
answered with 409 `fenced`, and the worker discards the work.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from assay.contracts.base import (
    BASE64,
    MAX_INTEGER,
    Items,
    JsonObject,
    Message,
    Name,
    Named,
    Number,
    Request,
    Resource,
    Sha256,
    ShortName,
    Text,
)
from assay.domain.states import FailureStage

Token = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
#: What a worker can hold at once; SQLite bounds the variables of a statement to three times that.
MAX_HELD = 10_000
MAX_DEVICES = 1_024
#: Of one report. A worker sends 2,000 points and 256 KiB of each log at once.
MAX_POINTS = 10_000
MAX_PIECES = 1_000
MAX_PIECE_BYTES = 4 << 20
MAX_VALUES = 1_024
MAX_ARTIFACTS = 1_000
#: Name → number. A worker keeps 64 of a line of the codebase's metrics file.
Values = Annotated[
    dict[Annotated[Text, Field(min_length=1, max_length=200)], Number],
    Named(MAX_VALUES),
]


#: Key of a provenance: the split that decides the metric of a result, and its two values.
SCORED_ON, SEARCH, SEALED = "scored_on", "search", "sealed"


class Device(Request):
    """A GPU, or a part of one: a slot."""

    uuid: ShortName
    name: Name = "unknown"
    memory_bytes: int = Field(0, ge=0, le=MAX_INTEGER)


class DeviceTrouble(Request):
    """A GPU that is left out, and why."""

    uuid: ShortName = Field(description="Of a device; `GPU 3` for one that tells the driver none.")
    state: ShortName = Field(
        description="`in_use`, `memory_in_use`, `other_worker`, `memory_errors`, `driver_error`, "
        "`no_answer`, `lost` or `unreachable`."
    )
    detail: Message = ""


class HeldAttempt(Request):
    """An attempt the worker holds."""

    attempt: ShortName
    lease_token: Token


class WorkerRegistration(Request):
    """A worker that has started. A new `incarnation` means that nothing of the old one lives."""

    name: Name
    incarnation: ShortName
    cpus: int = Field(ge=1, le=1 << 20)
    gpus: int = Field(0, ge=0, le=1 << 20)
    memory_bytes: int = Field(ge=1, le=MAX_INTEGER)
    hardware_class: ShortName
    sandbox: ShortName
    isolated: bool
    guarantees: Annotated[dict[ShortName, bool], Named(64)] = {}
    info: JsonObject = {}
    devices: Items[Device] = Field([], max_length=MAX_DEVICES)
    version: Text = Field("", max_length=64, description="Of the worker's software.")
    adopted: Items[HeldAttempt] = Field(
        [],
        max_length=MAX_HELD,
        description="Attempts of the old incarnation that still run and are looked after.",
    )


class ApartBody(Resource):
    """An environment and profile whose measurements a worker does not share with others."""

    environment: str
    profile: str
    state: str = Field(
        description="pending (its controls are measured) or different (kept apart)."
    )


class DeclaredBody(Resource):
    """An environment and profile where a worker's conditions were declared equal to others."""

    environment: str
    profile: str
    equals: str = Field(description="The other conditions.")


class WorkerBody(Resource):
    """A worker as the API shows it."""

    object: Literal["worker"] = "worker"
    id: str
    name: str
    state: str
    cpus: int
    gpus: int
    memory_bytes: int
    hardware_class: str
    conditions: str | None = Field(
        None, description="What its results share with those of other workers."
    )
    facts: dict[str, str] = Field({}, description="Those that decide the conditions.")
    recorded: dict[str, str] = Field(
        {}, description="Facts that split conditions only if a control shows that they matter."
    )
    apart: list[ApartBody] = Field(
        [], description="Where it does not measure under these conditions."
    )
    declared: list[DeclaredBody] = Field(
        [], description="Where an operator takes these conditions for equal to others."
    )
    sandbox: str
    isolated: bool
    guarantees: dict[str, bool]
    devices: list[Device] = []
    usable_gpus: int = 0
    troubles: list[DeviceTrouble] = Field([], description="GPUs that are left out, and why.")
    usable_cpus: int | None = Field(
        None, description="Processors that it offers while its host is busy; null: all."
    )
    version: str = ""
    draining: bool = False
    cordoned_until: datetime | None = Field(
        None, description="Until when it gets no new work, after repeated failures of its own."
    )
    cordon_reason: str | None = None
    running: list[str] = Field(description="Live attempts.")
    held_out_key: str | None = Field(
        None,
        description="A fingerprint of its held-out key: where it differs, results cannot be "
        "compared. Empty without a key; null if the worker's version does not tell.",
    )
    last_seen_at: datetime


class AdmitRequest(Request):
    """A host that may measure from now on."""

    name: Name


class AdmittedBody(Resource):
    """A worker that was admitted, with the token that is its only credential."""

    object: Literal["admitted_worker"] = "admitted_worker"
    id: str
    name: str
    token: str = Field(description="Shown this once; only its hash is kept.")


class CordonRequest(Request):
    """A worker is given no new work."""

    reason: Message = "by an operator"
    seconds: float | None = Field(
        None, gt=0, le=1e8, description="For so long; without it, until it is uncordoned."
    )


class SyncRequest(Request):
    """Everything the worker holds; what is missing here, it does not run."""

    incarnation: ShortName
    number: int = Field(
        0,
        ge=0,
        lt=1 << 62,
        description="Counts up with every sync of a process, so that a late one is known to be "
        "old; 0 from workers that do not count.",
    )
    held: Items[HeldAttempt] = Field([], max_length=MAX_HELD)
    draining: bool = False
    usable_gpus: int | None = Field(
        None, ge=0, le=1 << 20, description="GPUs in good health; without it, all."
    )
    # A process that knows no such field refuses it, so it is sent only where it says something.
    troubles: Items[DeviceTrouble] = Field(
        [],
        max_length=MAX_DEVICES,
        exclude_if=lambda troubles: not troubles,
        description="GPUs that are left out, and why; without it, none.",
    )
    usable_cpus: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description="Processors that the host has left for new work; without it, all.",
    )
    wait_seconds: float = Field(0, ge=0, le=30, description="Wait this long for new work.")


#: Files of at most so many bytes travel inside a message: a request costs more than they do.
INLINE_BYTES = 64 << 10


class RescoreRule(Resource):
    """Which results are scored a second time, with fresh secret positions, before they count."""

    beyond: float | None = Field(None, description="Those better than this; without it, all.")


class AttemptSpec(Resource):
    """All a worker needs to run an attempt."""

    attempt: str
    lease_token: int
    measurement: str
    kind: str
    codebase: str
    environment: str
    bundle: str = Field(description="Hash of the environment's bundle.")
    profile: str
    seed: int
    hardware_class: str
    cpus: int
    gpus: int
    memory_bytes: int
    bound_seconds: float = Field(
        0, description="From claim to end at the longest; then the attempt is lost. 0: no bound."
    )
    needs_isolation: bool = Field(
        True, description="A worker that does not isolate code gives this attempt back."
    )
    rescore: RescoreRule | None = Field(
        None, description="Which results to score twice; without it, none (the baseline's own)."
    )
    archive: str | None = Field(
        None, description="The codebase as a zip (base64), where it is small enough to come along."
    )


class SyncResponse(Resource):
    """What to start and what to stop."""

    assign: list[AttemptSpec]
    stop: list[str] = Field(description="Attempts to cancel.")
    fenced: list[str] = Field(description="Attempts that are no longer this worker's.")


class LeaseRequest(Request):
    """Proof that the sender holds the attempt."""

    lease_token: Token


class ClaimRequest(LeaseRequest):
    """An attempt is taken, with the GPUs it will use."""

    devices: Items[ShortName] = Field([], max_length=MAX_DEVICES)


class SystemPoint(Request):
    """What an attempt used, `seconds` after its start."""

    seq: int = Field(ge=0, le=2**31 - 1)
    seconds: float = Field(ge=0, le=1e9)
    values: Values


class Point(Request):
    """A line of the codebase's metrics file."""

    seq: int = Field(ge=0, le=2**31 - 1)
    step: Number | None = None
    values: Values


LogBytes = Annotated[str, Field(pattern=BASE64, max_length=MAX_PIECE_BYTES // 3 * 4 + 4)]
InlineBytes = Annotated[str, Field(pattern=BASE64, max_length=INLINE_BYTES * 2)]


class LogPiece(Request):
    """Bytes of a log stream at an offset (base64)."""

    stream: Literal["train", "score"]
    offset: int = Field(ge=0, lt=1 << 62)
    data: LogBytes


class ProgressRequest(LeaseRequest):
    """New log bytes and points, and how far the attempt is. Repeating changes nothing."""

    state: Literal["running", "finalizing"] | None = None
    logs: Items[LogPiece] = Field([], max_length=MAX_PIECES)
    points: Items[Point] = Field([], max_length=MAX_POINTS)
    system: Items[SystemPoint] = Field([], max_length=MAX_POINTS)


class UploadRequest(LeaseRequest):
    """A file is about to be stored."""

    bytes: int = Field(ge=0, le=MAX_INTEGER)
    sha256: Sha256


class UploadTarget(Resource):
    """Where to PUT a file, with which headers; without a URL, to the API itself."""

    url: str | None = None
    headers: dict[str, str] = {}


class ManifestEntry(Request):
    """A stored file."""

    name: Name
    bytes: int = Field(ge=0, le=MAX_INTEGER)
    sha256: Sha256
    data: InlineBytes | None = Field(
        None, description="The bytes (base64) of a small file; others are stored beforehand."
    )


class FailureReport(Request):
    """Where and why an attempt failed."""

    stage: FailureStage = Field(strict=False)
    code: ShortName
    message: Message = Field(description="For a crash: the last line of the traceback.")
    retryable: bool = False


class RescoreReport(Request):
    """The second evaluation of what a codebase left, which agreed with the first."""

    metrics: Values
    seconds: float = Field(ge=0, le=1e9, description="Its wall clock.")


class FinishRequest(LeaseRequest):
    """The end of an attempt, with its last log bytes and curve points."""

    logs: Items[LogPiece] = Field([], max_length=MAX_PIECES)
    points: Items[Point] = Field([], max_length=MAX_POINTS)
    system: Items[SystemPoint] = Field([], max_length=MAX_POINTS)
    state: Literal["succeeded", "failed", "cancelled"]
    failure: FailureReport | None = None
    infrastructure: bool = Field(
        False,
        description="Whether the worker expects another try. The service decides by "
        "`failure.code`.",
    )
    unclear: bool = Field(
        False,
        description="Codebase or host may be to blame: once more, and the same end is the "
        "codebase's.",
    )
    metrics: Values = {}
    # A process that knows no such field refuses it, so it is sent only where it says something.
    rescore: RescoreReport | None = Field(
        None,
        exclude_if=lambda rescore: rescore is None,
        description="Of a success that was scored twice; `metrics` are the first evaluation's.",
    )
    provenance: JsonObject = {}
    artifacts: Items[ManifestEntry] = Field([], max_length=MAX_ARTIFACTS)
    started: bool = Field(False, description="Whether the codebase was started at all.")
    seconds: float | None = Field(
        None, ge=0, le=1e9, description="Wall clock of training and evaluation."
    )

    @model_validator(mode="after")
    def _explains_itself(self) -> FinishRequest:
        if (self.state == "failed") != (self.failure is not None) and self.state != "cancelled":
            raise ValueError("failure: needed for a failed attempt, and only for one")
        if (self.infrastructure or self.unclear) and self.state != "failed":
            raise ValueError("infrastructure, unclear: only a failed attempt is tried again")
        if self.rescore is not None and self.state != "succeeded":
            raise ValueError("rescore: only of a success; leave it out")
        return self


class FinishResponse(Resource):
    """Whether the end was taken."""

    state: str

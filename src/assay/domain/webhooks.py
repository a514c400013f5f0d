"""What webhooks tell, and how a delivery is signed: the rules of https://www.standardwebhooks.com.

`services/implementer/webhooks.py` signs; receivers check with `assay.client.verify_webhook`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from enum import StrEnum

from assay.domain.errors import InvalidInput

#: The headers of a delivery.
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
#: A delivery whose timestamp is further away is refused: somebody may be replaying it.
TOLERANCE_SECONDS = 300
_PREFIX = "whsec_"
_VERSION = "v1"
_SECRET_BYTES = 32


class WebhookEvent(StrEnum):
    """What a webhook can be told of."""

    SEARCH_FINISHED = "search.finished"
    SEARCH_CANCELLED = "search.cancelled"
    SEARCH_PAUSED = "search.paused"
    BATCH_FINISHED = "batch.finished"
    CAP_REACHED = "cap.reached"
    EXPERIMENT_CONFIRMED = "experiment.confirmed"


#: The type of a delivery that its owner asked for, to try a webhook.
TEST = "webhook.test"


class DeliveryState(StrEnum):
    """Where a delivery is: to be sent (again), accepted by its receiver, or given up."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class WrongSignature(InvalidInput):
    """The delivery was not signed with this secret, or is too old."""

    code = "wrong_signature"


def new_secret() -> str:
    """Return a new secret: `whsec_` and 32 random bytes in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def sign(secret: str, message: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`. `timestamp`: seconds since 1970.

    Raises:
        InvalidInput: the secret is not `whsec_` and base64.
    """
    signed = f"{message}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"{_VERSION},{base64.b64encode(digest).decode()}"


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None
) -> None:
    """Check that a delivery comes from Assay and is fresh.

    Args:
        secret: what `assay webhook create` printed.
        headers: those of the request; names in any case.
        body: the bytes of the request as they came, before any JSON is read.
        now: seconds since 1970, by default the clock of this machine.

    Raises:
        WrongSignature: a header is missing, no signature is right, or the timestamp is more than
            five minutes away.
        InvalidInput: the secret is not `whsec_` and base64.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if name not in given]
    if missing:
        raise WrongSignature(f"the header {missing[0]} is missing")
    try:
        timestamp = int(given[TIMESTAMP])
    except ValueError:
        raise WrongSignature(f"{TIMESTAMP} is not a number of seconds") from None
    if abs((time.time() if now is None else now) - timestamp) > TOLERANCE_SECONDS:
        raise WrongSignature(f"{TIMESTAMP} is more than {TOLERANCE_SECONDS} s away")
    expected = sign(secret, given[ID], timestamp, body).encode()
    # Several signatures stand there while a secret is being replaced.
    if not any(hmac.compare_digest(expected, one.encode()) for one in given[SIGNATURE].split()):
        raise WrongSignature("no signature was made with this secret over this body")


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidInput(
            f"the secret is not {_PREFIX} and base64; take it as `assay webhook create` printed it"
        ) from None

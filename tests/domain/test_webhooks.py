"""Deliveries are signed as https://www.standardwebhooks.com says, and checked."""

from __future__ import annotations

from typing import get_args

import pytest

from assay.client import WrongSignature, verify_webhook
from assay.contracts.webhook import Event
from assay.domain.errors import InvalidInput
from assay.domain.webhooks import WebhookEvent, new_secret, sign

#: The example of the specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"Webhook-Id": ID, "Webhook-Timestamp": str(AT), "Webhook-Signature": SIGNATURE}


def test_the_example_of_the_specification_has_its_signature() -> None:
    assert sign(SECRET, ID, AT, BODY) == SIGNATURE
    verify_webhook(SECRET, HEADERS, BODY, now=AT + 299)


def test_one_of_several_signatures_is_enough() -> None:
    both = HEADERS | {"Webhook-Signature": f"v1,AAAA v1a,BBBB {SIGNATURE}"}
    verify_webhook(SECRET, both, BODY, now=AT)


@pytest.mark.parametrize(
    ("changes", "body", "now"),
    [
        ({}, BODY + b" ", AT),
        ({"Webhook-Id": "msg_other"}, BODY, AT),
        ({"Webhook-Timestamp": str(AT + 1)}, BODY, AT),
        ({"Webhook-Timestamp": "soon"}, BODY, AT),
        ({"Webhook-Signature": ""}, BODY, AT),
        ({"Webhook-Signature": "v1,é"}, BODY, AT),
        ({}, BODY, AT + 301),
        ({}, BODY, AT - 301),
    ],
)
def test_what_was_changed_or_is_old_is_refused(
    changes: dict[str, str], body: bytes, now: float
) -> None:
    with pytest.raises(WrongSignature):
        verify_webhook(SECRET, HEADERS | changes, body, now=now)


@pytest.mark.parametrize("name", HEADERS)
def test_a_missing_header_is_named(name: str) -> None:
    left = {key: value for key, value in HEADERS.items() if key != name}
    with pytest.raises(WrongSignature, match=name.lower()):
        verify_webhook(SECRET, left, BODY, now=AT)


def test_another_secret_is_refused() -> None:
    with pytest.raises(WrongSignature):
        verify_webhook(new_secret(), HEADERS, BODY, now=AT)
    with pytest.raises(InvalidInput, match="whsec_"):
        verify_webhook("not base64!", HEADERS, BODY, now=AT)


def test_a_request_names_the_events_there_are() -> None:
    assert set(get_args(Event)) == {event.value for event in WebhookEvent}

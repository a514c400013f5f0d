"""Server-sent events arrive as they were sent, wherever the network cuts them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from assay.client.events import Message, parse_stream

SENT = (
    "id: 1\nevent: experiment.changed\ndata: {}\n\n"
    ": keep-alive\n\n"
    "id: 2\r\nevent: experiment.changed\r\ndata: first\r\ndata: sécond\u2028line\r\n\r\n"
    "data: without a name\n\n"
    "id: 3\nevent: batch.finished\ndata: {}\n\n"
    "id: 4\nevent: experiment.changed\ndata: cut off"
).encode()
MESSAGES = [
    Message("experiment.changed", "{}", "1"),
    Message("experiment.changed", "first\nsécond\u2028line", "2"),
    Message("message", "without a name", ""),
    Message("batch.finished", "{}", "3"),
]


def received(*pieces: bytes) -> list[Message | None]:
    """What a reader of a response sees that comes in these pieces."""
    return list(parse_stream(httpx2.Response(200, content=_sent(pieces))))


def _sent(pieces: tuple[bytes, ...]) -> Iterator[bytes]:
    yield from pieces


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_events_that_come_in_pieces_are_whole(size: int) -> None:
    pieces = [SENT[at : at + size] for at in range(0, len(SENT), size)]
    assert [message for message in received(*pieces) if message is not None] == MESSAGES


def test_no_event_is_lost_wherever_it_is_cut() -> None:
    for at in range(1, len(SENT)):
        found = received(SENT[:at], SENT[at:])
        assert [message for message in found if message is not None] == MESSAGES, at


def test_a_piece_without_a_whole_event_is_seen_as_a_sign_of_life() -> None:
    assert received(b": keep-alive\n\n", b"data: x\n", b"\n") == [
        None,
        None,
        Message("message", "x", ""),
    ]

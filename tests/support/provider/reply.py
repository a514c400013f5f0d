"""What a provider sends back for one request, in whichever wire format."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Then = Literal["end", "close", "wait"]


@dataclass(frozen=True)
class Reply:
    """One response; with `drop`, the connection is closed without any.

    A request for a stream gets `events` (server-sent events as they are on the wire) if there are
    any; every other request gets `body`. After the last event the stream ends properly, the
    connection is closed in the middle of it, or the server waits until the client leaves.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    events: tuple[str, ...] | None = None
    then: Then = "end"
    delay_s: float = 0.0
    """Time before the first byte."""
    pause_s: float = 0.0
    """Time between two events."""

    def plain(self) -> Reply:
        """Return the same reply from a server that does not stream."""
        return replace(self, events=None)

    def until(self, count: int, then: Then) -> Reply:
        """Return the same reply with its first `count` events only."""
        return replace(self, events=(self.events or ())[:count], then=then)

    def put(self, at: int, event: str) -> Reply:
        """Return the same reply with one more event, at index `at`."""
        events = list(self.events or ())
        events.insert(at, event)
        return replace(self, events=tuple(events))

    def over(self, seconds: float) -> Reply:
        """Return the same reply, its events spread over `seconds`."""
        return replace(self, pause_s=seconds / max(1, len(self.events or ()) - 1))


def split(text: str, pieces: int) -> list[str]:
    """Return a text in so many pieces of about the same length; fewer if it is short."""
    size = max(1, -(-len(text) // pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]

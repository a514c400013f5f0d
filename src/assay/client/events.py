"""Server-sent events: a parser that shows heartbeats, and a follower that resumes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2

from assay.client.errors import (
    APIConnectionError,
    APIStatusError,
    ServerFault,
    WaitTimeout,
)
from assay.client.http import Http
from assay.client.outage import is_outage
from assay.contracts.base import Page
from assay.contracts.batch import EventBody

#: Without a byte for this long a stream is taken for dead; the service sends heartbeats.
IDLE_SECONDS = 60.0
#: Give up after this many reconnections in a row that brought nothing.
RECONNECTIONS = 6
POLL_SECONDS = 1.0
LAST_EVENTS = ("batch.finished",)
#: Code of a 429 that streams get and pages do not.
TOO_MANY_STREAMS = "too_many_streams"


@dataclass(frozen=True)
class Message:
    """One server-sent event."""

    event: str
    data: str
    id: str


def parse_stream(response: httpx2.Response) -> Iterator[Message | None]:
    """Events of a response; None for every piece that completed no event (a heartbeat).

    Lines end at LF or CRLF only: the text of an event may hold other line separators.
    """
    buffer = ""
    fields: dict[str, list[str]] = {}
    for chunk in response.iter_text():
        buffer += chunk
        complete = 0
        *lines, buffer = buffer.split("\n")
        for line in lines:
            line = line.removesuffix("\r")
            if line:
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
            elif "data" in fields or "event" in fields:
                complete += 1
                yield _message(fields)
                fields = {}
        if not complete:
            yield None


def _message(fields: dict[str, list[str]]) -> Message:
    return Message(
        fields.get("event", ["message"])[-1],
        "\n".join(fields.get("data", [])),
        fields.get("id", [""])[-1],
    )


class Follower:
    """Yields each event of a batch once, across lost connections, until the batch is finished.

    `last`: types of events after which nothing follows.

    Streams where the service offers it and polls where it does not (a proxy that buffers or
    refuses streams, a service that has too many of them open). A client that waits for a service
    that is away does so here too. `deadline` is a `time.monotonic()` moment or None.
    """

    def __init__(
        self,
        http: Http,
        path: str,
        after: int = 0,
        deadline: float | None = None,
        last: tuple[str, ...] = LAST_EVENTS,
    ) -> None:
        self._http = http
        self._path = path
        self._deadline = deadline
        self._ends = last
        self.last = after
        self._done = False
        self._polling = False

    def __iter__(self) -> Iterator[EventBody]:
        failures = 0
        while not self._done:
            before = self.last
            try:
                yield from self._poll() if self._polling else self._stream()
                continue
            except (APIConnectionError, ServerFault) as error:
                self._check_deadline()
                failures = 1 if self.last > before else failures + 1
                if self._http.waits_for_service and is_outage(error):
                    yield from self._poll()  # which waits until the service is back
                elif failures > RECONNECTIONS:
                    raise
            except APIStatusError as error:
                refused = error.status in (405, 406) or error.code == TOO_MANY_STREAMS
                if self._polling or not refused:
                    raise
                self._polling = True
                continue
            self._http.pause(0.5 * 2 ** min(failures - 1, 10))

    def _stream(self) -> Iterator[EventBody]:
        headers = {"Last-Event-ID": str(self.last)} if self.last else {}
        idle = min(IDLE_SECONDS, self._remaining())
        with self._http.stream(
            self._path, headers=headers, query=None, idle_seconds=idle
        ) as response:
            if response.status_code == httpx2.codes.NO_CONTENT:  # nothing will follow
                self._done = True
                return
            kind = response.headers.get("content-type", "").partition(";")[0].strip()
            if kind != "text/event-stream":
                self._polling = True
                return
            for message in parse_stream(response):
                self._check_deadline()
                if message is not None and message.data:
                    yield from self._take([EventBody.model_validate_json(message.data)])
                if self._done:
                    return
        raise APIConnectionError(f"{self._path}: the stream ended before the batch was finished")

    def _poll(self) -> Iterator[EventBody]:
        response = self._http.request("GET", self._path, query={"after": self.last})
        page = Page[EventBody].model_validate_json(response.content)
        yield from self._take(page.data)
        if not page.data:
            self._check_deadline()
            self._http.sleep(min(POLL_SECONDS, self._remaining()))

    def _take(self, events: list[EventBody]) -> Iterator[EventBody]:
        for event in events:
            if event.id <= self.last:
                continue
            self.last = event.id
            self._done = self._done or event.type in self._ends
            yield event

    def _remaining(self) -> float:
        if self._deadline is None:
            return IDLE_SECONDS
        return max(0.05, self._deadline - time.monotonic())

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise WaitTimeout(f"{self._path}: not finished in time; it goes on")

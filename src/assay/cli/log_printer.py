"""Print a log in pieces, for `assay experiment logs` and `assay measurement logs`."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import typer

from assay.analysis.text import clean
from assay.domain.errors import InvalidInput

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.client.experiments import LogText, Stream

FOLLOW_SECONDS = 1.0
_STREAMS: Final[dict[str, Stream]] = {"train": "train", "score": "score"}


def stream_named(name: str) -> Stream:
    """Return the stream of that name.

    Raises:
        InvalidInput: there is none.
    """
    if name not in _STREAMS:
        raise InvalidInput(f"--stream: {name!r} is neither train nor score")
    return _STREAMS[name]


class ReadLog(Protocol):
    """Reads a piece of a log from a byte offset on."""

    def __call__(self, *, stream: Stream, offset: int) -> LogText: ...


class LogPrinter:
    """Prints a log in pieces, which may end inside a character."""

    def __init__(self, read: ReadLog, stream: Stream, offset: int, out: Output) -> None:
        self._read = partial(read, stream=stream)
        self._stream = stream
        self._offset = offset
        self._out = out
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def follow(self, has_ended: Callable[[], bool]) -> None:
        """Print the log up to its end, or once up to its present end if it `has_ended` already."""
        while True:
            # Asked first: what is written until the answer is still printed.
            ended = has_ended()
            self._print_what_is_there()
            if ended:
                return
            time.sleep(FOLLOW_SECONDS)

    def _print_what_is_there(self) -> None:
        while (piece := self._read(offset=self._offset)).next_offset > self._offset:
            self._offset = piece.next_offset
            text = self._decoder.decode(piece.data)
            if self._out.as_json:
                self._out.data({"stream": self._stream, "text": text, "next_offset": self._offset})
            else:
                typer.echo(clean(text), nl=False)

"""Bound what a request may hold before it is parsed."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.implementer import problems

_UPLOAD = re.compile(r"/internal/v1/attempts/[^/]+/artifacts/[^/]+")
#: Requests that hold ideas, a codebase or what an ideator wrote, or are a worker's reports.
_LARGE = re.compile(
    r"/v1/batches|/v1/searches/[^/]+/(?:epochs/[^/]+|calls/[^/]+/end)|"
    r"/v1/environments/[^/]+/codebases|"
    r"/internal/v1/.*"
)
_MOST_ELSEWHERE = 1 << 20
#: Brackets, braces, commas and colons outside texts. The largest valid batch, 10,000 ideas with
#: 64 parents each, has fewer; parsing so many takes a fraction of a second.
MAX_MARKS = 1_000_000
_MARKS = (b"{", b"[", b",", b":")
_PIECE = 64 << 10


class TooLargeError(HTTPException):
    """A body passed a limit. FastAPI lets HTTP errors pass while it reads."""

    def __init__(self, detail: str) -> None:
        super().__init__(413, detail)


class BodyLimit:
    """Middleware that refuses bodies of more than `limit` bytes before they are read into memory.

    What holds neither ideas nor a codebase, and comes from no worker, may have 1 MiB at most.
    JSON of owners may hold `MAX_MARKS` marks at most: a value takes far more time and memory than
    its bytes. Artifacts have a limit of their own.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_upload(scope):
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        limit = self._limit if _LARGE.fullmatch(path) else min(self._limit, _MOST_ELSEWHERE)
        marks = None if path.startswith("/internal/v1/") else Marks()
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            body: bytes = message.get("body", b"")
            size += len(body)
            _check_size(size, limit)
            if marks is not None and marks.add(body) > MAX_MARKS:
                raise TooLargeError(
                    f"the body holds more than {MAX_MARKS} values and names; split the batch"
                )
            return message

        declared = dict(scope["headers"]).get(b"content-length", b"0")
        try:
            if declared.isdigit():
                _check_size(int(declared), limit)
            await self._app(scope, counted, send)
        except TooLargeError as error:
            response = problems.answer(
                Request(scope), 413, "The body is too large", "body_too_large", error.detail
            )
            await response(scope, receive, send)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLargeError(f"the body is larger than {limit} bytes; split the batch")


class Marks:
    """Counts the marks of JSON that are outside texts, as its pieces come in."""

    def __init__(self) -> None:
        self._count = 0
        self._in_text = False
        self._is_utf_8 = True
        self._rest = b""

    def add(self, data: bytes) -> int:
        """Take the next bytes; returns how many marks there are so far."""
        for start in range(0, len(data), _PIECE):  # a piece of quotes alone is a list when split
            self._add(self._rest + data[start : start + _PIECE])
        return self._count

    def _add(self, piece: bytes) -> None:
        # UTF-16 and UTF-32, which Python reads too, have NUL bytes from the first mark on; a quote
        # there may be half of another character, so that texts are counted as well.
        self._is_utf_8 = self._is_utf_8 and b"\x00" not in piece
        self._rest = b""
        if not self._is_utf_8:
            self._count += sum(map(piece.count, _MARKS))
            return
        piece = piece.replace(rb"\\", b"")
        if piece.endswith(b"\\"):  # what it escapes is still to come
            piece, self._rest = piece[:-1], b"\\"
        parts = piece.replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[self._in_text :: 2])
        self._count += sum(map(outside.count, _MARKS))
        self._in_text ^= len(parts) % 2 == 0


def _is_upload(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "PUT" and _UPLOAD.fullmatch(path) is not None

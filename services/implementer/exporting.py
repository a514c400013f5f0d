"""The report of a search as one HTML file, for the dashboard.

It is the report of `assay search report --html`: read through the same client and the same
endpoints, inside the process, as the owner who asks. It is drawn in a process of its own, because
drawing takes seconds of processor time, and the API has one interpreter lock for all requests.
"""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import anyio.from_thread
import httpx2
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.analysis.report.drawing import check_can_draw
from assay.analysis.report.reading import read_record
from assay.analysis.report.writing import html_of_search
from assay.client import Client
from assay.domain.errors import TooMany, Unavailable
from services.implementer.context import Context
from services.implementer.dependencies import ACTING, Acting
from services.implementer.owned import owned_search

#: A name that a service on loopback answers to; nothing is looked up.
_URL = "http://localhost"
#: One at a time: each holds a request's thread, and needs others for what it reads.
_ONE = threading.Lock()


class _Inside(httpx2.BaseTransport):
    """Sends the requests of a request's thread to the app that it belongs to."""

    def __init__(self, app: ASGIApp, acting: Acting) -> None:
        async def as_owner(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, ACTING: acting}, receive, send)

        self._transport = httpx2.ASGITransport(as_owner, raise_app_exceptions=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return anyio.from_thread.run(self._send, request)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._transport.handle_async_request(request)
        body = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=body)


def export_search(app: ASGIApp, context: Context, owner: str, search_id: str) -> str:
    """Return the report of a search as HTML. Call it from a thread of a request.

    Raises:
        NotFound: the owner has no such search.
        TooMany: another report is being made.
        Unavailable: matplotlib is not installed, or the drawing process was killed.
    """
    check_can_draw()
    with context.db.read() as session:
        owned_search(session, search_id, owner)
    if not _ONE.acquire(blocking=False):
        raise TooMany("another report is being made; try again in a moment", code="report_busy")
    try:
        transport = _Inside(app, Acting(owner, search_id, context.holder))
        with (
            httpx2.Client(transport=transport, trust_env=False) as http,
            Client(_URL, http_client=http) as client,
        ):
            record = read_record(client, search_id)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as drawing:
            return drawing.submit(html_of_search, record).result()
    except BrokenProcessPool:
        raise Unavailable(
            "the process that draws the report was killed; try again, or use "
            "`assay search report --html`",
            code="report_failed",
        ) from None
    finally:
        _ONE.release()

"""The number of open connections, which `http.py` bounds.

Each takes a file descriptor, and uvicorn keeps one that sends nothing for ever. Without a bound,
whoever can connect leaves the process no descriptor for its database and its files.
"""

from __future__ import annotations

import asyncio
import logging
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)
#: File descriptors for all else: database, object store, files, pipes of programs.
RESERVED = 512


def allow_connections(most: int) -> int:
    """Raise this process's limit of open files for so many connections; return how many fit.

    The limit is raised to what is needed, not to what is permitted: programs that this process
    starts inherit it, and some close every number up to it, or cannot wait for larger ones.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + RESERVED
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    fit = max(1, files - RESERVED)
    if fit < most:
        log.warning("%d connections at most, not %d: ulimit -Hn says %d files", fit, most, files)
    return fit


def bounded_protocol(most: int) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol for one server with at most `most` connections.

    One more closes the connection that has been without a request for the longest time. If every
    connection has one, uvicorn's `limit_concurrency` answers.
    """
    #: Oldest first. Those that were given a request since are passed over.
    idle: dict[BoundedProtocol, None] = {}

    class BoundedProtocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                self._close_oldest()
            idle[self] = None  # after that: the newest is never the one to go

        def connection_lost(self, exc: Exception | None) -> None:
            idle.pop(self, None)
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing():
                idle.pop(self, None)
                idle[self] = None

        def _close_oldest(self) -> None:
            while idle:
                oldest = next(iter(idle))
                del idle[oldest]
                if oldest.cycle is None or oldest.cycle.response_complete:
                    # At once: the loop forgets it only later, and would count it until then.
                    self.connections.discard(oldest)
                    oldest.transport.abort()
                    return

    return BoundedProtocol

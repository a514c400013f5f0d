"""A bad network: a TCP proxy that can be cut, frozen, slowed, or told to lose one answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable

_CHUNK = 1 << 16
_START_SECONDS = 10.0


class Proxy:
    """Listens on a free port and passes connections on to `target`.

    `cut()` closes every connection and refuses new ones; `freeze()` keeps them open and passes
    nothing, as a network does that drops packets (half-open); `heal()` ends both. `delay` is
    added to every packet. `lose_answer(after)` watches what clients send: when `after(bytes)`
    holds, that request is passed on, its answer is dropped, and the connection is closed. `answer`
    is given to every request instead of passing it on. `counts` says what happened, so that a test
    can prove it.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = (host, port)
        self.port = 0
        self.delay = 0.0
        self.answer: bytes | None = None
        self.counts: Counter[str] = Counter()
        self._loses: Callable[[bytes], bool] | None = None
        self._losses_left = 0
        self._is_cut = False
        self._loop = asyncio.new_event_loop()
        self._open: asyncio.Event | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        self._loop.close()

    def cut(self) -> None:
        """Close everything, and whatever connects from now on."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._drop_all)

    def freeze(self) -> None:
        """Pass nothing on; connections stay open, also new ones."""
        assert self._open is not None
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """Be a good network again."""
        assert self._open is not None
        self._is_cut = False
        self.delay = 0.0
        self.answer = None
        self._loses = None
        self._loop.call_soon_threadsafe(self._open.set)

    def lose_answer(self, after: Callable[[bytes], bool], times: int = 1) -> None:
        """Pass on what `after` matches, and lose its answer; so many times."""
        self._loses, self._losses_left = after, times

    async def _listen(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        assert self._open is not None
        self._is_cut = True
        self._open.set()
        self._drop_all()  # which ends every connection's task
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        if tasks:
            await asyncio.wait(tasks, timeout=_START_SECONDS / 2)

    def _drop_all(self) -> None:
        for writer in list(self._writers):
            self.counts["cut"] += 1
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        if self._is_cut:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            self.counts["unreachable"] += 1
            writer.transport.abort()
            return
        ends = (writer, server_writer)
        self._writers.update(ends)
        losing = asyncio.Event()
        there = self._pump(reader, server_writer, losing, back=writer)
        pumps = (
            asyncio.create_task(there),
            asyncio.create_task(self._pump(server_reader, writer, losing)),
        )
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        losing: asyncio.Event,
        back: asyncio.StreamWriter | None = None,
    ) -> None:
        """Pass bytes on until one side ends; `back` leads to the client they come from, if any."""
        assert self._open is not None
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if not self._open.is_set():
                    self.counts["held"] += 1
                    await self._open.wait()
                if self.delay:
                    self.counts["delayed"] += 1
                    await asyncio.sleep(self.delay)
                if back is not None and self.answer is not None:
                    self.counts["answered"] += 1
                    back.write(self.answer)
                    await back.drain()
                    return
                if back is not None:
                    self._note_loss(data, losing)
                elif losing.is_set():
                    self.counts["answers_lost"] += 1
                    return
                writer.write(data)
                await writer.drain()

    def _note_loss(self, data: bytes, losing: asyncio.Event) -> None:
        if self._losses_left > 0 and self._loses is not None and self._loses(data):
            self._losses_left -= 1
            losing.set()

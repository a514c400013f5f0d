"""The implementer in real time: its own processor time and memory, against a local server.

The server streams OpenAI's chat completions; the time of each call is drawn as for the virtual
clock and divided by `SCALE`. It runs in a process of its own, and so does the implementer. It is
asynchronous, since a thread for each of the calls under way would be slower than what it serves.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from assay.storage import schema
from benchmarks.implementer import pipeline
from benchmarks.implementer.draws import FIRST_TOKEN, MEDIAN_S, Draws, answer_text, idea_number
from tests.support.provider import openai

SCALE = 100
MODEL = "openai:gpt-5-mini"
CHUNKS = 30
_USAGE = {"prompt_tokens": 12_500, "completion_tokens": 1_500, "total_tokens": 14_000}


@dataclass(frozen=True)
class Load:
    """What the implementer itself used."""

    ideas: int
    patched: int
    calls: int
    wall_seconds: float
    cpu_seconds: float
    peak_megabytes: float
    idle_megabytes: float

    @property
    def cores(self) -> float:
        """Processors in use on average."""
        return self.cpu_seconds / self.wall_seconds


def measure(seed: int, ideas: int, sampling: str, slots: int) -> Load:
    """Implement ideas against the local server."""
    with _server(seed) as url:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_implement, args=(theirs, url, ideas, sampling, slots))
        process.start()
        theirs.close()
        load: Load = ours.recv()
        process.join()
    return load


def _implement(parent: Connection, url: str, ideas: int, sampling: str, slots: int) -> None:
    with tempfile.TemporaryDirectory() as name, pipeline.context_of(Path(name), slots) as context:
        context.variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1"}
        batch = pipeline.submit(context, ideas, sampling, MODEL)
        idle, began, used = _peak(), time.monotonic(), time.process_time()
        loop = asyncio.new_event_loop()
        wall = pipeline.run_pool(context, loop, ideas) - began
        cpu = time.process_time() - used
        with context.db.read() as session:
            calls = session.scalars(
                select(func.count()).where(schema.ModelCall.batch_id == batch)
            ).one()
            patched = session.scalars(select(func.count(schema.Experiment.codebase_id))).one()
        parent.send(Load(ideas, patched, calls, wall, cpu, _peak(), idle))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _server(seed: int) -> Iterator[str]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, seed), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _serve(parent: Connection, seed: int) -> None:
    """Serve until killed; tells its address."""
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    parent.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    config = uvicorn.Config(_application(Draws(seed)), log_level="critical", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def _application(draws: Draws) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    asked: Counter[tuple[int, int]] = Counter()

    async def complete(request: Request) -> Response:
        messages = (await request.json())["messages"]
        idea = next(idea_number(m["content"]) for m in messages if "Idea " in m["content"])
        revision = sum(m["role"] == "assistant" for m in messages)
        sample, asked[idea, revision] = asked[idea, revision], asked[idea, revision] + 1
        seconds, fault = draws.request(idea, sample, revision, 1)
        if fault == "refused":
            slower = openai.error(429, "slower", retry_after="0.01")
            return JSONResponse(slower.body, slower.status, slower.headers)
        text = answer_text(idea, good=draws.is_good(idea, sample, revision))
        events = openai.completion(text, pieces=CHUNKS, usage=_USAGE).events or ()
        drops = fault == "dropped"
        return StreamingResponse(
            _stream(events, seconds / SCALE, drops=drops), media_type="text/event-stream"
        )

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


async def _stream(events: Sequence[str], seconds: float, *, drops: bool) -> AsyncIterator[str]:
    """Yield the events over so many seconds; with `drops`, about half of them."""
    first = min(seconds, MEDIAN_S * FIRST_TOKEN / SCALE)
    await asyncio.sleep(first)
    for number, event in enumerate(events):
        yield event
        if drops and number > len(events) / 2:
            raise ConnectionError("dropped on purpose")
        await asyncio.sleep((seconds - first) / len(events))

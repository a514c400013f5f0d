"""Heartbeats: workers that sync with a full house, in this process and over HTTP."""

from __future__ import annotations

import asyncio
import re
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from assay.contracts.worker import HeldAttempt, SyncRequest
from assay.storage import schema, workers
from benchmarks.execution.database import World
from benchmarks.execution.timing import SqlTime, elapsed, milliseconds


def held(world: World) -> dict[str, SyncRequest]:
    """What every host would say: everything that the database knows it to hold."""
    found = {host: SyncRequest(incarnation="one", usable_gpus=8) for host in world.hosts}
    with world.db.read() as session:
        for row in session.query(schema.Attempt).filter(schema.Attempt.released_at.is_(None)):
            found[row.worker_id].held.append(
                HeldAttempt(attempt=row.id, lease_token=row.lease_token)
            )
    return found


def in_process(world: World, seconds: float, threads: int = 4) -> dict[str, Any]:
    """Storage alone: one transaction after the other in each of a few threads."""
    requests = list(held(world).items())
    until = time.perf_counter() + seconds
    took: list[float] = []

    def work(first: int) -> None:
        at = first
        while time.perf_counter() < until:
            host, request = requests[at % len(requests)]
            at += threads
            with elapsed() as one, world.db.write() as session:
                workers.sync(world.db, session, host, request)
            took.extend(one)

    began, used = time.perf_counter(), time.process_time()
    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return {
        "per_second": round(len(took) / (time.perf_counter() - began), 1),
        "cpu_ms_each": round((time.process_time() - used) / len(took) * 1e3, 2),
        "latency_ms": milliseconds(took),
    }


def alone(world: World, number: int = 200) -> dict[str, Any]:
    """One after the other: a sync, and how much of it is the database."""
    requests = list(held(world).items())
    sql, whole, database = SqlTime(world.db.engine), [], []
    for at in range(number):
        host, request = requests[at % len(requests)]
        sql.reset()
        with elapsed() as one, world.db.write() as session:
            workers.sync(world.db, session, host, request)
        whole.extend(one)
        database.append(sql.seconds)
    return {
        "sync_ms": milliseconds(whole),
        "ratio": round(statistics.median(whole) / statistics.median(database), 2),
        "statements": sql.statements,
    }


def over_http(
    world: World, apis: list[str], seconds: float, connections: int = 16
) -> dict[str, Any]:
    """Through the APIs, each for its share of the hosts, with the tokens of the hosts."""
    return asyncio.run(_over_http(world, apis, seconds, connections))


async def _over_http(
    world: World, apis: list[str], seconds: float, connections: int
) -> dict[str, Any]:
    tokens = dict(zip(world.hosts, world.tokens.values(), strict=True))
    requests = [
        _request(host, tokens[host], body.model_dump_json()) for host, body in held(world).items()
    ]
    took: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def work(first: int) -> None:
        address = urlsplit(apis[first % len(apis)])
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        at = first
        while time.perf_counter() < until:
            sent = time.perf_counter()
            writer.write(requests[at % len(requests)])
            await _answer(reader)
            took.append(time.perf_counter() - sent)
            at += connections
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(work(n) for n in range(connections)))
    return {
        "per_second": round(len(took) / (time.perf_counter() - began), 1),
        "latency_ms": milliseconds(took),
    }


# A client library would take more of this machine than the heartbeats that it sends.


def _request(host: str, token: str, body: str) -> bytes:
    head = (
        f"POST /internal/v1/workers/{host}/sync HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


async def _answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"a sync was refused: {head!r}")
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    await reader.readexactly(int(length[1]))

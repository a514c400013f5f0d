"""The clients of the load, as one process on one core: `python -m benchmarks.api.generator`.

It reads its orders as a line of JSON, prints `ready` once all streams are open, sends requests at
fixed times, and waits for a second line before it expects the streams to end. Then it prints what
it saw. A request that had to wait for its turn took as long as since its time had come.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2

END_SECONDS = 120.0
SYNCS_PER_SECOND = 2


@dataclass(frozen=True)
class Orders:
    """What to do. `paths` are pairs of a kind of request and what it asks for.

    `worker` and `token` are of a worker that holds nothing, whose syncs are timed.
    """

    host: str
    port: int
    key: str
    core: int
    batches: list[str]
    rate: float
    paths: list[tuple[str, str]]
    worker: str
    token: str


@dataclass
class Stream:
    """A client that follows a batch: the ids it was sent, and the seconds that those took to come
    which were made while it was open."""

    batch: str
    ids: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    ended: bool = False


@dataclass
class Seen:
    """What the clients saw. Requests in seconds, by kind."""

    requests: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    syncs: list[float] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)


async def follow(orders: Orders, stream: Stream, is_open: asyncio.Event) -> None:
    """Read a stream to its end."""
    reader, writer = await asyncio.open_connection(orders.host, orders.port, limit=1 << 20)
    writer.write(
        f"GET /v1/batches/{stream.batch}/events HTTP/1.1\r\nHost: {orders.host}\r\n"
        f"Authorization: Bearer {orders.key}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"a stream was answered {status!r}")
    is_open.set()
    opened = datetime.now(UTC)
    kind = ""
    while line := await reader.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            stream.ids.append(int(value))
        elif name == "event":
            kind = value
        elif name == "data":
            made = datetime.fromisoformat(json.loads(value)["created_at"])
            if made >= opened:
                stream.delays.append((datetime.now(UTC) - made).total_seconds())
            if kind == "batch.finished":
                stream.ended = True
                break
    writer.close()


async def ask(http: httpx2.AsyncClient, at: float, kind: str, path: str, seen: Seen) -> None:
    """One request whose time has come."""
    try:
        answer = await http.get(path)
        answer.raise_for_status()
    except httpx2.HTTPError as error:
        name = f"{kind}: {type(error).__name__}"
        seen.errors[name] = seen.errors.get(name, 0) + 1
    else:
        seen.requests.setdefault(kind, []).append(time.monotonic() - at)


async def sync(http: httpx2.AsyncClient, orders: Orders, at: float, seen: Seen) -> None:
    """One sync of a worker that holds nothing, in turn: its number counts up."""
    answer = await http.post(
        f"/internal/v1/workers/{orders.worker}/sync",
        json={"incarnation": "bench", "number": len(seen.syncs) + 1},
        headers={"Authorization": f"Bearer {orders.token}"},
    )
    answer.raise_for_status()
    seen.syncs.append(time.monotonic() - at)


async def send_requests(http: httpx2.AsyncClient, orders: Orders, seen: Seen) -> None:
    """Send each request at its time, whether those before it were answered or not."""
    began, tasks = time.monotonic(), set[asyncio.Task[None]]()
    for number, (kind, path) in enumerate(orders.paths):
        at = began + number / orders.rate
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        task = asyncio.create_task(ask(http, at, kind, path, seen))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def send_syncs(http: httpx2.AsyncClient, orders: Orders, seen: Seen) -> None:
    """Sync for as long as requests are sent."""
    began = time.monotonic()
    for number in range(int(len(orders.paths) / orders.rate * SYNCS_PER_SECOND)):
        at = began + number / SYNCS_PER_SECOND
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        await sync(http, orders, max(at, time.monotonic()), seen)


async def run(orders: Orders) -> Seen:
    """Carry out the orders."""
    loop = asyncio.get_running_loop()
    seen = Seen(streams=[Stream(batch) for batch in orders.batches])
    opened = [asyncio.Event() for _ in seen.streams]
    following = [
        asyncio.create_task(follow(orders, stream, event))
        for stream, event in zip(seen.streams, opened, strict=True)
    ]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in opened)), END_SECONDS)
    print("ready", flush=True)
    url = f"http://{orders.host}:{orders.port}"
    headers = {"Authorization": f"Bearer {orders.key}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        await asyncio.gather(send_requests(http, orders, seen), send_syncs(http, orders, seen))
    print("sent", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    _, waiting = await asyncio.wait(following, timeout=END_SECONDS)
    for task in waiting:
        task.cancel()
    return seen


def main() -> None:
    """Be the clients."""
    found: dict[str, Any] = json.loads(sys.stdin.readline())
    orders = Orders(**found)
    os.sched_setaffinity(0, {orders.core})
    print(json.dumps(asdict(asyncio.run(run(orders)))), flush=True)


if __name__ == "__main__":
    main()

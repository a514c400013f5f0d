"""Send the deliveries that wait, and find out which confirmations are to be told of.

Runs in `assay serve` on a laptop and in every implement worker, in a thread of its own: no
receiver is waited for by a transaction, a request or a round of the scheduler. A delivery is
claimed for the time of one request, sent, and settled. A process that dies in between leaves it
to the next, so a receiver can get one twice, under the same id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from typing import Any

import httpx2
from sqlalchemy import select

from assay.analysis.text import format_effect, format_number
from assay.domain import webhooks as standard
from assay.domain.errors import AssayError
from assay.domain.webhooks import TEST, WebhookEvent
from assay.storage import schema, webhooks
from assay.storage.webhooks import Answer, Claimed
from assay.telemetry.counts import WEBHOOKS
from services.implementer.context import Context
from services.implementer.loop_thread import LoopThread
from services.implementer.receivers import Caller, IpAddress, NotAllowed, Policy
from services.implementer.views.confirmations import experiment_bodies

log = logging.getLogger(__name__)
#: Pauses after each failed try, in seconds: about eight hours until a delivery is given up.
SCHEDULE = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0)
#: Part of a pause that is random, so that those who failed together do not come back together.
JITTER = 0.2
#: Requests under way at once, each to another webhook.
AT_ONCE = 32
#: A try is taken for lost so long after it should have ended.
GRACE_SECONDS = 5.0
#: For so long one can see what was delivered, and what was given up.
KEPT = timedelta(days=30)
_FORGET_SECONDS = 3600.0
_THREADS = 2
_JUDGED_AT_ONCE = 16
_GONE = 410
_MAX_ERROR = 300
_USER_AGENT = f"Assay/{metadata.version('assay')}"


@dataclass(frozen=True)
class _Call:
    """A webhook that is being called."""

    owner: str
    task: asyncio.Task[None]


class WebhookSender:
    """Sends what waits. `schedule`: pauses after failed tries, in seconds."""

    def __init__(self, context: Context, *, schedule: Sequence[float] = SCHEDULE) -> None:
        self._context = context
        self._schedule = schedule
        self._seconds = context.settings.webhook_seconds
        self._thread = LoopThread("webhooks", ThreadPoolExecutor(_THREADS, "webhooks"))
        # One for each request under way: none waits for a name that another one looks up.
        self._resolver = ThreadPoolExecutor(AT_ONCE, "names")
        self._news = asyncio.Event()
        self._sending: dict[str, _Call] = {}
        self._forgot = 0.0

    def start(self) -> None:
        """Start, also with what an earlier process left."""
        self._thread.start(self._run())

    def stop(self) -> None:
        """Stop; what is being sent is sent again by the next process."""
        if not self._thread.is_running:
            return
        # A cancelled task leaves its transaction to a thread, which needs the database.
        self._thread.stop(self._thread.loop.shutdown_default_executor)
        self._resolver.shutdown(wait=False, cancel_futures=True)

    def look(self) -> None:
        """Something may wait. Callable from any thread."""
        self._thread.call(self._news.set)

    async def _run(self) -> None:
        policy = Policy.of(self._context.settings)
        caller = Caller(policy, self._seconds, self._resolver)
        try:
            while True:
                # Before anything is read, so that news of what is stored meanwhile is kept.
                self._news.clear()
                pause = self._context.settings.rescan_seconds
                try:
                    pause = await self._look(caller)
                except Exception as error:  # without the next look, deliveries would wait for ever
                    log.warning("cannot look for deliveries: %s", error)
                # Not `wait_for`: it swallows a cancellation that comes together with the news.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._news.wait()
        finally:
            await caller.aclose()

    async def _look(self, caller: Caller) -> float:
        """Begin to send what is due. Returns for how long nothing else is, at most a rescan."""
        longest = self._context.settings.rescan_seconds
        await asyncio.to_thread(self._judge)
        await asyncio.to_thread(self._forget)
        room = AT_ONCE - len(self._sending)
        busy = {webhook: call.owner for webhook, call in self._sending.items()}
        for claimed in await asyncio.to_thread(self._claim, room, busy) if room else ():
            task = asyncio.ensure_future(self._send(caller, claimed))
            self._sending[claimed.webhook] = _Call(claimed.owner, task)
        if len(self._sending) >= AT_ONCE:  # the first that ends makes room, and looks again
            return longest
        soonest = await asyncio.to_thread(self._seconds_to_next, list(self._sending))
        return longest if soonest is None else min(soonest, longest)

    def _claim(self, room: int, busy: Mapping[str, str]) -> list[Claimed]:
        context = self._context
        lease = timedelta(seconds=self._seconds + GRACE_SECONDS)
        if self._seconds_to_next(list(busy)) != 0:  # a look costs no transaction that writes
            return []
        with context.db.write() as session:
            return webhooks.claim(context.db, session, lease, limit=room, busy=busy)

    def _seconds_to_next(self, busy: Sequence[str]) -> float | None:
        with self._context.db.read() as session:
            return webhooks.seconds_to_next(self._context.db, session, busy)

    async def _send(self, caller: Caller, claimed: Claimed) -> None:
        addresses = asyncio.ensure_future(caller.look_up(claimed.url))
        try:
            try:
                answer = await self._try(caller, claimed, addresses)
                await asyncio.to_thread(self._settle, claimed, answer)
            except Exception as error:  # it is claimed again when its lease has run out
                log.warning("cannot settle the delivery %s: %s", claimed.id, error)
            # A try that timed out leaves a thread behind until the name is looked up. Until then,
            # it counts as under way, or slow names would take the threads of all others.
            await asyncio.gather(addresses, return_exceptions=True)
        finally:
            self._sending.pop(claimed.webhook, None)
            self._news.set()

    async def _try(
        self, caller: Caller, claimed: Claimed, addresses: asyncio.Future[list[IpAddress]]
    ) -> Answer:
        content = body_of(claimed)
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": _USER_AGENT,
            standard.ID: claimed.id,
            standard.TIMESTAMP: str(timestamp),
            standard.SIGNATURE: standard.sign(claimed.secret, claimed.id, timestamp, content),
        }
        try:
            status = await caller.post(claimed.url, addresses, headers, content)
        except (TimeoutError, httpx2.TimeoutException):
            return Answer(None, f"no answer within {self._seconds:g} s")
        except NotAllowed as error:
            return Answer(None, str(error))
        except httpx2.ProtocolError:  # what it says quotes the answer
            return Answer(None, "the receiver did not answer in HTTP")
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = str(error) or type(error).__name__
            return Answer(None, f"no connection: {why}"[:_MAX_ERROR])
        if 200 <= status < 300:
            return Answer(status)
        if 300 <= status < 400:
            return Answer(status, f"answered {status}: redirects are not followed")
        return Answer(status, f"answered {status}", is_gone=status == _GONE)

    def _settle(self, claimed: Claimed, answer: Answer) -> None:
        """Store what came of a try, and say so where operators look."""
        pause = None if answer.is_gone else self._pause(claimed)
        with self._context.db.write() as session:
            webhooks.settle(self._context.db, session, claimed, answer, pause)
        outcome = "delivered" if answer.error is None else "failed" if pause is None else "retried"
        WEBHOOKS.labels(outcome).inc()
        if outcome == "failed":
            # Not the error: it can name the address, which is its owner's alone to see.
            log.warning(
                "gave up the delivery %s (%s) to %s after %d tries: %s",
                claimed.id,
                claimed.type,
                claimed.webhook,
                claimed.tries,
                "no answer" if answer.status is None else f"answered {answer.status}",
            )

    def _pause(self, claimed: Claimed) -> timedelta | None:
        """The pause before the next try; None if there is none, as after a test."""
        if claimed.type == TEST or claimed.tries > len(self._schedule):
            return None
        spread = random.uniform(1 - JITTER, 1 + JITTER)
        return timedelta(seconds=self._schedule[claimed.tries - 1] * spread)

    # -- confirmations ---------------------------------------------------------------------------

    def _judge(self) -> None:
        """Tell of confirmed results whose verdict has become final."""
        context = self._context
        with context.db.read() as session:
            if session.scalars(select(schema.Unjudged.batch_id).limit(1)).first() is None:
                return
        with context.db.write() as session:
            batches = webhooks.take_unjudged(context.db, session, _JUDGED_AT_ONCE)
        for batch_id in batches:
            try:
                self._judge_batch(batch_id)
            except Exception as error:  # no batch may keep deliveries from being sent
                log.warning("cannot judge the confirmations of %s yet: %s", batch_id, error)

    def _judge_batch(self, batch_id: str) -> None:
        table = schema.Experiment
        with self._context.db.read() as session:
            batch = session.get_one(schema.Batch, batch_id)
            query = select(table).where(table.batch_id == batch_id).order_by(table.position)
            bodies = experiment_bodies(session, session.scalars(query).all())
        is_judged = all(body.claimed is not None for body in bodies)
        with self._context.write() as session:
            if not webhooks.end_unjudged(session, batch_id, is_judged=is_judged):
                return
            for body in bodies if is_judged else ():
                found = body.comparison
                if not body.claimed or found is None:
                    continue
                data = {
                    "experiment": body.idea.confirms,
                    "confirmed_by": body.id,
                    "batch": batch_id,
                    "search": batch.search_id,
                    "environment": batch.environment_id,
                    "profile": batch.profile,
                    "metric_name": body.metric_name,
                    "metric": body.metric,
                    "effect": found.effect,
                    "low": found.low,
                    "high": found.high,
                    "p": found.p,
                    "metadata": batch.labels,
                    "page": f"/experiments/{body.idea.confirms}",
                }
                text = (
                    f"{body.idea.confirms} ({batch.environment_id}) is confirmed: "
                    f"{body.metric_name} {format_number(body.metric)}, "
                    f"effect {format_effect(found)}"
                )
                event = WebhookEvent.EXPERIMENT_CONFIRMED
                cause = f"confirmed by {body.id}"
                webhooks.tell(session, batch.owner, event, cause, text, data)

    def _forget(self) -> None:
        if time.monotonic() - self._forgot < _FORGET_SECONDS and self._forgot:
            return
        self._forgot = time.monotonic()
        try:
            with self._context.db.write() as session:
                webhooks.forget(self._context.db, session, KEPT)
        except AssayError as error:
            log.warning("cannot delete old deliveries: %s", error)


def body_of(claimed: Claimed) -> bytes:
    """Return the body of a delivery, the same in every try."""
    envelope: dict[str, Any] = {
        "type": claimed.type,
        "timestamp": claimed.created_at.isoformat().replace("+00:00", "Z"),
        "text": claimed.text,
        "data": claimed.data,
    }
    return json.dumps(envelope, ensure_ascii=False, allow_nan=False).encode()

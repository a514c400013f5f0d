"""Searches that the service drives: the loop of `assay.search`, here instead of in a client.

The process that implements ideas runs this too, because it holds the models' keys. It leases
searches, runs each in a thread, and speaks to the API inside the process, as the search's owner.
The loop can be killed anywhere and started again, so a process that dies is replaced when its
leases run out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import httpx2
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.client import APIConnectionError, Client, ServerFault
from assay.client import Conflict as Refused
from assay.contracts.batch import BatchBody, EventBody
from assay.domain.errors import AssayError, Unavailable
from assay.domain.states import Driver
from assay.llm import Ideator
from assay.llm.ideation import CallRecord, IdeationRequest, ProposedIdea
from assay.search import SearchConfig, SearchPaused, drive
from assay.search.config import IdeatorOptions
from assay.storage import drivers, searches
from assay.storage.drivers import Held
from assay.telemetry.logs import keep
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.dependencies import ACTING, Acting
from services.implementer.ideators import ideator_of
from services.implementer.loop_thread import LoopThread

log = logging.getLogger(__name__)
#: Between two looks at which batches have finished, for all searches of the process at once.
LOOK_SECONDS = 1.0
#: Leases are renewed this many times before they would run out.
RENEWALS = 6
#: Faults of our own after which a search is paused.
MAX_FAULTS = 5
THREADS = 2
STOP_SECONDS = 20.0
_URL = "http://service.invalid"

OpenIdeator = Callable[[Context, str, IdeatorOptions], Ideator]


class Dropped(BaseException):
    """The search is not to be driven here any more. Nothing that handles errors may catch it."""


@dataclass
class _Watch:
    """Batches of which a thread wants to hear when any changes, and how it is told."""

    batches: tuple[str, ...]
    loop: asyncio.AbstractEventLoop
    changed: asyncio.Event


@dataclass(eq=False)
class Driven:
    """A search that a thread of this process drives, and how the thread is told to end."""

    held: Held
    _watch: _Watch | None = None
    _versions: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _dropped: threading.Event = field(default_factory=threading.Event)
    _waits: dict[str, threading.Event] = field(default_factory=dict)
    _calls: dict[asyncio.Task[object], asyncio.AbstractEventLoop] = field(default_factory=dict)

    def drop(self) -> None:
        """End the thread: what it waits for ends now, and its calls of the model are cancelled."""
        with self._lock:
            self._dropped.set()
            for event in self._waits.values():
                event.set()
            for task, loop in self._calls.items():
                loop.call_soon_threadsafe(task.cancel)

    def check(self) -> None:
        """Raises Dropped."""
        if self._dropped.is_set():
            raise Dropped

    def sleep(self, seconds: float) -> None:
        """Wait so long. Raises Dropped."""
        self._dropped.wait(seconds)
        self.check()

    def awaited(self) -> list[str]:
        """The batches that the thread waits for."""
        with self._lock:
            return list(self._waits)

    def finish(self, batch: str) -> None:
        """Tell the thread that a batch is finished."""
        with self._lock:
            if (event := self._waits.get(batch)) is not None:
                event.set()

    async def changed(self, batches: Collection[str], seconds: float) -> None:
        """Wait until one of these batches has changed since the last call, at most so long.

        See `assay.search.changes.Changes`.
        """
        watch = _Watch(tuple(batches), asyncio.get_running_loop(), asyncio.Event())
        self.calling()
        try:
            with self._lock:
                self._watch = watch
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await watch.changed.wait()
        finally:
            with self._lock:
                self._watch = None
            self.called()

    def watched(self) -> tuple[str, ...]:
        """The batches of which the thread wants to hear when any changes."""
        with self._lock:
            return () if self._watch is None else self._watch.batches

    def tell_versions(self, versions: Mapping[str, int]) -> None:
        """Tell the thread which versions its watched batches have now."""
        with self._lock:
            watch = self._watch
            if watch is None:
                return
            found = {batch: versions[batch] for batch in watch.batches if batch in versions}
            is_news = any(self._versions.get(batch) != found[batch] for batch in found)
            self._versions = found
            if is_news:
                watch.loop.call_soon_threadsafe(watch.changed.set)

    def wait(
        self, client: Client, batch: str, _on_event: Callable[[EventBody], None]
    ) -> BatchBody:
        """Wait until a batch is finished, and return it. Raises Dropped."""
        with self._lock:
            event = self._waits.setdefault(batch, threading.Event())
        self.check()
        event.wait()
        with self._lock:
            self._waits.pop(batch, None)
        self.check()
        return client.batches.get(batch)

    def calling(self) -> None:
        """Cancel this task when the thread is to end. Raises Dropped."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self.check()
            self._calls[task] = asyncio.get_running_loop()

    def called(self) -> None:
        """The call of this task has returned."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._calls.pop(task, None)


class CancellableIdeator:
    """An ideator whose calls end when the search is dropped."""

    def __init__(self, ideator: Ideator, driven: Driven) -> None:
        self._ideator = ideator
        self._driven = driven

    @property
    def name(self) -> str:
        return self._ideator.name

    @property
    def prompt_version(self) -> str:
        return self._ideator.prompt_version

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        self._driven.calling()
        try:
            return await self._ideator.propose(request, record=record)
        finally:
            self._driven.called()

    async def aclose(self) -> None:
        await self._ideator.aclose()


class InProcess(httpx2.BaseTransport):
    """Sends requests to the app in this process, as somebody who acts for an owner."""

    def __init__(
        self, app: ASGIApp, loop: asyncio.AbstractEventLoop, acting: Acting, driven: Driven
    ) -> None:
        async def as_owner(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, ACTING: acting}, receive, send)

        self._transport = httpx2.ASGITransport(as_owner, raise_app_exceptions=False)
        self._loop = loop
        self._driven = driven

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        # What a call came to is recorded also while the search is given up: it was paid for.
        if not (request.method == "PUT" and request.url.path.endswith("/end")):
            self._driven.check()
        return asyncio.run_coroutine_threadsafe(self._send(request), self._loop).result()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._transport.handle_async_request(request)
        body = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=body)


class SearchDrivers:
    """Drives the searches that wait for the service, each in a thread of its own.

    At most `concurrent_searches`: a thread mostly waits, for a batch or for a model's answer.
    `open_ideator` makes the ideator of a search from its name.
    """

    def __init__(self, context: Context, *, open_ideator: OpenIdeator = ideator_of) -> None:
        self._context = context
        self._open_ideator = open_ideator
        self._app = create_app(context)
        self._thread = LoopThread("searches", ThreadPoolExecutor(THREADS, "searches"))
        self._lock = threading.Lock()
        self._driven: dict[str, tuple[Driven, threading.Thread]] = {}
        #: Searches that met a fault, and until when they are left alone.
        self._resting: dict[str, float] = {}
        self._faults: Counter[str] = Counter()
        self._stopping = False
        self._news = asyncio.Event()

    def start(self) -> None:
        """Start, and take up what an earlier process of this name left unfinished."""
        self._thread.start(self._take_up(), self._keep_leases(), self._look_at_batches())

    def stop(self) -> None:
        """Stop; another process, or the next, continues."""
        if not self._thread.is_running:
            return
        with self._lock:
            self._stopping = True
            running = list(self._driven.values())
        for driven, _ in running:
            driven.drop()
        for _, thread in running:
            thread.join(STOP_SECONDS)
        self._thread.stop()
        try:
            with self._context.write() as session:
                drivers.release(session, self._context.holder)
        except AssayError as error:
            log.warning("the leases of searches are left to run out: %s", error)

    def look(self) -> None:
        """A search may wait for the service."""
        self._thread.call(self._news.set)

    def look_again(self) -> None:
        """Stop driving what was cancelled."""
        loop = self._thread.loop
        self._thread.call(lambda: asyncio.ensure_future(self._check_leases(), loop=loop))

    async def _take_up(self) -> None:
        """Take searches up when there is news, and on a clock."""
        while True:
            try:
                for held in await asyncio.to_thread(self._take):
                    self._drive_in_thread(held)
            except Exception as error:  # without the next look, they would wait for ever
                log.warning("cannot look for searches to drive: %s", error)
            # Not `wait_for`: it swallows a cancellation that comes together with the news.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._context.settings.rescan_seconds):
                    await self._news.wait()
            self._news.clear()

    def _take(self) -> list[Held]:
        context = self._context
        with self._lock:
            now = time.monotonic()
            known = [*self._driven, *(s for s, end in self._resting.items() if end > now)]
            room = context.settings.concurrent_searches - len(self._driven)
        if room <= 0 or self._stopping:
            return []
        with context.write() as session:
            ttl = context.settings.idea_lease
            return drivers.take(context.db, session, context.holder, ttl, limit=room, known=known)

    def _drive_in_thread(self, held: Held) -> None:
        driven = Driven(held)
        name = f"search {held.search}"
        thread = threading.Thread(target=self._drive, args=(driven,), name=name, daemon=True)
        with self._lock:
            if self._stopping:
                return
            self._driven[held.search] = driven, thread
        try:
            thread.start()
        except RuntimeError:  # no thread can be had: the search waits for the next look
            self._forget(held.search)
            raise

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._context.settings.idea_lease_seconds / RENEWALS)
            await self._check_leases()

    async def _check_leases(self) -> None:
        """Renew the leases of what is driven here; drop what is not held any more."""
        with self._lock:
            before = {search: driven for search, (driven, _) in self._driven.items()}
        if not before:
            return
        try:
            held = await asyncio.to_thread(self._renew)
        except Exception as error:  # the leases last a while longer
            log.warning("cannot renew the leases of searches: %s", error)
            return
        for search in before.keys() - held:
            log.info("%s is not to be driven here any more", search)
            before[search].drop()

    def _renew(self) -> set[str]:
        context = self._context
        with context.write() as session:
            ttl = context.settings.idea_lease
            return drivers.renew(context.db, session, context.holder, ttl)

    async def _look_at_batches(self) -> None:
        """Tell the threads which batches have finished or changed, with a query for all."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with self._lock:
                running = [driven for driven, _ in self._driven.values()]
            awaited = [(driven, batch) for driven in running for batch in driven.awaited()]
            watched = [batch for driven in running for batch in driven.watched()]
            if not awaited and not watched:
                continue
            try:
                done, versions = await asyncio.to_thread(
                    self._read_batches, [batch for _, batch in awaited], watched
                )
            except Exception as error:
                log.warning("cannot look at the batches of searches: %s", error)
                continue
            for driven, batch in awaited:
                if batch in done:
                    driven.finish(batch)
            for driven in running:
                driven.tell_versions(versions)

    def _read_batches(
        self, awaited: Sequence[str], watched: Sequence[str]
    ) -> tuple[set[str], dict[str, int]]:
        with self._context.db.read() as session:
            done = drivers.finished(session, awaited) if awaited else set()
            return done, drivers.versions(session, watched) if watched else {}

    def _drive(self, driven: Driven) -> None:
        """Drive a search to its end, a pause or a fault. The whole of a thread."""
        held = driven.held
        keep(search=held.search)
        try:
            self._run(driven)
            log.info("%s has ended", held.search)
        except (Dropped, asyncio.CancelledError):
            log.info("%s is driven elsewhere, or has ended", held.search)
        except SearchPaused:
            log.info("%s is paused", held.search)
        except Exception as error:
            self._note(driven, error)
        finally:
            self._forget(held.search)

    def _run(self, driven: Driven) -> None:
        held, context = driven.held, self._context
        acting = Acting(held.owner, held.search, context.holder)
        transport = InProcess(self._app, self._thread.loop, acting, driven)
        with (
            httpx2.Client(transport=transport, trust_env=False) as http,
            Client(_URL, http_client=http, sleep=driven.sleep) as client,
        ):
            search = client.searches.get(held.search)
            options = SearchConfig.read(search.config).ideator
            ideator = self._open_ideator(context, search.ideator, options)
            drive(
                client,
                held.search,
                CancellableIdeator(ideator, driven),
                wait=driven.wait,
                changes=driven.changed,
                driver=Driver.SERVICE,
            )

    def _note(self, driven: Driven, error: Exception) -> None:
        """Store why a search stopped; leave one that met a fault of ours for the next rescan."""
        search = driven.held.search
        if isinstance(error, Refused) and error.code == "fenced":
            log.info("%s is driven elsewhere", search)
            return
        is_away = isinstance(error, Unavailable | APIConnectionError) or (
            isinstance(error, ServerFault) and error.status == httpx2.codes.SERVICE_UNAVAILABLE
        )
        is_fault = isinstance(error, ServerFault) or not isinstance(error, AssayError)
        if is_away or is_fault:
            self._rest(search)
            log.warning("driving %s was interrupted: %s", search, error, exc_info=is_fault)
            self._faults[search] += 0 if is_away else 1
            if self._faults[search] < MAX_FAULTS:
                return
        code = error.code if isinstance(error, AssayError) else "error"
        message = f"{error}\nRemove the cause, then: assay search resume {search} --detach"
        try:
            with self._context.write() as session:
                held, holder = driven.held, self._context.holder
                searches.stop(self._context.db, session, held, holder, code, message)
            self._faults.pop(search, None)
        except AssayError as fault:
            self._rest(search)
            log.warning("cannot record why %s stopped: %s", search, fault)

    def _rest(self, search: str) -> None:
        with self._lock:
            self._resting[search] = time.monotonic() + self._context.settings.rescan_seconds

    def _forget(self, search: str) -> None:
        """Give the search back, and its place to the next."""
        try:
            with self._context.write() as session:
                drivers.release(session, self._context.holder, search)
        except AssayError as error:
            log.warning("the lease of %s is left to run out: %s", search, error)
        with self._lock:
            self._driven.pop(search, None)
            ended = [s for s, end in self._resting.items() if end <= time.monotonic()]
            for each in ended:
                del self._resting[each]
        self.look()

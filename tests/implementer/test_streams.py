"""Streams wait for notices: they ask for nothing while nothing changes, and miss nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import pytest
from sqlalchemy import select, text

from assay.environments.catalog import Catalog
from assay.storage import attempts, experiments, schema
from assay.storage.attempts import Telemetry
from assay.storage.database import Database
from assay.storage.notices import Patience, PostgresNotifier, note
from assay.storage.objects import LocalStore
from assay.storage.telemetry import Piece
from services.implementer.binding import bind, url_of
from services.implementer.context import Context
from services.implementer.http import http_server
from services.implementer.settings import ImplementerSettings
from tests.storage.lifecycle import World
from tests.support.statements import counted
from tests.support.waiting import wait_until

ACCEPT = {"Accept": "text/event-stream"}
STREAMS = 50
#: Far more than a notice takes, far less than the 30 seconds after which a stream looks by itself.
SOON = 25.0
Events = Iterator[tuple[int, str]]


@contextmanager
def serving(db: Database, store: LocalStore, catalog: Catalog) -> Iterator[str]:
    """The address of an API over a database, behind its real HTTP server."""
    settings = ImplementerSettings(streams_per_client=STREAMS + 10, streams=STREAMS + 10)
    context = Context(db, store, catalog, settings, variables={})
    bound = bind("127.0.0.1", 0, "")
    server = http_server(context, here_only=True)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    with listening(db):
        yield url_of("127.0.0.1", bound)
        server.should_exit = True
        thread.join()


@contextmanager
def listening(db: Database) -> Iterator[None]:
    """Have notices delivered that come from Postgres, as the API's process does."""
    notifier = db.notifier
    if not isinstance(notifier, PostgresNotifier):
        yield
        return
    thread = threading.Thread(target=notifier.run)
    thread.start()
    wait_until(lambda: notifier.is_live, "notices arrive")
    yield
    notifier.stop()
    thread.join()


@pytest.fixture
def url(db: Database, store: LocalStore, catalog: Catalog) -> Iterator[str]:
    """The address of the API."""
    with serving(db, store, catalog) as address:
        yield address


def opened(stack: ExitStack, url: str, after: int = 0) -> Events:
    """A stream: the id and type of each event as it comes."""
    http = stack.enter_context(httpx2.Client(timeout=SOON))
    headers = ACCEPT | ({"Last-Event-ID": str(after)} if after else {})
    answer = stack.enter_context(http.stream("GET", url, headers=headers))
    assert answer.status_code == 200

    def events() -> Events:
        found = 0
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                found = int(value)
            elif name == "event":
                yield found, value

    return events()


def ids(db: Database, batch: str) -> list[int]:
    """The ids of all events of a batch."""
    table = schema.Event
    with db.read() as session:
        return list(
            session.scalars(select(table.id).where(table.batch_id == batch).order_by(table.id))
        )


def tell(db: Database, batch: str, kind: str = "experiment.changed") -> None:
    with db.write() as session:
        experiments.tell(session, batch, kind)


def test_streams_that_have_nothing_to_say_ask_for_nothing(
    world: World, url: str, db: Database
) -> None:
    """Fifty of them asked 250 times a second."""
    batches = [world.submit("A.", "B."), world.submit("C.")]
    with ExitStack() as stack:
        streams = []
        for batch in batches:
            tell(db, batch)
            path = f"{url}/v1/batches/{batch}/events"
            streams += [opened(stack, path) for _ in range(STREAMS // 2)]
        assert len([next(events) for events in streams]) == STREAMS
        time.sleep(0.2)  # reads that were under way end
        with counted(db) as statements:
            time.sleep(1.0)
        # A listener that tests itself may come in between.
        assert [s for s in statements if "pg_notify" not in s] == []


def test_a_change_costs_one_read_however_many_watch(world: World, url: str, db: Database) -> None:
    batch = world.submit("A.")
    with ExitStack() as stack:
        streams = [opened(stack, f"{url}/v1/batches/{batch}/events") for _ in range(STREAMS)]
        tell(db, batch)
        assert {next(events) for events in streams} == {(ids(db, batch)[0], "experiment.changed")}
        time.sleep(0.2)
        with counted(db) as statements:
            tell(db, batch, "experiment.changed")
            assert len({next(events) for events in streams}) == 1
        reads = [s for s in statements if s.startswith("SELECT") and "FROM event" in s]
        assert 1 <= len(reads) <= 5


def test_an_event_arrives_soon_after_its_commit(world: World, url: str, db: Database) -> None:
    batch = world.submit("A.")
    with ExitStack() as stack:
        events = opened(stack, f"{url}/v1/batches/{batch}/events")
        for _ in range(5):
            time.sleep(0.06)  # the stream waits
            began = time.monotonic()
            tell(db, batch)
            next(events)
            assert time.monotonic() - began < SOON


def test_a_search_says_what_changed(world: World, url: str) -> None:
    made = httpx2.post(
        f"{url}/v1/searches",
        json={
            "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 1,
            "batch_size": 1, "executor": "offline:literal",
        },
    ).json()["id"]  # fmt: skip
    with ExitStack() as stack:
        events = opened(stack, f"{url}/v1/searches/{made}/events")
        httpx2.post(f"{url}/v1/searches/{made}/pause")
        assert next(events)[1] == "search.paused"
        httpx2.post(f"{url}/v1/searches/{made}/cancel")
        assert [kind for _, kind in events] == ["search.cancelled"]


def test_nothing_is_lost_or_doubled_by_breaking_off_and_resuming(
    world: World, url: str, db: Database
) -> None:
    batch = world.submit("A.")
    wanted = 60

    def write() -> None:
        for _ in range(wanted):
            tell(db, batch)
            time.sleep(0.005)
        with db.write() as session:
            experiments.cancel(db, session, [world_experiment])

    world_experiment = world.experiments(batch)[0].id
    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    ended = False
    while not ended:
        with ExitStack() as stack:
            events = opened(stack, f"{url}/v1/batches/{batch}/events", seen[-1] if seen else 0)
            for count, (found, kind) in enumerate(events):
                seen.append(found)
                ended = kind == "batch.finished"
                if count == len(seen) % 7:
                    break
    writer.join()
    assert seen == ids(db, batch)
    assert len(seen) == wanted + 2


def test_a_growing_log_is_sent_as_it_grows(world: World, url: str, db: Database) -> None:
    batch = world.submit("A.")
    experiment = world.experiments(batch)[0].id
    with ExitStack() as stack:
        events = opened(stack, f"{url}/v1/experiments/{experiment}/logs")
        attempt = world.assign(world.implement(experiment, "a = 1\n"))
        assert attempt is not None
        world.claim(attempt)
        end = 0
        for line in (b"one\n", b"two\n", b"three\n"):
            time.sleep(0.06)
            with db.write() as session:
                said = Telemetry(logs=(Piece("train", end, line),))
                token = attempt.lease_token
                attempts.progress(db, session, attempt.id, world.worker, token, said)
            end += len(line)
            assert next(events) == (end, "log")
        with db.write() as session:
            experiments.cancel(db, session, [experiment])
        assert next(events) == (end, "end")


def test_an_api_sends_what_another_process_commits(
    postgres: Database, store: LocalStore, catalog: Catalog
) -> None:
    world = World.create(postgres, store, catalog)
    batch = world.submit("A.")
    url = postgres.engine.url.render_as_string(hide_password=False)
    one, other = Database(url), Database(url)
    with ExitStack() as stack:
        apis = [stack.enter_context(serving(db, store, catalog)) for db in (one, other)]
        streams = [opened(stack, f"{api}/v1/batches/{batch}/events") for api in apis]
        for _ in range(3):
            tell(postgres, batch)
            assert len({next(events) for events in streams}) == 1
        httpx2.post(f"{apis[0]}/v1/batches/{batch}/cancel").raise_for_status()
        kinds = [kind for _, kind in streams[1]]
        assert kinds == ["experiment.changed", "batch.finished"]
    one.dispose()
    other.dispose()


def test_without_notices_streams_look_every_second(
    postgres: Database, store: LocalStore, catalog: Catalog
) -> None:
    """A pooler in between may swallow them."""
    world = World.create(postgres, store, catalog)
    batch = world.submit("A.")
    with ExitStack() as stack:
        url = stack.enter_context(serving(postgres, store, catalog))
        events = opened(stack, f"{url}/v1/batches/{batch}/events")
        with postgres.engine.begin() as connection:  # nobody announces it
            connection.execute(
                text(
                    "INSERT INTO event (batch_id, type, data, created_at) "
                    "VALUES (:batch, 'experiment.changed', '{}', now())"
                ),
                {"batch": batch},
            )
        assert isinstance(postgres.notifier, PostgresNotifier)
        postgres.notifier.stop()
        assert next(events)[1] == "experiment.changed"


def note_and_fail(db: Database, key: str) -> None:
    with db.write() as session:
        note(session, key)
        raise KeyError


class Heard:
    """Counts how often it was called."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1

    def at_least(self, times: int) -> Callable[[], bool]:
        return lambda: self.times >= times


def test_notices_are_delivered_after_the_commit_alone(db: Database) -> None:
    heard, other = Heard(), Heard()
    with listening(db), db.notifier.subscribe("a", heard), db.notifier.subscribe("b", other):
        with pytest.raises(KeyError):
            note_and_fail(db, "a")
        with db.write() as session:
            note(session, "a")
            note(session, "a")
            assert heard.times == 0
        wait_until(heard.at_least(1), "the notice arrives")
        with db.write() as session:
            note(session, "b")
        wait_until(other.at_least(1), "the notice arrives")
        assert (heard.times, other.times) == (1, 1)


def test_a_listener_that_is_cut_off_connects_again_and_wakes_everybody(
    postgres: Database,
) -> None:
    notifier = PostgresNotifier(postgres.engine, Patience(pause=0.05))
    thread, heard = threading.Thread(target=notifier.run), Heard()
    with notifier.subscribe("a", heard):
        thread.start()
        wait_until(heard.at_least(1), "notices arrive")
        with postgres.engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
                )
            )
        wait_until(heard.at_least(2), "it has connected again")
        notifier.announce(["a"])
        wait_until(heard.at_least(3), "the notice arrives")
    notifier.stop()
    thread.join()


@pytest.mark.slow
def test_a_listener_that_hears_nothing_says_so(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, which takes LISTEN and delivers nothing."""
    notifier = PostgresNotifier(postgres.engine, Patience(test=1.2, pause=1.0))
    thread = threading.Thread(target=notifier.run)
    thread.start()
    wait_until(lambda: notifier.is_live, "notices arrive")
    monkeypatch.setattr("assay.storage.notices.CHANNEL", "assay_elsewhere")
    wait_until(lambda: not notifier.is_live, "it has found that it is deaf")
    monkeypatch.undo()
    wait_until(lambda: notifier.is_live, "notices arrive again")
    notifier.stop()
    thread.join()

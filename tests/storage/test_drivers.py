"""One process of the service drives a search, under a lease, and nobody else writes to it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Literal

import pytest
from sqlalchemy import select

from assay.contracts.search import SearchRequest
from assay.domain.errors import Conflict, Fenced
from assay.domain.states import Driver, SearchState
from assay.environments.catalog import Catalog
from assay.storage import drivers, environments, schema, searches
from assay.storage.database import Database
from assay.storage.drivers import Held
from assay.storage.objects import LocalStore

HOUR, NOTHING = timedelta(hours=1), timedelta(0)
MOST = 3


@pytest.fixture
def environment(db: Database, store: LocalStore, catalog: Catalog) -> str:
    return environments.register(db, store, catalog.get("count"))


def create(
    db: Database,
    environment: str,
    driver: Literal["client", "service"] = "service",
    owner: str = "ann",
) -> str:
    request = SearchRequest(
        environment="count", profile="tiny", strategy="best-of-n", epochs=2, batch_size=1,
        driver=driver,
    )  # fmt: skip
    with db.write() as session:
        return searches.create(db, session, request, owner, environment, most_detached=MOST)


def take(db: Database, holder: str, ttl: timedelta = HOUR, limit: int = 10) -> list[str]:
    with db.write() as session:
        found = drivers.take(db, session, holder, ttl, limit=limit)
    assert {held.owner for held in found} <= {"ann", "bob"}
    return [held.search for held in found]


def renew(db: Database, holder: str) -> set[str]:
    with db.write() as session:
        return drivers.renew(db, session, holder, HOUR)


def check(db: Database, search: str, holder: str | None) -> None:
    with db.write() as session:
        searches.check_driver(session, search, holder)


def resume(db: Database, search: str, driver: Driver) -> None:
    with db.write() as session:
        searches.resume(db, session, search, driver, most_detached=MOST)


def stop(db: Database, search: str, holder: str) -> None:
    with db.write() as session:
        searches.stop(db, session, Held(search, "ann"), holder, "model_failed", "Its key expired.")


def paused(db: Database, search: str) -> list[tuple[str, bool]]:
    with db.read() as session:
        found = searches.pauses(session, [search])[search]
    return [(pause.data["code"], pause.resumed_at is None) for pause in found]


def test_of_many_processes_one_takes_a_search(db: Database, environment: str) -> None:
    search = create(db, environment)
    create(db, environment, "client")
    barrier, found = threading.Barrier(6), []

    def run(name: str) -> None:
        barrier.wait()
        found.append(take(db, name))

    threads = [threading.Thread(target=run, args=(f"h{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[]] * 5 + [[search]]


def test_a_search_passes_on_when_its_lease_runs_out_or_is_given_up(
    db: Database, environment: str
) -> None:
    search = create(db, environment)
    assert take(db, "a", NOTHING) == [search]
    assert take(db, "b") == [search], "a is gone"
    assert take(db, "a") == []
    assert (renew(db, "a"), renew(db, "b")) == (set(), {search})
    with pytest.raises(Fenced):
        check(db, search, "a")
    check(db, search, "b")
    assert take(db, "b") == [search], "a restart under the same name continues"
    with db.write() as session:
        assert drivers.release(session, "b") == 1
    assert take(db, "c") == [search]


def test_no_more_are_taken_than_there_is_room_for(db: Database, environment: str) -> None:
    made = [create(db, environment) for _ in range(3)]
    assert take(db, "a", limit=2) == made[:2]
    assert take(db, "b", limit=2) == made[2:]


def test_a_search_that_was_cancelled_tells_its_holder(db: Database, environment: str) -> None:
    search = create(db, environment)
    take(db, "a")
    with db.write() as session:
        searches.end(db, session, search, SearchState.CANCELLED)
    assert renew(db, "a") == set()
    with db.read() as session:
        sent = session.execute(select(schema.Outbox.topic, schema.Outbox.key)).all()
    assert [tuple(row) for row in sent] == [("drive", search), ("implementer", "a")]
    stop(db, search, "a")
    resume(db, search, Driver.SERVICE)
    assert (take(db, "b"), paused(db, search)) == ([], [])


def test_an_error_pauses_until_somebody_resumes(db: Database, environment: str) -> None:
    search = create(db, environment)
    take(db, "a")
    stop(db, search, "b")
    assert paused(db, search) == [], "b never held it"
    for _ in range(2):
        stop(db, search, "a")
    assert paused(db, search) == [("model_failed", True)]
    assert take(db, "a") == take(db, "b") == []
    resume(db, search, Driver.SERVICE)
    assert paused(db, search) == [("model_failed", False)]
    assert take(db, "b") == [search]
    stop(db, search, "b")
    assert [is_open for _, is_open in paused(db, search)] == [False, True], "in the same epoch"


def test_a_client_takes_over_what_nobody_drives(db: Database, environment: str) -> None:
    search = create(db, environment)
    take(db, "a")
    for write in (check, resume):
        with pytest.raises(Conflict) as refused:
            write(db, search, None if write is check else Driver.CLIENT)  # type: ignore[operator]
        assert refused.value.code == "driven_by_service"
    stop(db, search, "a")
    resume(db, search, Driver.CLIENT)
    check(db, search, None)
    assert take(db, "a") == []
    with pytest.raises(Fenced):
        check(db, search, "a")


def test_a_client_takes_over_from_a_process_that_is_gone(db: Database, environment: str) -> None:
    search = create(db, environment)
    take(db, "a", NOTHING)
    resume(db, search, Driver.CLIENT)
    check(db, search, None)


def test_the_service_takes_over_from_a_client(db: Database, environment: str) -> None:
    search = create(db, environment, "client")
    check(db, search, None)
    resume(db, search, Driver.SERVICE)
    assert take(db, "a") == [search]
    resume(db, search, Driver.SERVICE)
    check(db, search, "a")
    with pytest.raises(Conflict):
        check(db, search, None)


def test_an_owner_has_so_many_at_once(db: Database, environment: str) -> None:
    made = [create(db, environment) for _ in range(MOST)]
    waiting = create(db, environment, "client")
    create(db, environment, owner="bob")
    for attempt in (
        lambda: create(db, environment),
        lambda: resume(db, waiting, Driver.SERVICE),
    ):
        with pytest.raises(Conflict) as refused:
            attempt()
        assert refused.value.code == "too_many_detached"
    take(db, "a")
    stop(db, made[0], "a")
    resume(db, waiting, Driver.SERVICE)
    with pytest.raises(Conflict):
        resume(db, made[0], Driver.SERVICE)
    with db.write() as session:
        searches.end(db, session, made[1], SearchState.CANCELLED)
    resume(db, made[0], Driver.SERVICE)


def test_an_owner_who_starts_many_at_the_same_time_has_no_more(
    db: Database, environment: str
) -> None:
    barrier, refused = threading.Barrier(6), []

    def run() -> None:
        barrier.wait()
        try:
            create(db, environment)
        except Conflict as error:
            refused.append(error.code)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["too_many_detached"] * (6 - MOST)

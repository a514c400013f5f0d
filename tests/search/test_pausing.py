"""A search pauses when one code ends most of an epoch, says so, and goes on when it is resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import pytest

from assay.contracts.batch import ExperimentBody
from assay.contracts.search import SearchBody
from assay.llm import IdeationRequest, OfflineIdeator, ProposedIdea
from assay.llm.ideation import CallRecord
from assay.search import Ask, Observer, SearchPaused, drive
from assay.search.pausing import common_failure
from tests.search.test_loop import Killed, connect, killer_of, new_search
from tests.support.fake_service import FakeService

CRASH = {"stage": "train", "code": "crashed", "message": "ImportError: no numpy"}
HOST = {"stage": "start", "code": "infrastructure", "message": "no room", "retryable": True}


class Spy(OfflineIdeator):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[IdeationRequest] = []

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        self.requests.append(request)
        return await super().propose(request, record=record)


def failing(failure: dict[str, Any]) -> FakeService:
    return FakeService(lambda _: dict(failure))


def paused(service: FakeService, search: str, **how: Any) -> SearchPaused:
    with pytest.raises(SearchPaused) as caught:
        drive(connect(service), search, OfflineIdeator(), **how)
    return caught.value


def test_a_search_pauses_when_most_of_an_epoch_failed_alike() -> None:
    service = failing(CRASH)
    search = new_search(service)
    found = paused(service, search)
    assert found.code == "search_paused"
    assert "6 of 6 ideas of epoch 0 failed with `crashed`" in str(found)
    assert f"assay search resume {search}" in str(found)
    assert len(service.batches) == 1, "it asked for no more"
    (pause,) = connect(service).searches.get(search).pauses
    assert (pause.epoch, pause.code, pause.failed, pause.total) == (0, "crashed", 6, 6)
    assert (pause.message, pause.resumed_at) == (str(found), None)


def test_a_resumed_search_goes_on_and_pauses_once_per_epoch() -> None:
    service = failing(CRASH)
    search = new_search(service, epochs=3)
    paused(service, search)
    assert "epoch 1" in str(paused(service, search))
    assert len(service.batches) == 2
    body = drive(connect(service), search, OfflineIdeator())
    assert body.state == "finished", "nothing is asked for after the last epoch"
    assert [(p.epoch, p.resumed_at is not None) for p in body.pauses] == [(0, True), (1, True)]


def test_a_search_that_was_killed_while_it_paused_goes_on() -> None:
    service = failing(CRASH)
    search = new_search(service, epochs=2)
    with pytest.raises(Killed):
        drive(connect(killer_of(service, "/epochs/0/pause")), search, OfflineIdeator())
    paused(service, search)
    assert drive(connect(service), search, OfflineIdeator()).state == "finished"


def test_an_epoch_that_was_followed_by_another_does_not_pause_later() -> None:
    """A search of before, or one that did not pause, is resumed past its failures."""
    service = failing(CRASH)
    search = new_search(service, epochs=3)

    class Stop(Observer):
        def asking(self, number: int, asks: Sequence[Ask]) -> None:
            if number == 2:
                raise Killed

    with pytest.raises(Killed):
        drive(connect(service), search, OfflineIdeator(), Stop(), pause=False)
    assert "epoch 1" in str(paused(service, search))


def test_a_search_may_be_told_not_to_pause() -> None:
    service = failing(CRASH)
    assert drive(
        connect(service), new_search(service), OfflineIdeator(), pause=False
    ).state == "finished"  # fmt: skip
    search = new_search(service, pause=False)
    assert drive(connect(service), search, OfflineIdeator()).state == "finished"
    paused(service, new_search(service, pause=False), pause=True)


@pytest.mark.parametrize(
    ("codes", "executor", "found"),
    [
        ("crashed crashed crashed -", "offline:literal", "crashed"),
        ("crashed crashed - -", "offline:literal", None),
        ("crashed crashed crashed", "offline:literal", None),
        ("crashed timeout crashed timeout", "offline:literal", None),
        ("crashed crashed crashed cancelled cancelled", "offline:literal", None),
        ("crashed crashed crashed - cancelled cancelled", "offline:literal", "crashed"),
        ("no_match no_match no_match no_match", "offline:literal", None),
        ("no_match no_match no_match -", "openai:some", "no_match"),
        ("- - - -", "openai:some", None),
    ],
)
def test_which_epochs_pause(codes: str, executor: str, found: str | None) -> None:
    common = common_failure([experiment(code) for code in codes.split()], executor)
    assert (common.code if common else None) == found


def experiment(code: str) -> ExperimentBody:
    service = FakeService(
        lambda _: (
            2.5
            if code in ("-", "cancelled")
            else {
                "stage": "implement" if code == "no_match" else "train",
                "code": code,
                "message": "",
            }
        )
    )
    search = new_search(service, epochs=1, batch_size=1)
    drive(connect(service), search, OfflineIdeator())
    (body,) = connect(service).experiments.list()
    return body.model_copy(update={"state": "cancelled"}) if code == "cancelled" else body


def test_a_retry_that_succeeded_is_what_later_epochs_are_shown() -> None:
    service = failing(CRASH)
    search = new_search(service, epochs=2)
    paused(service, search)
    service.outcome = lambda _: 2.0
    failed, *_ = service.experiments[service.epochs[search][0]["batch"]]
    again = connect(service).experiments.retry(failed["id"])
    seen = Spy()
    drive(connect(service), search, seen)
    (positive,) = {t.id: t for r in seen.requests for t in r.parents}.values()
    assert (positive.id, positive.epoch, positive.metric) == (again.id, 0, 2.0)


@pytest.mark.parametrize(("failure", "is_shown"), [(CRASH, True), (HOST, False)])
def test_an_ideator_is_not_shown_what_the_host_is_to_blame_for(
    failure: dict[str, Any], is_shown: bool
) -> None:
    service = failing(failure)
    spy = Spy()
    drive(connect(service), new_search(service, epochs=2), spy, pause=False)
    shown = [t.failure for request in spy.requests for t in request.trajectories]
    assert bool(shown) is is_shown


class Between(Observer):
    """Does something once when an epoch has ended."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._number = number
        self._act = act

    def epoch_finished(self, search: SearchBody, number: int) -> None:
        if number == self._number:
            self._act()


def test_a_person_pauses_a_loop_that_runs_and_it_goes_on_where_it_was() -> None:
    service = FakeService()
    search = new_search(service, epochs=3)
    with pytest.raises(SearchPaused, match="A person"):
        drive(
            connect(service), search, OfflineIdeator(), Between(0, lambda: service.pause(search))
        )
    assert len(service.epochs[search]) == 1
    assert drive(connect(service), search, OfflineIdeator()).state == "finished"
    assert len(service.epochs[search]) == 3


@pytest.mark.parametrize("strategy", ["evolution", "best-of-n"])
def test_a_loop_sees_that_it_was_extended_also_after_its_last_epoch(strategy: str) -> None:
    service = FakeService()
    search = new_search(service, strategy, epochs=2)
    last = Between(1, lambda: service.extend(search, 4))
    assert drive(connect(service), search, OfflineIdeator(), last).state == "finished"
    assert len(service.epochs[search]) == 4


def test_a_search_that_is_extended_as_it_finishes_is_not_finished() -> None:
    service = FakeService()
    search = new_search(service, epochs=1)

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/finish") and service.searches[search]["epochs"] == 1:
            service.extend(search, 2)
        return service(request)

    assert drive(connect(handle), search, OfflineIdeator()).epochs_finished == 2


class Order(Observer):
    """Remembers which epochs were submitted and finished."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def submitted(self, number: int, batch: str) -> None:
        self.steps.append(f"submitted {number}")

    def epoch_finished(self, search: SearchBody, number: int) -> None:
        self.steps.append(f"finished {number}")


def ran(strategy: str, *, overlap: bool) -> tuple[list[str], list[Any]]:
    service = FakeService()
    service.unfinished = service.finish_on_look = True
    search = new_search(service, strategy, epochs=3)
    service.searches[search]["config"]["overlap"] = overlap
    order = Order()
    drive(connect(service), search, OfflineIdeator(), order)
    return order.steps, [epoch["ideas"] for epoch in service.epochs[search]]


def test_best_of_n_submits_one_epoch_ahead_and_proposes_the_same() -> None:
    ahead, ideas = ran("best-of-n", overlap=True)
    assert ahead == [
        "submitted 0", "submitted 1", "finished 0", "submitted 2", "finished 1", "finished 2",
    ]  # fmt: skip
    behind, same = ran("best-of-n", overlap=False)
    assert behind[:3] == ["submitted 0", "finished 0", "submitted 1"]
    assert same == ideas
    assert ran("evolution", overlap=True)[0] == behind

"""The loop of asynchronous strategies: slots stay full, and the log says all that was decided."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from assay.domain.ids import new_id
from assay.llm import (
    Completion,
    IdeationRequest,
    ModelError,
    ModelIdeator,
    ModelName,
    OfflineIdeator,
    OnTry,
    Prompt,
    ProposedIdea,
    Try,
    Usage,
)
from assay.llm.ideation import CallRecord
from assay.search import SearchError, SearchPaused, drive
from assay.search.changes import Clock
from assay.search.decisions import replay
from assay.search.pace import Pace
from assay.search.slots import more_seeds
from assay.search.strategy import open_strategy
from assay.search.trajectories import TrajectoryReader
from tests.search.slots import FewWorkers, SlowIdeator
from tests.search.test_loop import Killed, connect, killer, new_search, written
from tests.support.fake_service import FakeService

LENGTHS = [random.Random(1).choice((30.0, 120.0)) for _ in range(1_000)]
ASKED = re.compile(r"Propose (\d+) ")


class Counting:
    """A model that answers with as many new ideas as it is asked for."""

    name = ModelName.parse("openai:scripted")

    def __init__(self) -> None:
        self.ideas = 0

    async def complete(
        self, prompt: Prompt, *, on_try: OnTry | None = None, **options: Any
    ) -> Completion:
        assert on_try is not None
        started = Try(new_id("call"), 1, "started")
        await on_try(started)
        (count,) = map(int, ASKED.findall(prompt.messages[-1].text))
        texts = [f"idea {self.ideas + each}" for each in range(count)]
        self.ideas += count
        answer = Completion(written(*texts), "", "end", Usage(), "m")
        await on_try(replace(started, phase="returned", completion=answer, usage=Usage(100, 10)))
        return answer

    async def aclose(self) -> None:
        return None


def noisy(service: FakeService, epochs: int = 14, **more: Any) -> str:
    """A search in eight slots whose codebases are measured again, if the noise is large."""
    settings = {"keep": 8, "remeasure": 50}
    return new_search(service, "thompson", epochs=epochs, batch_size=4, settings=settings, **more)


def few_workers(service: FakeService, slots: int = 8) -> FewWorkers:
    return FewWorkers(service, slots, lambda number: LENGTHS[number] / 10)


def check_log(service: FakeService, search: str) -> None:
    """Every decision would be taken again on what it recorded, and everything has ended."""
    client = connect(service)
    body = client.searches.get(search)
    epochs = list(client.searches.epochs(search))
    assert [epoch.number for epoch in epochs] == list(range(body.epochs))
    assert all(epoch.ideas and epoch.batch for epoch in epochs)
    reader = TrajectoryReader(client)
    past = (
        each for epoch in epochs for each in reader.ended(epoch.number, reader.experiments(epoch))
    )
    strategy = open_strategy(body.strategy, body.config["strategy"])
    assert replay(body, strategy, epochs, {each.id: each for each in past}) == []
    assert len(service.batches) == len(epochs), "each is submitted once"
    assert all(each["is_terminal"] for batch in service.experiments.values() for each in batch)


@pytest.mark.parametrize(
    ("seconds", "epochs"),
    [
        (30.0, 45),
        pytest.param(120.0, 22, marks=pytest.mark.slow),
        pytest.param(None, 60, marks=pytest.mark.slow),
    ],
)
def test_slots_idle_less_than_a_tenth_while_the_ideator_takes_a_minute(
    seconds: float | None, epochs: int
) -> None:
    """From the first experiment on, until nothing more is to come; the start is included."""
    service = FakeService()
    workers = FewWorkers(service, 8, lambda number: seconds or LENGTHS[number])
    search = new_search(
        service,
        "thompson",
        epochs=epochs,
        batch_size=4,
        settings={"keep": 8},
        pause=False,
    )
    ideator = SlowIdeator(workers.time, 60.0)
    body = drive(connect(service), search, ideator, clock=workers.time.clock)
    assert body.state == "finished"
    assert workers.share_idle < 0.1
    assert ideator.most <= 16, "eight decisions with two questions each"


def test_the_log_replays_and_codebases_are_measured_on_more_seeds() -> None:
    service = FakeService()
    search = noisy(service)
    workers = few_workers(service)
    drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    check_log(service, search)
    again = [e for e in service.epochs[search] if (e["decision"] or {})["remeasure"]]
    assert again, "some are measured again"
    for epoch in again:
        decided = epoch["decision"]["remeasure"]
        assert [idea["parents"] for idea in epoch["ideas"]] == [
            [id_] for id_ in decided["experiments"]
        ]
        assert {idea["operator"] for idea in epoch["ideas"]} == {"remeasure"}
        assert all(idea["codebase"] for idea in epoch["ideas"])
        seeds = service.batches[epoch["batch"]]["options"]["seeds"]
        assert seeds == list(range(decided["seeds"]))


def test_the_first_decisions_fill_the_slots_and_then_the_baseline_comes_first() -> None:
    service = FakeService()
    service.pending = 5
    search = noisy(service)
    workers = few_workers(service)
    drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    decisions = [epoch["decision"] for epoch in service.epochs[search]]
    assert [bool(each["baseline"]) for each in decisions] == [False] * 2 + [True] * 12
    assert [bool(each["seen"]) for each in decisions[:3]] == [False, False, True]
    assert all(ask["operator"] == "seed" for each in decisions[:2] for ask in each["asks"])
    seen = [id_ for each in decisions for id_ in each["seen"]]
    assert len(seen) == len(set(seen)), "each result is new once"


@pytest.mark.parametrize("moment", range(20))
def test_killed_at_twenty_moments_nothing_is_decided_or_paid_for_twice(moment: int) -> None:
    rng = random.Random(moment)
    service = FakeService()
    search = noisy(service, 8)
    workers = few_workers(service)
    handler = killer(service, rng.randrange(3, 150), rng.random() < 0.5)
    with pytest.raises(Killed):
        drive(connect(handler), search, ModelIdeator(Counting()), clock=workers.time.clock)
    handler = killer(service, rng.randrange(3, 100), rng.random() < 0.5)
    with suppress(Killed):  # it may have been near its end
        drive(connect(handler), search, ModelIdeator(Counting()), clock=workers.time.clock)
    before = [epoch["decision"] for epoch in service.epochs[search]]
    body = drive(connect(service), search, ModelIdeator(Counting()), clock=workers.time.clock)
    assert body.state == "finished"
    check_log(service, search)
    assert [e["decision"] for e in service.epochs[search]][: len(before)] == before
    answered = Counter(
        (call["epoch"], call["place"])
        for call in service.ideator_calls.values()
        if call["text"] is not None
    )
    assert set(answered.values()) == {1}, "no answered call is made again"


def test_results_that_were_read_before_the_baseline_was_whole_are_read_again() -> None:
    """A loop that starts again has results at once, and waits for the baseline still."""
    service = FakeService()
    service.distinct_code = True
    service.pending = 4
    search = noisy(service, 6)
    clock = Clock(sleep=lambda _: asyncio.sleep(0.001))

    def dies(request: Any) -> Any:
        if request.url.path.endswith("/baseline"):
            raise Killed
        return service(request)

    with pytest.raises(Killed):
        drive(connect(dies), search, OfflineIdeator(), clock=clock)
    assert len(service.epochs[search]) == 2
    drive(connect(service), search, OfflineIdeator(), clock=clock)
    check_log(service, search)
    assert all(epoch["decision"]["seen"] for epoch in service.epochs[search][2:3])


def test_two_loops_of_one_search_take_every_decision_once() -> None:
    service = FakeService()
    service.distinct_code = True
    search = noisy(service, 6)
    clock = Clock(sleep=lambda _: asyncio.sleep(0.001))

    def meanwhile(request: Any) -> Any:
        if request.url.path.endswith("/epochs/3/decision"):
            drive(connect(service), search, OfflineIdeator(), clock=clock)
        return service(request)

    body = drive(connect(meanwhile), search, OfflineIdeator(), clock=clock)
    assert body.state == "finished"
    check_log(service, search)


def test_a_pause_lets_what_is_asked_for_end_and_resuming_goes_on() -> None:
    service = FakeService()
    search = noisy(service)
    workers = few_workers(service)

    def pausing(request: Any) -> Any:
        if request.url.path.endswith("/epochs/5/decision"):
            service.pause(search)
        return service(request)

    with pytest.raises(SearchPaused):
        drive(connect(pausing), search, OfflineIdeator(), clock=workers.time.clock)
    epochs = service.epochs[search]
    assert 6 <= len(epochs) < 14
    assert all(epoch["batch"] for epoch in epochs), "what was asked for is submitted"
    assert drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    check_log(service, search)


def test_it_pauses_when_most_of_the_last_experiments_failed_alike() -> None:
    broken = {"stage": "train", "code": "crashed", "message": "no module named numpy"}
    service = FakeService(lambda text: broken)
    search = noisy(service)
    workers = few_workers(service)
    with pytest.raises(SearchPaused, match="8 of 8 of the last ideas failed with `crashed`"):
        drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    decided = len(service.epochs[search])
    with pytest.raises(SearchPaused):  # for other experiments than those before
        drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    assert len(service.epochs[search]) > decided


def test_cancelling_ends_the_loop() -> None:
    service = FakeService()
    search = noisy(service)
    workers = few_workers(service)

    def cancelling(request: Any) -> Any:
        if request.url.path.endswith("/epochs/4/decision"):
            connect(service).searches.cancel(search)
        return service(request)

    body = drive(connect(cancelling), search, OfflineIdeator(), clock=workers.time.clock)
    assert body.state == "cancelled"


def test_a_search_that_was_extended_decides_more() -> None:
    service = FakeService()
    search = noisy(service, 4)
    workers = few_workers(service)
    assert drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    service.extend(search, 6)
    body = drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    assert (body.state, body.epochs_finished) == ("finished", 6)
    check_log(service, search)


def test_a_model_that_fails_stops_the_search_after_what_else_was_asked() -> None:
    class Fails(OfflineIdeator):
        times = 0

        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            Fails.times += 1
            if Fails.times == 4:
                raise ModelError("the key has expired")
            return await super().propose(request, record=record)

    service = FakeService()
    search = noisy(service)
    workers = few_workers(service)
    with pytest.raises(SearchError, match="the key has expired"):
        drive(connect(service), search, Fails(), clock=workers.time.clock)
    open_ = [epoch["number"] for epoch in service.epochs[search] if epoch["batch"] is None]
    assert len(open_) == 1, "the decision waits for its ideas"
    drive(connect(service), search, OfflineIdeator(), clock=workers.time.clock)
    check_log(service, search)


def test_the_pace_counts_what_holds_a_slot() -> None:
    pace = Pace(8)
    assert pace.target() == 8, "nothing is known yet"
    pace.answered(60)
    assert pace.target() == 8
    for _ in range(10):
        pace.passed(30, 12, 2)  # of twelve, eight hold a slot, for 120 s each
    assert pace.target() == 8 + 4
    for _ in range(200):
        pace.passed(1, 8, 8)
    assert pace.target() == 32, "four times the slots at most"


def test_seeds_are_extended_by_those_that_are_not_used() -> None:
    assert more_seeds([0], 3) == [0, 1, 2]
    assert more_seeds([1, 5], 4) == [1, 5, 0, 2]
    assert more_seeds([0, 1], 2) == [0, 1]

"""The loop against a service: what it stores, and that killing it anywhere changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from assay.client import Client
from assay.contracts.batch import MAX_IDEA_BYTES, MAX_THINKING, BatchOptions, IdeaRequest
from assay.contracts.search import MAX_EPOCH_BYTES, SearchRequest, bytes_of
from assay.domain.ids import new_id
from assay.llm import (
    Completion,
    IdeaText,
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
    format_idea,
)
from assay.llm.executors import Limits
from assay.llm.ideation import CallRecord
from assay.llm.recorded_ideas import NoModel, RecordedIdeas
from assay.search import Ask, Observer, SearchConfig, SearchError, drive
from assay.search.config import IdeatorOptions
from assay.search.config import SearchConfig as Config
from assay.search.trajectories import TrajectoryReader
from tests.support.fake_service import FakeService

EPOCHS, SIZE = 3, 6


class Killed(BaseException):
    """The process is gone."""


def connect(handler: Callable[[httpx2.Request], httpx2.Response]) -> Client:
    http_client = httpx2.Client(transport=httpx2.MockTransport(handler))
    return Client("http://test", http_client=http_client, sleep=lambda _: None)


def new_search(
    service: FakeService,
    strategy: str = "evolution",
    *,
    epochs: int = EPOCHS,
    batch_size: int = SIZE,
    **config: Any,
) -> str:
    request = SearchRequest(
        environment="fake",
        profile="tiny",
        strategy=strategy,
        seed=11,
        epochs=epochs,
        batch_size=batch_size,
        config=SearchConfig.make(strategy, **config).record(),
    )
    return connect(service).searches.create(request).id


def ideas_of(service: FakeService, search: str) -> list[list[tuple[str, str]]]:
    return [
        [(i["operator"], i["text"]) for i in epoch["ideas"]] for epoch in service.epochs[search]
    ]


def finished(service: FakeService) -> tuple[str, list[list[tuple[str, str]]]]:
    search = new_search(service)
    body = drive(connect(service), search, OfflineIdeator())
    assert body.state == "finished"
    return search, ideas_of(service, search)


def test_a_search_runs_to_its_end_and_learns() -> None:
    service = FakeService()
    search, ideas = finished(service)
    assert [len(epoch) for epoch in ideas] == [SIZE] * EPOCHS
    assert {op for op, _ in ideas[0]} == {"seed"}
    assert [op for op, _ in ideas[1]] == ["exploit"] * 3 + ["explore"] * 3
    assert [op for op, _ in ideas[2]] == ["exploit"] * 3 + ["explore"] * 3
    parents = [i["parents"] for i in service.epochs[search][1]["ideas"]]
    known = {e["id"] for e in service.experiments[service.epochs[search][0]["batch"]]}
    assert all(p for p in parents[:3])
    assert {p for ps in parents for p in ps} <= known


def test_two_searches_with_the_same_seed_have_the_same_ideas() -> None:
    assert finished(FakeService())[1] == finished(FakeService())[1]


def slow_service() -> FakeService:
    """A service whose batches finish only when somebody waits for them."""
    service = FakeService()
    service.unfinished = service.finish_on_look = True
    return service


def test_killed_at_any_step_and_resumed_it_has_the_same_ideas() -> None:
    """Every request, before it is sent and after it was carried out."""
    whole = slow_service()
    search = new_search(whole)
    before = len(whole.requests)
    drive(connect(whole), search, OfflineIdeator())
    expected = ideas_of(whole, search)
    steps = len(whole.requests) - before
    assert steps > 30
    for step in range(steps):
        for carried_out in (False, True):
            service = slow_service()
            search = new_search(service)
            with pytest.raises(Killed):
                drive(connect(killer(service, step, carried_out)), search, OfflineIdeator())
            body = drive(connect(service), search, OfflineIdeator())
            assert body.state == "finished"
            assert ideas_of(service, search) == expected
            assert len(service.batches) == EPOCHS


def killer(
    service: FakeService, step: int, carried_out: bool
) -> Callable[[httpx2.Request], httpx2.Response]:
    left = step

    def handle(request: httpx2.Request) -> httpx2.Response:
        nonlocal left
        if left == 0:
            if carried_out:
                service(request)
            raise Killed
        left -= 1
        return service(request)

    return handle


def test_a_search_is_resumed_over_several_pages_of_epochs() -> None:
    """The fake service lists three epochs a page."""
    whole, service = FakeService(), FakeService()
    ideas = ideas_after(whole, new_search(whole, epochs=8))
    search = new_search(service, epochs=8)

    class Stop(Observer):
        def asking(self, number: int, asks: Sequence[Ask]) -> None:
            if number == 7:
                raise Killed

    with pytest.raises(Killed):
        drive(connect(service), search, OfflineIdeator(), Stop())
    assert len(service.epochs[search]) == 7
    assert ideas_after(service, search) == ideas


def ideas_after(service: FakeService, search: str) -> list[list[tuple[str, str]]]:
    """Drive a search to its end. Returns its ideas by epoch."""
    assert drive(connect(service), search, OfflineIdeator()).state == "finished"
    return ideas_of(service, search)


def test_thinking_is_cut_where_an_epoch_could_not_hold_it() -> None:
    class Thoughtful(OfflineIdeator):
        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            ideas = await super().propose(request, record=record)
            return [replace(idea, thinking="\n" * MAX_THINKING) for idea in ideas]

    service = FakeService()
    search = new_search(service, epochs=1, batch_size=40)
    assert drive(connect(service), search, Thoughtful()).state == "finished"
    (epoch,) = service.epochs[search]
    ideas = [IdeaRequest.model_validate(idea) for idea in epoch["ideas"]]
    assert len(ideas) == 40
    assert MAX_EPOCH_BYTES // 3 < bytes_of(ideas) <= MAX_EPOCH_BYTES
    assert all(idea.thinking for idea in ideas)


@pytest.mark.parametrize(
    ("stage", "code", "is_shown"),
    [
        ("start", "infrastructure", False),
        ("implement", "rate_limited", False),
        ("implement", "spend_cap", False),
        ("train", "of_another_version", False),
        ("train", "crashed", True),
        ("start", "quarantined", True),
        ("score", "declared_by_the_environment", True),
    ],
)
def test_what_says_nothing_about_an_idea_is_not_shown(
    stage: str, code: str, *, is_shown: bool
) -> None:
    failure = {"stage": stage, "code": code, "message": "m"}
    service = FakeService(lambda _: failure)
    client = connect(service)
    search = new_search(service, epochs=1)
    drive(client, search, OfflineIdeator())
    (epoch,) = client.searches.epochs(search)
    found = TrajectoryReader(client).of(epoch)
    assert bool(found) is is_shown
    assert {t.failure for t in found} <= {f"{stage} ({code}): m"}


def test_failures_are_shown_as_failed_and_with_reward_0() -> None:
    service = FakeService()
    seen: list[IdeationRequest] = []

    class Spy(OfflineIdeator):
        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            seen.append(request)
            return await super().propose(request, record=record)

    search = new_search(service)
    drive(connect(service), search, Spy(misfit_share=0.5, crash_share=0.5))
    explored = next(r for r in seen if r.operator == "explore")
    failed = [t for t in explored.trajectories if t.state == "failed"]
    assert {t.reward for t in failed} == {0.0}
    assert any(t.failure.startswith("train (crashed): Traceback") for t in failed)
    assert any(t.failure.startswith("implement (no_match)") for t in failed)
    assert explored.budget == "5 s of wall clock"
    assert explored.profile == "tiny: small"
    assert explored.profile_notes == "Edit train.py."
    assert explored.rules == "- Keep it short."
    assert explored.protected == ("predict.py",)


def test_nothing_is_exploited_before_the_baseline_is_measured() -> None:
    service = FakeService()
    service.pending = 4
    waited: list[int] = []

    class Watch(Observer):
        def waiting_for_baseline(self, baseline: Any) -> None:
            waited.append(baseline.pending)

    search = new_search(service)
    drive(connect(service), search, OfflineIdeator(), Watch())
    assert waited == [2, 1]
    assert service.asked_seeds == [[0, 1, 2, 3, 4]]


def test_a_search_waits_for_its_own_seeds_alone() -> None:
    service = FakeService()
    service.pending = 4
    waited: list[int] = []

    class Watch(Observer):
        def waiting_for_baseline(self, baseline: Any) -> None:
            waited.append(baseline.pending)

    search = new_search(service, options=BatchOptions(baseline_seeds=3))
    drive(connect(service), search, OfflineIdeator(), Watch())
    assert waited == []
    assert service.pending == 1


def test_a_search_leaves_out_a_seed_that_failed() -> None:
    service = FakeService()
    service.baseline = {
        "seeds": [0, 1, 2, 3],
        "values": [2.5, 2.5, 2.5, 2.5],
        "failures": [{"seed": 4, "measurement": "mea_4", "failure": None}],
    }
    search = new_search(service)
    assert drive(connect(service), search, OfflineIdeator()).state == "finished"
    assert service.calibrated == 0


def test_best_of_n_asks_for_seeds_and_for_no_baseline() -> None:
    service = FakeService()
    service.pending = 3
    search = new_search(service, "best-of-n")
    drive(connect(service), search, OfflineIdeator())
    assert {op for epoch in ideas_of(service, search) for op, _ in epoch} == {"seed"}
    assert service.pending == 3


def test_a_cancelled_search_is_left_alone() -> None:
    service = FakeService()
    search = new_search(service)
    connect(service).searches.cancel(search)
    assert drive(connect(service), search, OfflineIdeator()).state == "cancelled"
    assert service.batches == {}


def test_a_faster_loop_wins_and_its_ideas_count() -> None:
    """Another loop stores the epoch between our look and our PUT."""
    service = FakeService()
    search = new_search(service)
    other = connect(service)

    class Rival(OfflineIdeator):
        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            ideas = await super().propose(request, record=record)
            if request.operator == "seed":
                from assay.contracts.batch import IdeaRequest

                other.searches.put_epoch(search, 0, [IdeaRequest(text="the rival's")])
            return ideas

    drive(connect(service), search, Rival())
    assert ideas_of(service, search)[0] == [("seed", "the rival's")]


def test_batch_options_come_from_the_record() -> None:
    service = FakeService()
    options = BatchOptions(seeds=[4, 5], samples=3)
    search = new_search(service, options=options)
    drive(connect(service), search, OfflineIdeator())
    assert [o.seeds for o in service.batch_options] == [[4, 5]] * EPOCHS
    assert {o.max_cost_usd for o in service.batch_options} == {None}


def test_a_failing_model_stops_the_search_which_can_be_resumed() -> None:
    service = FakeService()

    class Broken(OfflineIdeator):
        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            raise ModelError("overloaded", retryable=True)

    search = new_search(service)
    with pytest.raises(SearchError, match="overloaded"):
        drive(connect(service), search, Broken())
    assert drive(connect(service), search, OfflineIdeator()).state == "finished"


def test_an_ideator_that_comes_back_with_few_is_asked_again() -> None:
    service = FakeService()

    class Lazy(OfflineIdeator):
        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            return (await super().propose(request, record=record))[:2]

    search = new_search(service)
    drive(connect(service), search, Lazy())
    assert [len(epoch) for epoch in ideas_of(service, search)] == [6, 6, 6]


def test_a_strange_record_is_refused() -> None:
    from assay.domain.errors import InvalidInput

    with pytest.raises(InvalidInput, match="/config/colour"):
        Config.read({"colour": "red"})


def test_a_stored_epoch_is_not_asked_for_again() -> None:
    """A model would give other ideas, and take money for them."""
    service = FakeService()
    search = new_search(service)
    with pytest.raises(Killed):
        drive(connect(killer_of(service, "/epochs/1/batch")), search, OfflineIdeator())
    asked: list[int] = []

    class Counting(Observer):
        def asking(self, number: int, asks: Sequence[Ask]) -> None:
            asked.append(number)

    before = ideas_of(service, search)
    drive(connect(service), search, OfflineIdeator(misfit_share=1.0, crash_share=0.0), Counting())
    assert asked == [2]
    assert ideas_of(service, search)[:2] == before


def killer_of(service: FakeService, path: str) -> Callable[[httpx2.Request], httpx2.Response]:
    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith(path):
            raise Killed
        return service(request)

    return handle


class Answering:
    """A model that answers what it is told to."""

    name = ModelName.parse("openai:scripted")

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def complete(
        self, prompt: Prompt, *, on_try: OnTry | None = None, **options: Any
    ) -> Completion:
        assert on_try is not None
        started = Try(new_id("call"), 1, "started")
        await on_try(started)
        answer = Completion(self.answers.pop(0), "In private.", "end", Usage(), "m")
        await on_try(replace(started, phase="returned", completion=answer, usage=Usage(100, 10)))
        return answer

    async def aclose(self) -> None:
        return None


def written(*texts: str) -> str:
    return "\n\n".join(format_idea(IdeaText(text, f"do {text}")) for text in texts)


def test_every_answer_is_kept_once_with_what_was_thought_in_private() -> None:
    service = FakeService()
    search = new_search(service, epochs=1, batch_size=2)
    drive(connect(service), search, ModelIdeator(Answering("First a.\n" + written("a", "b"))))
    (answer,) = service.ideator_calls.values()
    assert (answer["epoch"], answer["asked"], answer["ideas"], answer["unread"]) == (0, 2, 2, 0)
    assert answer["thinking"] == "In private."
    (epoch,) = service.epochs[search]
    assert [idea["thinking"] for idea in epoch["ideas"]] == ["First a.", None]


def eight(name: str) -> str:
    return written(*(f"{name}{number}" for number in range(8)))


def calls_of(service: FakeService) -> list[tuple[int, str, str]]:
    return [
        (call["epoch"], call["place"], call["state"]) for call in service.ideator_calls.values()
    ]


def test_an_answer_that_arrived_is_not_paid_for_again() -> None:
    service = FakeService()
    search = new_search(service, epochs=1, batch_size=16)

    class Dies(Answering):
        async def complete(self, prompt: Prompt, **options: Any) -> Completion:
            if not self.answers:
                await options["on_try"](Try(new_id("call"), 1, "started"))
                raise Killed
            return await super().complete(prompt, **options)

    with pytest.raises(Killed):
        drive(connect(service), search, ModelIdeator(Dies(eight("a"))))
    assert calls_of(service) == [(0, "0.0.0", "returned"), (0, "0.0.1", "calling")]
    again = Answering(eight("b"))
    assert drive(connect(service), search, ModelIdeator(again)).state == "finished"
    assert again.answers == []
    (epoch,) = service.epochs[search]
    unbroken = FakeService()
    other = new_search(unbroken, epochs=1, batch_size=16)
    drive(connect(unbroken), other, ModelIdeator(Answering(eight("a"), eight("b"))))
    assert epoch["ideas"] == unbroken.epochs[other][0]["ideas"]


@pytest.mark.parametrize("code", ["spend_cap", "search_ended"])
def test_a_call_that_the_service_refuses_is_not_made(code: str) -> None:
    service = FakeService()
    search = new_search(service, epochs=1, batch_size=2)
    service.call_refusals = [code]
    model = Answering(written("a", "b"))
    with pytest.raises(SearchError) as caught:
        drive(connect(service), search, ModelIdeator(model))
    assert caught.value.code == code
    assert len(model.answers) == 1
    assert service.ideator_calls == {}


def test_a_call_waits_for_those_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.search.calls.CAP_PAUSE_SECONDS", 0.0)
    service = FakeService()
    search = new_search(service, epochs=1, batch_size=2)
    service.call_refusals = ["calls_under_way", "calls_under_way"]
    ideator = ModelIdeator(Answering(written("a", "b")))
    assert drive(connect(service), search, ideator).state == "finished"


def test_recorded_answers_give_the_same_search_without_a_model(tmp_path: Path) -> None:
    service = FakeService()
    search = new_search(service, epochs=2, batch_size=10, strategy="best-of-n")
    folder = tmp_path / "answers"
    model = Answering(eight("a"), written("c", "d"), "Try e.", eight("e"), written("f", "g"))
    drive(connect(service), search, ModelIdeator(model), recorded=RecordedIdeas(folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        "ideas-0000-0.0.0.json",
        "ideas-0000-0.0.1.json",
        "ideas-0001-0.0.0.json",
        "ideas-0001-0.0.0r.json",
        "ideas-0001-0.0.1.json",
    ]
    again = FakeService()
    replayed = new_search(again, epochs=2, batch_size=10, strategy="best-of-n")
    recorded = RecordedIdeas(folder, is_replay=True)
    ideator = ModelIdeator(NoModel(Answering.name))
    drive(connect(again), replayed, ideator, recorded=recorded)
    assert ideas_of(again, replayed) == ideas_of(service, search)
    assert [call["is_replay"] for call in again.ideator_calls.values()] == [True] * 5
    larger = new_search(again, epochs=3, batch_size=10, strategy="best-of-n")
    with pytest.raises(SearchError, match="holds no answer for epoch 2") as caught:
        drive(connect(again), larger, ModelIdeator(NoModel(Answering.name)), recorded=recorded)
    assert caught.value.code == "model_failed"


def test_what_cannot_be_read_is_kept_and_the_error_says_where() -> None:
    service = FakeService()
    search = new_search(service, epochs=1, batch_size=2)
    ideator = ModelIdeator(Answering("Try a.", "As I said\x00: a."))
    with pytest.raises(SearchError, match=f"assay search answers {search} --epoch 0") as caught:
        drive(connect(service), search, ideator)
    assert caught.value.code == "unreadable_answer"
    kept = [(answer["text"], answer["unread"]) for answer in service.ideator_calls.values()]
    assert kept == [("Try a.", 1), ("As I said\ufffd: a.", 1)]
    again = ModelIdeator(Answering(written("a", "b")))
    assert drive(connect(service), search, again).state == "finished"


def test_an_idea_that_no_batch_takes_counts_as_missing() -> None:
    service = FakeService()
    search = new_search(service, epochs=1, batch_size=2)
    large = written("x" * MAX_IDEA_BYTES)
    ideator = ModelIdeator(Answering(large + "\n" + written("a"), written("b")))
    drive(connect(service), search, ideator)
    texts = [text for _, text in ideas_of(service, search)[0]]
    assert texts == [written("a"), written("b")]


@pytest.mark.parametrize(("positives", "operators"), [
    ("mean", ["exploit", "exploit", "explore", "explore"]), ("verdict", ["explore"] * 4),
])  # fmt: skip
def test_positives_by_verdict_are_those_that_the_service_calls_better(
    positives: str, operators: list[str]
) -> None:
    """A loss of 2.49 is below the baseline's mean and well within its spread."""
    service = FakeService(lambda _: 2.49)
    search = new_search(service, epochs=2, batch_size=4, settings={"positives": positives})
    drive(connect(service), search, OfflineIdeator())
    assert [operator for operator, _ in ideas_of(service, search)[1]] == operators


def test_a_record_with_a_context_in_characters_is_still_read() -> None:
    older = {"strategy": {"start": 50, "context_chars": 200_000}}
    assert SearchConfig.read(older).strategy == {"start": 50}


def test_how_the_ideator_is_asked_and_what_it_is_told_of_are_kept() -> None:
    asked = IdeatorOptions(context_tokens=50_000, temperature=0.5, max_tokens=9_000, effort="low")
    config = SearchConfig.make("evolution", ideator=asked, warm_start=["bat_1"])
    again = SearchConfig.read(config.record())
    assert again == config
    assert again.ideator.limits == Limits(9_000, 0.5, "low")


def test_best_of_n_is_told_of_its_ideas_and_does_not_repeat_them() -> None:
    """Whether epochs overlap or not, it is told the same: the ideas, and no result."""
    asked: list[list[tuple[str, str, float | None]]] = []

    class Told(OfflineIdeator):
        async def propose(
            self, request: IdeationRequest, *, record: CallRecord | None = None
        ) -> list[ProposedIdea]:
            asked.append([(t.id, t.state, t.metric) for t in request.trajectories])
            return await super().propose(request, record=record)

    found = []
    for overlap in (True, False):
        service = slow_service() if overlap else FakeService()
        search = new_search(service, "best-of-n", epochs=4, batch_size=5)
        service.searches[search]["config"]["overlap"] = overlap
        drive(connect(service), search, Told(misfit_share=0, crash_share=0))
        found.append([text for epoch in ideas_of(service, search) for _, text in epoch])
    assert found[0] == found[1]
    assert len(set(found[0])) == 20
    assert asked[:4] == asked[4:]
    assert asked[1][0] == ("0.0", "submitted", None)
    assert [len(each) for each in asked[:4]] == [0, 5, 10, 15]

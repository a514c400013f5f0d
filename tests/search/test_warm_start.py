"""What a search is told of earlier searches and batches, and what it must not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from assay.client import Client
from assay.contracts.batch import BatchOptions, BatchRequest, CurvePoint, IdeaRequest
from assay.contracts.search import SearchRequest
from assay.domain.errors import InvalidInput
from assay.domain.metrics import Direction
from assay.llm import IdeationRequest, OfflineIdeator, ProposedIdea
from assay.llm.ideation import CallRecord, Trajectory
from assay.search import SearchConfig, drive, warm_start
from assay.search.trajectories import TrajectoryReader, curve_end
from tests.support.fake_service import FakeService


class Spy(OfflineIdeator):
    """Proposes like the offline ideator, under a model's name, and keeps what it was asked."""

    def __init__(self, name: str = "openai:spy@http://127.0.0.1:1/v1") -> None:
        super().__init__()
        self.requests: list[IdeationRequest] = []
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        self.requests.append(request)
        return await super().propose(request, record=record)


def connect(service: FakeService) -> Client:
    http_client = httpx2.Client(transport=httpx2.MockTransport(service))
    return Client("http://test", http_client=http_client, sleep=lambda _: None)


def searched(
    service: FakeService, sources: Sequence[str] = (), *, epochs: int = 1, ideator: Any = None
) -> tuple[str, Spy]:
    """Drive a search to its end. Returns its id and the ideator that was asked."""
    client, spy = connect(service), ideator or Spy()
    request = SearchRequest(
        environment="fake",
        profile="tiny",
        strategy="evolution",
        seed=len(service.searches),
        epochs=epochs,
        batch_size=4,
        config=SearchConfig.make("evolution", warm_start=sources).record(),
    )
    search = client.searches.create(request).id
    assert drive(client, search, spy).state == "finished"
    return search, spy


def submitted(service: FakeService, ideator: str | None = None) -> str:
    request = BatchRequest(
        environment="fake",
        profile="tiny",
        ideas=[IdeaRequest(text="Ours."), IdeaRequest(text="boom")],
        ideator=ideator,
        options=BatchOptions(),
    )
    return connect(service).batches.create(request).id


def told(spy: Spy) -> tuple[Trajectory, ...]:
    """What the first question of a search knew."""
    return spy.requests[0].trajectories


def test_the_first_question_knows_what_searches_and_people_tried() -> None:
    service = FakeService()
    earlier, _ = searched(service)
    batch = submitted(service)
    _, spy = searched(service, [earlier, batch])
    sources = [t.source for t in told(spy)]
    assert (
        sources == [f"in the earlier search {earlier}"] * 4 + [f"by people, in batch {batch}"] * 2
    )
    assert {t.elsewhere for t in told(spy)} == {""}
    assert [t.failure for t in told(spy)][-1].startswith("train (crashed)")


def test_ideas_of_a_model_are_named_as_such() -> None:
    service = FakeService()
    batch = submitted(service, "openai:gpt-9")
    _, spy = searched(service, [batch])
    assert {t.source for t in told(spy)} == {f"by openai:gpt-9, in batch {batch}"}


def test_a_source_that_is_named_twice_is_told_once() -> None:
    service = FakeService()
    earlier, _ = searched(service)
    _, spy = searched(service, [earlier, earlier])
    assert len(told(spy)) == 4


def test_comparable_results_are_built_on_and_those_from_elsewhere_are_not() -> None:
    service = FakeService(lambda text: 2.1)  # better than the baseline
    near, far = submitted(service), submitted(service)
    service.batches[far]["environment"] = "fake@old"
    service.batches[far]["hardware_class"] = "cpu-other"
    _, spy = searched(service, [near, far], epochs=2)
    exploit = next(r for r in spy.requests if r.operator == "exploit")
    near_ids, far_ids = ({e["id"] for e in service.experiments[b]} for b in (near, far))
    built_on = {t.id for t in exploit.parents}
    assert near_ids <= built_on
    assert not far_ids & built_on
    assert {t.elsewhere for t in exploit.trajectories if t.id in far_ids} == {
        "measured on another version of the environment (fake@old) and on other hardware "
        "(cpu-other)"
    }


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"profile": "large"}, "measured in the profile large"),
        ({"conditions": "cnd_1"}, "measured under other conditions"),
    ],
)
def test_it_is_said_how_a_result_was_measured_otherwise(
    changed: dict[str, str], said: str
) -> None:
    service = FakeService()
    batch = submitted(service)
    service.batches[batch] |= changed
    _, spy = searched(service, [batch])
    assert {t.elsewhere for t in told(spy)} == {said}


def test_what_is_unfinished_is_not_told() -> None:
    service = FakeService()
    batch = submitted(service)
    service.batches[batch]["finished_at"] = None
    _, spy = searched(service, [batch])
    assert told(spy) == ()


@pytest.mark.parametrize(
    ("kind", "is_for_search"), [("score", True), ("confirm", False), ("control", False)]
)
def test_what_confirms_or_reproduces_results_is_not_for_search(
    kind: str, is_for_search: bool
) -> None:
    service = FakeService()
    batch = submitted(service)
    service.batches[batch]["kind"] = kind
    client = connect(service)
    assert warm_start.is_for_search(client.batches.get(batch)) == is_for_search
    _, spy = searched(service, [batch])
    assert bool(told(spy)) == is_for_search
    if not is_for_search:
        with pytest.raises(InvalidInput, match="measured results again"):
            warm_start.check(client, [batch], "fake")


def test_verdicts_that_wait_for_the_baseline_are_read_again() -> None:
    service = FakeService(lambda text: 2.1)
    batch = submitted(service)
    lead = service.experiments[batch][0]["comparison"]
    client = connect(service)
    reader = TrajectoryReader(client)

    def verdicts() -> list[str]:
        return [t.standing.verdict for t in reader.of_batch(batch, 0) if t.standing]

    final = lead["verdict"]
    lead["verdict"] = "provisional"
    assert verdicts()[0] == "provisional"
    lead["verdict"] = final
    assert verdicts()[0] == final
    lead["verdict"] = "worse"
    assert verdicts()[0] == final


def test_sources_are_checked() -> None:
    service = FakeService()
    batch = submitted(service)
    client = connect(service)
    warm_start.check(client, [batch], "fake@new")
    for sources, environment, said in (
        ([batch], "other", "is of fake@abc, the search of other"),
        ([batch, "bat_" + "1" * 26], "fake", "no search or batch bat_1"),
        (["srch_" + "1" * 26], "fake", "no search or batch srch_1"),
    ):
        with pytest.raises(InvalidInput, match=said):
            warm_start.check(client, sources, environment)


def test_a_trajectory_has_all_that_is_known_of_it_and_nothing_sealed() -> None:
    service = FakeService()
    spy = Spy()
    service.outcome = lambda text: 2.1  # better than the baseline
    search, _ = searched(service, epochs=2, ideator=spy)
    for batch in service.experiments.values():
        for experiment in batch:
            experiment["confirmed"] = 0.123456
    _, again = searched(service, [search], epochs=1)
    assert "0.123456" not in repr(again.requests)
    known = next(t for t in told(again) if t.metric is not None and t.epoch == 1)
    assert known.standing is not None
    assert (known.standing.baseline.mean, known.standing.baseline.seeds) == (2.5, 5)
    assert (known.seeds, known.seconds, known.operator) == (1, 3.5, "exploit")
    assert known.parents
    assert known.curve is not None
    assert known.curve.points


def test_ends_of_curves_are_read_for_models_alone() -> None:
    service = FakeService()
    searched(service, epochs=2, ideator=OfflineIdeator())
    assert not [path for _, path, _ in service.requests if path.endswith("/curves")]


def test_questions_after_the_first_epoch_name_the_baseline() -> None:
    service = FakeService()
    _, spy = searched(service, epochs=2)
    first, *later = spy.requests
    assert first.baseline is None
    for request in later:
        assert request.baseline is not None
        assert (request.baseline.mean, request.baseline.seeds) == (2.5, 5)
    assert len({request.sample_seed for request in spy.requests}) == 1


def points(**values: Sequence[float]) -> list[CurvePoint]:
    length = len(next(iter(values.values())))
    return [
        CurvePoint(
            seq=i, step=float(i), values={n.replace("_", "/"): v[i] for n, v in values.items()}
        )
        for i in range(length)
    ]


def test_the_end_of_a_curve_is_of_what_tells_most() -> None:
    curve = points(train_seconds=range(5), train_loss=[5.0, 4.0, 3.0, 2.0, 1.0])
    found = curve_end(curve, "val_loss", Direction.MINIMIZE)
    assert found is not None
    assert (found.name, found.points) == ("train/loss", ((2.0, 3.0), (3.0, 2.0), (4.0, 1.0)))
    both = points(train_loss=[1.0, 2.0], train_reward=[0.1, 0.2])
    rewards = curve_end(both, "accuracy", Direction.MAXIMIZE)
    assert rewards is not None
    assert rewards.name == "train/reward"
    assert curve_end(points(train_seconds=[1.0, 2.0]), "loss", Direction.MINIMIZE) is None
    assert curve_end([], "loss", Direction.MINIMIZE) is None

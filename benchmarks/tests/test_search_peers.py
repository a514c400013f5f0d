"""Other optimizers in the worlds of `benchmarks.search`: real packages, through the adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.adapters import Evaluator
from assay.domain.hashing import derive_seed
from benchmarks.search.lab import CONFIRMED, FRESH_SEEDS
from benchmarks.search.peers import KNOWN, open_peer
from benchmarks.search.peers.alone import PeerFailed
from benchmarks.search.peers.model import Misread, MutatorModel
from benchmarks.search.peers.program import FILE, Program, Programs
from benchmarks.search.peers.service import PROFILE, LabService, Spent
from benchmarks.search.points import NANOGPT, Point
from benchmarks.search.surrogate import surrogate
from benchmarks.search.worlds import FAILED_COST, Draw, World

START = NANOGPT.baseline
PROGRAMS = Programs(NANOGPT)


@pytest.fixture(scope="module")
def world() -> World:
    return surrogate()


@pytest.fixture
def service(world: World) -> LabService:
    return LabService(world, 100 * world.run_cost, 5)


def evaluator_of(service: LabService) -> Evaluator:
    return Evaluator(service.world.name, PROFILE, client=service.client)


def files(point: Point, implementation: int = 1) -> dict[str, str]:
    return {FILE: PROGRAMS.text(Program(point, implementation))}


def one_that(world: World, seed: int, *, fails: bool) -> Point:
    """A point whose first attempt fails, or works, and whose second works."""
    draw = Draw(world, seed)
    return next(
        point
        for point in NANOGPT.points[1:]
        if draw.fails(point, 0) is fails and not draw.fails(point, 1)
    )


def test_programs_are_read_where_they_were_written() -> None:
    written = [Program(point, 1 + i) for i, point in enumerate(NANOGPT.points[::37])]
    for program in written:
        compile(PROGRAMS.text(program), FILE, "exec")
    prompt = "".join(f"## Program\n```python\n{PROGRAMS.text(each)}```\n" for each in written)
    assert PROGRAMS.read(prompt) == written
    assert PROGRAMS.read(PROGRAMS.text(written[0]).replace('"no"', '"perhaps"')) == []


def test_edits_make_one_program_another() -> None:
    old, new = Program(START), Program((1, *START[1:-1], 1), 2)
    text = PROGRAMS.text(old)
    edits = PROGRAMS.edits(old, new).split("<<<<<<< SEARCH\n")[1:]
    assert len(edits) == 3
    for edit in edits:
        before, after = (
            edit.removesuffix("\n").removesuffix("\n>>>>>>> REPLACE").split("\n=======\n")
        )
        assert text.count(before) == 1
        text = text.replace(before, after)
    assert text == PROGRAMS.text(new)


def test_the_adapter_tells_what_the_draw_holds(world: World, service: LabService) -> None:
    good = one_that(world, 5, fails=False)
    evaluate = evaluator_of(service)
    score = evaluate.score(files(good))
    seen = Draw(world, 5).seen(good, 1)
    assert (score.metric, score.reward, score.succeeded) == (seen.metric, seen.reward, True)
    assert score.verdict == seen.standing.verdict
    assert f"loss {seen.metric:.6g} on 1 seed" in score.feedback
    outcome = service.finish()
    assert (outcome.ideas, outcome.failed, outcome.runs) == (1, 0, 1)


def test_the_baseline_is_free(service: LabService) -> None:
    score = evaluator_of(service).score(files(START))
    assert score.succeeded
    outcome = service.finish()
    assert (outcome.spent, outcome.winner) == (0.0, START)


def test_another_implementation_of_a_failed_idea_may_work(
    world: World, service: LabService
) -> None:
    point = one_that(world, 5, fails=True)
    evaluate = evaluator_of(service)
    failed = evaluate.score(files(point))
    assert (failed.reward, failed.failure[:15]) == (0.0, "train (crashed)")
    assert evaluate.score(files(point)) is failed
    assert service.has_failed(point)
    assert evaluate.score(files(point, 2)).succeeded
    assert not service.has_failed(point)
    confirmed = service.finish()
    cost = world.cost[point] * (1 + FAILED_COST + FRESH_SEEDS * confirmed.confirmed)
    assert confirmed.spent == pytest.approx(cost)


def test_what_is_no_program_of_the_world_costs_nothing(service: LabService) -> None:
    score = evaluator_of(service).score({FILE: "learning_rate = 1\n"})
    assert (score.reward, score.succeeded) == (0.0, False)
    assert service.finish().spent == 0.0


def test_a_search_ends_when_the_budget_is_spent(world: World) -> None:
    service = LabService(world, 20 * world.run_cost, 5)
    evaluate = evaluator_of(service)

    def measure_all() -> None:
        for point in NANOGPT.points:
            evaluate.score(files(point))

    with pytest.raises(Spent):
        measure_all()
    outcome = service.finish()
    assert outcome.confirmed <= CONFIRMED
    assert 0 < outcome.spent <= 20 * world.run_cost


def distance(a: Point, b: Point) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def test_the_prompt_decides_what_is_built_on(world: World, service: LabService) -> None:
    model = MutatorModel(service, 1000 * world.run_cost, 5)
    one, other = Program((1, 1, *START[2:])), Program((0, 0, 1, 1, *START[4:]))
    refined = [model.next([one]).point for _ in range(40)]
    assert {distance(point, one.point) for point in refined} == {1}
    both = tuple(map(max, one.point, other.point))
    combined = [model.next([one, other]).point for _ in range(40)]
    assert 8 < combined.count(both) < 32
    assert sum(distance(point, one.point) == 1 for point in combined) == 40 - combined.count(both)
    new = [model.next([]).point for _ in range(40)]
    assert {distance(point, START) for point in new} == {1, 2}
    assert len(model.several(3, [one])) == 3


def test_a_program_that_failed_is_rescued(world: World, service: LabService) -> None:
    model = MutatorModel(service, 1000 * world.run_cost, 5)
    draw = Draw(world, 5)
    single = next(p for p in NANOGPT.points if distance(p, START) == 1 and draw.fails(p, 0))
    evaluator_of(service).score(files(single))
    assert model.next([Program(single)]) == Program(single, 2)
    # What was tried is known, whatever the prompt shows.
    assert [model.next([]).point for _ in range(30)].count(single) <= 3


def test_a_prompt_without_a_program_ends_the_search(world: World, service: LabService) -> None:
    model = MutatorModel(service, world.run_cost, 5)
    with pytest.raises(Misread, match="no program in: Improve"):
        model.read("Improve it.")
    assert model.most == 4
    for _ in range(4):
        model.next([])
    with pytest.raises(Spent):
        model.next([])


def test_gepa_spends_its_budget(world: World) -> None:
    """The quickest of them, for the tier that is quick."""
    budget = 25 * world.run_cost
    outcome = open_peer("gepa").run(world, budget, derive_seed("search", 0))
    assert 0.8 * budget < outcome.spent <= budget


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_a_peer_spends_its_budget_and_finds_the_same_again(world: World, name: str) -> None:
    peer, budget = open_peer(name), 40 * world.run_cost
    first, same, other = (peer.run(world, budget, seed) for seed in (1, 1, 2))
    assert first == same
    assert replace(other, spent=0) != replace(first, spent=0)
    for outcome in (first, other):
        assert 0.85 * budget < outcome.spent <= budget
        assert outcome.runs + outcome.failed == outcome.ideas > 15
        assert world.gain(outcome.winner) > 0


def test_a_peer_that_breaks_says_what_it_wrote(world: World) -> None:
    broken = replace(KNOWN["gepa"], search="benchmarks.search.peers.nothing:search")
    with pytest.raises(PeerFailed, match=r"gepa, draw 0: (.|\n)*No module named"):
        broken.run(world, world.run_cost, 0)

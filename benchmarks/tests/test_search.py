from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from assay.domain.states import ExperimentState
from assay.environments.catalog import Environment
from assay.llm.ideation import Operator, Trajectory
from assay.search.plan import Ask
from benchmarks.search import __main__ as command
from benchmarks.search import hard
from benchmarks.search.arms import ARMS, REFERENCE, Arm
from benchmarks.search.compare import Overspent, differences, figures, holm, run_arms, run_peer
from benchmarks.search.hard import TOY, BankNoise, NotOpened, of_bank, open_hard
from benchmarks.search.lab import CONFIRMED, FRESH_SEEDS, Lab, Outcome, OverBudget
from benchmarks.search.measure import losses_on_the_way, runs_in_order, table_text
from benchmarks.search.mutator import Mutator, size_of
from benchmarks.search.peers import open_peer
from benchmarks.search.points import NANOGPT, Point, codebases, repeated_points
from benchmarks.search.surrogate import rows, surrogate, true_losses
from benchmarks.search.worlds import Draw, TableUnfit, World, load, of_rows
from tests.support.measuring import ROOT, Result, Tree

START = NANOGPT.baseline


@pytest.fixture(scope="module")
def trees() -> Mapping[Point, Tree]:
    return codebases(Environment.load(ROOT / "environments" / "nanogpt"))


@pytest.fixture(scope="module")
def world() -> World:
    return surrogate()


def test_all_codebases_of_the_table_differ_and_compile(trees: Mapping[Point, Tree]) -> None:
    assert len(trees) == 384
    assert len({tuple(sorted(tree.items())) for tree in trees.values()}) == 384
    assert trees[START] == Environment.load(ROOT / "environments" / "nanogpt").codebase
    for name, text in {item for tree in trees.values() for item in tree.items()}:
        if name.endswith(".py"):
            compile(text, name, "exec")


def test_what_an_early_stop_leaves_out_comes_last(trees: Mapping[Point, Tree]) -> None:
    runs = runs_in_order(trees, repeated_points())
    assert len(runs) == 384 + 4 * 60
    assert (runs[0].name, runs[0].seed) == ("00000000", 0)
    assert {run.name for run in runs[:60]} == {run.name for run in runs[384:444]}
    assert [run.seed for run in runs[:384]] == [0] * 384


def test_losses_are_kept_from_the_training_curve(tmp_path: Path) -> None:
    curve = tmp_path / "metrics.jsonl"
    assert losses_on_the_way(curve) == {}
    points: list[dict[str, float]] = [{"step": 0, "parameters": 1}]
    points += [{"step": step, "train/loss": 10.0 - step / 10} for step in range(0, 101, 10)]
    curve.write_text("".join(json.dumps(point) + "\n" for point in points))
    # Steps 0, 10, 20; 30, 40, 50; 80, 90, 100.
    assert losses_on_the_way(curve) == {"loss@0.25": 9.0, "loss@0.5": 6.0, "loss@1": 1.0}


def test_a_table_is_read_as_it_was_written(tmp_path: Path, trees: Mapping[Point, Tree]) -> None:
    made = {(row.point, row.seed): row for row in rows(0)}
    failing = (1,) * 8
    results = []
    for run in runs_in_order(trees, repeated_points()):
        row = made[NANOGPT.point(run.name), run.seed]
        assert row.metric is not None
        ok = row.point != failing
        metrics = {"val_loss": row.metric, "loss@0.25": 2.0} if ok else {}
        results.append((run, Result(metrics, "" if ok else "killed\nmore", 9.0, 3.0)))
    head = {"environment": "e", "hardware_class": "c", "runs": 624, "missing": 0}
    path = tmp_path / "table.json"
    path.write_text(table_text(head, NANOGPT, results, "val_loss"))
    assert path.stat().st_size < 1_000_000
    world = load(path)
    assert world.broken == {failing}
    assert world.cost[START] == pytest.approx(12.0)
    assert world.facts["environment"] == "e"


def test_a_world_is_nearer_to_the_truth_than_the_runs_it_is_made_of() -> None:
    truth, found = true_losses(3), rows(3)
    world = of_rows("surrogate", NANOGPT, found)
    single = {row.point: row.metric or 0.0 for row in found if row.seed == 0}

    def off(values: Mapping[Point, float]) -> float:
        # The luck of seed 0 moves all points; what matters is how they differ.
        errors = [values[p] / truth[p] for p in NANOGPT.points]
        return fmean((each / fmean(errors) - 1) ** 2 for each in errors)

    assert off(world.truth) < 0.5 * off(single)
    assert world.facts["median_sd"] == pytest.approx(0.03, rel=0.2)
    assert 0.05 < world.facts["shared_luck"] < 0.6  # 0.3; five seeds tell little


def test_results_vary_as_the_world_says(world: World) -> None:
    values = [world.noise.value(0, START, seed) for seed in range(2000)]
    assert fmean(values) == pytest.approx(world.truth[START], rel=0.003)
    error = fmean((v - fmean(values)) ** 2 for v in values) ** 0.5
    assert error == pytest.approx(world.noise.sd(START), rel=0.1)


def test_one_seed_tells_no_noise() -> None:
    with pytest.raises(TableUnfit, match="needs 20"):
        of_rows("x", NANOGPT, [row for row in rows(0) if row.seed == 0])


def _ended(key: str, place: int, reward: float = 1.0, *, failed: bool = False) -> Trajectory:
    state = ExperimentState.FAILED if failed else ExperimentState.SUCCEEDED
    return Trajectory(key, 0, place, "", reward, state)


def _proposed(
    operator: Operator, count: int, parents: tuple[Trajectory, ...] = (), seed: int = 0
) -> list[Point]:
    ask = Ask(operator, count, seed, parents, parents)
    ideas = Mutator(NANOGPT, 7).propose(ask, NANOGPT.point)
    assert len(ideas) == count
    assert {idea.point for idea in ideas} <= set(NANOGPT.points)
    return [idea.point for idea in ideas]


def _distance(a: Point, b: Point) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def test_the_same_question_has_the_same_answer() -> None:
    assert _proposed("seed", 8) == _proposed("seed", 8)
    assert _proposed("seed", 8) != _proposed("seed", 8, seed=1)


def test_new_ideas_have_few_changes() -> None:
    assert {size_of(point) for point in _proposed("seed", 20)} == {1, 2}


def test_new_ideas_have_more_changes_once_those_with_few_are_gone() -> None:
    mutator = Mutator(NANOGPT, 7)
    tried = {point for point in NANOGPT.points if size_of(point) <= 2}
    assert size_of(mutator.new(random.Random(0), tried)) == 3


def test_variants_differ_by_one_change() -> None:
    parent = _ended("11000010", 0)
    near = _proposed("refine", 6, (parent,))
    assert {_distance(point, NANOGPT.point(parent.id)) for point in near} == {1}


def test_variants_of_a_point_without_untried_neighbours_differ_by_two() -> None:
    tried = {point for point in NANOGPT.points if _distance(point, START) <= 1}
    assert _distance(Mutator(NANOGPT, 7).varied(random.Random(0), START, tried), START) == 2


def test_better_parents_are_built_on_more_often() -> None:
    parents = tuple(_ended(f"1111000{i}", i, reward=i) for i in (0, 1))
    ideas = Mutator(NANOGPT, 7).propose(Ask("exploit", 9, 0, (), parents), NANOGPT.point)
    built_on = [idea.parents[0] for idea in ideas]
    assert built_on.count("11110001") > built_on.count("11110000")


def test_a_combination_has_the_changes_of_both() -> None:
    parents = (_ended("10000010", 0), _ended("01000001", 1))
    assert _proposed("combine", 1, parents) == [NANOGPT.point("11000011")]


def test_an_ablation_has_one_change_less() -> None:
    (point,) = _proposed("ablate", 1, (_ended("11000010", 0),))
    assert size_of(point) == 2
    assert _distance(point, NANOGPT.point("11000010")) == 1


def test_a_failed_idea_is_tried_with_one_change_less_or_again() -> None:
    assert size_of(_proposed("rescue", 1, (_ended("11000010", 0, failed=True),))[0]) == 2
    assert _proposed("rescue", 1, (_ended("10000000", 0, failed=True),)) == [(1, *START[1:])]


def test_repeats_are_free_and_failures_cost_a_tenth(world: World) -> None:
    lab = Lab(Draw(world, 1), 100 * world.run_cost)
    paid = 0.0
    for point in NANOGPT.points[:40]:
        job = lab.start(point)
        assert job.cost == pytest.approx(world.cost[point] * (0.1 if job.failed else 1.0))
        paid += job.cost
        if not job.failed:
            assert lab.start(point).cost == 0.0
            assert lab.start(point, 3).cost == pytest.approx(2 * world.cost[point])
            paid += 2 * world.cost[point]
            break
    assert lab.spent == pytest.approx(paid)


def test_the_confirmation_is_paid_from_the_budget(world: World) -> None:
    budget = 30 * world.run_cost
    lab = Lab(Draw(world, 2), budget)
    measured: list[Point] = []

    def measure_all() -> None:
        for point in NANOGPT.points:
            measured.extend([point] if lab.measure(point) else [])

    with pytest.raises(OverBudget):
        measure_all()
    before = lab.spent
    outcome = lab.finish(measured)
    assert outcome.confirmed == CONFIRMED
    confirmed = sum(world.cost[point] for point in measured[:CONFIRMED])
    assert outcome.spent == pytest.approx(before + FRESH_SEEDS * confirmed)
    assert 0.9 * budget < outcome.spent <= budget


def test_the_winner_is_the_best_of_the_fresh_seeds(world: World) -> None:
    draw = Draw(world, 3)
    points = [(1, *START[1:]), (0, 1, *START[2:]), (0, 0, 1, *START[3:])]
    outcome = Lab(draw, 100 * world.run_cost).finish(points)
    claims = {p: fmean(draw.value(p, 1000 + s) for s in range(5)) for p in points}
    assert outcome.winner == min(claims, key=lambda point: claims[point])
    assert outcome.claimed == pytest.approx(min(claims.values()))
    nothing = Lab(draw, 100.0).finish([])
    assert nothing.winner == START


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_spends_its_budget_and_no_more(world: World, arm: Arm) -> None:
    budget = 45 * world.run_cost
    outcome = arm.run(Draw(world, 0), budget)
    assert outcome == arm.run(Draw(world, 0), budget)
    # A wave that cannot be paid as a whole is cut; the dearest points are reserved for.
    assert 0.85 * budget < outcome.spent <= budget
    assert world.gain(outcome.winner) > 0


def test_asynchronous_arms_waste_less_of_the_workers(world: World) -> None:
    """Waves wait for their last job; a strategy with slots does not."""

    def idle(arm: Arm) -> float:
        outcome = arm.run(Draw(world, 0), 100 * world.run_cost)
        searched = outcome.spent - outcome.confirmed * FRESH_SEEDS * world.run_cost
        return 1 - searched / (8 * outcome.seconds)

    thompson = next(arm for arm in ARMS if arm.name == "thompson")
    assert idle(thompson) < idle(REFERENCE)


def test_what_is_confirmed_is_chosen_by_measured_or_expected_effect(world: World) -> None:
    """They differ where some codebases were measured on more seeds than others."""
    config = {"keep": 8, "seeds": 4}
    measured = Arm("measured", "thompson", config, 4)
    expected = Arm("expected", "thompson", config, 4, by_posterior=True)
    draws = [Draw(world, seed) for seed in range(8)]
    budget = 120 * world.run_cost
    by_measured = [measured.run(draw, budget).winner for draw in draws]
    assert by_measured != [expected.run(draw, budget).winner for draw in draws]


def test_holm() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_differences_are_paired_and_positive_if_better(world: World) -> None:
    better = world.best
    found = {
        "reference": {n: Outcome(START, 0, 0, 1) for n in range(5)},
        "always better": {n: Outcome(better, 0, 0, 1) for n in range(5)},
        "now and then": {n: Outcome(better if n < 2 else START, 0, 0, 1) for n in range(5)},
        "fewer draws": {n: Outcome(START, 0, 0, 1) for n in range(3)},
    }
    against = differences(world, found, "reference")
    gain = world.gain(better)
    assert gain > 0
    assert against["always better"].mean == pytest.approx(gain)
    assert against["always better"].p == 0.0
    assert (against["now and then"].wins, against["now and then"].losses) == (2, 0)
    assert against["now and then"].low < 0 < against["now and then"].high
    assert (against["fewer draws"].draws, against["fewer draws"].p) == (3, 1.0)


def test_figures_say_by_how_much_claims_are_too_good(world: World) -> None:
    truth = world.truth[START]
    found = {"reference": {0: Outcome(START, truth - 0.1, truth - 0.2, world.run_cost)}}
    row = figures(world, found, "reference")["reference"]
    assert (row["claimed"], row["searched"]) == (0.1, 0.2)
    assert row["spent_runs"] == 1.0


class RandomPeer:
    """Measures random points, and confirms the best three."""

    name = "random peer"

    def run(self, world: World, budget: float, seed: int) -> Outcome:
        lab = Lab(Draw(world, seed), budget)
        mutator, rng = Mutator(world.factors, seed), random.Random(seed)
        found: dict[Point, float] = {}
        try:
            while True:
                point = mutator.new(rng, set(found))
                seen = lab.measure(point)
                if seen is not None:
                    found[point] = seen.reward
        except OverBudget:
            return lab.finish(sorted(found, key=lambda point: -found[point]))


class Spender(RandomPeer):
    """Uses twice its budget."""

    name = "spender"

    def run(self, world: World, budget: float, seed: int) -> Outcome:
        return super().run(world, 2 * budget, seed)


def test_a_peer_runs_on_the_draws_of_the_arms(world: World) -> None:
    peer = open_peer("benchmarks.tests.test_search:RandomPeer")
    found: dict[str, Any] = dict(run_arms(world, [REFERENCE], 3, [40])[40])
    found[peer.name] = run_peer(world, peer, 3, 40)
    assert figures(world, found, REFERENCE.name)["random peer"]["draws"] == 3
    with pytest.raises(Overspent, match="spender used 7"):
        run_peer(world, Spender(), 1, 40)
    with pytest.raises(ValueError, match="module:attribute"):
        open_peer("benchmarks.tests.test_search:Nothing")


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--world", "surrogate", "--quick", "--budget", "40", "--arm", "thompson"]
    assert command.main(arguments) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert summary["draws"] == 3
    assert set(summary["figures"]["40"]) == {REFERENCE.name, "thompson"}
    assert any(line.startswith("| thompson | ") for line in lines)


def test_the_codebases_of_the_second_world_differ_and_run() -> None:
    trees = codebases(Environment.load(ROOT / "environments" / "toy"), TOY)
    assert len(trees) == len({tree["search.py"] for tree in trees.values()}) == 384
    both = [TOY.baseline, TOY.points[-1]]
    values = hard.bank(both, [0, 1])
    assert values == hard.bank(both, [0, 1])
    assert all(0 < value < 1 for found in values.values() for value in found)


def _made_up_bank() -> dict[Point, tuple[float, ...]]:
    rng = random.Random(0)
    levels = {point: rng.gauss(0.5, 0.2) for point in TOY.points}
    return {p: tuple(rng.gauss(m, 0.01) for _ in range(16)) for p, m in levels.items()}


def test_the_second_world_has_three_times_the_noise(world: World) -> None:
    values = _made_up_bank()
    made = of_bank(values, world)
    assert made.noisiness == pytest.approx(3 * world.noisiness)
    assert made.facts["noise_ratio"] == pytest.approx(3.0)
    # The scale moves no true value.
    noise = made.noise
    assert isinstance(noise, BankNoise)
    start = TOY.baseline
    drawn = fmean(noise.value(d, start, 0) for d in range(4000))
    assert drawn == pytest.approx(made.truth[start], abs=4 * noise.sd(start) / 4000**0.5)


def test_the_second_world_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(hard, "bank", _made_up_bank)
    path = tmp_path / "opened.json"
    open_hard(world, "thompson", ["thompson"], path)
    open_hard(world, "thompson", ["thompson"], path)
    record = json.loads(path.read_text())
    assert [entry["choice"] for entry in record] == ["thompson"] * 2
    with pytest.raises(NotOpened, match="cannot decide"):
        open_hard(world, "greedy", [], path)


def test_the_second_world_needs_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--final"], ["--choice", "thompson"], ["--final", "--choice", "none"]):
        assert command.main(["--world", "hard", *arguments]) == 2
        assert "--final --choice ARM" in capsys.readouterr().err

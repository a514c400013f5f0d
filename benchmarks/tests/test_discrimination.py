"""The arithmetic of the discrimination table, and that stored results are told apart."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from assay.environments.catalog import Environment
from assay.sandbox import SandboxSettings
from benchmarks.discrimination import compare, figures_of, swept, table_of
from tests.support.measuring import ROOT, TRIES, Bench, Result, Store


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    environment = Environment.load(ROOT / "environments" / "toy")
    settings = SandboxSettings("subprocess", scratch=tmp_path)
    return Bench(environment, "tiny", tmp_path, "cpu", settings)


def test_differences_are_paired() -> None:
    found = compare([1.1, 2.1, 3.2], [1.0, 2.0, 3.0])
    assert found["difference"] == pytest.approx(0.4 / 3)
    assert found["t"] == pytest.approx(4.0)


def results(bench: Bench, *values: float) -> list[Result]:
    return [Result({bench.metric_name: v}, "", 1.0, 0.5) for v in values]


def test_an_edit_separates_if_it_does_what_its_name_says(bench: Bench) -> None:
    base = [3.0, 3.1, 2.9, 3.0]
    # `toy` is maximised.
    better = [v + 1 + i / 50 for i, v in enumerate(base)]
    worse = [v - 1 + i / 50 for i, v in enumerate(base)]
    measured = {
        "baseline": results(bench, *base),
        "good_one": results(bench, *better),
        "good_loser": results(bench, *worse),
        "bad_one": results(bench, *worse),
        "bad_noise": results(bench, 3.1, 3.0, 2.9, 3.0),
        "control_x": results(bench, *better),
        "bad_broken": [Result({}, "crashed", 0.0, 0.0)] * 4,
    }
    figures = figures_of(bench, measured)
    assert {name: row.get("separates") for name, row in figures.items()} == {
        "baseline": None, "good_one": True, "good_loser": False, "bad_one": True,
        "bad_noise": False, "control_x": None, "bad_broken": None,
    }  # fmt: skip
    shown = table_of(figures, bench.metric_name).splitlines()
    assert len(shown) == 2 + len(measured)
    assert "**no**" in shown[4]
    assert "failed: 4" in shown[-1]


def test_a_sweep_has_the_baseline_and_every_value_of_the_knob(bench: Bench) -> None:
    knob = bench.environment.manifest.knobs[0]
    trees = swept(bench, knob.name)
    assert len(trees) == 1 + len(knob.values)
    assert len({tree[knob.file] for tree in trees.values()}) == len(trees)


@pytest.fixture
def asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were measured; seeds from 90 fail."""
    seeds: list[int] = []

    def measure(self: Bench, files: Any, seed: int) -> Result:
        seeds.append(seed)
        if seed >= 90:
            return Result({}, "compute_exceeded: too much", 0.0, 0.0)
        return results(bench, float(seed))[0]

    monkeypatch.setattr(Bench, "measure", measure)
    return seeds


def test_results_are_kept_by_codebase_seed_and_what_measures(
    bench: Bench, tmp_path: Path, asked: list[int]
) -> None:
    path = tmp_path / "measured.jsonl"
    for _ in range(2):
        store = Store(path, bench.where())
        assert store.measure(bench, bench.baseline, 1).metrics == {bench.metric_name: 1.0}
        assert store.measure(bench, bench.baseline, 2).metrics == {bench.metric_name: 2.0}
    assert asked == [1, 2]
    other = dataclasses.replace(bench, hardware_class="cpu-amx")
    Store(path, other.where()).measure(other, bench.baseline, 1)
    Store(path, bench.where("busy")).measure(bench, bench.baseline, 1)
    assert asked == [1, 2, 1, 1]


@pytest.mark.parametrize("changed", ["environment.toml", "evaluator/evaluate.py", "new/data.txt"])
def test_a_change_of_any_file_of_the_environment_is_measured_anew(
    bench: Bench, tmp_path: Path, asked: list[int], changed: str
) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(bench.environment.folder, folder)
    path = tmp_path / "measured.jsonl"
    Store(path, bench.where()).measure(bench, bench.baseline, 1)
    same = dataclasses.replace(bench, environment=Environment.load(folder))
    Store(path, same.where()).measure(same, bench.baseline, 1)
    assert asked == [1]
    (folder / changed).parent.mkdir(exist_ok=True)
    with (folder / changed).open("a") as file:
        file.write("\n# changed\n")
    other = dataclasses.replace(bench, environment=Environment.load(folder))
    Store(path, other.where()).measure(other, bench.baseline, 1)
    assert asked == [1, 1]


def test_a_failure_is_tried_twice_and_then_kept(
    bench: Bench, tmp_path: Path, asked: list[int]
) -> None:
    path = tmp_path / "measured.jsonl"
    for _ in range(2):
        failed = Store(path, bench.where()).measure(bench, bench.baseline, 90)
        assert failed.error.startswith("compute_exceeded")
    assert asked == [90] * TRIES
    codebase = bench.environment.codebase_hash
    assert Store(path, bench.where()).get(codebase, 90) is not None
    assert Store(path, bench.where(), lambda r: bool(r.error)).get(codebase, 90) is None


def test_a_failure_while_the_command_is_being_stopped_is_not_kept(
    bench: Bench, tmp_path: Path, asked: list[int]
) -> None:
    store = Store(tmp_path / "measured.jsonl", bench.where())
    assert store.measure(bench, bench.baseline, 90, stop=lambda: True).error
    assert store.get(bench.environment.codebase_hash, 90) is None
    assert asked == [90]


def test_half_of_a_line_is_measured_again(bench: Bench, tmp_path: Path, asked: list[int]) -> None:
    path = tmp_path / "measured.jsonl"
    store = Store(path, bench.where())
    for seed in (1, 2):
        store.measure(bench, bench.baseline, seed)
    path.write_text(path.read_text()[:-20])
    for _ in range(2):
        store = Store(path, bench.where())
        assert store.measure(bench, bench.baseline, 1).metrics
        assert store.measure(bench, bench.baseline, 2).metrics
    assert asked == [1, 2, 2]

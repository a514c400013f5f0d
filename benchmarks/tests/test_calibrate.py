"""A calibration runs for real, on a copy of `toy`: resumed, stopped, skipped and made anew."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assay.environments.catalog import Environment
from benchmarks.calibrate.__main__ import Calibration, check, stopping
from benchmarks.calibrate.plans import NULL_EDITS, PLANS, Nulls, Plan, Table
from benchmarks.calibrate.stages import Places
from tests.support.measuring import MEASURED, ROOT

GOOD, BAD = "good_small_steps", "bad_rounded_answer"
PLAN = Plan(
    "toy",
    tables=(Table(2), Table(3, "good")),
    guess=1.0,
    baseline_seeds=3,
    cost_runs=1,
    idle_below=2.0,
    nulls=Nulls(baseline_seeds=4, edit_seeds=2, edits=(GOOD,)),
)
#: 4 seeds of the baseline, 2 of an edit and 3 of another, and the cost: idle and busy.
RUNS = 4 + 2 + 3 + 2
CONTROL = """
[[recipes]]
name = "lottery"
title = "Draw lots"
kind = "control"
[[recipes.edits]]
file = "search.py"
search = '''
    return [xi + rng.gauss(0.0, step) for xi in x]
'''
replace = '''
    return [xi + rng.gauss(0.0, 2 * step) for xi in x]
'''
"""


@dataclass
class Desk:
    """A copy of `toy` with two edits, and everything a calibration writes."""

    places: Places
    said: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.places.environments / "toy"

    def calibration(self, kinds: Sequence[str] | None = None, **more: Any) -> Calibration:
        if kinds is not None:
            more["kinds"] = kinds
        return Calibration([PLAN], self.places, say=self.said.append, **more)

    def calibrate(self, kinds: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
        return self.calibration(kinds, **more).run()

    def measured(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.places.store.read_text().splitlines()]

    def output(self, name: str) -> dict[str, Any]:
        (path,) = self.places.results.glob(f"{name}-cpu*.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def baseline(self) -> dict[str, Any]:
        classes = json.loads((self.folder / "baseline.json").read_text())["tiny"]
        (entry,) = [entry for entry in classes.values() if "environment" in entry]
        found: dict[str, Any] = entry
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    shutil.copytree(ROOT / "environments" / "toy", tmp_path / "environments" / "toy")
    # What was measured on other classes of hardware is no part of these tests.
    (tmp_path / "environments" / "toy" / "baseline.json").write_text("{}")
    edits = tmp_path / "tests" / "toy" / "edits"
    edits.mkdir(parents=True)
    for name in (GOOD, BAD):
        shutil.copy(ROOT / "tests" / "environments" / "toy" / "edits" / f"{name}.diff", edits)
    kept = tmp_path / "kept"
    places = (tmp_path / "tests", tmp_path / "results", kept / "measured.jsonl", kept / "cache")
    return Desk(Places(tmp_path / "environments", *places))


@pytest.mark.slow
def test_a_calibration_writes_everything_and_then_has_nothing_to_do(desk: Desk) -> None:
    manifest = desk.folder / "environment.toml"
    manifest.write_text(manifest.read_text() + CONTROL)
    done = desk.calibrate()
    assert (done["left"], done["failed"], len(done["written"])) == (0, {}, 5)
    assert len(desk.measured()) == RUNS + 3  # the control

    environment = Environment.load(desk.folder)
    baseline = desk.baseline()
    assert baseline["environment"] == environment.id
    assert baseline["seeds"] == [0, 1, 2]
    assert set(baseline["controls"]) == {"lottery"}
    for each in (baseline, baseline["controls"]["lottery"]):
        assert (each["kind"], each["measurements"]) == ("score", [])  # of no service
    assert len(set(baseline["values"])) == 3

    table = desk.output("discrimination-toy")
    assert (table["environment"], table["seeds"]) == (environment.id, 2)
    assert set(table["figures"]) == {"baseline", GOOD, BAD}
    assert table["figures"]["baseline"]["values"] == baseline["values"][:2]
    good = desk.output("discrimination-toy-good")
    assert set(good["figures"]) == {"baseline", GOOD}
    assert good["figures"][GOOD]["values"][:2] == table["figures"][GOOD]["values"]

    nulls = desk.output("nulls-toy-tiny")
    assert nulls["codebases"]["baseline"]["seeds"] == [0, 4]
    assert nulls["codebases"]["baseline"]["values"][:3] == [
        round(value, 4) for value in baseline["values"]
    ]
    assert len(nulls["codebases"][GOOD]["values"]) == 2

    cost = desk.output("cost-toy-tiny")
    for condition in ("idle", "busy"):
        assert cost[condition]["core_seconds"] > 0
        assert cost[condition]["wall_seconds"] > 0
    assert cost["busy"]["others"] > 0.3

    again = desk.calibration()
    assert check(again) == 0
    assert again.run()["written"] == []
    assert len(desk.measured()) == RUNS + 3


def test_an_interrupted_calibration_continues_where_it_stopped(desk: Desk) -> None:
    """The first stops as soon as two results are stored; none of them is measured again."""

    def two_stored() -> bool:
        return desk.places.store.exists() and len(desk.measured()) >= 2

    kinds = ("baselines", "tables", "nulls")
    first = desk.calibrate(kinds, stop=two_stored, parallel=1)
    assert (first["left"], first["written"], len(desk.measured())) == (RUNS - 4, [], 2)
    assert check(desk.calibration(kinds)) == 1
    second = desk.calibrate(kinds)
    assert (second["left"], len(second["written"])) == (0, 4)
    assert len({(m["codebase"], m["seed"]) for m in desk.measured()}) == len(desk.measured())
    assert any("min left" in line for line in desk.said)


def test_no_run_starts_once_the_time_is_over(desk: Desk) -> None:
    with stopping(0.0) as stop:
        done = desk.calibrate(stop=stop)
    assert (done["left"], done["written"]) == (RUNS, [])
    assert not desk.places.store.exists() or not desk.measured()


def test_ctrl_c_asks_to_stop_and_the_second_one_insists() -> None:
    # Where tests run in the background, a shell has the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stopping(None) as stop:
            assert not stop()
            os.kill(os.getpid(), signal.SIGINT)
            assert stop()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_changed_environment_is_measured_anew(desk: Desk) -> None:
    desk.calibrate(("baselines",))
    before = desk.baseline()
    evaluator = desk.folder / "evaluator" / "evaluate.py"
    evaluator.write_text(evaluator.read_text() + "\n# changed\n")
    assert check(desk.calibration(("baselines",))) == 1
    desk.calibrate(("baselines",))
    after = desk.baseline()
    assert after["environment"] != before["environment"]
    assert len(desk.measured()) == 6
    assert after["environment"] == Environment.load(desk.folder).id


@pytest.mark.slow
def test_a_changed_edit_is_measured_anew_and_nothing_else_is(desk: Desk) -> None:
    desk.calibrate(("tables",))
    edits = desk.places.edits / "toy" / "edits"
    (edits / f"{BAD}.diff").rename(edits / "bad_renamed.diff")
    old = len(desk.measured())
    desk.calibrate(("tables",))
    assert set(desk.output("discrimination-toy")["figures"]) == {"baseline", GOOD, "bad_renamed"}
    assert len(desk.measured()) == old  # the same codebase under another name
    diff = edits / f"{GOOD}.diff"
    diff.write_text(diff.read_text().replace("+STEP = ", "+STEP = 0.001 + "))
    desk.calibrate(("tables",))
    assert len(desk.measured()) == old + 3


@pytest.mark.slow
def test_a_failing_edit_is_shown_and_not_tried_for_ever(desk: Desk) -> None:
    diff = desk.places.edits / "toy" / "edits" / f"{GOOD}.diff"
    diff.write_text(diff.read_text().replace("+STEP = ", "+STEP = 1 / 0 + "))
    kinds = ("tables", "nulls")
    done = desk.calibrate(kinds)
    assert (done["left"], done["failed"]) == (0, {})
    row = desk.output("discrimination-toy")["figures"][GOOD]
    assert row["failed"] == 2
    assert "ZeroDivisionError" in row["error"]
    bank = desk.output("nulls-toy-tiny")["codebases"][GOOD]
    assert (bank["values"], bank["failed"]) == ([None, None], 2)
    old = len(desk.measured())
    for path in desk.places.results.iterdir():
        path.unlink()
    desk.calibrate(kinds)
    assert len(desk.measured()) == old
    for path in desk.places.results.iterdir():
        path.unlink()
    desk.calibrate(kinds, retry_failed=True)
    assert len(desk.measured()) == old + 3 * 2


def test_a_failing_baseline_is_said_and_writes_nothing(desk: Desk) -> None:
    (desk.folder / "codebase" / "landscape.py").write_text("raise SystemExit(3)\n")
    committed = (desk.folder / "baseline.json").read_text()
    done = desk.calibrate(("baselines",))
    (message,) = done["failed"].values()
    assert "baseline failed on seed 0" in message
    assert (desk.folder / "baseline.json").read_text() == committed


def test_cores_that_are_not_idle_are_said_and_measured_again(desk: Desk) -> None:
    """Any other program counts: with a limit of nothing no machine is idle."""
    busy = dataclasses.replace(PLAN, idle_below=0.0)
    for turn in (1, 2):
        done = Calibration([busy], desk.places, kinds=["cost"], say=desk.said.append).run()
        (message,) = done["failed"].values()
        assert "repeat with --only cost" in message
        assert not list(desk.places.results.glob("cost-*"))
        assert len(desk.measured()) == turn + 1  # idle anew, busy once
    assert desk.calibrate(["cost"])["failed"] == {}
    assert len(desk.measured()) == 3


def test_again_ignores_what_is_stored(desk: Desk) -> None:
    desk.calibrate(("baselines",))
    done = desk.calibrate(("baselines",), again=True)
    assert len(done["written"]) == 1
    assert len(desk.measured()) == 6


def test_the_plans_fit_the_environments() -> None:
    """Every stage can be set up, and the null bank has the size that the verdict work needs."""
    calibration = Calibration(PLANS, Places())
    assert {s.environment.name for s in calibration.stages} == {"toy", "nanogpt", "grpo"}
    (bank,) = [s for s in calibration.stages if s.kind == "nulls"]
    assert bank.seeds["baseline"] == 160
    assert {bank.seeds[name] for name in NULL_EDITS} == {20}
    kinds = [name.split("_")[0] for name in NULL_EDITS]
    assert (kinds.count("good"), kinds.count("bad"), len(set(NULL_EDITS))) == (6, 6, 12)
    for plan in PLANS:
        assert plan.baseline_seeds == 20
        assert plan.cost_runs >= 5 or plan.environment == "toy"
    tables = [s for s in calibration.stages if s.kind == "tables" and "good" not in s.path.name]
    assert {s.environment.name: len(s.trees) - 1 for s in tables} == {
        "toy": 7,
        "nanogpt": 32,
        "grpo": 31,
    }
    assert MEASURED.parent.name == ".assay"


@pytest.mark.slow
def test_outputs_are_carried_over_where_a_sample_comes_out_the_same(desk: Desk) -> None:
    kinds = ("baselines", "tables", "nulls")
    desk.calibrate(kinds)
    before, runs = desk.baseline(), len(desk.measured())
    manifest = desk.folder / "environment.toml"
    manifest.write_text(manifest.read_text() + "\n# A remark that no run can notice.\n")
    done = desk.calibration(kinds).carry_over()
    assert (len(done["carried_over"]), done["failed"]) == (4, {})
    after = desk.baseline()
    assert after["environment"] == Environment.load(desk.folder).id != before["environment"]
    assert after["carried_over"]["from"] == before["environment"]
    assert (after["values"], after["measured_at"]) == (before["values"], before["measured_at"])
    assert len(desk.measured()) == runs + 3 + 2  # three of the baseline, one of each edit
    assert desk.calibration(kinds).stale() == []

    landscape = desk.folder / "codebase" / "landscape.py"
    landscape.write_text(landscape.read_text().replace("0.9 *", "0.5 *"))
    kept = desk.baseline()
    done = desk.calibration(kinds).carry_over()
    assert done["carried_over"] == []
    assert any("baseline, seed 0" in said for said in done["failed"]["toy: baseline.json"])
    assert desk.baseline() == kept

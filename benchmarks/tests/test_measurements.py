"""Figures come from the files onto the pages, and from outputs into the file."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from assay.environments.catalog import Environment
from scripts import measurements
from scripts.measurements import NOT_MEASURED, calibrated, recorded, rendered
from tests.support.measuring import ROOT

STORED = {
    "speed": {"seconds": 12.34, "machine": "2 cores", "by": {"kind": 7}},
    "later": None,
    "quickstart-batch": {"printed": ["one", "", "two"]},
}


def page(name: str, old: str = "old") -> str:
    return f"about <!--= {name} -->{old}<!--/--> s"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("speed.seconds .1f", "12.3"),
        ("speed.machine", "2 cores"),
        ("speed.by.kind", "7"),
        ("later.seconds .1f", NOT_MEASURED),
        ("quickstart-batch", "\n```text\none\n\ntwo\n```\n"),
    ],
)
def test_a_figure_replaces_what_a_page_shows(name: str, text: str) -> None:
    new = rendered(page(name), STORED)
    assert new == page(name, text)
    assert rendered(new, STORED) == new


@pytest.mark.parametrize("name", ["unknown.seconds", "speed.unknown"])
def test_an_unknown_figure_is_an_error(name: str) -> None:
    with pytest.raises(KeyError):
        rendered(page(name), STORED)


def test_figures_are_read_from_the_end_of_an_output() -> None:
    assert recorded('talk\n{"ratio": 2.5}\n', printed=False) == {"ratio": 2.5}
    wrapped = '{"data": {"ratio": 2.5, "api": "http://127.0.0.1:1"}, "counts": {}}'
    assert recorded(wrapped, printed=False) == {"ratio": 2.5}
    timed = recorded("= 9 passed in 1s =\nmake test took 4 min 30 s\n", printed=False)
    assert timed == {"seconds": 270, "minutes": 4.5}
    assert recorded(" a  \n ───\n\n b\n", printed=True) == {"printed": [" a", "", " b"]}
    with pytest.raises(ValueError):
        recorded("make: *** [Makefile:1: test] Error 1\n", printed=False)


def test_a_recorded_entry_says_how_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "measurements.json"
    store.write_text('{"demo": {"figures": null}}')
    monkeypatch.setattr(measurements, "STORE", store)
    monkeypatch.setattr(measurements, "PAGES", ())
    monkeypatch.setattr("sys.argv", ["measurements", "--record", "bench-x", "--add", "extra=2"])
    monkeypatch.setattr("sys.stdin", io.StringIO('{"ratio": 2.5}\n'))
    assert measurements.main() == 0
    entry = json.loads(store.read_text())["bench-x"]
    assert entry["command"] == "make bench-x"
    assert entry["figures"] == {"ratio": 2.5, "extra": 2.0}
    assert "cores" in entry["machine"]
    assert entry["date"]


def test_a_page_tells_which_figures_are_of_an_earlier_version() -> None:
    entries = {
        "baseline-x-tiny": {"mean": 1.0, "stale": True},
        "cost-x-tiny": {"runs": 7, "stale": True, "environment": "x@123"},
        "discrimination-x": {"seeds": 5, "stale": False, "environment": "x@456"},
    }
    fresh = page("discrimination-x.seeds", "5") + "\n" + page("stale-results", "\nold\n")
    assert rendered(fresh, entries).endswith("about <!--= stale-results -->\n\n<!--/--> s")
    text = fresh + page("baseline-x-tiny.mean .1f") + page("cost-x-tiny.runs")
    shown = rendered(text, entries)
    said = "`baseline-x-tiny` (version not recorded), `cost-x-tiny` (x@123)"
    assert said in " ".join(shown.split())
    assert "discrimination-x`" not in shown
    assert rendered(shown, entries) == shown


def test_costs_are_shown_for_every_environment_that_has_them() -> None:
    assert NOT_MEASURED in rendered(page("costs"), STORED)
    taken = {"core_seconds": 13.26, "wall_seconds": 14.0}
    busy = {"core_seconds": 20.0, "wall_seconds": 31.0}
    about = {"environment": "x@123", "profile": "tiny", "hardware_class": "cpu-z", "stale": True}
    entries = {"cost-x-tiny": {**about, "idle": taken, "busy": busy}}
    shown = rendered(page("costs") + page("stale-results"), entries)
    assert "| `x` `tiny` | cpu-z | 13.3 | 14.0 | 20.0 | 31.0 |" in shown
    assert "`cost-x-tiny` (x@123)" in shown


def test_the_latest_of_several_hardware_classes_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / "toy"
    shutil.copytree(ROOT / "environments" / "toy", folder)
    present = Environment.load(folder).id
    values = {"values": [1.0, 2.0], "spread": 0.7}
    classes = {
        "cpu-new": {**values, "environment": present, "measured_at": "2026-11-22"},
        "cpu-old": {**values, "environment": "toy@0", "measured_at": "2026-11-21"},
    }
    (folder / "baseline.json").write_text(json.dumps({"tiny": classes}))
    results = tmp_path / "results"
    results.mkdir()
    for kind, environment, date in (("new", present, {"measured_at": "2026"}), ("z", "toy@0", {})):
        result = {"environment": environment, "hardware_class": kind, **date}
        (results / f"cost-toy-tiny-{kind}.json").write_text(json.dumps(result))
    found = calibrated(tmp_path / "environments", results)
    assert {name: figures["hardware_class"] for name, figures in found.items()} == {
        "baseline-toy-tiny": "cpu-new",
        "baseline-toy-tiny-cpu-new": "cpu-new",
        "baseline-toy-tiny-cpu-old": "cpu-old",
        "cost-toy-tiny": "new",
    }
    assert [name for name, figures in found.items() if figures["stale"]] == [
        "baseline-toy-tiny-cpu-old"
    ]


def test_rates_and_power_of_verdicts_become_tables() -> None:
    rule = {"better": [0.021, 0, 1], "worse": [0.03, 0, 1], "covered": [0.949, 0, 1]}
    edits = {"edits": 3, "called_right": [0.9, 0, 1], "called_wrong": [0.0, 0, 0]}
    both = {"shipped": rule, "two_sigma": rule}
    figures = {
        "toy": {
            "nulls": {"same_seeds/5": both},
            "power": {"2-inf/5": {"shipped": edits, "two_sigma": edits}},
        }
    }
    stored = {**STORED, "bench-verdicts": {"figures": figures}}
    rates = rendered(page("verdict-rates"), stored)
    assert "| `toy` | rounding | 5 | 2.1% | 3.0% | 94.9% | 2.1% / 3.0% |" in rates
    power = rendered(page("verdict-power"), stored)
    assert "| `toy` | above 2 | 3 | 5 | 90% | 0% | 90% |" in power
    deep = page("bench-verdicts.figures.toy.nulls.same_seeds/5.shipped.better.0 .1%")
    assert rendered(deep, stored) == deep.replace("old", "2.1%")

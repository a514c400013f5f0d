"""Figures come from the files onto the pages, and from outputs into the file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from scripts import measurements
from scripts.measurements import NOT_MEASURED, recorded, rendered

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

"""The report of a real search: from the service to the files, twice the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.client import Client
from tests.support.service import ServiceProcess


@pytest.mark.slow
def test_the_report_of_a_real_search(service: ServiceProcess, tmp_path: Path) -> None:
    common = ("toy", "--profile", "tiny", "--batch-size", "4", "--epochs", "2")
    options = ("--baseline-seeds", "3", "--json")
    for strategy, more in (
        ("evolution", ("--confirm", "1", "--confirm-seeds", "3")),
        ("best-of-n", ()),
    ):
        done = service.assay("search", "start", *common, "--strategy", strategy, *more, *options)
        assert done.returncode == 0, done.stderr
    with Client(service.ready["api"]) as client:
        searches = {s.strategy: s for s in client.searches.list()}
        ids = [searches[strategy].id for strategy in ("evolution", "best-of-n")]
        batch = next(iter(client.batches.list(search=ids[0])))
        assert batch.measurements.total == batch.measurements.ended > 0
        experiments = list(client.experiments.list(environment="toy"))
        assert {e.environment for e in experiments} == {searches["evolution"].environment}
        assert list(client.experiments.list(environment="absent")) == []
    html, again = tmp_path / "first.html", tmp_path / "second.html"
    made = service.assay(
        "search", "report", *ids, "--html", str(html), "--png", str(tmp_path / "png"), "--json"
    )
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)["data"]["report"]
    parts = {p["name"]: p for section in report["sections"] for p in section["parts"]}
    assert parts["figure-4"]["panels"], "both searches have the same models"
    assert parts["claims"]["absent"] is None
    assert report["winners"][0]["diff"]
    classified = parts["table-2"]["rows"][1]["cells"]
    assert classified[1]["value"] + classified[4]["value"] == pytest.approx(1)
    assert (tmp_path / "png" / "figure-3.png").read_bytes().startswith(b"\x89PNG")
    assert service.assay("search", "report", *ids, "--html", str(again)).returncode == 0
    assert html.read_bytes() == again.read_bytes(), "the same data gives the same bytes"
    shown = service.assay("search", "show", ids[0]).stdout
    assert "best idea: exp_" in shown
    assert "baseline: " in shown

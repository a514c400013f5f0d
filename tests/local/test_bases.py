"""A confirmed result becomes what later ideas start from; the offline executor edits its text."""

from __future__ import annotations

import json

import pytest

from assay.client import Client
from assay.contracts.batch import BatchRequest, ExperimentBody
from tests.support.service import ServiceProcess

pytestmark = pytest.mark.slow

IDEA = (
    "[Experiment] {title}\n[Code Changes]\nIn `search.py`:\n"
    "<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n[End]"
)


def measured(
    client: Client, title: str, old: str, new: str, base: str | None = None
) -> ExperimentBody:
    """An idea that replaces a line of its base, on eight seeds."""
    request = BatchRequest.model_validate(
        {
            "environment": "toy",
            "profile": "tiny",
            "ideas": [{"text": IDEA.format(title=title, old=old, new=new)}],
            "options": {"seeds": list(range(8)), "baseline_seeds": 8},
            "base": base,
        }
    )
    batch = client.batches.wait(client.batches.create(request).id)
    (experiment,) = client.experiments.list(batch=batch.id)
    assert experiment.state == "succeeded", experiment.failure
    return experiment


def confirmed(service: ServiceProcess, experiment: str) -> None:
    done = service.assay("experiment", "confirm", experiment, "--seeds", "12", "--wait")
    assert done.returncode == 0, done.stderr


def test_a_confirmed_result_is_the_base_of_the_next(service: ServiceProcess) -> None:
    with Client(service.ready["api"]) as client:
        first = measured(client, "Cool down.", "SHRINK = 1.0", "SHRINK = 0.99")
        refused = service.assay("env", "promote", first.id)
        assert (refused.returncode, "assay experiment confirm" in refused.stderr) == (1, True)
        confirmed(service, first.id)
        promoted = service.assay("env", "promote", first.id, "--json")
        assert promoted.returncode == 0, promoted.stderr
        assert json.loads(promoted.stdout)["detail"]["number"] == 1

        between = (
            "# The evaluations are shared by this many walks from different starting points.\n"
            "RESTARTS = 1\n"
            "# The step is multiplied by these after an improvement and after a failure.\n"
            "GROW = 1.0\n"
        )
        old, new = (f"START = {a}\n{between}SHRINK = {b}" for a, b in ((4.0, 0.99), (1.0, 0.98)))
        second = measured(client, "Start nearer, and cool down sooner.", old, new, "best")
        assert second.base is not None
        assert (second.base.name, second.base.codebase) == ("best", first.codebase)
        assert second.comparison is not None
        assert second.against_baseline is not None
        assert second.against_baseline.verdict == "better"
        assert second.comparison.effect < second.against_baseline.effect
        own = service.assay("experiment", "diff", second.id).stdout
        whole = service.assay("experiment", "diff", second.id, "--against", "baseline").stdout
        assert ("-SHRINK = 0.99" in own, "-SHRINK = 1.0" in own) == (True, False)
        assert ("-SHRINK = 0.99" in whole, "-SHRINK = 1.0" in whole) == (False, True)
        shown = service.assay("experiment", "show", second.id).stdout
        assert "changes best (" in shown
        assert "beside the environment's baseline" in shown
        assert "base best" in service.assay("batch", "show", second.batch).stdout

        confirmed(service, second.id)
        again = service.assay("env", "promote", second.id)
        assert again.returncode == 0, again.stderr
        listed = json.loads(service.assay("env", "bases", "toy", "--json").stdout)["data"]
        assert [(row["number"], row["experiment"]) for row in listed] == [
            (2, second.id),
            (1, first.id),
        ]


def test_a_search_starts_from_a_base(service: ServiceProcess) -> None:
    with Client(service.ready["api"]) as client:
        first = measured(client, "Smaller steps.", "STEP = 0.6", "STEP = 0.15")
        start = ("search", "start", "toy", "--profile", "tiny", "--epochs", "2")
        done = service.assay(*start, "--batch-size", "3", "--base", first.id, "--yes", "--json")
        assert done.returncode == 0, done.stderr
        search = json.loads(done.stdout)["data"]["search"]
        assert search["base"] == {"name": first.id, "codebase": first.codebase}
        batches = list(client.batches.list(search=search["id"]))
        assert {base.codebase for b in batches for base in b.bases} == {first.codebase}
        found = [e for batch in batches for e in client.experiments.list(batch=batch.id)]
        assert all(e.against_baseline for e in found if e.state == "succeeded")
        assert any(e.state == "succeeded" for e in found)

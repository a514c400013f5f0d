"""A lead is measured again on fresh seeds: the same codebase, no model, and a claim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assay.client import Client
from assay.domain.seeds import fresh_seeds
from tests.support.service import ServiceProcess, toy_batch, toy_ideas


@pytest.mark.slow
def test_a_lead_is_confirmed_on_fresh_seeds(service: ServiceProcess) -> None:
    with Client(service.ready["api"]) as client:
        first = client.batches.wait(client.batches.create(toy_batch(toy_ideas(2))).id)
        leads = list(client.experiments.list(batch=first.id))
        confirm = ("experiment", "confirm", *(lead.id for lead in leads), "--seeds", "3")
        done = service.assay(*confirm, "--wait", "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)["data"]
        for lead, again in zip(leads, shown["experiments"], strict=True):
            assert (again["codebase"], again["state"]) == (lead.codebase, "succeeded")
            assert again["idea"]["confirms"] == lead.id
            assert again["comparison"]["n"] == 3
            assert not set(again["measurements"]) & set(lead.measurements)
            seeds = [m.seed for m in client.experiments.result(again["id"]).measurements]
            assert seeds == fresh_seeds([each.codebase or "" for each in leads], 3)
            assert client.experiments.diff(again["id"]) == client.experiments.diff(lead.id)
        assert shown["batch"]["usage"]["calls"] == 0
        assert set(shown["claimed"]) <= {lead.id for lead in leads}
        told = service.assay("batch", "show", shown["batch"]["id"]).stdout
        assert "may be claimed to be better" in told
        kinds = {m["kind"] for e in shown["experiments"] for m in results_of(client, e["id"])}
        assert (shown["batch"]["kind"], kinds) == ("confirm", {"confirm"})
        for lead, again in zip(leads, shown["experiments"], strict=True):
            found = client.experiments.get(lead.id).confirmation
            assert found is not None
            assert (found.experiment, found.metric) == (again["id"], again["metric"])
            assert found.claimed is (lead.id in shown["claimed"])
            assert lead.comparison is not None
            assert found.gap == pytest.approx(
                lead.comparison.effect - again["comparison"]["effect"], abs=1e-3
            )
        rows = client.reports.execution().data
        assert sum(row.funnel.submitted for row in rows) == 2, "what confirms is no other idea"
        two = [lead.id for lead in leads]
        later = json.loads(service.assay(*confirm, "--dry-run", "--json").stdout)
        assert (later["detail"]["measurements"], later["detail"]["cost_usd"]["high"]) == (6, "0")
        repeated = client.experiments.confirm(two[0], beside=two[1:], seeds=3)
        client.batches.wait(repeated.id)
        assert [e.measurements for e in client.experiments.list(batch=repeated.id)] == [
            again["measurements"] for again in shown["experiments"]
        ], "the same claim is not tried until it holds"
        fewer = client.experiments.confirm(two[0], seeds=1)
        # Waits for the baseline on that seed, too: nothing is decided before.
        assert service.assay("batch", "watch", fewer.id).returncode == 0
        (later,) = client.experiments.list(batch=fewer.id)
        assert later.claimed is False, "another draw of seeds decides nothing"
        still = client.experiments.get(two[0]).confirmation
        assert still is not None
        assert (still.claimed, still.repeated) == (two[0] in shown["claimed"], 1)
        chained = service.assay(*confirm[:2], later.id)
        assert (chained.returncode, f"confirm {two[0]} instead" in chained.stderr) == (2, True)
        twice = service.assay(*confirm[:3], confirm[2])
        assert (twice.returncode, "named twice" in twice.stderr) == (2, True)


@pytest.mark.slow
def test_a_search_confirms_its_best_at_the_end(service: ServiceProcess) -> None:
    start = ("search", "start", "toy", "--profile", "tiny", "--epochs", "2", "--batch-size", "4")
    done = service.assay(*start, "--confirm", "2", "--confirm-seeds", "3", "--json", "--yes")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)["data"]
    search = shown["search"]["id"]
    with Client(service.ready["api"]) as client:
        batches = {batch.epoch: batch for batch in client.batches.list(search=search)}
        assert [batches[epoch].kind for epoch in (0, 1, None)] == ["score", "score", "confirm"]
        tried = [e for n in (0, 1) for e in client.experiments.list(batch=batches[n].id)]
        better = [e for e in tried if e.comparison and e.comparison.effect > 0]
        better.sort(key=lambda e: -(e.comparison.effect if e.comparison else 0))
        confirmed = [e.idea.confirms for e in client.experiments.list(batch=batches[None].id)]
        assert confirmed == [e.id for e in better[:2]]
        assert [e["id"] for e in shown["confirmed"]] == confirmed
        assert all(e["confirmation"]["claimed"] is not None for e in shown["confirmed"])
        assert [entry.experiment in confirmed for entry in client.searches.get(search).best]
        resumed = service.assay("search", "resume", search)
        assert resumed.returncode == 0, resumed.stderr
        assert len(list(client.batches.list(search=search))) == 3, "confirmed once"


def results_of(client: Client, experiment: str) -> list[dict[str, Any]]:
    return [m.model_dump() for m in client.experiments.result(experiment).measurements]


def test_other_confirmations_get_other_seeds() -> None:
    one, same, more, part = (
        fresh_seeds(codebases, number)
        for codebases, number in ((["a", "b"], 3), (["b", "a"], 3), (["a", "b"], 4), (["a"], 3))
    )
    assert one == same
    assert not set(one) & set(more)
    assert not set(one) & set(part)
    assert (len(more), min(part) >= 1_000_000, max(part) < 2**31) == (4, True, True)

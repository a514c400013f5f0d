"""A lead is measured again on fresh seeds: the same codebase, no model, and a claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.cli.confirming import fresh_seeds
from assay.client import Client
from tests.support.service import ServiceProcess, toy_batch, toy_ideas


@pytest.fixture
def service(tmp_path: Path) -> Any:
    process = ServiceProcess(tmp_path / "data")
    process.start()
    yield process
    process.stop()


def assay(service: ServiceProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "ASSAY_API_URL": service.ready["api"], "COLUMNS": "200"},
    )


def test_a_lead_is_confirmed_on_fresh_seeds(service: ServiceProcess) -> None:
    with Client(service.ready["api"]) as client:
        first = client.batches.wait(client.batches.create(toy_batch(toy_ideas(2))).id)
        leads = list(client.experiments.list(batch=first.id))
        confirm = ("experiment", "confirm", *(lead.id for lead in leads), "--seeds", "3")
        done = assay(service, *confirm, "--wait", "--json")
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
        told = assay(service, "batch", "show", shown["batch"]["id"]).stdout
        assert "may be claimed to be better" in told
        two = [lead.id for lead in leads]
        pair = json.loads(assay(service, "experiment", "compare", *two, "--json").stdout)["data"]
        assert (pair["experiment"], pair["other"]) == tuple(two)
        assert (pair["comparison"]["n"], pair["comparison"]["baseline_n"]) == (1, 1)
        fresh = assay(service, "experiment", "compare", *two, "--seeds", "3")
        assert fresh.returncode == 0, fresh.stderr
        assert "(3 seeds) beside" in " ".join(fresh.stdout.split())
        later = json.loads(assay(service, *confirm, "--dry-run", "--json").stdout)
        again = later["detail"]["options"]["seeds"]
        assert again == seeds, "the same claim is not tried until it holds"
        twice = assay(service, *confirm[:3], confirm[2])
        assert (twice.returncode, "named twice" in twice.stderr) == (2, True)


def test_other_confirmations_get_other_seeds() -> None:
    one, same, more, part = (
        fresh_seeds(codebases, number)
        for codebases, number in ((["a", "b"], 3), (["b", "a"], 3), (["a", "b"], 4), (["a"], 3))
    )
    assert one == same
    assert not set(one) & set(more)
    assert not set(one) & set(part)
    assert (len(more), min(part) >= 1_000_000, max(part) < 2**31) == (4, True, True)

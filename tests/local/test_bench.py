"""`assay bench ideation` and exports, by the command line on a real service.

The provider is a local HTTP server that speaks the OpenAI wire format.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from assay.client import Client
from assay.contracts.batch import BatchBody
from assay.contracts.search import SearchBody
from assay.contracts.trajectory import TrajectoryBody
from tests.local.test_paid_search import TOY, serving
from tests.support.provider.searching import MODEL, SearchingProvider
from tests.support.service import ServiceProcess

pytestmark = pytest.mark.slow

MODELS = ["--ideators", f"{MODEL},offline:ideator", "--executors", f"offline:literal,{MODEL}"]
TERMS = ["--profile", "tiny", "--ideas", "6", "--baseline-seeds", "3", "--allow-unisolated"]


def bench(
    service: ServiceProcess, provider: SearchingProvider, *more: str
) -> subprocess.Popen[str]:
    key = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": provider.openai_url}
    command = [sys.executable, "-m", "assay.cli", "--api", service.ready["api"], "bench"]
    return subprocess.Popen(
        [*command, "ideation", "toy", *TERMS, *MODELS, "--yes", "--json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **key},
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    found: dict[str, Any] = json.loads(out)["data"]
    return found


@pytest.mark.timeout(600)
def test_a_benchmark_that_is_killed_continues_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    rng = random.Random(4)
    with (
        SearchingProvider(TOY, seconds=0.4) as provider,
        serving(tmp_path, provider, sandbox="subprocess") as service,
    ):
        kills = 0
        for seconds in (rng.uniform(2.0, 5.0) for _ in range(3)):
            running = bench(service, provider)
            try:
                running.communicate(timeout=seconds)
                break
            except subprocess.TimeoutExpired:
                running.kill()
                running.communicate()
                kills += 1
        assert kills, "nothing was killed: nothing is proved"
        found = finish(bench(service, provider))
        asked = len(provider.requests)
        assert finish(bench(service, provider)) == found
        assert len(provider.requests) == asked

        pairs = {(row["ideator"], row["executor"]): row for row in found["pairs"]}
        assert len(pairs) == 4
        assert {row["tried"] for row in pairs.values()} == {6}
        own = pairs[MODEL, MODEL]
        assert (own["execution"], own["scored"]) == ("self", 6)
        assert pairs[MODEL, "offline:literal"]["executor_spent"]["cost_usd"] == "0"
        assert {row["ideator"] for row in found["same_ideas"]} == {MODEL}
        with service.client() as client:
            searches = list(client.searches.list())
            assert len(searches) == 2
            batches = [b for s in searches for b in client.batches.list(search=s.id)]
            check_ledger(client, searches, batches, provider)
            assert Counter(b.executor for b in batches) == {MODEL: 2, "offline:literal": 2}
            texts = [
                {e.idea.text for e in client.experiments.list(batch=batch.id)}
                for batch in batches
                if batch.ideator == MODEL
            ]
            assert texts[0] == texts[1]
            check_export(service, [search.id for search in searches], tmp_path)


def check_ledger(
    client: Client,
    searches: Sequence[SearchBody],
    batches: Sequence[BatchBody],
    provider: SearchingProvider,
) -> None:
    """Every request is in the ledger, and no question was answered twice."""
    for_ideas = [call for search in searches for call in client.searches.calls(search.id)]
    for_code = [call for batch in batches for call in client.batches.calls(batch.id)]
    known = {call.id for call in [*for_ideas, *for_code]}
    assert {request.id for request in provider.requests} <= known
    places = Counter((c.search, c.place) for c in for_ideas if c.state == "returned")
    assert set(places.values()) == {1}
    samples = Counter(
        (c.implementation, c.sample, c.revision) for c in for_code if c.state == "returned"
    )
    assert set(samples.values()) == {1}
    assert len(samples) == 24  # one of each idea and executor, offline ones included


def check_export(service: ServiceProcess, searches: Sequence[str], folder: Path) -> None:
    """What is exported is the same in both formats and twice, and is all there is."""
    lines, again, table = (folder / name for name in ("t.jsonl", "again.jsonl", "t.parquet"))
    for file in (lines, again, table):
        done = service.assay("search", "export", *searches, "--curves", "--out", str(file))
        assert done.returncode == 0, done.stderr
    assert lines.read_bytes() == again.read_bytes()
    from_lines = [json.loads(line) for line in lines.read_text().splitlines()]
    rows = parquet.read_table(table).to_pylist(maps_as_pydicts="strict")
    assert [TrajectoryBody.model_validate(row).wire() for row in rows] == from_lines
    assert len(from_lines) == 24
    assert {row["search"] for row in from_lines} == set(searches)
    assert {row["executor_calls"] for row in from_lines} >= {1}


@pytest.mark.timeout(600)
def test_a_cap_stops_a_benchmark_and_a_higher_one_continues_it(tmp_path: Path) -> None:
    with (
        SearchingProvider(TOY) as provider,
        serving(tmp_path, provider, sandbox="subprocess") as service,
    ):
        refused = bench(service, provider, "--max-cost", "1", "--executors", "openai:no-such")
        out, _ = refused.communicate(timeout=60)
        assert refused.returncode == 2
        assert "no price is known for openai:no-such" in json.loads(out)["error"]["message"]
        assert provider.requests == []

        found = finish(bench(service, provider, "--max-cost", "0.008"), code=3)
        assert found["unfinished"]
        # No call starts once the cap is spent; the last one may end beyond it.
        assert provider.charged < Decimal("0.008") + Decimal("0.002")
        whole = finish(bench(service, provider, "--max-cost", "2"))
        assert whole["unfinished"] == []
        assert {(row["tried"], row["ideas"]) for row in whole["pairs"]} == {(6, 6)}
        assert Decimal(whole["cost_usd"]) == provider.charged

"""The same search with the same seed is the same search: ideas, diffs, metrics to the last digit.

Also when the search client and the service are killed half way and started again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from assay.client import Client
from tests.support.service import ServiceProcess

pytestmark = pytest.mark.slow

EPOCHS = 3
IDEAS = 4


def search_command(service: ServiceProcess, *arguments: str) -> subprocess.Popen[bytes]:
    """`assay search …` against a service, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "assay.cli", "--api", service.ready["api"], "search", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    )


def start_search(
    service: ServiceProcess, seed: int = 11, *options: str
) -> subprocess.Popen[bytes]:
    """A search of `toy`, driven by a client process unless `options` say otherwise."""
    return search_command(
        service,
        *("start", "toy", "--profile", "tiny", "--strategy", "evolution"),
        *("--epochs", str(EPOCHS), "--batch-size", str(IDEAS), "--seed", str(seed)),
        *options,
    )


def record(client: Client, search: str) -> list[dict[str, Any]]:
    """Everything a search came to, without ids and times."""
    rows = []
    for epoch in client.searches.epochs(search):
        assert epoch.batch is not None
        for experiment in client.experiments.list(batch=epoch.batch):
            scored = experiment.codebase is not None
            rows.append(
                {
                    "epoch": epoch.number,
                    "position": experiment.position,
                    "idea": experiment.idea.text,
                    "operator": experiment.idea.operator,
                    "state": experiment.state,
                    "failure": experiment.failure and experiment.failure.code,
                    "codebase": experiment.codebase,
                    "diff": client.experiments.diff(experiment.id) if scored else None,
                    "metric": experiment.metric,
                }
            )
    return rows


def undisturbed(folder: Path, seed: int = 11) -> list[dict[str, Any]]:
    """The record of a search that nobody disturbs."""
    service = ServiceProcess(folder, sandbox="subprocess")
    service.start()
    try:
        assert start_search(service, seed).wait(timeout=120) == 0
        with service.client() as client:
            (search,) = client.searches.list()
            assert search.state == "finished"
            return record(client, search.id)
    finally:
        service.stop()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The record that every repetition must give."""
    rows = undisturbed(tmp_path_factory.mktemp("reference") / "data")
    assert len(rows) == EPOCHS * IDEAS
    assert {row["operator"] for row in rows} >= {"seed", "explore"}
    assert any(row["metric"] is not None for row in rows)
    return rows


def test_the_same_seed_gives_the_same_search(
    tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    assert undisturbed(tmp_path / "data") == reference


def test_another_seed_gives_another_search(
    tmp_path: Path, reference: list[dict[str, Any]]
) -> None:
    other = undisturbed(tmp_path / "data", seed=12)
    assert [row["idea"] for row in other] != [row["idea"] for row in reference]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_search_that_is_killed_and_resumed_is_the_same_search(
    tmp_path: Path, reference: list[dict[str, Any]], seed: int
) -> None:
    rng = random.Random(seed)
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    service.start()
    client_process = start_search(service)
    search = _search_with_epochs(service, rng.randrange(EPOCHS))
    time.sleep(rng.uniform(0.0, 0.2))
    client_process.send_signal(signal.SIGKILL)
    assert client_process.wait(timeout=10) == -signal.SIGKILL, "it had finished: nothing is proved"
    service.kill()
    service.start()
    try:
        assert search_command(service, "resume", search).wait(timeout=120) == 0
        with service.client() as client:
            assert record(client, search) == reference
    finally:
        service.stop()


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_search_in_a_service_that_is_killed_is_the_same_search(
    tmp_path: Path, reference: list[dict[str, Any]], epochs: int
) -> None:
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    service.start()
    assert start_search(service, 11, "--detach").wait(timeout=60) == 0
    search = _search_with_epochs(service, epochs)
    service.kill()
    service.start()
    try:
        with service.client() as client:
            told = [event.type for event in client.searches.follow(search)]
            body = client.searches.get(search)
            assert (body.state, body.driver) == ("finished", "service")
            assert record(client, search) == reference
            assert told.count("search.epoch_submitted") == EPOCHS
        assert service.assay("search", "watch", search).returncode == 0
    finally:
        service.stop()


def _search_with_epochs(service: ServiceProcess, count: int) -> str:
    """Wait until the only search has so many epochs; its id."""
    deadline = time.monotonic() + 30
    with service.client() as client:
        while time.monotonic() < deadline:
            for search in client.searches.list():
                if len(list(client.searches.epochs(search.id))) >= count:
                    return search.id
            time.sleep(0.01)
    raise AssertionError("the search never came so far")

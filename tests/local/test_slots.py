"""An asynchronous search whose client is killed again and again, against a real service."""

from __future__ import annotations

import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from assay.client import Client
from assay.contracts.search import (
    DecidedRemeasure,
    DecisionRequest,
    ExtendRequest,
    SearchBody,
    SearchRequest,
)
from assay.search import SearchConfig
from assay.search.decisions import replay
from assay.search.strategy import open_strategy
from assay.search.trajectories import TrajectoryReader
from tests.local.test_reproducible import search_command
from tests.support.service import ServiceProcess

DECISIONS, IDEAS, KILLS = 8, 4, 20


def new_search(client: Client) -> SearchBody:
    config = SearchConfig.make("thompson", {"keep": 8}, pause=False)
    return client.searches.create(
        SearchRequest(
            environment="toy",
            profile="tiny",
            strategy="thompson",
            seed=5,
            epochs=DECISIONS,
            batch_size=IDEAS,
            config=config.record(),
        )
    )


def keep_busy(client: Client, search: str) -> None:
    """Extend a search that would soon finish, so that there is something to kill."""
    body = client.searches.get(search)
    if body.epochs - body.epochs_finished < 4:
        client.searches.extend(search, ExtendRequest(epochs=body.epochs_finished + 6))


@pytest.mark.slow
def test_killed_twenty_times_every_decision_is_taken_and_submitted_once(tmp_path: Path) -> None:
    rng = random.Random(0)
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    service.start()
    try:
        with service.client() as client:
            search = new_search(client).id
            for _ in range(KILLS):
                keep_busy(client, search)
                command = search_command(service, "resume", search)
                with suppress(subprocess.TimeoutExpired):
                    command.wait(timeout=rng.uniform(0.7, 1.3))
                command.send_signal(signal.SIGKILL)
                assert command.wait(timeout=10) == -signal.SIGKILL, "it had finished"
        assert search_command(service, "resume", search).wait(timeout=120) == 0
        with service.client() as client:
            check(client, search)
            best = decide_to_remeasure(client, search)
            assert search_command(service, "resume", search).wait(timeout=60) == 0
            check_remeasured(client, search, best)
    finally:
        service.stop()


def check(client: Client, search: str) -> None:
    body = client.searches.get(search)
    epochs = list(client.searches.epochs(search))
    assert body.state == "finished"
    assert [epoch.number for epoch in epochs] == list(range(body.epochs))
    batches = list(client.batches.list(search=search))
    assert sorted(batch.epoch or 0 for batch in batches) == list(range(body.epochs))
    reader = TrajectoryReader(client, with_curves=False)
    listed = {epoch.number: reader.experiments(epoch) for epoch in epochs}
    assert all(each.is_terminal for experiments in listed.values() for each in experiments)
    past = [
        each
        for number, experiments in listed.items()
        for each in reader.ended(number, experiments)
    ]
    strategy = open_strategy(body.strategy, body.config["strategy"])
    assert replay(body, strategy, epochs, {each.id: each for each in past}) == []


def decide_to_remeasure(client: Client, search: str) -> str:
    """Store the decision to measure the best result on three seeds. Returns its id."""
    body = client.searches.get(search)
    best = body.best[-1].experiment
    assert best is not None
    client.searches.extend(search, ExtendRequest(epochs=body.epochs + 1))
    again = DecidedRemeasure(experiments=[best], seeds=3)
    decision = DecisionRequest(remeasure=again)
    assert client.searches.put_decision(search, body.epochs, decision).state == "decided"
    return best


def check_remeasured(client: Client, search: str, experiment: str) -> None:
    earlier = client.experiments.get(experiment)
    *_, last = client.searches.epochs(search)
    assert last.batch is not None
    (again,) = client.experiments.list(batch=last.batch)
    assert (again.codebase, again.idea.parents) == (earlier.codebase, [experiment])
    assert (again.state, len(again.measurements)) == ("succeeded", 3)
    assert set(earlier.measurements) < set(again.measurements), "what was measured is shared"
    assert again.comparison is not None
    assert again.comparison.n == 3

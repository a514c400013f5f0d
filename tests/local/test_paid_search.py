"""Searches whose ideators, and executors, are paid for: by the command line, with a provider.

The provider is a local HTTP server that speaks the OpenAI wire format.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from assay.client import Client
from assay.contracts.batch import CallFacts
from tests.local.test_reproducible import record
from tests.support.ports import free_port
from tests.support.provider.searching import MODEL, Line, SearchingProvider
from tests.support.service import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TOY = [Line("search.py", "STEP = 0.6", ["0.1", "0.2", "0.3", "0.4", "0.5", "0.9", "1.2"])]
NANOGPT = [
    Line("config.py", "    learning_rate: float = 0.003", ["0.001", "0.002", "0.004", "0.006"]),
    Line("config.py", "    warmup_steps: int = 28", ["7", "60", "120"]),
    Line("config.py", "    lr_floor: float = 0.1", ["0.0", "0.03", "0.5"]),
    Line("config.py", "    beta1: float = 0.9", ["0.8", "0.95"]),
]
#: How often something is killed, and how long each answer takes meanwhile.
MOMENTS, SECONDS = 20, 0.4


@contextmanager
def serving(folder: Path, provider: SearchingProvider, **options: Any) -> Iterator[ServiceProcess]:
    env = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": provider.openai_url}
    service = ServiceProcess(folder / "data", env=env, **options)
    service.start()
    try:
        yield service
    finally:
        if service.running:
            service.stop()


def command(
    service: ServiceProcess, provider: SearchingProvider, *arguments: str
) -> subprocess.Popen[bytes]:
    """`assay search …` in a process of its own, with a key for the provider."""
    key = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": provider.openai_url}
    return subprocess.Popen(
        [sys.executable, "-m", "assay.cli", "--api", service.ready["api"], "search", *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **key},
    )


def check_ledger(client: Client, search: str, provider: SearchingProvider) -> Counter[str]:
    """Check that every request is in the ledger, and that none asked for an answer that was there.

    Returns how many calls are in which state.
    """
    calls: list[tuple[Hashable, CallFacts]] = [
        ((call.epoch, call.place), call) for call in client.searches.calls(search)
    ]
    for batch in client.batches.list(search=search):
        calls += [
            ((call.implementation, call.sample, call.revision), call)
            for call in client.batches.calls(batch.id)
        ]
    assert {request.id for request in provider.requests} <= {call.id for _, call in calls}
    returned = [(question, call) for question, call in calls if call.state == "returned"]
    answered = {question: call.finished_at for question, call in returned}
    assert len(answered) == len(returned), "an answer was paid twice"
    for question, call in calls:
        arrived = answered.get(question)
        assert arrived is None or call.started_at <= arrived, "asked again after it was answered"
    return Counter(call.state for _, call in calls)


@pytest.mark.bubblewrap
@pytest.mark.timeout(1800)  # 12 trainings beside a baseline, on one core if the machine is busy
def test_a_model_with_troubles_plays_a_search(tmp_path: Path) -> None:
    with (
        SearchingProvider(NANOGPT, troubles=True) as provider,
        serving(tmp_path, provider) as service,
    ):
        done = command(
            service,
            provider,
            *("start", "nanogpt", "--profile", "tiny", "--epochs", "3", "--batch-size", "4"),
            *("--ideator", MODEL, "--executor", MODEL, "--max-cost", "3", "--samples", "2"),
            *("--baseline-seeds", "2", "--no-pause", "--seed", "3", "--yes"),
        )
        assert done.wait(timeout=1700) == 0
        with service.client() as client:
            (search,) = client.searches.list()
            assert (search.state, search.epochs_finished) == ("finished", 3)
            experiments = [
                experiment
                for epoch in client.searches.epochs(search.id)
                for experiment in client.experiments.list(batch=epoch.batch)
            ]
            assert len(experiments) == 12
            assert all(experiment.is_terminal for experiment in experiments)
            states = Counter(experiment.state for experiment in experiments)
            assert states["succeeded"] >= 6
            check_ledger(client, search.id, provider)
            usage = (search.ideator_usage, search.executor_usage)
            assert sum(Decimal(each.cost_usd or "0") for each in usage) == provider.charged
            assert {each.estimated_usd for each in usage} == {"0"}
            failed = [call for call in client.searches.calls(search.id) if call.state == "failed"]
            assert failed, "there was no trouble: nothing is proved"


def start_toy(service: ServiceProcess, provider: SearchingProvider) -> subprocess.Popen[bytes]:
    return command(
        service,
        provider,
        *("start", "toy", "--profile", "tiny", "--epochs", "4", "--batch-size", "12"),
        *("--ideator", MODEL, "--executor", MODEL, "--samples", "2", "--seed", "3"),
        *("--baseline-seeds", "3", "--max-cost", "9", "--allow-unisolated", "--yes"),
    )


def recorded(service: ServiceProcess) -> str:
    """Wait until there is a search; returns its id."""
    with service.client() as client:
        wait_until(lambda: list(client.searches.list()), "a search")
        (search,) = client.searches.list()
        return search.id


@pytest.mark.timeout(1800)  # four searches, and a service that starts a dozen times
def test_a_paid_search_that_is_killed_is_the_same_and_pays_for_no_answer_twice(
    tmp_path: Path,
) -> None:
    """Ideator and executor are paid for. Each search is killed until it ends, 20 times in all."""
    options = {"sandbox": "subprocess", "port": free_port()}
    with (
        SearchingProvider(TOY, seconds=SECONDS) as provider,
        serving(tmp_path / "unbroken", provider, **options) as service,
    ):
        assert start_toy(service, provider).wait(timeout=300) == 0
        with service.client() as client:
            (search,) = client.searches.list()
            unbroken = record(client, search.id)
            answers = check_ledger(client, search.id, provider)["returned"]
    assert len(unbroken) == 48

    rng = random.Random(20)
    moments: Counter[str] = Counter()
    asked_again = 0
    for turn in range(MOMENTS):
        if moments.total() >= MOMENTS:
            break
        with (
            SearchingProvider(TOY, seconds=SECONDS) as provider,
            serving(tmp_path / str(turn), provider, **options) as service,
        ):
            driver = start_toy(service, provider)
            started = recorded(service)
            while moments.total() < MOMENTS and _asks_more(driver, provider, rng):
                who = rng.choice(("client", "service", "both"))
                moments[who] += 1
                if who != "service":  # a client that is left alone waits for the service
                    driver.kill()
                    driver.wait()
                if who != "client":
                    service.kill()
                    service.start()
                if who != "service":
                    driver = command(service, provider, "resume", started)
            assert driver.wait(timeout=300) == 0
            with service.client() as client:
                (search,) = client.searches.list()
                assert search.state == "finished"
                assert record(client, search.id) == unbroken
                states = check_ledger(client, search.id, provider)
            assert states["returned"] == answers
            asked_again += len(provider.requests) - answers
            assert len(provider.requests) <= states.total()
    assert moments.total() == MOMENTS
    assert set(moments) == {"client", "service", "both"}
    sys.stdout.write(
        f"{answers} answers a search; killed {dict(moments)} in {turn} searches; "
        f"{asked_again} calls that were under way were made again\n"
    )
    assert asked_again, "no call was under way when something was killed: nothing is proved"


def _asks_more(
    driver: subprocess.Popen[bytes], provider: SearchingProvider, rng: random.Random
) -> bool:
    """Wait for some of the next requests, and for a part of the time that their answers take.

    Returns False if the search ended instead.
    """
    wanted = len(provider.requests) + rng.randint(1, 6)
    wait_until(lambda: len(provider.requests) >= wanted or driver.poll() is not None)
    time.sleep(rng.uniform(0.0, 1.5 * SECONDS))
    return driver.poll() is None

"""Who is blamed when a program ends by a signal, or late: its idea, its host, or nobody yet."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.sandbox.docker_engine import HOST, require_docker
from tests.support.needs import require_bubblewrap
from tests.worker.conftest import Lab

ROOT = Path(__file__).parents[2]
ENDS_ITSELF = "import signal; time.sleep({seconds}); os.kill(os.getpid(), signal.{name})"


def blamed(end: dict[str, Any]) -> tuple[str, bool, bool]:
    """Code, whether the host is to blame, and whether it may be."""
    return end["failure"]["code"], end["infrastructure"], end["unclear"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_signal_that_nobody_explains_is_unclear(lab: Lab, name: str) -> None:
    lab.start()
    end = lab.api.finished(
        lab.submit(f"import os\n{ENDS_ITSELF.format(seconds=0, name=name)}"), 30
    )
    assert blamed(end) == ("crashed", False, True)


def test_a_crash_is_the_ideas_and_is_told_at_once(lab: Lab) -> None:
    lab.start()
    began = time.monotonic()
    end = lab.api.finished(lab.submit("import os\nos.abort()"))
    assert blamed(end) == ("crashed", False, False)
    assert time.monotonic() - began < 5
    assert blamed(lab.api.finished(lab.submit("raise KeyError(1)"))) == ("crashed", False, False)


def test_a_signal_before_the_workers_own_is_the_hosts(lab: Lab) -> None:
    """Slurm signals every process of a step: the training may hear of it first."""
    worker = lab.start()
    record = lab.submit(f"import os\nprint('on')\n{ENDS_ITSELF.format(seconds=0, name='SIGTERM')}")
    lab.api.wait(lambda: record.claims)
    time.sleep(1.5)
    worker.drain()
    assert blamed(lab.api.finished(record)) == ("worker_stopped", True, False)


def test_a_signal_while_the_worker_drains_is_the_hosts(lab: Lab) -> None:
    worker = lab.start()
    record = lab.submit(f"import os\n{ENDS_ITSELF.format(seconds=1.5, name='SIGTERM')}")
    lab.api.wait(lambda: record.claims)
    worker.drain()
    assert blamed(lab.api.finished(record)) == ("worker_stopped", True, False)


def test_a_crash_while_the_worker_drains_stays_the_ideas(lab: Lab) -> None:
    worker = lab.start()
    record = lab.submit("time.sleep(1.5)\nraise KeyError(1)")
    lab.api.wait(lambda: record.claims)
    worker.drain()
    assert blamed(lab.api.finished(record)) == ("crashed", False, False)


def test_a_predictor_that_dies_is_the_ideas_however_it_dies(lab: Lab) -> None:
    """Whether it is tried again would tell what it chose to die of after it had seen the data."""
    lab.start()
    model = "import os; os.kill(os.getpid(), 15)"
    end = lab.api.finished(lab.submit("answer(ask=True)", model=model), 30)
    assert blamed(end) == ("predictor_died", False, False)


def test_a_predictor_that_dies_with_its_worker_is_not_to_blame(lab: Lab) -> None:
    worker = lab.start()
    model = "import os, time; time.sleep(1.5); os.kill(os.getpid(), 15)"
    record = lab.submit("answer(ask=True)", model=model)
    lab.api.wait(lambda: record.claims)
    worker.drain()
    assert blamed(lab.api.finished(record, 30)) == ("worker_stopped", True, False)


def test_a_training_that_sleeps_is_the_ideas(lab: Lab) -> None:
    lab.start()
    end = lab.api.finished(lab.submit("time.sleep(60)", profile="short"), 30)
    assert blamed(end) == ("wall_budget_exceeded", False, False)


@contextlib.contextmanager
def worker_process(lab: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as a process of its own, in a session of its own."""
    settings = lab.settings | {"drain_seconds": 2}
    variables = {f"ASSAY_WORKER_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "services.worker"],
        env=variables | {"PATH": os.environ["PATH"]},
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def signal_all(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to a worker and to all that it has started, the youngest first."""
    everything = [*reversed(psutil.Process(process.pid).children(recursive=True))]
    for child in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "sandbox",
    [
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=pytest.mark.docker),
    ],
)
def test_sigterm_to_all_processes_of_a_worker_blames_no_idea(lab: Lab, sandbox: str) -> None:
    if sandbox == "docker":
        require_docker()
        lab.settings |= {"docker_host": HOST}
    else:
        require_bubblewrap()
    lab.settings["sandbox"] = sandbox
    found = []
    for _ in range(10):
        with worker_process(lab) as process:
            record = lab.submit("print('on', flush=True)\ntime.sleep(120)", profile="long")
            lab.api.wait(lambda record=record: b"on" in record.logs.get("train", b""), 60)
            signal_all(process)
            found.append(blamed(lab.api.finished(record, 60)))
            assert process.wait(60) == 0
    assert found == [("worker_stopped", True, False)] * 10

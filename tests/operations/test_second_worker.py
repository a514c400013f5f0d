"""A worker on another machine: the commands of docs/operations.md, and what they must not do."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from assay.client import Client
from services.implementer.context import Context
from tests.support.service import toy_batch, toy_ideas

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SECTION = PAGE.read_text().split("\n## A second worker\n")[1].split("\n## ")[0]
SERVE, ADMIT, WORKER, LIST = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)


class Shell:
    """Runs commands of the page in a folder, as a person would type them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []
        folder.mkdir()

    def _open(self, script: str, **variables: str) -> subprocess.Popen[str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")}
        assay = f'assay() {{ {shlex.quote(sys.executable)} -m assay.cli "$@"; }}\n'
        return subprocess.Popen(
            ["bash", "-ec", assay + script],
            cwd=self._folder,
            env=ours | {"COLUMNS": "200"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, script: str, **variables: str) -> dict[str, str]:
        """Start a process and return the line it prints when it is ready."""
        process = self._open(script, **variables)
        self._started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"it ended instead: {process.communicate()[1]}")
        ready: dict[str, str] = json.loads(line)
        assert ready["event"] == "ready"
        return ready

    def run(self, script: str, **variables: str) -> tuple[str, str]:
        """What a command prints, and what it says to people."""
        process = self._open(script, **variables)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out, err

    def close(self) -> None:
        """End what was started, with its children."""
        for process in reversed(self._started):
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[tuple[Shell, Shell]]:
    first, second = Shell(tmp_path / "first"), Shell(tmp_path / "second")
    yield first, second
    second.close()
    first.close()


def put(script: str, values: Mapping[str, str]) -> str:
    """A script of the page with values of this machine; each stands in it."""
    for shown, real in values.items():
        assert shown in script
        script = script.replace(shown, real)
    return script


@pytest.mark.slow
def test_a_second_worker_joins_as_the_page_says(
    shells: tuple[Shell, Shell], tmp_path: Path
) -> None:
    first, second = shells
    here = {"--host 0.0.0.0": "--host 127.0.0.1 --port 0 --sandbox subprocess"}
    api = first.start(put(SERVE, here), ASSAY_WORKER_PROBE="quick")["api"]
    out, _ = first.run(put(ADMIT, {"http://first:8000": api}))
    admitted = re.fullmatch(
        r"second may measure with ASSAY_WORKER_TOKEN=(asw_\S+), which is not shown again\n", out
    )
    assert admitted is not None, out
    key = (tmp_path / "first" / ".assay" / "held-out.key").read_text()
    values = {"http://first:8000": api, "asw_…": admitted[1], "4f1d…": key}
    own = {
        "ASSAY_WORKER_CACHE": str(tmp_path / "cache"),
        "ASSAY_WORKER_SANDBOX": "subprocess",
        "ASSAY_WORKER_PROBE": "quick",
    }
    assert second.start(put(WORKER, values), **own)["name"] == "second"
    access = {"ASSAY_API_URL": api, "ASSAY_API_KEY": "a-long-secret"}
    listed, said = first.run(LIST, **access)
    assert re.findall(r"^ (\w+) +active ", listed, re.MULTILINE) == ["local", "second"]
    assert "held-out" not in said
    with Client(api, api_key="a-long-secret") as client:
        batch = client.batches.create(toy_batch(toy_ideas(12), baseline_seeds=2))
        assert client.batches.wait(batch.id, timeout=180).counts.succeeded == 12
        names = {worker.id: worker.name for worker in client.workers.list()}
        measured = Counter(
            names[attempt.worker] for m in client.measurements.list() for attempt in m.attempts
        )
        assert set(measured) == {"local", "second"}, measured
        assert client.workers.drain("second", timeout=60).running == []
        assert client.workers.remove("second").state == "stopped"


def test_the_worker_of_the_service_cannot_be_shut_out(context: Context, api: TestClient) -> None:
    context.own_worker = "local"
    assert api.post("/v1/workers", json={"name": "second"}).status_code == 201
    assert api.post("/v1/workers/second/remove").status_code == 200
    context.own_worker = "second"
    answers = [
        api.post("/v1/workers", json={"name": "second"}),
        api.post("/v1/workers/second/remove"),
    ]
    assert [(a.status_code, a.json()["code"]) for a in answers] == [(409, "own_worker")] * 2

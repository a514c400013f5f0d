"""Fault 23: code that attacks the host it runs on. It fails; its neighbours do not notice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from assay.contracts.batch import IdeaRequest
from assay.storage import schema
from tests.support.faults.embedded import SETTINGS, EmbeddedService
from tests.support.faults.hosts.environment import TOY
from tests.support.processes import using
from tests.support.service import toy_batch, toy_ideas
from tests.support.warm_start import Spawn

pytestmark = pytest.mark.bubblewrap

HOSTILE = {
    "forks": "import os\nwhile True:\n    os.fork()",
    "floods": "while True:\n    print('x' * 4000)",
    "fills": "import os\nwith open(os.environ['ASSAY_OUT'] + '/big', 'wb') as f:\n"
    "    while True:\n        f.write(b'x' * (1 << 20))",
    "ignores": "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n    os.setsid()\n    os.fork()\nwhile True:\n    time.sleep(1)",
    "kills": "import os, signal\nfor pid in (1, -1):\n    os.kill(pid, signal.SIGKILL)",
    "claims": "import os, sys\nwith open(os.environ['ASSAY_OUT'] + '/answer.json', 'w') as f:\n"
    "    f.write('{\"score\": 1e9}')\nsys.exit(0)",
}


def _idea(name: str) -> IdeaRequest:
    return IdeaRequest(
        text=(
            f"[Experiment] {name}.\n[Code Changes]\nIn `search.py`:\n"
            f"<<<<<<< SEARCH\nSTEP = 0.6\n=======\nSTEP = 0.6\n{HOSTILE[name]}\n>>>>>>> REPLACE\n"
            "[End]"
        ),
        client_key=name,
    )


def _with_short_budgets(folder: Path) -> Path:
    shutil.copytree(TOY, folder / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    manifest = folder / "toy" / "environment.toml"
    text = manifest.read_text()
    assert "\nseconds = 20\n" in text
    manifest.write_text(text.replace("\nseconds = 20\n", "\nseconds = 4\n"))
    return folder


def test_23_hostile_code_is_contained(tmp_path: Path, warm_start: Spawn) -> None:
    folder = _with_short_budgets(tmp_path / "environments")
    env = SETTINGS | {"ASSAY_ENVIRONMENTS": str(folder), "ASSAY_WORKER_LOG_BYTES": "200000"}
    service = EmbeddedService(
        tmp_path / "data", sandbox="bubblewrap", cpus=4, env=env, spawn=warm_start
    )
    service.start()
    try:
        pid = service.pid
        honest = toy_ideas(3)
        batch = toy_batch([*map(_idea, HOSTILE), *honest])
        with service.client() as client:
            created = client.batches.create(batch).id
        service.finish(created)
        with service.client() as client:
            states = {
                one.idea.client_key: (one.state, one.failure)
                for one in client.experiments.list(batch=created)
            }
        assert service.running
        assert service.pid == pid
        service.sound()
    finally:
        service.stop()
    assert {states[idea.client_key][0] for idea in honest} == {"succeeded"}, states
    for name in HOSTILE:
        state, failure = states[name]
        if name == "kills" and state == "succeeded":
            continue  # it reached nobody, and went on
        assert state == "failed", (name, state)
        assert failure is not None
        assert not failure.retryable, (name, failure)
    # Of a program that ends by a signal nobody can tell at once who sent it.
    assert {a.number for a in service.attempts()} <= {0, 1}, "tried more than once again"
    with service.database() as db, db.read() as session:
        sizes = [len(row.data or b"") for row in session.query(schema.LogChunk)]
    assert sum(sizes) < 20 << 20
    assert using(tmp_path) == []

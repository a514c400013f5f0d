"""A worker that is killed and started again goes on with what its containers do."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox.docker.engine import Engine
from services.worker.gpus import lock_folder
from tests.sandbox.docker_engine import HOST, containers, require_docker
from tests.support.fake_worker_api import Record
from tests.worker.conftest import Lab

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[2]
SECOND_PROCESS = [sys.executable, "-m", "tests.worker.dying_worker"]

COUNT = """
n = 0
while not (out / "go").exists():
    print(n, flush=True)
    with open(out / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": n, "loss": n / 2}) + "\\n")
    time.sleep(0.05)
    n += 1
(out / "go").unlink()
print("end")
answer(score=1.5)
"""


def is_complete(record: Record) -> bool:
    """Whether no byte of the log and no point of the curve is missing or there twice."""
    *numbers, end = record.logs["train"].decode().splitlines()
    counted = list(range(len(numbers)))
    return end == "end" and [int(n) for n in numbers] == counted == sorted(record.points)


@dataclass
class Dock:
    """Workers as processes of their own, on one scratch folder and one engine."""

    lab: Lab
    engine: Engine
    processes: list["subprocess.Popen[bytes]"]

    def worker(self, *, point: str = "", **changes: Any) -> "subprocess.Popen[bytes]":
        """Start a worker; with a `point` it kills itself there."""
        self.lab.settings |= changes
        settings = {
            name: json.dumps(value) if isinstance(value, list) else str(value)
            for name, value in self.lab.settings.items()
        }
        variables = {f"ASSAY_WORKER_{name.upper()}": value for name, value in settings.items()}
        variables |= {"PATH": os.environ["PATH"], "KILL_POINT": point}
        command = SECOND_PROCESS if point else [sys.executable, "-m", "services.worker"]
        process = subprocess.Popen(command, env=variables, cwd=ROOT)
        self.processes.append(process)
        return process

    def kill_when(self, condition: Callable[[], object], **changes: Any) -> None:
        """A worker that is killed as soon as something holds."""
        process = self.worker(**changes)
        self.lab.api.wait(condition, 120)
        process.kill()
        process.wait()

    def go(self) -> None:
        """Let the training come to its end."""
        (self.lab.scratch / "attempts" / "att_1" / "writable" / "out" / "go").touch()

    def registered(self, count: int) -> None:
        """Wait for the registration of so many workers."""
        self.lab.api.wait(lambda: len(self.lab.api.registrations) == count, 120)

    def containers(self) -> list[str]:
        digest = hashlib.sha256(os.fsencode(self.lab.scratch)).hexdigest()
        return containers(self.engine, f"worker-{digest[:16]}")

    def adopted(self) -> list[dict[str, Any]]:
        return list(self.lab.api.registrations[-1]["adopted"])


@pytest.fixture
def dock(lab: Lab) -> Iterator[Dock]:
    engine = require_docker()
    lab.settings |= {
        "sandbox": "docker",
        "docker_host": HOST,
        "progress_seconds": 0.1,
        "name": f"bench-{uuid.uuid4().hex[:8]}",
        "drain_seconds": 0,
    }
    found = Dock(lab, engine, [])
    yield found
    for process in found.processes:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    for process in found.processes:
        assert process.wait(60) in (0, -signal.SIGTERM, -signal.SIGKILL)
    left = found.containers()
    for container in left:
        engine.remove(container)
    assert left == []
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(lab.scratch) not in mounts


def printed(record: Record, text: bytes) -> Callable[[], bool]:
    return lambda: text in record.logs.get("train", b"")


def test_a_training_is_adopted_as_if_nothing_had_happened(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"10\n"))
    assert len(dock.containers()) == 1
    dock.worker()
    dock.registered(2)
    dock.go()
    end = dock.lab.api.finished(record, 120)
    assert end["failure"] is None
    assert end["metrics"]["score"] == 1.5
    assert end["provenance"]["adoptions"] == 1
    assert end["provenance"]["train_seconds"] > 0.5
    first, second = dock.lab.api.registrations
    assert first["incarnation"] != second["incarnation"]
    assert first["adopted"] == []
    assert second["adopted"] == [{"attempt": "att_1", "lease_token": record.lease_token}]
    assert record.claims == 1
    assert is_complete(record)


WARM = """
data = pathlib.Path(os.environ["ASSAY_DATA"])
print("compiling", flush=True)
while not (out / "go").exists():
    time.sleep(0.05)
open(os.environ["ASSAY_ASK"], "x").close()
while not data.is_dir():
    time.sleep(0.01)
print("training", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("word", [b"compiling\n", b"training\n"])
def test_the_clock_of_a_training_goes_on_where_it_was_started(dock: Dock, word: bytes) -> None:
    """Whether its worker is killed before it asks for its data or after, it has its whole budget
    and no more."""
    record = dock.lab.submit(WARM, profile="warm")
    process = dock.worker()
    dock.lab.api.wait(printed(record, b"compiling\n"), 120)
    if word == b"training\n":
        dock.go()
    dock.lab.api.wait(printed(record, word), 120)
    process.kill()
    process.wait()
    dock.worker()
    dock.registered(2)
    if word != b"training\n":
        dock.go()
    end = dock.lab.api.finished(record, 120)
    assert end["failure"]["code"] == "wall_budget_exceeded"
    assert end["provenance"]["train_warm_up_seconds"] > 0
    assert 6 <= end["provenance"]["train_seconds"] < 60


def test_a_training_survives_many_deaths(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"5\n"))
    for _ in range(2):
        before = record.progress
        dock.kill_when(lambda before=before: record.progress > before + 3)
    dock.worker()
    dock.registered(4)
    dock.go()
    end = dock.lab.api.finished(record, 120)
    assert end["metrics"]["score"] == 1.5
    assert end["provenance"]["adoptions"] == 3
    assert is_complete(record)


def test_what_ended_while_nobody_watched_is_finished(dock: Dock) -> None:
    good = dock.lab.submit("print('.', flush=True)\ntime.sleep(0.5)\nanswer(score=2)")
    bad = dock.lab.submit("print('.', flush=True)\ntime.sleep(0.5)\nraise ValueError('mine')")
    dock.kill_when(
        lambda: printed(good, b".")() and printed(bad, b".")(), cpus=2, memory_bytes=1 << 31
    )
    records = list((dock.lab.scratch / "attempts").glob("att_*/keep/record"))
    assert len(records) == 2
    deadline = time.monotonic() + 120
    while any(len(r.read_bytes().splitlines()) < 2 for r in records):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    dock.worker()
    assert dock.lab.api.finished(good, 120)["metrics"]["score"] == 2
    failure = dock.lab.api.finished(bad, 120)["failure"]
    assert (failure["code"], failure["message"]) == ("crashed", "ValueError: mine")


def test_an_attempt_that_was_being_scored_is_scored_again(dock: Dock) -> None:
    record = dock.lab.submit("answer(score=3, sleep=2)", profile="long")
    dock.kill_when(lambda: "finalizing" in record.states)
    dock.worker()
    end = dock.lab.api.finished(record, 120)
    assert end["metrics"]["score"] == 3
    assert end["started"] is True


@pytest.mark.parametrize(
    "point",
    ["prepared", "created", "started", "ordered", "trained", "scored", "uploaded", "finished"],
)
def test_a_death_anywhere_leaves_one_result(dock: Dock, point: str) -> None:
    weight = "(out / 'weights').write_bytes(os.urandom(200_000))\n"  # so that there is an upload
    codebase = dock.lab.codebase(f"print('once', flush=True)\n{weight}answer(ask=True)")
    record = dock.lab.assign(codebase, "long", rescore={"beyond": None})
    assert dock.worker(point=point).wait(120) == -signal.SIGKILL
    dock.worker()
    dock.registered(2)
    end = dock.lab.api.finished(record, 120)
    assert end["metrics"]["score"] == 2
    assert end["rescore"]["metrics"] == end["metrics"]  # what was scored twice stays so
    assert end["rescore"]["seconds"] > 0
    assert {f["state"] for f in record.finishes} == {"succeeded"}
    assert record.logs["train"] == b"once\n"  # trained once
    assert set(record.uploads) == {"artifact.zip"}


def test_a_fenced_attempt_is_removed_with_its_container(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"))
    with dock.lab.api.changed:
        dock.lab.api.fenced.add("att_1")
    dock.worker()
    dock.registered(2)
    dock.lab.api.wait(lambda: dock.lab.api.syncs[-1]["held"] == [], 120)
    assert dock.containers() == []
    assert dock.lab.workspaces() == []
    assert record.finishes == []


def test_an_adopted_attempt_can_be_cancelled(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"))
    with dock.lab.api.changed:
        dock.lab.api.stop.add("att_1")
    dock.worker()
    assert dock.lab.api.finished(record, 120)["state"] == "cancelled"


def test_budgets_go_on_while_no_worker_lives(dock: Dock) -> None:
    hang = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('.', flush=True)\n"
    record = dock.lab.submit(f"{hang}time.sleep(600)", profile="brief")
    dock.kill_when(printed(record, b"."), grace_seconds=0.5)
    [note] = (dock.lab.scratch / "attempts").glob("att_*/keep/record")
    deadline = time.monotonic() + 120
    while len(note.read_bytes().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    dock.worker()
    assert dock.lab.api.finished(record, 120)["failure"]["code"] == "wall_budget_exceeded"


def test_checkpoints_keep_the_times_at_which_they_were_seen(dock: Dock) -> None:
    train = """
def leave(name):
    new = out / "new"
    new.mkdir()
    (new / "value").write_text(name)
    (out / "checkpoints").mkdir(exist_ok=True)
    new.rename(out / "checkpoints" / name)
    print(name, flush=True)
leave("1")
time.sleep(4)
leave("2")
answer(checkpoints=True)
"""
    record = dock.lab.submit(train, profile="long")
    [journal] = [dock.lab.scratch / "attempts" / "att_1" / "journal.json"]

    def seen() -> bool:
        return journal.exists() and '"name":"1"' in journal.read_text()

    process = dock.worker()
    deadline = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    known = json.loads(journal.read_text())["checkpoints"]
    dock.worker()
    metrics = dock.lab.api.finished(record, 120)["metrics"]
    assert metrics["seconds/1"] == known[0]["seconds"]
    assert metrics["seconds/2"] > known[0]["seconds"] + 1


def test_without_adoption_containers_die_with_their_worker(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"), adopt=False)
    assert not list((dock.lab.scratch / "attempts").glob("att_*/journal.json"))
    dock.worker()
    dock.registered(2)
    assert dock.adopted() == []
    assert dock.lab.workspaces() == []


def test_adoption_that_was_switched_off_removes_what_was_kept(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"))
    dock.worker(adopt=False)
    dock.registered(2)
    assert dock.adopted() == []
    assert dock.containers() == []
    assert dock.lab.workspaces() == []


def test_a_drain_waits_for_what_was_adopted(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"))
    process = dock.worker(drain_seconds=60)
    dock.registered(2)
    process.terminate()
    dock.lab.api.wait(lambda: dock.lab.api.syncs[-1]["draining"], 120)
    dock.go()
    assert process.wait(120) == 0
    assert record.end is not None
    assert record.end["metrics"]["score"] == 1.5


def test_the_second_signal_ends_what_was_adopted(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"))
    process = dock.worker(drain_seconds=60)
    dock.registered(2)
    process.terminate()
    dock.lab.api.wait(lambda: dock.lab.api.syncs[-1]["draining"], 120)
    process.terminate()
    assert process.wait(120) == 0
    assert record.end is not None
    assert record.end["failure"]["code"] == "worker_stopped"


def test_an_attempt_whose_gpus_are_not_offered_any_more_is_given_back(dock: Dock) -> None:
    gpu = f"GPU-{uuid.uuid4()}"
    lost = dock.lab.assign(dock.lab.codebase(COUNT), "long", gpus=0)
    dock.kill_when(printed(lost, b"3\n"), gpus=[gpu])
    journal = dock.lab.scratch / "attempts" / "att_1" / "journal.json"
    notes = json.loads(journal.read_text()) | {"devices": ["GPU-gone"]}
    journal.write_text(json.dumps(notes))
    dock.worker()
    end = dock.lab.api.finished(lost, 120)
    assert (end["infrastructure"], end["failure"]["code"]) == (True, "gpu_unavailable")
    assert dock.containers() == []
    assert dock.lab.workspaces() == []
    (lock_folder() / f"assay-gpu-{gpu}.lock").unlink(missing_ok=True)


def test_an_api_that_is_away_does_not_stop_an_adopted_training(dock: Dock) -> None:
    record = dock.lab.submit(COUNT, profile="long")
    dock.kill_when(printed(record, b"3\n"))
    dock.lab.api.intercept = lambda method, path: "drop"
    process = dock.worker()
    dock.go()
    [note] = (dock.lab.scratch / "attempts").glob("att_*/journal.json")
    deadline = time.monotonic() + 120
    while '"phase":"scored"' not in note.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert process.poll() is None
    dock.lab.api.intercept = lambda method, path: None
    assert dock.lab.api.finished(record, 120)["metrics"]["score"] == 1.5
    assert is_complete(record)


STEPS = """
with open(out / "metrics.jsonl", "w") as file:
    file.write('{"step": 0, "loss": 2}\\n{"step": 1, "loss": 1}\\n')
"""


def is_smoke_that_passed(end: dict[str, Any], dock: Dock) -> bool:
    nothing = (None, {}, [], [], [])
    found = (end["failure"], end["metrics"], end["artifacts"])
    return (*found, dock.containers(), dock.lab.workspaces()) == nothing


def smoke(dock: Dock, train: str, profile: str = "long") -> Record:
    return dock.lab.assign(dock.lab.codebase(train), profile, kind="smoke")


def test_a_smoke_is_adopted(dock: Dock) -> None:
    wait = "print('.', flush=True)\nwhile not (out / 'go').exists(): time.sleep(0.05)\n"
    record = smoke(dock, f"{wait}{STEPS}time.sleep(600)")
    dock.kill_when(printed(record, b"."))
    dock.go()
    dock.worker()
    end = dock.lab.api.finished(record, 120)
    assert end["provenance"]["passed"] in ("stepped", "alive")  # the start takes seconds, too
    dock.lab.api.wait(lambda: dock.lab.api.syncs[-1]["held"] == [], 120)
    assert is_smoke_that_passed(end, dock)


def test_a_smoke_whose_time_ended_while_no_worker_lived_has_passed(dock: Dock) -> None:
    record = smoke(dock, "print('.', flush=True)\ntime.sleep(600)", "brief")
    dock.kill_when(printed(record, b"."))
    [note] = (dock.lab.scratch / "attempts").glob("att_*/keep/record")
    deadline = time.monotonic() + 120
    while len(note.read_bytes().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    dock.worker()
    end = dock.lab.api.finished(record, 120)
    assert end["provenance"]["passed"] == "alive"


@pytest.mark.parametrize("point", ["prepared", "ordered", "trained", "finished"])
def test_a_death_anywhere_leaves_one_end_of_a_smoke(dock: Dock, point: str) -> None:
    """It dies in `trained` after the smoke has passed and before it is ended."""
    record = smoke(dock, f"{STEPS}time.sleep(600)")
    assert dock.worker(point=point).wait(120) == -signal.SIGKILL
    dock.worker()
    dock.registered(2)
    end = dock.lab.api.finished(record, 120)
    assert {f["state"] for f in record.finishes} == {"succeeded"}
    dock.lab.api.wait(lambda: dock.lab.api.syncs[-1]["held"] == [], 120)
    assert is_smoke_that_passed(end, dock)

"""Programs in containers that outlive the process which started them, and are taken over."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Exit, Handle, SandboxError, SandboxSettings, open_sandbox
from assay.sandbox.docker.engine import Engine
from assay.sandbox.interface import Keep, Limits, Mount, SandboxSpec
from tests.sandbox.docker_engine import HOST, containers, require_docker
from tests.sandbox.kept_program import spec_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.docker

STARTER = [sys.executable, "-m", "tests.sandbox.kept_program"]
ROOT = Path(__file__).parents[2]


@dataclass
class Stage:
    """A folder, a scope, and processes that start a program there."""

    settings: SandboxSettings
    folder: Path
    engine: Engine
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def spec(self, code: str, **changes: Any) -> SandboxSpec:
        return spec_of(self.folder, sys.executable, code, **changes)

    def started(self, code: str, *, point: str = "", **changes: Any) -> "subprocess.Popen[bytes]":
        """Start a program in a process of its own that only waits for it; with a `point`, the
        process kills itself there."""
        order = {
            "scratch": str(self.settings.scratch),
            "scope": self.settings.scope,
            "host": HOST,
            "folder": str(self.folder),
            "code": code,
            "changes": changes,
            "point": point,
        }
        process = subprocess.Popen([*STARTER, json.dumps(order)], cwd=ROOT)
        self.processes.append(process)
        return process

    def orphan(self, code: str, printed: str, **changes: Any) -> None:
        """A program that has printed something and whose starter was killed."""
        process = self.started(code, **changes)
        wait_until(lambda: printed in self.text())
        process.kill()
        process.wait()

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def adopt(self, code: str, **changes: Any) -> Handle | None:
        return open_sandbox(self.settings).adopt(self.spec(code, **changes))

    def ended(self, code: str, **changes: Any) -> Exit:
        handle = self.adopt(code, **changes)
        assert handle is not None
        return handle.wait()

    def containers(self) -> list[str]:
        return containers(self.engine, self.settings.scope)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    engine = require_docker()
    folder = tmp_path / "kept"
    for name in ("keep", "job"):
        (folder / name).mkdir(parents=True)
    settings = SandboxSettings(
        "docker",
        grace_seconds=0.5,
        scratch=tmp_path / "scratch",
        docker_host=HOST,
        scope=f"adopt-{os.getpid()}-{time.time_ns()}",
    )
    found = Stage(settings, folder, engine)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()
    left = found.containers()
    for container in left:
        engine.remove(container)
    assert left == []


COUNT = """
import os, time
for n in range(60):
    print(n, flush=True)
    time.sleep(0.05)
open("/job/result", "w").write(str(os.getpid()))
"""


def test_a_program_goes_on_and_is_adopted(stage: Stage) -> None:
    stage.orphan(COUNT, "3\n")
    handle = stage.adopt(COUNT)
    assert handle is not None
    assert handle.pid > 0
    assert handle.gauges()["processes"] >= 2
    end = handle.wait()
    assert (end.reason, end.code) == ("exited", 0)
    # It slept for so long, part of it before it was adopted.
    assert end.wall_seconds >= 60 * 0.05
    assert 0 < end.cpu_seconds < 5
    assert (end.peak_memory_bytes or 0) > 1 << 20
    assert stage.text() == "".join(f"{n}\n" for n in range(60))
    result = stage.folder / "job" / "result"
    assert result.stat().st_uid == os.geteuid()  # it is ours again


def test_a_program_is_adopted_again_and_again(stage: Stage) -> None:
    stage.orphan(COUNT, "3\n")
    for number in (8, 16, 24):
        process = stage.started(COUNT, adopt=True)
        wait_until(lambda number=number: f"{number}\n" in stage.text())
        process.kill()
        process.wait()
    assert stage.ended(COUNT).code == 0
    assert stage.text() == "".join(f"{n}\n" for n in range(60))


def test_what_ended_meanwhile_tells_how(stage: Stage) -> None:
    code = "import sys, time\nprint('.', flush=True)\ntime.sleep(0.5)\nsys.exit(7)"
    stage.orphan(code, ".")
    wait_until(lambda: len(record(stage)) == 2)
    end = stage.ended(code)
    assert (end.reason, end.code) == ("exited", 7)


def record(stage: Stage) -> list[bytes]:
    path = stage.folder / "keep" / "record"
    return path.read_bytes().splitlines() if path.exists() else []


def test_the_record_tells_when_the_container_is_gone(stage: Stage) -> None:
    code = "import sys, time\nprint('.', flush=True)\ntime.sleep(0.3)\nsys.exit(7)"
    stage.orphan(code, ".")
    wait_until(lambda: len(record(stage)) == 2)
    for container in stage.containers():
        stage.engine.remove(container)
    end = stage.ended(code)
    assert (end.reason, end.code) == ("exited", 7)
    assert 0.2 < end.wall_seconds < 10


HANG = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.fork()
print(sys.argv, flush=True)
while True:
    time.sleep(1)
"""


def test_the_budget_holds_without_a_worker(
    stage: Stage, host_processes: Callable[[str], list[int]]
) -> None:
    mark = f"# {time.time_ns()}"
    stage.orphan(HANG + mark, "[", wall=1.0)
    wait_until(lambda: len(record(stage)) == 2)
    assert [p for p in host_processes(mark) if str(p) not in starters(stage)] == []
    end = stage.ended(HANG + mark, wall=1.0)
    assert (end.reason, end.code) == ("wall", -signal.SIGKILL)


def starters(stage: Stage) -> set[str]:
    return {str(process.pid) for process in stage.processes}


def test_the_budget_holds_for_an_adopted_program(stage: Stage) -> None:
    stage.orphan(HANG, "[", wall=3.0)
    end = stage.ended(HANG, wall=3.0)
    assert end.reason == "wall"
    assert 2.9 < end.wall_seconds < 20  # from its start, not from the adoption


def test_adopted_programs_are_cancelled_and_killed(stage: Stage) -> None:
    stage.orphan(HANG, "[")
    handle = stage.adopt(HANG)
    assert handle is not None
    cancel = threading.Event()
    cancel.set()
    assert handle.wait(cancel).reason == "cancelled"
    handle.kill()


def test_memory_of_an_adopted_program(stage: Stage) -> None:
    code = """
import time
print(".", flush=True)
while not __import__("os").path.exists("/job/go"): time.sleep(0.01)
x = b"x" * (1 << 30)
"""
    stage.orphan(code, ".")
    handle = stage.adopt(code)
    assert handle is not None
    (stage.folder / "job" / "go").touch()
    assert handle.wait().reason == "memory"


def test_memory_that_ran_out_while_nobody_watched(stage: Stage) -> None:
    code = """
import time
print(".", flush=True)
while not __import__("os").path.exists("/job/go"): time.sleep(0.01)
x = b"x" * (1 << 30)
"""
    stage.orphan(code, ".")
    (stage.folder / "job" / "go").touch()
    wait_until(lambda: len(record(stage)) == 2)
    assert stage.ended(code).reason == "memory"


def test_output_is_bounded_and_complete(stage: Stage) -> None:
    code = """
import os, sys
for n in range(40000):
    os.write(1 + n % 2, b"%07d\\n" % n)
"""
    changes = {"most": 100_000, "tail": 4_000}
    stage.orphan(code, "0000009\n", **changes)
    assert stage.ended(code, **changes).code == 0
    everything = b"".join(b"%07d\n" % n for n in range(40000))
    marker = b"\n[... %d bytes left out ...]\n" % (len(everything) - 104_000)
    assert stage.output.read_bytes() == everything[:100_000] + marker + everything[-4_000:]


def test_nothing_of_the_keeper_reaches_the_program(stage: Stage) -> None:
    code = """
import os, socket
print([n for n in range(1024) if os.path.exists(f"/proc/self/fd/{n}") and n != 3])
for path in ("/proc/1/fd", "/proc/1/fd/5", "/.assay"):
    try:
        print(os.listdir(path) if path.endswith("fd") else open(path, "r+b"))
    except OSError as error:
        print(error.errno)
print([line.split()[4] for line in open("/proc/self/mountinfo") if "kept/keep" in line])
"""
    handle = open_sandbox(stage.settings).start(stage.spec(code))
    assert handle.wait().code == 0
    assert stage.text().splitlines()[0] == "[0, 1, 2]"
    assert stage.text().splitlines()[1:3] == ["13", "13"]
    assert stage.text().splitlines()[-1] == "[]"


def test_descriptors_are_held_as_long_as_it_runs(stage: Stage) -> None:
    import fcntl

    lock = stage.folder / "lock"
    stage.orphan(COUNT, "1\n", lock=str(lock))
    with lock.open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        handle = stage.adopt(COUNT)
        assert handle is not None
        handle.kill()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("point", ["created", "started", "accepted", "noted", "listening"])
def test_a_death_before_the_order_starts_nothing(stage: Stage, point: str) -> None:
    """Between create and start, start and handshake, handshake and order."""
    assert stage.started(COUNT, point=point).wait(60) == -signal.SIGKILL
    assert len(stage.containers()) == 1
    assert stage.adopt(COUNT) is None
    assert stage.containers() == []
    assert stage.text() == ""
    handle = open_sandbox(stage.settings).start(stage.spec("print('now')"))
    assert handle.wait().code == 0
    assert stage.text() == "now\n"


def test_a_death_right_after_the_order_leaves_one_program(stage: Stage) -> None:
    assert stage.started(COUNT, point="ordered").wait(60) == -signal.SIGKILL
    assert stage.ended(COUNT).code == 0
    assert stage.text() == "".join(f"{n}\n" for n in range(60))


def test_a_second_container_of_a_name_replaces_the_first(stage: Stage) -> None:
    assert stage.started(COUNT, point="created").wait(60) == -signal.SIGKILL
    first = stage.containers()
    handle = open_sandbox(stage.settings).start(stage.spec("print('second')"))
    assert handle.wait().code == 0
    assert first
    assert stage.containers() == []
    assert stage.text() == "second\n"


def test_a_container_ended_from_outside_is_nobodys_result(stage: Stage) -> None:
    stage.orphan(COUNT, "1\n")
    for container in stage.containers():
        stage.engine.kill(container)
    with pytest.raises(SandboxError, match="while no worker watched"):
        stage.adopt(COUNT)
    assert stage.containers() == []


def test_kept_containers_are_not_reaped_before_their_deadline(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.sandbox.docker.backend import DockerSandbox

    stage.orphan(COUNT, "1\n", wall=60.0)
    sandbox = DockerSandbox(stage.settings)
    assert sandbox.reap() == 0
    assert sandbox.remove_kept({"program"}) == 0
    late = time.monotonic() + 61 + 3600
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: late)
        assert sandbox.reap() == 1
    assert stage.containers() == []


def test_kept_containers_nobody_wants_are_removed(stage: Stage) -> None:
    from assay.sandbox.docker.backend import DockerSandbox

    stage.orphan(COUNT, "1\n")
    assert DockerSandbox(stage.settings).remove_kept(()) == 1
    assert stage.containers() == []


def test_labels_tell_what_it_is(stage: Stage) -> None:
    stage.orphan(COUNT, "1\n")
    [container] = stage.containers()
    shown = stage.engine.client.inspect_container(container)
    assert shown["Name"] == f"/assay-{stage.settings.scope}-program"
    assert shown["Config"]["Labels"]["assay.lease_token"] == "41"
    assert stage.ended(COUNT).code == 0


def test_only_kept_programs_are_adopted(stage: Stage) -> None:
    plain = SandboxSpec("t", ("x",), {}, (), "/", Limits(1, 1 << 20))
    with pytest.raises(ValueError, match="kept"):
        open_sandbox(stage.settings).adopt(plain)


def test_other_backends_adopt_nothing(tmp_path: Path) -> None:
    for name in ("bubblewrap", "subprocess"):
        assert open_sandbox(SandboxSettings(name, scratch=tmp_path)).adopts is False


def test_a_spec_is_the_same_for_both_processes(stage: Stage) -> None:
    spec = stage.spec(COUNT)
    assert spec.keep == Keep(
        stage.folder / "keep", stage.output, 1 << 20, 4096, {"assay.lease_token": "41"}
    )
    assert spec.mounts == (Mount(stage.folder / "job", "/job", writable=True),)

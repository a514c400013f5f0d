"""The end comes in time and for everybody: the deadline, a cancellation, a worker that dies."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.sandbox import Mount, choose_sandbox
from tests.attacks.arena import Arena, eventually_gone, host_processes
from tests.attacks.conftest import ENGINE

pytestmark = pytest.mark.slow

#: Seconds in which an end has come also on a busy machine. Left alone, the programs here go on for
#: a minute at least.
SOON = 20.0

STUBBORN = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_a11_ignoring_signals(arena: Arena) -> None:
    ended = arena.start(STUBBORN, wall=2).wait()  # time to shut its ears, also on a busy machine
    assert ended.reason == "wall"
    assert ended.exit.code == -signal.SIGKILL
    assert ended.seconds < 2 + 0.5 + 2
    polite = arena.run("control('runs', lambda: True)\nreport()\ntime.sleep(30)", wall=2)
    assert (polite.reason, polite.exit.code) == ("wall", -signal.SIGTERM)


BUSY = {
    "stops itself": "os.kill(os.getpid(), 19)",
    "stops everybody": "os.fork(); os.kill(-1, 19); os.kill(os.getpid(), 19)",
    "handler loops": "import signal\nsignal.signal(15, lambda *_: [None for _ in iter(int, 1)])\n"
    "while True: time.sleep(1)",
    "closed streams": "[os.close(number) for number in range(3)]\nwhile True: time.sleep(1)",
    "new session": "os.fork() and os._exit(0)\nos.setsid()\nwhile True: time.sleep(1)",
}


@pytest.mark.parametrize("how", BUSY)
def test_a38_ways_not_to_end(arena: Arena, how: str) -> None:
    cancel = threading.Event()
    mark = secrets.token_hex(8)
    running = arena.start(f"print('ready', '{mark}', flush=True)\n{BUSY[how]}", wall=20)
    running.printed("ready")
    assert how == "new session" or host_processes(mark) != []
    cancel.set()
    ended = running.wait(cancel)
    assert ended.seconds < 4
    assert ended.reason in {"cancelled", "exited"}  # a program that leaves has ended
    assert eventually_gone(mark, SOON)


DAEMON = """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            STUBBORN_PART
            while True:
                with open(GIVEN["job"] + "/written", "a") as file:
                    file.write("x")
                time.sleep(0.002)
        os._exit(0)
control("wrote", lambda: wait_for(lambda: os.path.exists(GIVEN["job"] + "/written")))
print("ready", flush=True)
"""


@pytest.mark.parametrize("how", ["cancel", "kill", "exit"])
def test_a12_daemons(arena: Arena, workspace: Mount, how: str) -> None:
    mark = f"# {secrets.token_hex(8)}\n"
    ignore = "__import__('signal').pthread_sigmask(0, {10, 12, 15, 1, 2})"
    script = mark + DAEMON.replace("STUBBORN_PART", ignore)
    script += "" if how == "exit" else "time.sleep(60)\n"
    given = {"job": arena.sandbox.path(workspace)}
    running = arena.start(script, given=given, mounts=(workspace,))
    running.printed("ready")
    written = workspace.source / "written"
    while how != "exit" and not (written.exists() and written.stat().st_size):
        time.sleep(0.01)  # the daemon is at work
    cancel = threading.Event()
    if how == "cancel":
        cancel.set()
    if how == "kill":
        running.handle.kill()
    since = time.monotonic()
    ended = running.wait(cancel)
    assert ended.reason == ("exited" if how == "exit" else "cancelled")
    assert time.monotonic() - since < SOON
    size = written.stat().st_size
    assert size > 0
    time.sleep(0.1)
    assert written.stat().st_size == size
    assert host_processes(mark.strip()) == []


def test_a41_two_hundred_processes_die_at_once(arena: Arena) -> None:
    script = """
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        __import__("signal").pthread_sigmask(0, {10, 12, 15, 1, 2})
        while True:
            time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""
    mark = secrets.token_hex(8)
    running = arena.start(f"# {mark}\n{script}", processes=256)
    running.printed("ready")
    assert len(host_processes(mark)) >= 200
    since = time.monotonic()
    running.handle.kill()
    assert time.monotonic() - since < SOON
    assert host_processes(mark) == []
    assert running.wait().reason == "cancelled"


def test_a42_a_chain_of_forks_cannot_run_away(arena: Arena) -> None:
    """Parents that end at once move faster than anybody who kills by process id."""
    script = """
def chain():
    os.setsid()
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
for _ in range(8):
    try:
        if os.fork() == 0:
            chain()
    except OSError:
        pass  # the chains before have reached the limit
print("ready", flush=True)
time.sleep(60)
"""
    mark = secrets.token_hex(8)
    running = arena.start(f"# {mark}\n{script}", processes=64)
    running.printed("ready")
    since = time.monotonic()
    running.handle.kill()
    assert time.monotonic() - since < SOON
    assert eventually_gone(mark, SOON)


WORKER = """
import sys, time
from pathlib import Path
from assay.sandbox import Limits, Mount, SandboxSettings, SandboxSpec, open_sandbox
name, engine, scratch, scope, folder, code = sys.argv[1:]
settings = SandboxSettings(name, scratch=Path(scratch), scope=scope,
                           docker_host=engine if name == "docker" else None)
sandbox = open_sandbox(settings)
mount = Mount(Path(folder), "/job", writable=True)
sandbox.start(SandboxSpec("a18", (sandbox.python, "-I", "-S", "-c", code), {}, (mount,), "/",
                          Limits(60, 1 << 29))).wait()
"""
ORPHAN = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
while True:
    with open("/job/written", "a") as file:
        file.write("x")
    time.sleep(0.01)
"""


def test_a18_the_worker_is_killed(arena: Arena, workspace: Mount, tmp_path: Path) -> None:
    mark, scope = secrets.token_hex(8), f"attacks-a18-{os.getpid()}"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    arguments = [arena.name, ENGINE, str(scratch), scope, str(workspace.source)]
    command = [sys.executable, "-c", WORKER, *arguments, f"# {mark}\n{ORPHAN}"]
    written = workspace.source / "written"
    with subprocess.Popen(command) as worker:
        deadline = time.monotonic() + 15
        while not (written.exists() and written.stat().st_size > 3):
            assert time.monotonic() < deadline
            assert worker.poll() is None
            time.sleep(0.01)
        worker.kill()
    # Found again by whoever starts next; under both backends the program has ended before.
    assert eventually_gone(mark, SOON)
    size = written.stat().st_size
    if arena.name == "docker":
        choose_sandbox("docker", scratch, docker_host=ENGINE, scope=scope)
    else:
        choose_sandbox("bubblewrap", scratch)
    time.sleep(0.1)
    assert written.stat().st_size == size
    assert host_processes(mark) == []


@pytest.mark.parametrize("milliseconds", [3, 10, 18, 30])
def test_a39_the_worker_is_killed_during_a_start(
    arena: Arena, workspace: Mount, tmp_path: Path, milliseconds: int
) -> None:
    """A program that was being started when its worker died must not live on unwatched."""
    mark, scope = secrets.token_hex(8), f"attacks-a39-{os.getpid()}"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    delay = milliseconds / 1000 * (10 if arena.name == "docker" else 1)
    suicide = (
        "import os, signal, subprocess, threading, time\n"
        f"threading.Timer({delay}, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
    )
    source = WORKER.replace("sandbox.start(", f"{suicide}sandbox.start(", 1)
    source = source.replace(
        "sandbox = open_sandbox(settings)", "sandbox = open_sandbox(settings)\nsandbox.facts"
    )
    arguments = [arena.name, ENGINE, str(scratch), scope, str(workspace.source)]
    command = [sys.executable, "-c", source, *arguments, f"# {mark}\n{ORPHAN}"]
    assert subprocess.run(command, timeout=20).returncode == -signal.SIGKILL
    if arena.name == "docker":
        time.sleep(0.3)  # the engine may still be at it
        choose_sandbox("docker", scratch, docker_host=ENGINE, scope=scope)
    else:
        choose_sandbox("bubblewrap", scratch)
    assert eventually_gone(mark, SOON)


def test_a12_subprocess_lets_through(plain: Arena, tmp_path: Path) -> None:
    """Without control groups a daemon that clears its environment survives; see `docs`."""
    from assay.sandbox.cgroups import ControlGroups, Hierarchies
    from assay.sandbox.plain import PlainSandbox
    from tests.attacks.conftest import settings_of

    bare = PlainSandbox(settings_of("subprocess", tmp_path), ControlGroups(Hierarchies()))
    folder = tmp_path / "bare"
    folder.mkdir()
    seconds = f"30.{secrets.randbelow(10**9):09d}"
    script = f"""
import pathlib
wanted = b"sleep\\x00{seconds}\\x00"
def runs():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            pass
    return False
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{seconds}"], {{}})
    os._exit(0)
while not runs():  # before it was replaced it has the token in its environment
    time.sleep(0.01)
control("runs", lambda: True)
"""
    Arena(bare, folder).attack(script)
    left = host_processes(seconds)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == 1

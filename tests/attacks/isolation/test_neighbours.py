"""Two sandboxes at the same time, and the host's own processes."""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.sandbox import Mount
from tests.attacks.arena import Arena, Ended, Running, host_processes

VICTIM = """
import threading
secret = GIVEN["secret"]
for path in ("/tmp/secret", "/dev/shm/secret", GIVEN["job"] + "/secret"):
    write(path, secret.encode())
    os.chmod(path, 0o666)
server = socket.create_server(("127.0.0.1", GIVEN["port"]))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0" + GIVEN["abstract"])
abstract.listen()
named = socket.socket(socket.AF_UNIX)
named.bind("/tmp/named")
named.listen()
control("own file", holds, "/tmp/secret", secret)
control("own port", connect, socket.AF_INET, ("127.0.0.1", GIVEN["port"]))
control("own abstract socket", connect, socket.AF_UNIX, "\\0" + GIVEN["abstract"])
print("ready", flush=True)
control("left alone", lambda: wait_for(lambda: os.path.exists(GIVEN["job"] + "/done"), 15))
for path in ("/tmp/secret", "/dev/shm/secret", GIVEN["job"] + "/secret"):
    control(f"unchanged {path}", lambda: read(path) == secret.encode())
"""
ATTACKER = """
import glob
secret = GIVEN["secret"]
for path in ("/tmp/secret", "/dev/shm/secret", "/job/secret", "/proc/1/root/tmp/secret",
             GIVEN["workspace"] + "/secret", GIVEN["job"] + "/../workspace/secret",
             *(f"{name}/root/tmp/secret" for name in glob.glob("/proc/[0-9]*"))):
    attack(f"read {path}", holds, path, secret)
    attack(f"changed {path}", lambda: opens(path, os.O_WRONLY))
attack("listed", lambda: os.listdir(os.path.dirname(GIVEN["workspace"])) != [])
attack("port", connect, socket.AF_INET, ("127.0.0.1", GIVEN["port"]))
attack("abstract socket", connect, socket.AF_UNIX, "\\0" + GIVEN["abstract"])
attack("named socket", connect, socket.AF_UNIX, "/tmp/named")
for pid in processes():
    for name in ("cmdline", "environ", "maps"):
        if int(pid) not in (os.getpid(), 1):
            attack(f"{name} of {pid}", holds, f"/proc/{pid}/{name}", GIVEN["mark"])
for pid in {GIVEN["victim"], GIVEN["bystander"], GIVEN["worker"]}:
    for number in (0, 15, 9):
        attack(f"signal {number} to {pid}", lambda: pid != os.getpid() and os.kill(pid, number))
    attack(f"group {pid}", lambda: os.killpg(pid, 9) if pid != os.getpgid(0) else False)
    attack(f"priority of {pid}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attack(f"priority of group {pid}", lambda: os.setpriority(os.PRIO_PGRP, pid, 19))
    attack(f"affinity of {pid}", lambda: os.sched_setaffinity(pid, {0}))
    attack(f"descriptor of {pid}", lambda: os.pidfd_open(pid))
facts["uid"], facts["processes"] = os.getuid(), len(processes())
control("signal to itself", os.kill, os.getpid(), 0)
control("own child", succeeds_in_child, lambda: True)
control("own file", write, "/tmp/secret")
"""


@dataclass(frozen=True)
class Victim:
    """A program in a sandbox of its own, with secrets, and one of the host beside it."""

    running: Running
    given: dict[str, object]
    workspace: Path

    def finish(self) -> Ended:
        """Let it look whether everything is as it was, and end."""
        (self.workspace / "done").touch()
        return self.running.wait()


@pytest.fixture
def victim(arena: Arena, tmp_path: Path) -> Iterator[Victim]:
    folder = tmp_path / "workspace"
    folder.mkdir()
    job = Mount(folder, "/job", writable=True)
    mark = secrets.token_hex(12)
    given: dict[str, object] = {
        "secret": secrets.token_hex(16),
        "port": 20000 + secrets.randbelow(10000),
        "abstract": f"assay-attack-{mark}",
        "job": arena.sandbox.path(job),
        "workspace": str(folder),
        "mark": mark,
        "worker": os.getpid(),
    }
    with subprocess.Popen(["/bin/sleep", f"60.{int(mark[:6], 16)}"]) as bystander:
        running = arena.start(VICTIM, given=given, mounts=(job,), env={"MARK": mark})
        try:
            running.printed("ready")
            given |= {"victim": running.handle.pid, "bystander": bystander.pid}
            yield Victim(running, given, folder)
            assert bystander.poll() is None
        finally:
            running.handle.kill()
            bystander.kill()


def test_a05_neighbours_are_out_of_reach(arena: Arena, victim: Victim, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    given = {**victim.given, "job": "/own"}
    job = Mount(own, "/own", writable=True)
    ended = arena.repels(ATTACKER, given=given, mounts=(job,))
    assert ended.facts["processes"] <= 4
    finished = victim.finish()
    assert finished.broken == {}
    assert len(finished.controls) == 7


def test_a31_signals_to_everybody(arena: Arena, victim: Victim) -> None:
    """Whatever a signal to all kills, it is the attacker's own."""
    script = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(10)
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
    for target in (1, -1):
        if (target, number) != (-1, signal.SIGKILL):
            errno_of(os.kill, target, number)
control("still there", lambda: True)
control("child is gone", lambda: os.waitpid(child, os.WUNTRACED)[0] == child)
report()
os.kill(-1, signal.SIGKILL)
"""
    running = arena.start(script, wall=5)
    ended = running.wait()
    assert ended.reason in {"exited", "wall"}
    assert ended.seconds < 8
    assert victim.running.handle.pid in host_processes("")
    assert victim.finish().broken == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends users")
def test_a40_every_sandbox_has_a_user_of_its_own(arena: Arena, victim: Victim) -> None:
    script = "control('prints', os.write, 1, b'\\n')\ntime.sleep(5)"
    other = arena.start(script)
    try:
        other.printed("\n")
        users = [_users(other.handle.pid), _users(victim.running.handle.pid)]
    finally:
        other.handle.kill()
    assert users[0] & users[1] == set()
    assert 0 not in users[0] | users[1]


def _users(pid: int) -> set[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("Uid:"))
    return {int(word) for word in line.split()[1:]}


LOCKS = """
import fcntl
with open(GIVEN["input"]) as file:
    attack("locked", fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    attack("record locked", fcntl.lockf, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    attack("leased", fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("ready", flush=True)
    control("own lock", fcntl.flock, open("/tmp/own", "w"), fcntl.LOCK_EX)
    time.sleep(GIVEN["seconds"])
"""


def test_a50_locks_on_shared_inputs(arena: Arena, inputs: Mount) -> None:
    """An advisory lock on an input is seen by neighbours: a slow channel, and known."""
    path = arena.sandbox.path(inputs) + "/part.txt"
    first = arena.start(LOCKS, given={"input": path, "seconds": 3}, mounts=(inputs,))
    with contextlib.ExitStack() as stack:
        stack.callback(first.handle.kill)
        first.printed("ready")
        second = arena.attack(LOCKS, given={"input": path, "seconds": 0}, mounts=(inputs,))
        assert second.succeeded == []
    alone = arena.attack(LOCKS, given={"input": path, "seconds": 0}, mounts=(inputs,))
    assert set(alone.succeeded) <= {"locked"}  # never a lease, which would stop the host's open()


SUBPROCESS = """
attack("signal", os.kill, GIVEN["bystander"], 0)
attack("environment", holds, f"/proc/{GIVEN['bystander']}/environ", GIVEN["secret"])
attack("workspace", holds, GIVEN["workspace"] + "/secret", GIVEN["secret"])
attack("killed", os.kill, GIVEN["bystander"], 9)
control("runs", lambda: True)
"""


def test_a05_subprocess_lets_through(plain: Arena, tmp_path: Path) -> None:
    secret = secrets.token_hex(16)
    (tmp_path / "secret").write_text(secret)
    with subprocess.Popen(["/bin/sleep", "60"], env={"SECRET": secret}) as bystander:
        given = {"secret": secret, "bystander": bystander.pid, "workspace": str(tmp_path)}
        ended = plain.attack(SUBPROCESS, given=given)
        assert bystander.wait(5) == -9
    assert set(ended.succeeded) == {"signal", "environment", "workspace", "killed"}


TIMES = """
for name in ("null", "zero", "full", "random", "urandom", "tty"):
    path = "/dev/" + name
    if os.path.exists(path):
        attack(f"time of {name}", os.utime, path)
control("null is written", write, "/dev/null", b"x")
control("own file", lambda: (write("/tmp/own", b"x"), os.utime("/tmp/own")))
"""


def test_a51_times_of_devices_stay_with_the_host(arena: Arena) -> None:
    """Whatever is stored in the host's inodes, all programs after this one could read."""
    before = {name: os.stat(f"/dev/{name}").st_mtime_ns for name in ("null", "zero", "urandom")}
    arena.run(TIMES)
    after = {name: os.stat(f"/dev/{name}").st_mtime_ns for name in before}
    assert after == before
    arena.repels("control('null is written', write, '/dev/null', b'x')")

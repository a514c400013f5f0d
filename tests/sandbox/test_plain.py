"""The subprocess backend: what it holds, and what it is documented not to hold."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Guarantee, Mount, SandboxError, SandboxSettings
from assay.sandbox.cgroups import ControlGroups, Hierarchies
from assay.sandbox.plain import PlainSandbox

DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execve("/bin/sleep", ["sleep", "{mark}"], {environment})
    os._exit(0)
time.sleep(0.1)
print("ready", flush=True)
"""


@pytest.fixture
def ungrouped(plain: Any, settings: Callable[[str], SandboxSettings]) -> Any:
    """The backend on a machine that lets us make no control groups."""
    plain.sandbox = PlainSandbox(settings("subprocess"), ControlGroups(Hierarchies()))
    return plain


def test_it_says_that_it_isolates_nothing(plain: Any) -> None:
    assert plain.sandbox.isolated is False
    held = plain.sandbox.probe(quick=True)
    assert set(held) == {
        Guarantee.NO_NETWORK,
        Guarantee.FILES_CONFINED,
        Guarantee.SECRETS_HIDDEN,
        Guarantee.NO_PRIVILEGES,
    }
    assert not any(held.values())


def test_paths_are_host_paths(plain: Any, tmp_path: Path) -> None:
    assert plain.sandbox.path(Mount(tmp_path, "/job")) == str(tmp_path)


def test_weakness_files_and_network(plain: Any, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = f"""
import socket
print(open({str(canary)!r}).read())
open({str(tmp_path / "written")!r}, "w").close()
socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), timeout=2).close()
print("connected")
"""
        assert plain.finish(code).out == "canary\nconnected\n"
    assert (tmp_path / "written").exists()


def test_environment_and_descriptors_are_clean(plain: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("ASSAY_TEST_SECRET", "s3cr3t-canary")
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    code = f"""
import os
print(sorted(os.environ))
try:
    os.fstat({descriptor}); print("inherited")
except OSError:
    print("closed")
"""
    try:
        names, inherited = plain.finish(code, env={"GIVEN": "yes"}).out.splitlines()
    finally:
        os.close(descriptor)
    assert inherited == "closed"
    expected = {"ASSAY_SANDBOX_TOKEN", "CUDA_VISIBLE_DEVICES", "GIVEN", "HOME", "LANG", "PATH"}
    assert set(names.strip("[]").replace("'", "").split(", ")) - {"PWD"} == expected


def test_exit_wall_and_cancel(plain: Any) -> None:
    assert plain.start("import sys; sys.exit(3)").wait().exit.code == 3
    chosen = plain.start("import os; os._exit(137)").wait().exit
    assert (chosen.code, chosen.code_is_certain) == (137, True)
    killed = plain.start("import os; os.kill(os.getpid(), 9)").wait().exit
    assert (killed.code, killed.code_is_certain) == (-9, True)
    ended = plain.start("import time; time.sleep(30)", wall=0.2).wait()
    assert (ended.exit.reason, ended.exit.code) == ("wall", -15)
    cancel = threading.Event()
    cancel.set()
    assert plain.start("import time; time.sleep(30)").wait(cancel).exit.reason == "cancelled"
    with pytest.raises(SandboxError):
        plain.start("pass", cwd="/nowhere")


def test_code_can_save_after_sigterm(plain: Any, tmp_path: Path) -> None:
    code = f"""
import signal, sys, time
def save(*_):
    open({str(tmp_path / "saved")!r}, "w").close()
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
time.sleep(30)
"""
    assert plain.start(code, wall=0.4).wait().exit.code == 7
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_daemons_are_found_by_their_token(
    ungrouped: Any, host_processes: Callable[[str], list[int]], how: str
) -> None:
    mark = f"33.{time.time_ns()}"
    code = DAEMON.replace("{mark}", mark).replace("{environment}", "os.environ")
    started = ungrouped.start(code + ("time.sleep(30)" if how == "kill" else ""))
    started.printed("ready")
    if how == "kill":
        assert host_processes(mark)
        started.handle.kill()
    started.wait()
    assert host_processes(mark) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_weakness_daemon_without_environment_survives(
    ungrouped: Any, host_processes: Callable[[str], list[int]]
) -> None:
    mark = f"3.{time.time_ns()}"  # ends by itself
    code = DAEMON.replace("{mark}", mark).replace("{environment}", "{}")
    ungrouped.finish(code)
    left = host_processes(mark)
    assert len(left) == 1
    os.kill(left[0], 9)


def test_memory_by_polling(ungrouped: Any) -> None:
    code = "import time\nblock = b'x' * (400 << 20)\ntime.sleep(60)"
    ended = ungrouped.start(code, memory=128 << 20).wait()
    assert ended.exit.reason == "memory"
    assert ended.seconds < 20


def test_cpu_limit_and_accounting(ungrouped: Any) -> None:
    ended = ungrouped.start("while True: pass", cpu=0.3).wait()
    assert ended.exit.reason == "cpu"
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    assert 0.2 <= ungrouped.finish(busy).exit.cpu_seconds < 2.0


def test_waiting_without_process_descriptors(plain: Any, monkeypatch: Any) -> None:
    """What macOS does: look every few milliseconds."""

    def unavailable(pid: int) -> int:
        raise OSError("no such call")

    monkeypatch.setattr(os, "pidfd_open", unavailable, raising=False)
    assert min(plain.finish("pass").seconds for _ in range(3)) < 0.2
    assert plain.start("import sys; sys.exit(4)").wait().exit.code == 4
    assert plain.start("import time; time.sleep(30)", wall=0.2).wait().exit.reason == "wall"

"""Limits, cancellation, signals and the death of the whole tree, inside bubblewrap."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Limits, Mount, SandboxError, SandboxSettings, SandboxSpec, choose_sandbox
from assay.sandbox.bubblewrap import BubblewrapSandbox
from assay.sandbox.cgroups import ControlGroups, Hierarchies
from tests.support.leftovers import control_groups

pytestmark = pytest.mark.bubblewrap

DAEMONS = """
import os, signal, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve("/bin/sleep", ["sleep", "{mark}"], {})
        os._exit(0)
time.sleep(0.1)
print("ready", flush=True)
"""


def test_exit_code_and_streams(bubblewrap: Any) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    ended = bubblewrap.start(code).wait()
    assert (ended.exit.reason, ended.exit.code) == ("exited", 3)
    assert (ended.out, ended.err) == ("out\n", "err\n")


def test_stdin_reaches_the_code(bubblewrap: Any) -> None:
    question, answer = os.pipe(), os.pipe()
    spec = SandboxSpec(
        "echo", ("/bin/cat",), {}, (), "/", Limits(10, 1 << 28), question[0], answer[1]
    )
    handle = bubblewrap.sandbox.start(spec)
    os.close(question[0])
    os.close(answer[1])
    os.write(question[1], b"hello")
    assert os.read(answer[0], 100) == b"hello"
    os.close(question[1])
    assert handle.wait().code == 0
    os.close(answer[0])


def test_death_by_signal_is_a_negative_code(bubblewrap: Any) -> None:
    ended = bubblewrap.start("import os; os.kill(os.getpid(), 11)").wait()
    assert (ended.exit.reason, ended.exit.code) == ("exited", -11)


#: Ends the program by a signal; Python ignores SIGXFSZ.
KILLS_ITSELF = """
import os, signal
if {number} != signal.SIGKILL:
    signal.signal({number}, signal.SIG_DFL)
os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize("number", [9, 11, 24, 25])
def test_a_status_above_128_is_not_claimed_to_be_a_signal(bubblewrap: Any, number: int) -> None:
    """Bubblewrap tells both in the same way; SIGXCPU and SIGXFSZ would even be limits."""
    chosen = bubblewrap.start(f"import os; os._exit(128 + {number})").wait().exit
    killed = bubblewrap.start(KILLS_ITSELF.format(number=number)).wait().exit
    for ended in (chosen, killed):
        assert (ended.reason, ended.code, ended.code_is_certain) == ("exited", -number, False)


def test_a_program_that_the_kernel_ends_for_its_processor_time(polled: Any) -> None:
    """On a busy host the kernel may be faster than the next look at what a program uses."""
    started = polled.start("import time; print('up', flush=True)\nwhile True: pass", cpu=2.0)
    started.printed("up", 60)
    started.handle.meter.interval = 60.0
    ended = started.wait().exit
    assert (ended.reason, ended.code) == ("cpu", -signal.SIGXCPU)


@pytest.mark.parametrize("code", [128, 193, 255])
def test_a_status_that_no_signal_has_is_an_exit_code(bubblewrap: Any, code: int) -> None:
    ended = bubblewrap.start(f"import os; os._exit({code})").wait().exit
    assert (ended.reason, ended.code, ended.code_is_certain) == ("exited", code, True)


def test_wait_wakes_at_once(bubblewrap: Any) -> None:
    started = bubblewrap.start("import time; time.sleep(0.2)")
    started.handle.meter.interval = 60.0  # a wait that polled would sleep this long
    assert started.wait().seconds < 20.0


def test_wait_can_be_repeated(bubblewrap: Any) -> None:
    started = bubblewrap.start("pass")
    assert started.handle.wait() is started.handle.wait()
    started.handle.kill()


def test_wall_limit(bubblewrap: Any) -> None:
    ended = bubblewrap.start("import time; time.sleep(30)", wall=0.3).wait()
    assert (ended.exit.reason, ended.exit.code) == ("wall", -15)
    assert 0.3 <= ended.exit.wall_seconds < 10


def test_the_wall_clock_stands_until_it_is_started(bubblewrap: Any) -> None:
    started = bubblewrap.start("import time; time.sleep(60)", wall=1.0, warm_up=60.0)
    ended: list[Any] = []
    waiting = threading.Thread(target=lambda: ended.append(started.wait().exit))
    waiting.start()
    time.sleep(2.0)
    assert not ended  # longer than the limit of the wall clock
    started.handle.start_clock()
    started.handle.start_clock(0.0)  # nothing happens: it runs
    waiting.join(30)
    (end,) = ended
    assert (end.reason, end.code) == ("wall", -15)
    assert end.warm_up_seconds >= 2.0
    assert 1.0 <= end.wall_seconds < 15


def test_a_clock_that_nobody_starts(bubblewrap: Any) -> None:
    late = bubblewrap.start("import time; time.sleep(60)", wall=30.0, warm_up=0.5).wait().exit
    assert (late.reason, late.code, late.wall_seconds) == ("warm_up", -15, 0.0)
    assert 0.5 <= late.warm_up_seconds < 15
    by_itself = bubblewrap.start("pass", wall=30.0, warm_up=30.0).wait().exit
    assert (by_itself.reason, by_itself.wall_seconds) == ("exited", 0.0)
    assert by_itself.warm_up_seconds > 0


def test_a_program_without_a_warm_up_has_its_clock_at_once(bubblewrap: Any) -> None:
    started = bubblewrap.start("import time; time.sleep(60)", wall=0.5)
    started.handle.start_clock(time.monotonic() + 100)
    end = started.wait().exit
    assert (end.reason, end.warm_up_seconds) == ("wall", 0.0)


def test_code_can_save_after_sigterm(bubblewrap: Any, workspace: Mount) -> None:
    code = """
import signal, sys, time
def save(*_):
    open("/job/saved", "w").write("saved")
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
time.sleep(30)
"""
    ended = bubblewrap.start(code, wall=0.4, mounts=(workspace,)).wait()
    assert (ended.exit.reason, ended.exit.code) == ("wall", 7)
    assert (workspace.source / "saved").read_text() == "saved"


def test_ignoring_sigterm_ends_after_the_grace(bubblewrap: Any) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(30)"
    ended = bubblewrap.start(code, wall=0.3).wait()
    assert (ended.exit.reason, ended.exit.code) == ("wall", -9)
    assert 0.8 <= ended.exit.wall_seconds < 10


def test_cancel(bubblewrap: Any) -> None:
    cancel = threading.Event()
    started = bubblewrap.start("import time; print('ready', flush=True); time.sleep(30)")
    started.printed("ready")
    threading.Timer(0.1, cancel.set).start()
    since = time.monotonic()
    assert started.wait(cancel).exit.reason == "cancelled"
    assert time.monotonic() - since < 10


def test_kill_from_another_thread(bubblewrap: Any) -> None:
    started = bubblewrap.start("import time; time.sleep(30)")
    threading.Timer(0.1, started.handle.kill).start()
    ended = started.wait()
    assert (ended.exit.reason, ended.exit.code) == ("cancelled", -9)
    assert ended.seconds < 10


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_daemons_die(
    bubblewrap: Any, host_processes: Callable[[str], list[int]], how: str
) -> None:
    mark = f"31.{time.time_ns()}"
    ending = "time.sleep(30)" if how == "kill" else ""
    started = bubblewrap.start(DAEMONS.replace("{mark}", mark) + ending)
    started.printed("ready")
    if how == "kill":
        assert len(host_processes(mark)) >= 3
        started.handle.kill()
    started.wait()
    deadline = time.monotonic() + 1.0
    while host_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert host_processes(mark) == []


def test_programs_die_with_the_starting_thread(
    bubblewrap: Any, host_processes: Callable[[str], list[int]]
) -> None:
    mark = f"32.{time.time_ns()}"
    code = f"import os; print('ready', flush=True); os.execv('/bin/sleep', ['sleep', '{mark}'])"
    found: list[Any] = []

    def body() -> None:
        found.append(bubblewrap.start(code))
        found[0].printed("ready")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found[0].wait().seconds < 10
    assert host_processes(mark) == []


WORKER = """
import pathlib
from assay.sandbox import Limits, SandboxSettings, SandboxSpec, open_sandbox
sandbox = open_sandbox(SandboxSettings("bubblewrap", scratch=pathlib.Path({scratch!r})))
argv = ("/bin/sh", "-c", "echo ready; exec sleep {mark}")
handle = sandbox.start(SandboxSpec("t", argv, {}, (), "/", Limits(60, 1 << 28), stdout=1))
handle.wait()
"""


def test_programs_die_with_a_killed_worker(
    tmp_path: Path, host_processes: Callable[[str], list[int]]
) -> None:
    mark = f"34.{time.time_ns()}"
    code = WORKER.replace("{mark}", mark).replace("{scratch!r}", repr(str(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        worker.kill()
    deadline = time.monotonic() + 1.0
    while host_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert host_processes(mark) == []
    choose_sandbox("bubblewrap", tmp_path)
    left = list(Path("/run").glob(f"assay-stage-{worker.pid}-*"))
    left += control_groups(f"assay-{worker.pid}-")
    assert left == []


ALLOCATE = """
import time
block = bytearray(600 << 20)
block[::4096] = b"x" * len(block[::4096])
time.sleep({seconds})
print("survived")
"""


def test_memory_limit(bubblewrap: Any) -> None:
    ended = bubblewrap.start(ALLOCATE.format(seconds=1), memory=128 << 20).wait()
    assert ended.exit.reason == "memory"
    assert "survived" not in ended.out
    assert bubblewrap.finish(ALLOCATE.format(seconds=0)).out == "survived\n"


def test_memory_limit_counts_the_whole_tree(bubblewrap: Any) -> None:
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        block = bytearray(60 << 20)
        block[::4096] = b"x" * len(block[::4096])
        time.sleep(30)
time.sleep(30)
"""
    assert bubblewrap.start(code, memory=128 << 20).wait().exit.reason == "memory"


@pytest.fixture
def polled(bubblewrap: Any, settings: Callable[[str], SandboxSettings]) -> Any:
    """Bubblewrap on a machine that lets us make no control groups."""
    bubblewrap.sandbox = BubblewrapSandbox(settings("bubblewrap"), ControlGroups(Hierarchies()))
    return bubblewrap


def test_memory_limit_by_polling(polled: Any) -> None:
    ended = polled.start(ALLOCATE.format(seconds=60), memory=128 << 20).wait()
    assert ended.exit.reason == "memory"
    assert ended.seconds < 20


def test_shared_memory_is_counted_once_by_polling(polled: Any) -> None:
    code = """
import os, time
block = bytearray(100 << 20)
block[::4096] = b"x" * len(block[::4096])
children = [os.fork() for _ in range(1)]
if 0 in children:
    time.sleep(0.4); os._exit(0)
os.wait()
print("survived")
"""
    assert polled.finish(code, memory=160 << 20).out == "survived\n"


def test_cpu_limit_and_processes_by_polling(polled: Any) -> None:
    ended = polled.start("while True: pass", cpu=0.4).wait()
    assert ended.exit.reason == "cpu"
    assert 0.4 <= ended.exit.cpu_seconds < 1.5
    assert int(polled.finish(FORKS, processes=20).out) <= 20


FORKS = """
import os, time
started = 0
while started < 80:
    try:
        if os.fork() == 0:
            time.sleep(10)
            os._exit(0)
    except OSError:
        break
    started += 1
print(started, flush=True)
"""


def test_fork_limit(bubblewrap: Any) -> None:
    assert 10 <= int(bubblewrap.finish(FORKS, processes=20).out) <= 20
    assert int(bubblewrap.finish(FORKS, processes=128).out) == 80


def test_a_limit_above_that_of_the_user_is_no_error(bubblewrap: Any) -> None:
    """Profiles with GPUs ask for thousands; where the user may have fewer, that is the limit."""
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[1])"
    found = int(bubblewrap.finish(code, processes=1 << 20).out)
    _, ceiling = resource.getrlimit(resource.RLIMIT_NPROC)
    if ceiling != resource.RLIM_INFINITY:
        assert found <= ceiling


def test_cpu_limit_counts_the_whole_tree(bubblewrap: Any) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    ended = bubblewrap.start(code, cpu=0.5).wait()
    assert ended.exit.reason == "cpu"
    assert ended.exit.cpu_seconds >= 0.5


def test_cpu_time_and_peak_memory_are_reported(bubblewrap: Any) -> None:
    code = "import time\nblock = b'x' * (100 << 20)\nend = time.process_time() + 0.2\n"
    ended = bubblewrap.finish(code + "while time.process_time() < end: pass")
    assert 0.2 <= ended.exit.cpu_seconds < 2.0
    assert ended.exit.peak_memory_bytes is not None
    assert ended.exit.peak_memory_bytes >= 100 << 20


def test_temporary_folders_are_bounded(bubblewrap: Any) -> None:
    code = """
for path in ("/tmp/big", "/dev/shm/big"):
    try:
        with open(path, "wb") as file:
            for _ in range(300):
                file.write(b"x" * (1 << 20))
        print("wrote", path)
    except OSError as error:
        print(error.errno)
    import os; os.unlink(path)
"""
    assert bubblewrap.finish(code, memory=256 << 20).out == "28\n28\n"


def test_file_size_limit(bubblewrap: Any, workspace: Mount) -> None:
    code = "f = open('/job/big', 'wb')\nf.seek((1 << 30) + 1)\nf.write(b'x'); f.flush()"
    ended = bubblewrap.start(code, mounts=(workspace,)).wait()
    assert ended.exit.code != 0
    assert (workspace.source / "big").stat().st_size <= 1 << 30


def test_a_program_that_cannot_start(bubblewrap: Any, tmp_path: Path) -> None:
    with pytest.raises(SandboxError):
        bubblewrap.start("pass", cwd="/nowhere").wait()
    with pytest.raises(SandboxError):
        bubblewrap.start("pass", mounts=(Mount(tmp_path / "missing", "/x"),))
    hidden = (sys.prefix, str(Path(sys.prefix).parent), "/usr/share")
    for target in ("relative", "/", "/a/../b", "/proc/x", "/dev/x", "/a/", *hidden):
        with pytest.raises(ValueError, match="target"):
            bubblewrap.start("pass", mounts=(Mount(tmp_path, target),))


@pytest.mark.parametrize("cpus", [0.5, 1.0])
def test_the_share_of_processors_is_limited(bubblewrap: Any, cpus: float) -> None:
    busy = "import os, time\nos.fork()\nend = time.time() + 1.5\nwhile time.time() < end: pass"
    ended = bubblewrap.start(busy, cpus=cpus).wait()
    assert ended.exit.cpu_seconds < 1.25 * cpus * ended.exit.wall_seconds + 0.1


def test_a_failure_for_want_of_processes_is_marked(bubblewrap: Any) -> None:
    code = (
        "import os, time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(5); os._exit(0)"
    )
    ended = bubblewrap.start(code, processes=16).wait()
    assert ended.exit.reason == "processes"
    assert "BlockingIOError" in ended.err
    caught = f"try:\n    {code.replace(chr(10), chr(10) + '    ')}\nexcept OSError: pass"
    assert bubblewrap.start(caught, processes=16).wait().exit.reason == "exited"

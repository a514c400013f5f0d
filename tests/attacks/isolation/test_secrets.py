"""What code could learn: environments, files, descriptors, keys, the kernel, its own log."""

import ctypes
import os
import platform
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.sandbox import Mount
from services.worker.output import stored_output
from tests.attacks.arena import Arena, new_folder
from tests.attacks.conftest import ENGINE

ENVIRONMENTS = """
secret = GIVEN["secret"]
attack("environment", lambda: any(secret in value for value in os.environ.values()))
for pid in processes():
    for name in ("environ", "cmdline"):
        attack(f"{name} of a process", holds, f"/proc/{pid}/{name}", secret)
control("given", lambda: os.environ["GIVEN"] == "yes")
control("own environ", holds, "/proc/self/environ", "GIVEN=yes")
"""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A secret in this worker's environment, and in that of a process of the host."""
    value = secrets.token_hex(16)
    monkeypatch.setenv("ASSAY_ATTACK_CANARY", value)
    with subprocess.Popen(["/bin/sleep", "60"]) as sentinel:
        yield value
        sentinel.kill()


def test_a01_environments(arena: Arena, secret: str) -> None:
    arena.repels(ENVIRONMENTS, given={"secret": secret}, env={"GIVEN": "yes"})


def test_a01_subprocess_lets_through(plain: Arena, secret: str) -> None:
    ended = plain.attack(ENVIRONMENTS, given={"secret": secret}, env={"GIVEN": "yes"})
    assert set(ended.succeeded) == {"environ of a process"}


FILES = """
for path in GIVEN["files"]:
    attack(f"read {path}", holds, path, GIVEN["secret"])
    for root in ("/proc/1/root", "/proc/self/root", "/proc/thread-self/root"):
        attack(f"read {root}{path}", holds, root + path, GIVEN["secret"])
for path in GIVEN["sockets"]:
    attack(f"connect {path}", connect, socket.AF_UNIX, path)
control("system", holds, "/etc/passwd", ":")
control("input", holds, GIVEN["input"], "data")
"""
WALK = """
skipped = ("/proc", "/sys", "/usr", *GIVEN["skipped"])
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if not os.path.join(folder, name) in skipped]
    for name in names:
        if GIVEN["secret"] in name:
            attack(f"found {folder}/{name}", lambda: True)
hidden = ("/etc/shadow", "/etc/gshadow", "/etc/ssh", "/root/.ssh", "/root/.netrc", "/root/.bashrc",
          "/root/.cache/huggingface/token", "/run/docker.sock", "/var/run/docker.sock")
for path in hidden:
    attack(f"listed {path}", os.stat, path)
control("walked", lambda: os.path.exists("/usr/lib"))
"""


@pytest.fixture
def canaries() -> Iterator[tuple[str, list[str], list[str]]]:
    """A secret, files with it in the places where secrets are, and listening sockets."""
    secret = secrets.token_hex(8)
    places = [str(Path.home()), "/tmp", "/var/tmp", "/run", "/opt", str(Path(__file__).parent)]
    files = [Path(place, f".canary-{secret}") for place in places if os.path.isdir(place)]
    path = f"/run/assay-attack-{secret}.sock"
    try:
        for file in files:
            file.write_text(secret)
            file.chmod(0o644)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            os.chmod(path, 0o666)
            listener.listen()
            yield secret, [str(file) for file in files], [path]
    finally:
        for file in [*files, Path(path)]:
            file.unlink(missing_ok=True)


def test_a02_files(
    arena: Arena, canaries: tuple[str, list[str], list[str]], inputs: Mount
) -> None:
    secret, files, sockets = canaries
    given = {
        "secret": secret,
        "files": files,
        "sockets": [*sockets, ENGINE.removeprefix("unix://"), "/var/run/docker.sock"],
        "input": arena.sandbox.path(inputs) + "/part.txt",
        "skipped": [sys.prefix, sys.base_prefix],
    }
    arena.repels(FILES + WALK, given=given, mounts=(inputs,))


@pytest.mark.skipif(os.geteuid() != 0, reason="a socket in /run needs root")
def test_a02_subprocess_lets_through(
    plain: Arena, canaries: tuple[str, list[str], list[str]], inputs: Mount
) -> None:
    secret, files, sockets = canaries
    given = {"secret": secret, "files": files, "sockets": sockets}
    given["input"] = plain.sandbox.path(inputs) + "/part.txt"
    ended = plain.attack(FILES, given=given, mounts=(inputs,))
    wanted = {f"read {path}" for path in files} | {f"connect {path}" for path in sockets}
    assert wanted <= set(ended.succeeded)


def test_a19_inherited_descriptors(arena: Arena, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary")
    descriptor = os.open(canary, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    script = """
for number in range(3, 1024):
    attack(f"descriptor {number}", os.fstat, number)
for number in range(3):
    control(f"stream {number}", os.fstat, number)
"""
    try:
        arena.repels(script)
    finally:
        os.close(descriptor)


WRAPPER = """
def leads_out(link):
    target = os.readlink(link)
    return target.startswith("/") and target not in GIVEN["streams"] and target != "/dev/null"
for pid in processes():
    if int(pid) == os.getpid():
        continue
    for place in ("root", "cwd"):
        path = f"/proc/{pid}/{place}"
        attack(f"{path} leads elsewhere", lambda p: os.listdir(p + GIVEN["folder"]) != [], path)
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        descriptors = []
    for number in descriptors:
        attack(f"descriptor {number} of {pid}", leads_out, f"/proc/{pid}/fd/{number}")
control("own root", lambda: os.listdir("/proc/self/root/usr") != [])
control("own descriptors", lambda: len(os.listdir("/proc/self/fd")) >= 3)
"""


def test_a20_wrapper_processes_lead_nowhere(arena: Arena, tmp_path: Path) -> None:
    with new_folder("a20-", "/var/tmp") as folder:
        (folder / "canary").touch()
        streams = [str(arena.folder / f"1.{name}") for name in ("out", "err")]
        arena.repels(WRAPPER, given={"folder": str(folder), "streams": streams})


KEYS = """
attack("listed", holds, "/proc/keys", GIVEN["secret"])
attack("searched", call, GIVEN["keyctl"], 10, -3, b"user", GIVEN["secret"].encode(), 0)
attack("added", call, GIVEN["add_key"], b"user", b"x", b"x", 1, -3)
control("runs", lambda: True)
"""


@pytest.fixture
def key() -> Iterator[str]:
    """The description of a key in this process's session keyring."""
    library = ctypes.CDLL(None, use_errno=True)
    description = secrets.token_hex(8)
    found = library.syscall(248, b"user", description.encode(), b"payload", 7, -3)
    if found < 0:
        pytest.skip(f"no keyrings here: {os.strerror(ctypes.get_errno())}")
    yield description
    library.syscall(250, 21, ctypes.c_long(found))  # KEYCTL_INVALIDATE


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_a22_keyrings(arena: Arena, key: str) -> None:
    arena.repels(KEYS, given={"secret": key, "keyctl": 250, "add_key": 248})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_a22_subprocess_lets_through(plain: Arena, key: str) -> None:
    ended = plain.attack(KEYS, given={"secret": key, "keyctl": 250, "add_key": 248})
    assert {"listed", "searched", "added"} <= set(ended.succeeded)


KERNEL = """
def address_shown():
    return any(int(line.split()[0], 16) for line in read("/proc/kallsyms", 4096).splitlines()[:9])
def frame_shown():
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(id(file) // os.sysconf("SC_PAGE_SIZE") * 8)
        return int.from_bytes(file.read(8), "little") & ((1 << 55) - 1) != 0
paths = ("/proc/kcore", "/dev/core", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg",
         "/proc/kmsg", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/pagetypeinfo",
         "/proc/kpageflags", "/sys/kernel/debug/sched/debug", "/proc/sched_debug",
         "/proc/timer_list", "/sys/kernel/notes", "/sys/class/dmi/id/product_serial",
         "/sys/firmware/acpi/tables/DSDT", "/sys/kernel/btf/vmlinux", "/dev/vda", "/dev/sda")
for path in paths:
    attack(f"read {path}", lambda p: len(read(p, 16)) > 0, path)
attack("addresses of the kernel", address_shown)
attack("physical addresses", frame_shown)
attack("kernel log", lambda: call(GIVEN["syslog"], 10, 0, 0))
control("own maps", holds, "/proc/self/maps", "stack")
control("random", lambda: len(read("/dev/urandom", 16)) == 16)
"""


def test_a23_kernel_memory_and_log(arena: Arena) -> None:
    number = {"x86_64": 103, "aarch64": 116}[platform.machine()]
    ended = arena.attack(KERNEL, given={"syslog": number})
    # Types of the running kernel, the same for everybody who has its package.
    assert set(ended.succeeded) <= {"read /sys/kernel/notes", "read /sys/kernel/btf/vmlinux"}


LOG = """
import fcntl, mmap
O_RDWR = os.O_RDWR
print("first line", flush=True)
attack("shortened", os.ftruncate, 1, 0)
attack("seek", os.lseek, 1, 0, os.SEEK_SET)
attack("overwritten", os.pwrite, 1, b"OVERWRITTEN", 0)
attack("mapped", lambda: mmap.mmap(1, 4096))
attack("read back", os.read, 1, 100)
attack("blocks reserved", os.posix_fallocate, 1, 0, 1 << 20)
for flags in (os.O_RDWR, os.O_RDWR | os.O_TRUNC, os.O_RDONLY):
    attack(f"reopened {flags}", opens, "/proc/self/fd/1", flags)
    attack(f"reopened {flags}", opens, "/dev/stdout", flags)
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) & ~os.O_APPEND | os.O_NONBLOCK)
os.set_blocking(1, True)
control("prints", lambda: os.write(1, b"last line\\n"))
"""


def test_a24_log_is_only_appended_to(arena: Arena, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with stored_output(log, 1 << 20) as output:
        running = arena.start(LOG, out=output.descriptor)
        output.close_writer()
        assert running.wait().exit.code == 0
    text = log.read_text()
    assert text.startswith("first line\n")
    assert "last line\n" in text
    allowed = {f"reopened {os.O_RDONLY}"} if os.geteuid() != 0 else set()
    found = eval(text.splitlines()[-1])["succeeded"]
    assert set(found) <= allowed


def test_a10_log_flood(arena: Arena, tmp_path: Path) -> None:
    script = """
import threading
line = b"x" * 1_000_000
threading.Thread(target=lambda: [os.write(2, line) for _ in iter(int, 1)], daemon=True).start()
while True:
    os.write(1, line)
"""
    log, cap = tmp_path / "train.log", 1 << 20
    before = _resident()
    with stored_output(log, cap) as output:
        running = arena.start(script, out=output.descriptor, wall=1.5)
        output.close_writer()
        assert running.wait().reason == "wall"
    assert log.stat().st_size <= cap + (65 << 10)
    assert b"bytes left out" in log.read_bytes()
    assert _resident() - before < 64 << 20
    quiet = tmp_path / "quiet.log"
    with stored_output(quiet, cap) as output:
        running = arena.start("print('modest', flush=True)", out=output.descriptor)
        output.close_writer()
        assert running.wait().exit.code == 0
    assert quiet.read_text().startswith("modest\n")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a10_flood_of_packets(arena: Arena, tmp_path: Path) -> None:
    """A pipe in packet mode hands over one byte per read, unless the reader is prepared."""
    script = """
import fcntl
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
while True:
    os.write(1, b"x")
"""
    log = tmp_path / "train.log"
    done = threading.Event()
    with stored_output(log, 1 << 12) as output:
        running = arena.start(script, out=output.descriptor, wall=1.0)
        output.close_writer()
        assert running.wait().seconds < 20
        done.set()
    assert log.stat().st_size <= (1 << 12) + (65 << 10)


LOADER = """
control("seen", lambda: os.environ["LD_PRELOAD"] == "/job/evil.so")
"""


def test_a35_loader_variables_stay_inside(arena: Arena, workspace: Mount, tmp_path: Path) -> None:
    """Variables of a specification reach no process that runs before the sandbox is closed."""
    where = arena.sandbox.path(workspace)
    env = {"LD_PRELOAD": f"{where}/evil.so", "PYTHONSTARTUP": "/job/x", "BASH_ENV": "/job/x"}
    env |= {"LD_AUDIT": f"{where}/evil.so", "ENV": "/job/x", "GCONV_PATH": where}
    script = f"""
time.sleep(0.4)
{LOADER}
"""
    running = arena.start(script, env=env, mounts=(workspace,))
    outer = Path(f"/proc/{running.handle.pid}")
    environment = (outer / "environ").read_bytes() if arena.name == "bubblewrap" else b""
    ended = running.wait()
    assert ended.controls
    assert ended.broken == {}
    assert b"LD_PRELOAD" not in environment
    assert b"PYTHONSTARTUP" not in environment

"""What code inside bubblewrap can reach: nothing but what it was given."""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Mount
from assay.sandbox.cgroups import ControlGroups
from assay.sandbox.staging import PARENTS
from tests.support.needs import missing
from tests.support.processes import using

pytestmark = pytest.mark.bubblewrap


def test_environment_holds_only_what_was_given(bubblewrap: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("ASSAY_TEST_SECRET", "s3cr3t-canary")
    code = """
import glob, os
print(sorted(os.environ))
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        print(open(path).read())
    except OSError:
        pass
"""
    ended = bubblewrap.finish(code, env={"GIVEN": "yes"})
    names = set(json.loads(ended.out.splitlines()[0].replace("'", '"')))
    assert names == {"GIVEN", "HOME", "LANG", "PATH", "PWD"}
    assert "s3cr3t-canary" not in ended.out


def test_processes_inside_meet_by_name(bubblewrap: Any) -> None:
    """`torchrun` and gloo look up `localhost` and the name of the machine."""
    code = """
import json, socket
found = {name: socket.gethostbyname(name) for name in ("localhost", socket.gethostname())}
listener = socket.create_server(("localhost", 0))
socket.create_connection(("sandbox", listener.getsockname()[1])).close()
print(json.dumps(found))
"""
    ended = bubblewrap.finish(code)
    assert json.loads(ended.out) == {"localhost": "127.0.0.1", "sandbox": "127.0.0.1"}


def test_no_process_inside_names_a_folder_of_the_host(
    bubblewrap: Any, workspace: Mount, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    code = """
import glob, json
def read(name):
    found = {}
    for path in glob.glob(f"/proc/[0-9]*/{name}"):
        try:
            found[path] = open(path).read()
        except PermissionError:  # the first process of a container hides its own
            pass
    return found
points = [line.split()[4] for line in open("/proc/self/mountinfo")]
print(json.dumps([read("cmdline"), read("environ"), points]))
"""
    mounts = (workspace, Mount(data, "/data"))
    ended = bubblewrap.finish(code, mounts=mounts, cwd="/job", env={"GIVEN": "yes"})
    lines, environments, points = json.loads(ended.out)
    assert "/proc/1/cmdline" in lines
    assert len(lines) >= 2
    assert any("GIVEN=yes" in text for text in environments.values())
    shown = [*lines.values(), *environments.values(), *points]
    hidden = [str(tmp_path), *(f"{parent}/assay-" for parent in PARENTS)]
    assert [text for text in shown for path in hidden if path in text] == []


def test_a_running_sandbox_is_found_by_what_it_has_mounted(
    bubblewrap: Any, workspace: Mount
) -> None:
    """Tests that look for left-over sandboxes rely on it."""
    assert using(workspace.source) == []
    started = bubblewrap.start(
        "import time; print('ready', flush=True); time.sleep(30)", mounts=(workspace,)
    )
    started.printed("ready")
    assert started.handle.pid in using(workspace.source.parent)
    started.handle.kill()
    started.wait()
    assert using(workspace.source) == []


def test_an_option_cannot_be_hidden_in_a_variable(bubblewrap: Any) -> None:
    """Options reach bubblewrap separated by NUL, so that none may hold one."""
    with pytest.raises(ValueError, match="NUL"):
        bubblewrap.start("pass", env={"GIVEN": "x\0--ro-bind\0/etc\0/tmp/etc"})


def test_many_variables_reach_the_program(bubblewrap: Any) -> None:
    """More than a pipe would hold."""
    env = {f"V{number}": "x" * 1000 for number in range(200)}
    code = "import os; print(sum(len(os.environ[f'V{n}']) for n in range(200)))"
    assert bubblewrap.finish(code, env=env).out == "200000\n"


def test_given_variables_win_over_ours(bubblewrap: Any) -> None:
    ended = bubblewrap.finish("import os; print(os.environ['HOME'])", env={"HOME": "/usr"})
    assert ended.out == "/usr\n"


def test_host_files_are_not_there(bubblewrap: Any, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary")
    canary.chmod(0o644)
    paths = [str(canary), "/etc/shadow", "/etc/hostname", "/home", "/var", "/run", "/sys"]
    paths += [
        str(Path(__file__).parents[2] / "pyproject.toml"),
        str(Path(__file__).parents[2] / "src"),
    ]
    code = f"import os; print([path for path in {paths!r} if os.path.exists(path)])"
    assert bubblewrap.finish(code).out == "[]\n"
    assert all(os.path.exists(path) for path in paths)  # the control: they exist outside


def test_no_network(bubblewrap: Any, plain: Any) -> None:
    code = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=2).close()
    print("connected")
except OSError as error:
    print("refused", error.errno)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    udp.sendto(b"x", ("192.0.2.1", 53))
    print("sent")
except OSError as error:
    print("unreachable", error.errno)
print([name for _, name in socket.if_nameindex()])
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        filled = code.replace("{port}", str(listener.getsockname()[1]))
        assert plain.finish(filled).out.startswith("connected\n")
        inside = bubblewrap.finish(filled).out.splitlines()
    assert inside[0].startswith("refused")
    assert inside[1].startswith("unreachable")
    assert inside[2] == "['lo']"


def test_system_is_read_only(bubblewrap: Any) -> None:
    code = f"""
import os
for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/x", {sys.prefix!r} + "/x",
             {sys.base_prefix!r} + "/x", "/etc/passwd"):
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError:
        pass
open("/tmp/x", "w").close()
open("/dev/shm/x", "w").close()
print("done")
"""
    assert bubblewrap.finish(code).out == "done\n"


def test_writes_stay_in_the_workspace(bubblewrap: Any, workspace: Mount, tmp_path: Path) -> None:
    read_only = tmp_path / "data"
    read_only.mkdir()
    (read_only / "part.txt").write_text("data")
    code = """
print(open("given.txt").read(), open("/data/part.txt").read())
open("result.txt", "w").write("result")
for path in ("/data/new", "/data/part.txt", "/job/../outside", "../outside"):
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError:
        pass
"""
    mounts = (workspace, Mount(read_only, "/data"))
    assert bubblewrap.finish(code, mounts=mounts, cwd="/job").out == "given data\n"
    assert (workspace.source / "result.txt").read_text() == "result"
    assert (read_only / "part.txt").read_text() == "data"
    assert sorted(path.name for path in read_only.iterdir()) == ["part.txt"]


def test_processes_of_the_host_are_hidden(bubblewrap: Any) -> None:
    code = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    assert int(bubblewrap.finish(code).out) <= 3


def test_descriptors_are_not_inherited(bubblewrap: Any, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary")
    descriptor = os.open(canary, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    code = """
import os
def is_open(number):
    try:
        os.fstat(number)
        return True
    except OSError:
        return False
print([number for number in range(1024) if is_open(number)])
"""
    try:
        assert bubblewrap.finish(code).out == "[0, 1, 2]\n"
    finally:
        os.close(descriptor)


def test_nobody_is_root(bubblewrap: Any) -> None:
    code = """
import os, time
fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(os.getuid(), os.geteuid(), int(fields["CapEff"], 16), int(fields["NoNewPrivs"]),
      int(fields["Seccomp"]), flush=True)
try:
    os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)
    print("host root")
except OSError:
    pass
print("ready", flush=True)
time.sleep(10)
"""
    started = bubblewrap.start(code)
    try:
        started.printed("ready")
        outside = Path(f"/proc/{started.handle.pid}/status").read_text()
        users = next(line for line in outside.splitlines() if line.startswith("Uid:")).split()[1:]
        assert "0" not in users
        assert len(set(users)) == 1
    finally:
        started.handle.kill()
    uid, effective, capabilities, no_new, seccomp = started.out.read_text().split()[:5]
    assert uid == effective == users[0]
    assert (capabilities, no_new, seccomp) == ("0", "1", "2")
    assert "host root" not in started.out.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends users")
def test_two_sandboxes_have_two_users(bubblewrap: Any) -> None:
    code = (
        "import os, time; print(os.getuid(), flush=True); print('.', flush=True); time.sleep(10)"
    )
    pair = [bubblewrap.start(code) for _ in range(2)]
    try:
        for started in pair:
            started.printed(".")
        users = {started.out.read_text().split()[0] for started in pair}
    finally:
        for started in pair:
            started.handle.kill()
    assert len(users) == 2


@pytest.mark.slow
def test_torch_works_inside(bubblewrap: Any) -> None:
    pytest.importorskip("torch")
    code = """
import torch
model = torch.nn.Linear(8, 1)
loss = model(torch.ones(4, 8)).square().mean()
loss.backward()
print(bool(torch.isfinite(model.weight.grad).all()))
"""
    options = {"flags": (), "memory": 4 << 30, "wall": 60.0}
    ended = bubblewrap.finish(code, env={"OMP_NUM_THREADS": "1"}, **options)
    assert ended.out == "True\n"


READ_EVERY_OTHER_PAGE = """
import mmap, os
with open("/data/cold", "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    pages.madvise(mmap.MADV_RANDOM)
    for start in range(0, len(pages), 2 * 4096):
        pages[start]
"""


def in_memory(path: Path) -> list[bool]:
    """Whether each page of a file is in the page cache, without reading it."""
    size = path.stat().st_size
    found = (ctypes.c_ubyte * (size // 4096))()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    with path.open("rb") as file:
        start = libc.mmap(None, ctypes.c_size_t(size), 1, 1, file.fileno(), ctypes.c_long(0))
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), found) == 0
    assert libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size)) == 0
    return [bool(page & 1) for page in found]


@pytest.mark.parametrize("secret", [False, True])
def test_a_program_that_sees_held_out_data_leaves_no_pages_in_memory(
    bubblewrap: Any, tmp_path: Path, secret: bool
) -> None:
    """A later sandbox could read them as bits: by page faults, or by the clock."""
    if not ControlGroups().hierarchies.folders():
        missing("no control groups here: docs/security.md says what that leaves open")
    data = tmp_path / "data"
    data.mkdir()
    cold = data / "cold"
    with cold.open("wb") as file:
        file.write(os.urandom(64 * 4096))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(in_memory(cold)):
        missing("this file system keeps its files in memory")
    bubblewrap.finish(READ_EVERY_OTHER_PAGE, mounts=(Mount(data, "/data"),), sees_held_out=secret)
    assert in_memory(cold) == ([False] * 64 if secret else [True, False] * 32)

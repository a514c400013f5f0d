"""Writes stay inside, and what comes back leads nobody anywhere: artifacts, hand-back, removal."""

import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.sandbox import Mount
from services.worker.collect import Bounds, UnsafeArtifact, build_archive, opened_folder, scan
from services.worker.folders import remove_tree
from services.worker.telemetry import open_regular
from tests.attacks.arena import Arena, new_folder

BOUNDS = Bounds(files=100, bytes=1 << 20)

OUTSIDE = """
job, data = GIVEN["job"], GIVEN["data"]
for folder in ("/", "/etc", "/usr", "/usr/bin", "/usr/local/lib", "/lib", "/bin", "/dev", "/proc",
               "/sys", "/var", "/run", "/home", "/root", "/opt", "/assay", "/proc/1/root/etc",
               "/proc/1/root", "/proc/self/root/usr", "/proc/1/cwd", f"{job}/..", f"{job}/../etc",
               data, *GIVEN["folders"]):
    attack(f"made in {folder}", write, f"{folder}/assay-attack")
    attack(f"folder in {folder}", os.mkdir, f"{folder}/assay-attack.d")
    attack(f"link in {folder}", os.symlink, "/", f"{folder}/assay-attack.l")
for path in (f"{data}/part.txt", "/etc/passwd", "/usr/bin/env", GIVEN["python"]):
    name = path.rpartition("/")[2]
    attack(f"written {path}", opens, path, os.O_WRONLY)
    attack(f"truncated {path}", os.truncate, path, 0)
    attack(f"removed {path}", os.unlink, path)
    attack(f"renamed {path}", os.rename, path, path + "x")
    attack(f"mode of {path}", os.chmod, path, 0o666)
    attack(f"owner of {path}", os.chown, path, os.getuid(), os.getgid())
    attack(f"time of {path}", os.utime, path, (0, 0))
    attack(f"attribute of {path}", os.setxattr, path, "user.x", b"x")
    attack(f"moved here {path}", os.rename, path, f"{job}/moved-{name}")
    attack(f"linked here {path}", os.link, path, f"{job}/linked-{name}")
    descriptor = os.open(path, os.O_RDONLY)
    attack(f"reopened {path}", opens, f"/proc/self/fd/{descriptor}", os.O_WRONLY)
    attack(f"mode by descriptor of {path}", os.fchmod, descriptor, 0o666)
    attack(f"by descriptor {path}", os.link, f"/proc/self/fd/{descriptor}", f"{job}/by-{name}")
attack("workspace replaced", os.rename, job, f"{job}2")
attack("workspace removed", os.rmdir, job)
attack("over a mount", os.symlink, "/etc", job)
for place in (job, "/tmp", "/dev/shm"):
    control(f"file in {place}", write, f"{place}/own")
control("input", holds, f"{data}/part.txt", "data")
"""


def test_a13_writes_outside(arena: Arena, workspace: Mount, inputs: Mount) -> None:
    given = {
        "job": arena.sandbox.path(workspace),
        "data": arena.sandbox.path(inputs),
        "folders": [sys.prefix, sys.base_prefix, str(workspace.source.parent)],
        "python": arena.sandbox.python,
    }
    arena.repels(OUTSIDE, given=given, mounts=(workspace, inputs))
    assert (workspace.source / "own").read_text() == "x"
    assert [path.name for path in inputs.source.iterdir()] == ["part.txt"]
    assert sorted(path.name for path in workspace.source.iterdir()) == ["given.txt", "own"]


def test_a13_subprocess_lets_through(plain: Arena, inputs: Mount) -> None:
    script = """
attack("read-only input", write, GIVEN["data"] + "/part.txt", b"changed")
attack("beside it", write, GIVEN["data"] + "/../beside")
control("runs", lambda: True)
"""
    ended = plain.attack(script, given={"data": plain.sandbox.path(inputs)}, mounts=(inputs,))
    assert set(ended.succeeded) == {"read-only input", "beside it"}
    assert (inputs.source / "part.txt").read_text() == "changed"


ARTIFACTS = """
job = GIVEN["job"]
os.chdir(job)
def make(name, function):
    os.mkdir(name)
    control(name, function, name)
def deep(name):
    os.makedirs(name + "/d" * 40)
def many(name):
    for number in range(200):
        write(f"{name}/{number}")
def sparse(name):
    write(f"{name}/x")
    os.truncate(f"{name}/x", 1 << 29)
def bind(name):
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{name}/x")
make("link", lambda name: os.symlink(GIVEN["secret"], f"{name}/x"))
make("broken link", lambda name: os.symlink("/nowhere", f"{name}/x"))
make("folder link", lambda name: os.symlink(GIVEN["folder"], f"{name}/x"))
make("relative link", lambda name: os.symlink("../../../../etc", f"{name}/x"))
make("link to proc", lambda name: os.symlink("/proc/self/root", f"{name}/x"))
make("fifo", lambda name: os.mkfifo(f"{name}/x"))
make("socket", bind)
make("deep", deep)
make("many", many)
make("sparse", sparse)
for number, odd in enumerate((b"a\\nb", b"\\xff\\xfe", b"a\\x1b[2Jb", b"a\\\\..\\\\b", b"\\r",
                              b"\\x7f",
                              "a\\u202eb".encode())):
    make(f"name {number}", lambda name: write(name.encode() + b"/" + odd))
make("good", lambda name: write(f"{name}/weights", b"weights"))
names = ("-rf", "x" * 255, "é", "a b", "*")
make("good names", lambda folder: [write(f"{folder}/{name}") for name in names])
attack("device", os.mknod, "device", 0o20666, os.makedev(1, 1))
attack("hard link", os.link, GIVEN["data"] + "/part.txt", "hard")
"""
GOOD = {"good", "good names"}


def test_a14_artifacts(arena: Arena, workspace: Mount, inputs: Mount, tmp_path: Path) -> None:
    with new_folder("a14-", "/var/tmp") as host:
        (host / "secret").write_text("secret")
        given = {
            "job": arena.sandbox.path(workspace),
            "data": arena.sandbox.path(inputs),
            "folder": str(host),
            "secret": str(host / "secret"),
        }
        arena.repels(ARTIFACTS, given=given, mounts=(workspace, inputs))
        refused = set()
        folders = sorted(p.name for p in workspace.source.iterdir() if p.is_dir())
        for name in folders:
            with opened_folder(str(workspace.source / name)) as folder:
                try:
                    found = scan(folder, BOUNDS)
                except UnsafeArtifact:
                    refused.add(name)
                    continue
                archive = build_archive(folder, found, [], tmp_path / f"{name}.zip")
                assert b"secret" not in archive.read_bytes()
        assert refused == set(folders) - GOOD
        assert len(refused) == 17
        # What follows training by name does not follow links or wait at a FIFO either.
        for name in ("link", "folder link", "fifo", "socket"):
            with opened_folder(str(workspace.source / name)) as folder:
                assert open_regular("x", folder) is None


HAND_BACK = """
os.chdir(GIVEN["job"])
import fcntl
def deep():
    os.mkdir("deep")
    os.chdir("deep")
    for _ in range(1500):
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
    write("bottom")
    os.chdir(GIVEN["job"])
control("deep", deep)
for number, mode in enumerate((0o000, 0o100, 0o200, 0o4777, 0o7777)):
    os.makedirs(f"mode{number}/inner")
    write(f"mode{number}/inner/file")
    os.chmod(f"mode{number}/inner/file", mode)
    os.chmod(f"mode{number}/inner", mode)
    os.chmod(f"mode{number}", mode)
for name in (b"a\\nb", b"\\xff\\xfe", b"x" * 255, b"-rf", b" ", b"\\\\", b"\\x1b[2J"):
    write(b"name-" + name[:250])
    os.mkdir(b"folder-" + name[:240])
def access_list(entries):
    return b"\\x02\\0\\0\\0" + b"".join(
        tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little")
        for tag, perm, who in entries)
none = 0xFFFFFFFF
rules = access_list([(1, 7, none), (2, 7, os.getuid()), *((n, 7, none) for n in (4, 16, 32))])
os.mkdir("listed")
facts["access list"] = errno_of(os.setxattr, "listed", "system.posix_acl_access", rules)
facts["default list"] = errno_of(os.setxattr, "listed", "system.posix_acl_default", rules)
write("large")
facts["attributes"] = errno_of(lambda: [os.setxattr("large", f"user.{n}", b"x" * 3000)
                                        for n in range(100)])
for name, flag in (("immutable", 0x10), ("append only", 0x20)):
    write(name)
    with open(name) as file:
        attack(name, fcntl.ioctl, file, 0x40086602, flag.to_bytes(8, "little"))
attack("trusted attribute", os.setxattr, "large", "trusted.x", b"x")
attack("overlay attribute", os.setxattr, "large", "trusted.overlay.opaque", b"y")
for name, target in (("link", GIVEN["canary"]), ("folder link", GIVEN["folder"]), ("root", "/")):
    os.symlink(target, name)
os.mkfifo("fifo")
control("good", write, "good", b"good")
os.chmod(".", 0o000)
"""


def test_a46_hand_back(arena: Arena, workspace: Mount) -> None:
    with new_folder("a46-", "/var/tmp") as host:
        canary = host / "canary"
        canary.write_text("canary")
        canary.chmod(0o600)
        before = [(path.stat().st_uid, path.stat().st_mode) for path in (host, canary)]
        given = {"job": arena.sandbox.path(workspace), "folder": str(host), "canary": str(canary)}
        ended = arena.repels(HAND_BACK, given=given, mounts=(workspace,), processes=32)
        assert ended.seconds < 10
        assert [(path.stat().st_uid, path.stat().st_mode) for path in (host, canary)] == before
        _check_given_back(workspace.source)
        # A later program gets the folder as an input, without being stopped by its content.
        again = "control('read', holds, GIVEN['data'] + '/good', 'good')"
        later = Mount(workspace.source, "/data")
        arena.repels(again, given={"data": arena.sandbox.path(later)}, mounts=(later,))
        assert remove_tree(workspace.source)
        assert canary.read_text() == "canary"


def _check_given_back(folder: Path) -> None:
    assert (folder / "good").read_text() == "good"
    for path in [folder, *folder.iterdir(), *folder.glob("mode*/**/*")]:
        found = path.lstat()
        assert found.st_uid == os.geteuid(), path
        assert not stat.S_IMODE(found.st_mode) & 0o7000 or path.is_symlink(), path
    for number in range(5):
        assert (folder / f"mode{number}/inner/file").read_text() == "x"


SWAP = """
os.chdir(GIVEN["job"])
os.mkdir("real")
write("real/inside")
os.symlink(GIVEN["folder"], "link")
os.rename("real", "place")
print("ready", flush=True)
deadline = time.monotonic() + 1.5
while time.monotonic() < deadline:
    os.rename("place", "real")
    os.rename("link", "place")
    os.rename("place", "link")
    os.rename("real", "place")
control("swapped", lambda: True)
"""


def test_a47_folders_that_become_links_while_they_are_read(arena: Arena, workspace: Mount) -> None:
    """The worker looks at the tree while the code still changes it."""
    with new_folder("a47-", "/var/tmp") as host:
        (host / "outside").touch()
        given = {"job": arena.sandbox.path(workspace), "folder": str(host)}
        # With a limit on the disk the sandbox looks, too.
        limits = {"disk_bytes": 64 << 20, "disk_files": 1000}
        running = arena.start(SWAP, given=given, mounts=(workspace,), **limits)
        names: set[str] = set()
        looks = 0
        running.printed("ready")
        stop = threading.Timer(1.2, lambda: None)
        stop.start()
        with opened_folder(str(workspace.source)) as folder:
            while stop.is_alive():
                looks += 1
                try:
                    names.update(item.name for item in scan(folder, BOUNDS))
                except (UnsafeArtifact, OSError):
                    continue
        ended = running.wait()
    assert ended.exit.code == 0, ended
    assert ended.controls == ["swapped"]
    assert looks > 20
    assert not any("outside" in name for name in names)


def test_a48_a_tree_that_takes_long_to_give_back(arena: Arena, workspace: Mount) -> None:
    """The end of a program with thousands of files comes soon nevertheless."""
    script = """
os.chdir(GIVEN["job"])
print("ready", flush=True)
for folder in range(10):
    os.mkdir(str(folder))
    for number in range(200):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY, 0))
control("made", lambda: True)
"""
    given = {"job": arena.sandbox.path(workspace)}
    ended = arena.attack(script, given=given, mounts=(workspace,))
    assert ended.seconds - ended.exit.wall_seconds < 15
    since = time.monotonic()
    assert remove_tree(workspace.source)
    assert time.monotonic() - since < 15


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user it is not readable anyway")
def test_a49_links_in_the_place_of_inputs(arena: Arena, workspace: Mount, tmp_path: Path) -> None:
    """A link that training left where the worker mounts something later is no way out."""
    arena.attack(
        "os.symlink('/', GIVEN['job'] + '/out')\ncontrol('linked', lambda: True)",
        given={"job": arena.sandbox.path(workspace)},
        mounts=(workspace,),
    )
    with pytest.raises(OSError):
        with opened_folder(str(workspace.source / "out")):
            pass

"""How much a program may write: volumes that the kernel limits, and folders that are watched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from assay.sandbox import (
    Exit,
    Limits,
    Mount,
    Sandbox,
    SandboxSettings,
    SandboxSpec,
    open_sandbox,
    open_volume,
    sweep_volumes,
)
from assay.sandbox.disk import DiskWatch

MIB, GIB = 1 << 20, 1 << 30
HELD = 32 * MIB
LIMITS = Limits(10, 512 * MIB, file_bytes=8 * HELD, disk_bytes=HELD, disk_files=100, open_files=64)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")

HUGE = """
with open(folder + '/huge', 'wb', buffering=0) as file:
    for _ in range(128):
        file.write(b'x' * (1 << 20))
"""
MANY = """
for n in range(5000):
    open(f'{folder}/{n}', 'w').close()
"""
HONEST = """
for n in range(50):
    with open(f'{folder}/{n}', 'wb') as file:
        file.write(b'x' * (1 << 14))
"""


@pytest.fixture(
    params=[pytest.param("memory", marks=as_root), pytest.param("image", marks=as_root), "folder"]
)
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder that holds 32 MiB: a tmpfs, an ext4 image, or an ordinary one."""
    folder = tmp_path / "held"
    folder.mkdir()
    if request.param == "folder":
        yield folder
        return
    most = 0 if request.param == "image" else HELD
    with open_volume(folder, HELD, 100, in_memory_bytes=most) as hard:
        assert hard
        yield folder
    assert list(folder.iterdir()) == []
    assert not folder.with_name("held.ext4").exists()


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.bubblewrap), "subprocess"])
def sandbox(
    request: pytest.FixtureRequest, settings: Callable[[str], SandboxSettings], tmp_path: Path
) -> Sandbox:
    (tmp_path / "scratch").mkdir()
    return open_sandbox(replace(settings(request.param), grace_seconds=0.2))


def run(sandbox: Sandbox, folder: Path, code: str, limits: Limits = LIMITS) -> Exit:
    mount = Mount(folder, "/job", writable=True)
    code = f"folder = {sandbox.path(mount)!r}\n{code}"
    argv = (sandbox.python, "-I", "-S", "-c", code)
    spec = SandboxSpec("disk", argv, {}, (mount,), sandbox.path(mount), limits)
    return sandbox.start(spec).wait()


def test_what_fits_is_written(sandbox: Sandbox, held: Path) -> None:
    ended = run(sandbox, held, HONEST)
    assert (ended.reason, ended.code) == ("exited", 0)
    assert len(list(held.iterdir())) == 50


@pytest.mark.parametrize("code", [HUGE, MANY])
def test_what_does_not_fit_ends_the_program(sandbox: Sandbox, held: Path, code: str) -> None:
    ended = run(sandbox, held, f"{code}\nimport time\ntime.sleep(60)")
    assert ended.reason == "disk"
    assert ended.code != 0
    assert ended.wall_seconds < 20


@pytest.mark.parametrize("held", [pytest.param("memory", marks=as_root)], indirect=True)
def test_a_program_that_copes_is_left_alone(sandbox: Sandbox, held: Path) -> None:
    code = f"try:\n{HUGE.replace(chr(10), chr(10) + '    ')}\nexcept OSError:\n    pass"
    assert run(sandbox, held, code).reason == "exited"


def test_a_failure_for_another_reason_is_not_blamed_on_the_disk(
    sandbox: Sandbox, held: Path
) -> None:
    ended = run(sandbox, held, f"{HONEST}\nraise SystemExit(3)")
    assert (ended.reason, ended.code) == ("exited", 3)


@as_root
def test_nothing_on_a_volume_can_be_executed(tmp_path: Path) -> None:
    with open_volume(tmp_path, MIB) as hard:
        assert hard
        script = tmp_path / "script"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        with pytest.raises(PermissionError):
            os.execv(script, ["script"])


@as_root
@pytest.mark.parametrize("kind", ["memory", "image"])
def test_volumes_of_a_killed_owner_are_swept(tmp_path: Path, kind: str) -> None:
    opened = partial(open_volume, in_memory_bytes=0 if kind == "image" else HELD)
    scope, other = tmp_path / "ours, jürgen", tmp_path / "ours, jürgen too"
    for folder in (scope / "att_1", other / "att_1"):
        folder.mkdir(parents=True)
    left = opened(scope / "att_1", HELD)
    assert left.__enter__()
    (scope / "att_1" / "file").touch()
    with opened(other / "att_1", HELD):
        (other / "att_1" / "file").touch()
        assert sweep_volumes(scope) == 1
        assert list(scope.rglob("*")) == [scope / "att_1"]
        assert (other / "att_1" / "file").exists(), "that is somebody else's"
    assert sweep_volumes(scope) == 0
    left.__exit__(None, None, None)  # finds it gone


MEMORY = 96 * MIB
OVERFLOWS = """
with open(folder + '/huge', 'wb', buffering=0) as file:
    for _ in range(512):
        file.write(b'x' * (1 << 20))
"""
BALLOONS = """
with open(folder + '/small', 'wb') as file:
    file.write(b'x' * (8 << 20))
block = bytearray(1 << 30)
block[::4096] = b'x' * len(block[::4096])
"""


def told_of_memory(sandbox: Sandbox, folder: Path, code: str) -> str:
    """The reason that is told for a program whose output folder is a volume in memory, larger than
    the memory it may use."""
    folder.mkdir()
    out = folder / "out"
    limits = replace(LIMITS, memory_bytes=MEMORY, disk_bytes=GIB, file_bytes=GIB)
    with open_volume(folder, GIB, 100) as hard:
        assert hard
        out.mkdir(mode=0o755)
        ended = run(sandbox, out, code, limits)
    assert ended.code == -9
    return ended.reason


@as_root
@pytest.mark.parametrize(("code", "reason"), [(OVERFLOWS, "disk"), (BALLOONS, "memory")])
def test_files_that_fill_the_memory_are_blamed_on_the_disk(
    sandbox: Sandbox, tmp_path: Path, code: str, reason: str
) -> None:
    assert told_of_memory(sandbox, tmp_path / "writable", code) == reason


@as_root
def test_a_volume_shared_by_two_mounts_counts_once(tmp_path: Path) -> None:
    for kind, most in (("memory", HELD), ("image", 0)):
        folder = tmp_path / kind
        folder.mkdir()
        with open_volume(folder, HELD, 100, in_memory_bytes=most):
            mounts = [Mount(folder / name, f"/{name}", writable=True) for name in ("a", "b")]
            for mount in mounts:
                mount.source.mkdir()
            (folder / "a" / "file").write_bytes(b"x" * MIB)
            held = DiskWatch(mounts, LIMITS).bytes_in_memory()
        assert held == (MIB if kind == "memory" else 0)


def watch(folder: Path, **limits: int) -> DiskWatch:
    return DiskWatch([Mount(folder, "/x", writable=True)], Limits(1, 1 << 20, **limits))


def test_the_watch_counts_bytes_and_files_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * MIB)
    job = tmp_path / "job"
    (job / "a" / "b").mkdir(parents=True)
    (job / "a" / "b" / "small").write_bytes(b"x" * 4096)
    (job / "link").symlink_to(tmp_path / "large")
    (job / "folder").symlink_to(tmp_path)
    assert not watch(job, disk_bytes=64 << 10, disk_files=10).exceeded()
    assert watch(job, disk_bytes=64 << 10, disk_files=4).exceeded()
    assert watch(job, disk_bytes=4096).exceeded()
    assert not watch(tmp_path / "gone", disk_bytes=1).exceeded()
    read_only = DiskWatch([Mount(job, "/x")], Limits(1, 1 << 20, disk_bytes=1))
    assert not read_only.exceeded()


def test_a_folder_that_hides_itself_counts_as_too_much(tmp_path: Path) -> None:
    """Never as an error of the host, which would be tried again. Root sees through modes."""
    job = tmp_path / "job"
    (job / "inner").mkdir(parents=True)
    found = watch(job, disk_bytes=MIB, disk_files=10)
    assert not found.exceeded()
    for mode in (0o000, 0o300):
        job.chmod(mode)
        assert found.full() is (os.geteuid() != 0)
    job.chmod(0o755)
    shutil.rmtree(job)
    job.symlink_to("/")
    assert found.full()
    job.unlink()
    assert not found.full()


def test_the_watch_gives_up_on_a_tree_that_is_too_deep(tmp_path: Path) -> None:
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    assert watch(tmp_path, disk_bytes=MIB << 10).exceeded()


@as_root
def test_volumes_of_a_killed_worker_are_unmounted_at_once(tmp_path: Path) -> None:
    scope = tmp_path / "a folder for jürgen" / "attempts"
    for number in range(2):
        (scope / f"att_{number}").mkdir(parents=True)
    code = """
import sys, time
from pathlib import Path
from assay.sandbox import VolumeKeeper, open_volume
scope = Path(sys.argv[1])
lock = (scope.parent / "lock").open("w")
keeper = VolumeKeeper(scope, lock.fileno())
volumes = [open_volume(scope / f"att_{n}", 1 << 20) for n in range(2)]
for volume in volumes:
    assert volume.__enter__()
print("ready", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(scope)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert all(os.path.ismount(path) for path in scope.iterdir())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5
    while any(os.path.ismount(path) for path in scope.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)

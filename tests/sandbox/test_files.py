"""Mounts of a root worker: staging, ownership, and nothing left behind."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Mount, SandboxError, interpreter_mounts
from assay.sandbox.ownership import take_back
from assay.sandbox.staging import staging_folder, sweep_staging, traversable
from tests.support.leftovers import control_groups

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes users")


def leftovers() -> list[str]:
    """What this process's sandboxes have left on the host."""
    own = f"-{os.getpid()}-"
    found = [str(path) for path in Path("/run").glob(f"assay-stage{own}*")]
    found += [str(path) for path in Path("/tmp").glob(f"assay-stage{own}*")]
    found += [str(path) for path in control_groups(f"assay{own}")]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [line for line in mounts if "assay-stage" in line]


@pytest.mark.bubblewrap
@needs_root
def test_sources_below_closed_folders_are_staged(bubblewrap: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    inner = closed / "it's; $(data) x"
    inner.mkdir(parents=True)
    (inner / "part.txt").write_text("data")
    single = closed / "single.txt"
    single.write_text("single")
    closed.chmod(0o700)
    assert not traversable(str(inner))
    code = "print(open('/data/part.txt').read(), open('/one').read())"
    mounts = (Mount(inner, "/data"), Mount(single, "/one"))
    assert bubblewrap.finish(code, mounts=mounts).out == "data single\n"
    assert leftovers() == []


@pytest.mark.bubblewrap
def test_nothing_is_left_after_a_kill(bubblewrap: Any, workspace: Mount) -> None:
    started = bubblewrap.start("import time; time.sleep(30)", mounts=(workspace,))
    started.handle.kill()
    assert leftovers() == []
    with pytest.raises(ValueError, match="target"):
        bubblewrap.start("pass", mounts=(workspace, Mount(workspace.source, "no")))
    with pytest.raises(SandboxError):
        bubblewrap.start("pass", mounts=(workspace, Mount(Path("/nowhere"), "/no")))
    assert leftovers() == []
    assert (workspace.source / "given.txt").stat().st_uid == os.geteuid()


@pytest.mark.bubblewrap
def test_workspace_belongs_to_the_worker_again(bubblewrap: Any, workspace: Mount) -> None:
    code = """
import os
os.makedirs("a/b")
open("a/b/c", "w").close()
os.symlink("/etc/passwd", "link")
open("suid", "w").close()
os.chmod("suid", 0o4700)
os.mkfifo("fifo")
os.chmod("given.txt", 0)
os.chmod("a/b", 0)
os.chmod(".", 0o700)
"""
    before = os.lstat("/etc/passwd")
    bubblewrap.finish(code, mounts=(workspace,), cwd="/job")
    found = [workspace.source, *workspace.source.rglob("*")]
    assert {"c", "link", "suid", "fifo", "given.txt"} <= {path.name for path in found}
    assert {path.lstat().st_uid for path in found} == {os.geteuid()}
    assert not (workspace.source / "suid").stat().st_mode & stat.S_ISUID
    assert (workspace.source / "given.txt").read_text() == "given"
    after = os.lstat("/etc/passwd")
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)
    ended = bubblewrap.finish(
        "print(open('/again/given.txt').read())", mounts=(Mount(workspace.source, "/again"),)
    )
    assert ended.out == "given\n"


@pytest.mark.bubblewrap
@needs_root
def test_hard_links_do_not_lend_foreign_files(
    bubblewrap: Any, workspace: Mount, tmp_path: Path
) -> None:
    original = tmp_path / "original"
    original.write_text("original")
    os.link(original, workspace.source / "linked")
    code = "import os\nprint(open('linked').read())\nopen('linked', 'w')"
    ended = bubblewrap.start(code, mounts=(workspace,), cwd="/job").wait()
    assert ended.out == "original\n"
    assert "PermissionError" in ended.err
    assert original.read_text() == "original"


@pytest.mark.bubblewrap
@needs_root
def test_private_sources_are_refused_with_a_remedy(bubblewrap: Any, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(SandboxError, match="chmod -R o\\+rX"):
        bubblewrap.start("pass", mounts=(Mount(private, "/data"),))


def test_interpreter_mounts_hold_no_parents() -> None:
    mounts = interpreter_mounts()
    allowed = {os.path.normpath(sys.prefix), os.path.normpath(sys.base_prefix)}
    allowed.add(os.path.realpath(sys.base_prefix))
    assert {mount.target for mount in mounts} <= allowed
    assert all(str(mount.source) == mount.target and not mount.writable for mount in mounts)
    repository = Path(__file__).parents[2]
    assert not any(repository.is_relative_to(mount.target) for mount in mounts)


@pytest.mark.parametrize("prefix", ["/", "/root", os.path.expanduser("~")])
def test_interpreter_mounts_refuse_wide_folders(monkeypatch: Any, prefix: str) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    with pytest.raises(ValueError, match="holds too much"):
        interpreter_mounts()


@needs_root
def test_staging_never_removes_content(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    source = tmp_path / "source"
    source.mkdir()
    context = staging_folder()
    point = Path(context.__enter__().reach(str(source)))
    (point / "precious").write_text("kept")
    with pytest.raises(OSError, match="not empty"):
        context.__exit__(None, None, None)
    assert (point / "precious").read_text() == "kept"
    (point / "precious").unlink()
    point.rmdir()
    point.parent.rmdir()


@needs_root
def test_sweep_removes_mount_points_of_dead_workers_only() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    dead = Path(f"/run/assay-stage-{ended.pid}-x")
    alive = Path(f"/run/assay-stage-{os.getpid()}-x")
    (dead / "0").mkdir(parents=True)
    alive.mkdir()
    try:
        assert sweep_staging() >= 1
        assert not dead.exists()
        assert alive.exists()
    finally:
        alive.rmdir()


def test_take_back_survives_a_deep_tree(tmp_path: Path) -> None:
    base = os.open(tmp_path, os.O_RDONLY)
    folder = os.dup(base)
    for _ in range(600):
        os.mkdir("d", dir_fd=folder)
        deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    os.close(base)
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0)
    take_back(tmp_path, None)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600

"""Control groups: finding them in both versions, and using those of this machine."""

import os
import subprocess
from pathlib import Path

import pytest

from assay.sandbox import Limits
from assay.sandbox.cgroups import ControlGroups, Group, Hierarchies, find_hierarchies

LIMITS = Limits(wall_seconds=1, memory_bytes=1 << 28, processes=7)


def test_version_2_below_the_own_group(tmp_path: Path) -> None:
    (tmp_path / "app.service").mkdir()
    mountinfo = f"30 24 0:26 / {tmp_path} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
    found = find_hierarchies(mountinfo, "0::/app.service\n")
    assert found == Hierarchies({}, tmp_path / "app.service")


def test_version_1_with_shared_hierarchies_and_a_container_root(tmp_path: Path) -> None:
    for name in ("memory", "cpu,cpuacct", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "memory" / "inner").mkdir()
    mountinfo = "\n".join(
        [
            f"31 30 0:27 /docker/ab {tmp_path}/memory rw - cgroup cgroup rw,memory",
            f"32 30 0:28 /docker/ab {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            f"33 30 0:29 / {tmp_path}/unified rw - cgroup2 cgroup2 rw",
            "34 30 0:30 / /proc rw - proc proc rw",
        ]
    )
    membership = "3:memory:/docker/ab/inner\n2:cpu,cpuacct:/docker/ab\n0::/\n"
    found = find_hierarchies(mountinfo, membership)
    assert found.v1 == {
        "memory": tmp_path / "memory" / "inner",
        "cpu": tmp_path / "cpu,cpuacct",
        "cpuacct": tmp_path / "cpu,cpuacct",
    }
    assert found.folders() == [
        tmp_path / "memory" / "inner",
        tmp_path / "cpu,cpuacct",
        tmp_path / "unified",
    ]
    assert found.v2 == tmp_path / "unified"


def test_a_supervisor_makes_groups_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "app.service" / "assay-supervisor").mkdir(parents=True)
    mountinfo = f"30 24 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw"
    found = find_hierarchies(mountinfo, "0::/app.service/assay-supervisor\n")
    assert found.v2 == tmp_path / "app.service"


def test_version_2_figures(tmp_path: Path) -> None:
    group = Group({}, tmp_path, True, True)
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 0\n")
    assert group.cpu_seconds() == 1.5
    assert group.peak_memory() == 4096
    assert not group.out_of_memory()
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert group.out_of_memory()


def test_without_groups_nothing_is_claimed() -> None:
    assert ControlGroups(Hierarchies()).create(LIMITS) is None


@pytest.fixture
def groups() -> ControlGroups:
    found = ControlGroups()
    if not found.hierarchies.folders():
        pytest.skip("this machine lets us make no control groups")
    return found


def test_a_group_of_this_machine(groups: ControlGroups) -> None:
    group = groups.create(LIMITS)
    assert group is not None
    script = 'for file in "$@"; do echo 0 >"$file"; done; exec sleep 20'
    process = subprocess.Popen(["/bin/sh", "-c", script, "join", *group.join_files()])
    try:
        while len(group.members()) == 0:
            assert process.poll() is None
        assert group.members() == [process.pid]
        group.kill()
        assert process.wait(5) == -9
    finally:
        process.kill()
        process.wait()
    assert group.remove()
    assert not any(Path(file).exists() for file in group.join_files())


def test_sweep_removes_groups_of_dead_owners_only(groups: ControlGroups) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    base = groups.hierarchies.folders()[0]
    dead, alive = base / f"assay-{ended.pid}-x", base / f"assay-{os.getpid()}-x"
    dead.mkdir()
    alive.mkdir()
    try:
        assert groups.sweep() >= 1
        assert not dead.exists()
        assert alive.exists()
    finally:
        alive.rmdir()

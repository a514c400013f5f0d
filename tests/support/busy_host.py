"""A host that has little left for its sandboxes: control groups below a parent with limits."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.sandbox.cgroups import ControlGroups, Group, Hierarchies
from tests.support.needs import missing

_PERIOD = 100_000


@contextmanager
def busy_host(
    *, processors: float | None = None, memory_bytes: int | None = None
) -> Iterator[ControlGroups]:
    """Groups that together get `processors` (0.2: a fifth of one) and `memory_bytes`.

    To what runs in them this looks as neighbours do who leave no more. Skips the test, or fails it
    in CI, where no such group can be made.
    """
    own = ControlGroups().hierarchies
    name = f"assay-test-host-{secrets.token_hex(4)}"
    parents = {base: base / name for base in own.folders()}
    for folder in parents.values():
        folder.mkdir()
    v2 = parents[own.v2] if own.v2 else None
    host = Hierarchies({kind: parents[base] for kind, base in own.v1.items()}, v2)
    try:
        for folder, wanted in _limits(host, processors, memory_bytes):
            try:
                for file, value in wanted.items():
                    (folder / file).write_text(value)
            except OSError as error:
                missing(f"control groups cannot be limited: {error}")
        yield ControlGroups(host)
    finally:
        Group(host.v1, host.v2, limits_memory=False, limits_processes=False).remove()


def _limits(
    host: Hierarchies, processors: float | None, memory_bytes: int | None
) -> Iterator[tuple[Path, dict[str, str]]]:
    if processors is not None:
        quota = str(round(processors * _PERIOD))
        if "cpu" in host.v1:
            wanted = {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota}
            yield host.v1["cpu"], wanted
        elif host.v2 is not None:
            yield host.v2, {"cpu.max": f"{quota} {_PERIOD}"}
        else:
            missing("there are no control groups to limit processors with")
    if memory_bytes is not None:
        if "memory" in host.v1:
            yield host.v1["memory"], {"memory.limit_in_bytes": str(memory_bytes)}
        elif host.v2 is not None:
            yield host.v2, {"memory.max": str(memory_bytes), "memory.swap.max": "0"}
        else:
            missing("there are no control groups to limit memory with")


def join_files(groups: ControlGroups) -> list[str]:
    """Files into which a process writes `0`, so that it and what it starts live on the host."""
    return [str(folder / "cgroup.procs") for folder in groups.hierarchies.folders()]

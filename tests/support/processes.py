"""Find the processes of this host that use a folder, sandboxes included."""

from __future__ import annotations

import os
from pathlib import Path


def using(folder: Path) -> list[int]:
    """Ids of the processes that name `folder` in their command line or have mounted a part of it.

    The command line of a sandbox holds no path of the host; its mounts are read instead. Of the
    mounts only those count whose source is inside the folder: the mounts below the folder itself
    are visible to every process of the host.
    """
    device, inside = _source_of(folder)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            named = os.fsencode(folder) in (entry / "cmdline").read_bytes()
            mounts = (entry / "mountinfo").read_text()
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        mounted = any(
            source == device and Path(root).is_relative_to(inside)
            for _, _, source, root, *_ in map(str.split, mounts.splitlines())
        )
        if named or mounted:
            found.append(int(entry.name))
    return found


def _source_of(folder: Path) -> tuple[str, Path]:
    """Device of the file system that holds `folder`, and the folder's path inside it."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    real = folder.resolve()
    above = [row for row in rows if real.is_relative_to(row[4])]
    nearest = max(above, key=lambda row: len(Path(row[4]).parts))
    return nearest[2], Path(nearest[3]) / real.relative_to(nearest[4])

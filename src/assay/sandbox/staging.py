"""Lets an unprivileged user read folders whose parents it may not enter.

A root worker often keeps its interpreter or its work below `/root`, which others cannot enter.
Such sources are bound onto an empty folder that everybody may enter, inside a private mount
namespace: the host never sees these mounts, and they vanish with the program.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from assay.sandbox.interface import SandboxError
from assay.sandbox.users import is_root

PARENTS = ("/run", "/tmp", "/var/tmp")
_PREFIX = "assay-stage-"
_DEVICES = tuple(f"/dev/{name}" for name in ["null", "zero", "full", "random", "urandom", "tty"])


def traversable(path: str) -> bool:
    """Whether every user may enter all folders above `path` (which holds no links)."""
    return all(os.stat(parent).st_mode & stat.S_IXOTH for parent in Path(path).parents)


def check_readable(source: str) -> None:
    """Raise `SandboxError` when other users may not read `source` itself."""
    mode = os.stat(source).st_mode
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    if mode & needed != needed:
        raise SandboxError(
            f"{source} is readable by its owner only; the sandbox runs under another user. "
            f"Allow it with: chmod -R o+rX {source}"
        )


@dataclass
class Staging:
    """The staged sources of one launch: `binds` maps each source to where it is bound."""

    folder: Path
    binds: dict[str, str] = field(default_factory=dict)

    def reach(self, source: str) -> str:
        """A path at which every user can reach `source`, staged when it has to be."""
        if traversable(source):
            return source
        if source not in self.binds:
            point = self.folder / str(len(self.binds))
            if os.path.isdir(source):
                point.mkdir(mode=0o711)
            else:
                point.touch(mode=0o600)
            self.binds[source] = str(point)
        return self.binds[source]

    def device_table(self) -> str:
        """A file of mounts that make the host's ordinary devices read-only.

        They can still be written *to*. But their times can no longer be set, which would stay with
        the host, for every other program to read.
        """
        table = self.folder / "devices"
        rows = [f"{path} {path} none bind,ro 0 0\n" for path in _DEVICES if os.path.exists(path)]
        table.write_text("".join(rows))
        return str(table)


@contextmanager
def staging_folder() -> Iterator[Staging]:
    """An empty folder for mount points, removed afterwards (and never what is mounted there)."""
    parent = next((place for place in PARENTS if _usable(place)), None)
    if parent is None:
        raise SandboxError(f"no folder to stage sources in among {', '.join(PARENTS)}")
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    try:
        folder.chmod(0o711)
        staging = Staging(folder)
        yield staging
    finally:
        _remove(folder)


def sweep_staging() -> int:
    """Remove mount points whose owner is gone (it was killed); returns how many folders."""
    count = 0
    for parent in PARENTS:
        for folder in Path(parent).glob(f"{_PREFIX}*-*"):
            owner = folder.name.removeprefix(_PREFIX).split("-")[0]
            if is_root() and owner.isdigit() and not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):
                    _remove(folder)
                    count += 1
    return count


def _remove(folder: Path) -> None:
    for point in folder.iterdir():
        if point.is_dir():
            point.rmdir()  # refuses a folder that is not empty
        else:
            point.unlink()
    folder.rmdir()


def _usable(place: str) -> bool:
    return os.path.isdir(place) and traversable(f"{place}/x") and os.access(place, os.W_OK)

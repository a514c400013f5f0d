"""Watches how much a program has written to its writable mounts.

On a volume (`volume.open_volume`) the kernel holds the limit and this only explains a failure. On
an ordinary folder the watch *is* the limit: it looks every quarter of a second, so a program may
overshoot by what it writes in that time, and files without a name are not seen.
"""

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from assay.sandbox.interface import Limits, Mount

_INTERVAL = 0.25
_SHARE, _LONGEST = 20, 1.0  # a look may take a twentieth of the time, within bounds
_MOST_FILES = 100_000  # looking through more takes too long, where no limit is given
_MAX_DEPTH = 32  # each level holds a descriptor; no honest tree is as deep
_SLACK_SHARE = 16  # a volume with less than this part left is full: a buffer did not fit any more
_SLACK_FILES = 1


class DiskWatch:
    """What the writable folders among `mounts` hold, against `limits.disk_bytes` and
    `disk_files`. Without such limits it never says anything."""

    def __init__(self, mounts: Iterable[Mount], limits: Limits) -> None:
        self._limits = limits
        limited = limits.disk_bytes is not None or limits.disk_files is not None
        folders = [m.source for m in mounts if limited and m.writable and m.source.is_dir()]
        # Judged before the program starts, which could replace what it finds.
        self._volumes = [f for f in folders if _is_volume(f, limits.disk_bytes)]
        self._watched = [f for f in folders if f not in self._volumes]
        self._next = 0.0

    def exceeded(self) -> bool:
        """Whether ordinary folders hold too much; cheap to call often."""
        now = time.monotonic()
        if not self._watched or now < self._next:
            return False
        over = self._over()
        taken = time.monotonic() - now
        self._next = time.monotonic() + max(_INTERVAL, min(_LONGEST, _SHARE * taken))
        return over

    def over(self) -> bool:
        """Whether ordinary folders hold too much in the end, whatever the last look said."""
        return bool(self._watched) and self._over()

    def full(self) -> bool:
        """Whether a limit was reached, asked when a program has failed."""
        return any(_is_full(volume) for volume in self._volumes) or self._over()

    def bytes_in_memory(self) -> int:
        """What volumes in memory hold, in bytes; the kernel counts it as memory of the writer."""
        held: dict[int, int] = {}  # by file system: two mounts may share a volume
        for volume in self._volumes:
            try:
                found, device = os.statvfs(volume), os.stat(volume).st_dev
            except OSError:  # hidden from us by what the program did to it
                continue
            if os.major(device) == 0:  # no block device: a tmpfs, not a file system in a file
                held[device] = (found.f_blocks - found.f_bfree) * found.f_frsize
        return sum(held.values())

    def _over(self) -> bool:
        count = _Count(self._limits)
        return any(count.add(folder) for folder in self._watched)


def _is_volume(folder: Path, limit: int | None) -> bool:
    found = os.statvfs(folder)
    return limit is not None and found.f_blocks * found.f_frsize <= limit


def _is_full(volume: Path) -> bool:
    try:
        found = os.statvfs(volume)
    except OSError:  # hidden from us by what the program did to it
        return True
    return found.f_bavail < found.f_blocks / _SLACK_SHARE or found.f_favail <= _SLACK_FILES


class _Count:
    """Adds up bytes and files of hostile trees, and stops as soon as it is too much."""

    def __init__(self, limits: Limits) -> None:
        self._bytes = limits.disk_bytes if limits.disk_bytes is not None else 1 << 62
        self._files = limits.disk_files if limits.disk_files is not None else _MOST_FILES

    def add(self, folder: Path) -> bool:
        """Whether with this tree the limits are exceeded. No link is followed."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError:  # made unreadable, or replaced by a link
            return True
        try:
            return self._add_folder(descriptor, 0)
        except OSError:
            return True
        finally:
            os.close(descriptor)

    def _add_folder(self, folder: int, depth: int) -> bool:
        inner = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                if self._add_file(found):
                    return True
                if stat.S_ISDIR(found.st_mode):
                    inner.append(entry.name)
        return any(self._add_inner(folder, name, depth) for name in inner)

    def _add_file(self, found: os.stat_result) -> bool:
        self._files -= 1
        self._bytes -= found.st_blocks * 512
        return self._files < 0 or self._bytes < 0

    def _add_inner(self, folder: int, name: str, depth: int) -> bool:
        if depth >= _MAX_DEPTH:
            return True
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            inner = os.open(name, flags, dir_fd=folder)
        except PermissionError:  # it hides what it holds
            return True
        except OSError:  # removed or replaced meanwhile
            return False
        try:
            return self._add_folder(inner, depth + 1)
        finally:
            os.close(inner)

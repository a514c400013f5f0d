"""Checkpoints that a training leaves at scheduled moments, and when they were there.

A training moves each, as a folder, to `checkpoints/<name>` in its artifact folder when it is
complete, and never changes it again. Who watches that folder from outside records when a
checkpoint was first seen, with its hash: so nothing can be put into an early one later, and no
clock of the training counts. A predictor that is asked about a checkpoint sees that folder alone.

All of this is read while hostile code may be running in it: every step goes through a descriptor
of a folder that is not a link, and what is unusual makes a checkpoint unreadable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

FOLDER = "checkpoints"
MOST = 256
"""More than these are not looked at."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DEPTH = 8
_FILES = 1000
_CHUNK = 4 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Checkpoint:
    """A folder below `checkpoints/`; `seconds` after the start of training it was complete."""

    name: str
    seconds: float
    sha256: str


@dataclass
class Reader:
    """Hashes checkpoints as long as there is a reason to: `most_bytes` are read in all.

    What was read for a checkpoint that turned out to be unreadable counts, too.
    """

    most_bytes: int
    is_wanted: Callable[[], bool] = field(default=lambda: True)

    def hash_of(self, artifact: int, name: str) -> str | None:
        """The hash of a checkpoint's names and contents, in an open artifact folder.

        None if it is not there, is too large, or holds anything but folders and regular files.
        """
        digest = hashlib.sha256()
        try:
            with _opened(FOLDER, artifact) as parent, _opened(name, parent) as folder:
                for path, descriptor in _walk(folder, "", _DEPTH):
                    digest.update(os.fsencode(path) + b"\0")
                    if descriptor is not None:
                        digest.update(self._content(descriptor))
        except OSError:
            return None
        return digest.hexdigest()

    def _content(self, descriptor: int) -> bytes:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > self.most_bytes:
            raise OSError("not a regular file, or too large")
        digest = hashlib.sha256()
        while chunk := os.read(descriptor, _CHUNK):
            self.most_bytes -= len(chunk)
            if self.most_bytes < 0 or not self.is_wanted():
                raise OSError("nobody wants to know any more")
            digest.update(chunk)
        return digest.digest()


def names(artifact: int) -> list[str]:
    """The checkpoints in an open artifact folder, in the order of their names."""
    try:
        with _opened(FOLDER, artifact) as folder, os.scandir(folder) as entries:
            found = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # there are none, or something else has that name
    return sorted(name for name in found if _NAME.fullmatch(name))[:MOST]


@contextlib.contextmanager
def _opened(name: str, parent: int) -> Iterator[int]:
    """A folder that is one, and no link to one."""
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, int | None]]:
    """Everything below a folder by name: (path, descriptor of a file), or (path/, None)."""
    if depth == 0:
        raise OSError("nested too deep")
    entries = sorted(os.listdir(folder))
    if len(entries) > _FILES:
        raise OSError("too many files")
    for entry in entries:
        path = prefix + entry
        if stat.S_ISDIR(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode):
            yield f"{path}/", None
            with _opened(entry, folder) as inner:
                yield from _walk(inner, f"{path}/", depth - 1)
        else:
            descriptor = os.open(entry, _FILE, dir_fd=folder)
            try:
                yield path, descriptor
            finally:
                os.close(descriptor)

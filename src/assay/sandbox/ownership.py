"""Hands a writable folder to a sandbox's user and takes it back.

Everything is done relative to open folder descriptors and without following links, because the
tree that comes back was written by code nobody trusts. Nothing else may change the tree meanwhile:
it is handed over before the program starts and taken back when all its processes are gone.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from assay.sandbox.filesystem import is_device
from assay.sandbox.interface import Mount
from assay.sandbox.staging import check_readable

# Below this depth a tree stays as it is: a hostile one may be deeper than descriptors last.
_MAX_DEPTH = 200

_Visit = Callable[[int, str, os.stat_result], None]


def hand_over(mounts: Iterable[Mount], user: int | None, stack: contextlib.ExitStack) -> None:
    """Make mounts usable by the program's user (None: this one); `stack` gives them back.

    Raises `SandboxError` when a read-only source is not readable by that user.
    """
    for mount in mounts:
        if is_device(mount.source):
            continue
        source = os.path.realpath(mount.source)
        if mount.writable:
            stack.callback(take_back, Path(source), user)
            if user is not None:
                give(Path(source), user)
        elif user is not None:
            check_readable(source)


def expect_back(mounts: Iterable[Mount], user: int | None, stack: contextlib.ExitStack) -> None:
    """What `hand_over` did was done by a process that is gone: `stack` gives the mounts back."""
    for mount in mounts:
        if mount.writable and not is_device(mount.source):
            stack.callback(take_back, Path(os.path.realpath(mount.source)), user)


def give(tree: Path, user: int) -> None:
    """Make `user` the owner of `tree` and everything in it.

    Files with several hard links are left out: their other names may lie in somebody else's
    folder.
    """

    def visit(folder: int, name: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_nlink == 1:
            os.chown(name, user, user, dir_fd=folder, follow_symlinks=False)

    _visit_tree(tree, visit)


def take_back(tree: Path, user: int | None) -> None:
    """Make this process the owner of what `user` owns in `tree`, and everything there usable.

    Folders and files become readable (and folders enterable) for their owner again; setuid and
    setgid bits go. With a `user`, they also become readable for other users, so that a later
    sandbox can read them; without (None), ownership never changed.
    """
    owner, group = os.geteuid(), os.getegid()
    readable_folder, readable_file = (0o755, 0o644) if user is not None else (0o700, 0o600)

    def visit(folder: int, name: str, found: os.stat_result) -> None:
        if found.st_uid not in (user, owner):
            return
        if user is not None and found.st_uid == user:
            os.chown(name, owner, group, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return
        least = readable_folder if stat.S_ISDIR(found.st_mode) else readable_file
        mode = (stat.S_IMODE(found.st_mode) & 0o777) | least
        if mode != stat.S_IMODE(found.st_mode):
            os.chmod(name, mode, dir_fd=folder)

    _visit_tree(tree, visit)


def _visit_tree(tree: Path, visit: _Visit) -> None:
    """Call `visit` for the tree's top and everything in it; each folder before its content."""
    parent = os.open(tree.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _visit_entry(parent, tree.name, visit, 0)
    finally:
        os.close(parent)


def _visit_entry(folder: int, name: str, visit: _Visit, depth: int) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    # A single odd entry (an immutable file, say) must not keep the rest from being handed over.
    with contextlib.suppress(PermissionError, FileNotFoundError):
        visit(folder, name, found)
    if not stat.S_ISDIR(found.st_mode) or depth >= _MAX_DEPTH:
        return
    with _opened(folder, name) as inner:
        for entry in os.listdir(inner) if inner is not None else ():
            _visit_entry(inner or 0, entry, visit, depth + 1)


@contextlib.contextmanager
def _opened(folder: int, name: str) -> Iterator[int | None]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        inner = os.open(name, flags, dir_fd=folder)
    except PermissionError:
        yield None
        return
    try:
        yield inner
    finally:
        os.close(inner)

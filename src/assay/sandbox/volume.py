"""A folder with a hard limit on what it holds, so that no program can fill the host's disk.

Small volumes are held in memory (tmpfs: a fraction of a millisecond to make, counted as memory of
who writes there); larger ones are an ext4 file system in a sparse file. Both need root. Without,
the folder stays an ordinary one, and `disk.DiskWatch` ends a program that writes too much.
"""

import contextlib
import ctypes
import errno
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from assay.sandbox.interface import SandboxError
from assay.sandbox.launcher import TRUSTED_PATH, tool
from assay.sandbox.users import is_root

IN_MEMORY_BYTES = 1 << 30
"""Volumes up to this size are held in memory."""

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH, _NOFOLLOW = 2, 8  # umount2(2)
_LABEL = "assay-volume"
_BLOCK = 4096
_BYTES_PER_FILE = 16 << 10  # how densely the ext4 kind is given inodes, when nothing is asked for
_LEAST_FILES = 64

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def open_volume(
    folder: Path,
    size: int,
    files: int | None = None,
    *,
    in_memory_bytes: int = IN_MEMORY_BYTES,
) -> Iterator[bool]:
    """Let the empty `folder` hold at most `size` bytes and `files` files, during the block.

    Yields whether the kernel holds the limit: False where nothing can be mounted. What is written
    there is lost at the end. Nothing in it can be executed directly, or act as a device. Volumes
    up to `in_memory_bytes` are kept in memory, larger ones on the disk.

    Raises:
        SandboxError: the volume could not be cleared away.
    """
    in_memory = size <= in_memory_bytes
    mounted = is_root() and sys.platform == "linux" and _mount(folder, size, files, in_memory)
    try:
        yield mounted
    finally:
        if mounted:
            _unmount(folder)
            _image(folder).unlink(missing_ok=True)


@contextlib.contextmanager
def adopted_volume(folder: Path) -> Iterator[None]:
    """As `open_volume`, for a folder that another process opened and left open."""
    try:
        yield
    finally:
        if is_root() and sys.platform == "linux" and os.path.ismount(folder):
            _unmount(folder)
        _image(folder).unlink(missing_ok=True)


_KEEPER = """
read -r _
while read -r _ _ _ _ point _; do
  point=$(printf %b "$point")
  case "$point" in
    "$1"/*) [ -n "$2" ] && [ -e "${point%/*}/$2" ] || umount -l "$point" || : ;;
  esac
done </proc/self/mountinfo
"""


class VolumeKeeper:
    """A small process that outlives this one by a moment and unmounts what is left below a folder.

    Mounts do not end with whoever made them, and a killed worker cannot clear away; nobody could
    remove its folder then. `lock` is an open file whose lock the keeper shares, so that the lock
    is free only when everything is unmounted. Volumes beside a file named `spared` stay: somebody
    will come for them.
    """

    def __init__(self, below: Path, lock: int, spared: str = "") -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not is_root() or sys.platform != "linux":
            return
        reader, self._writer = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "assay-volumes", os.path.realpath(below), spared],
            stdin=reader,  # ends with this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": TRUSTED_PATH},
            pass_fds=(lock,),
            start_new_session=True,  # what is sent to a terminal's processes is not for it
        )
        os.close(reader)

    def close(self) -> None:
        """Unmount what is left now, and end; may be repeated."""
        if self._process is not None:
            os.close(self._writer)
            self._process.wait()
            self._process = None


def sweep_volumes(below: Path, spared: Collection[Path] = ()) -> int:
    """Unmount the volumes below a folder whose owner was killed; returns how many.

    Those in one of the folders `spared` stay.
    """
    if not is_root() or sys.platform != "linux":
        return 0
    count = 0
    top = os.path.realpath(below)
    kept = {os.path.realpath(folder) for folder in spared}
    for line in reversed(os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()):
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split()[4])
        source = after.split()[1]
        ours = source == _LABEL or source.startswith("/dev/loop")
        if ours and point.startswith(f"{top}/") and os.path.dirname(point) not in kept:
            _unmount(Path(point))
            _image(Path(point)).unlink(missing_ok=True)
            count += 1
    return count


def _unescaped(text: str) -> str:
    """A path as mountinfo writes it: bytes such as blanks as `\\040`."""
    octal = re.compile(rb"\\([0-7]{3})")
    return os.fsdecode(octal.sub(lambda found: bytes([int(found[1], 8)]), os.fsencode(text)))


def _mount(folder: Path, size: int, files: int | None, in_memory: bool) -> bool:
    if in_memory:
        inodes = f",nr_inodes={max(files, _LEAST_FILES)}" if files is not None else ""
        return _mount_memory(folder, f"size={size},mode=755{inodes}")
    try:
        return _mount_image(folder, size, files)
    except (OSError, SandboxError, subprocess.CalledProcessError) as error:
        _log.warning("no file system in a file for %s: %s", folder, error)
        _image(folder).unlink(missing_ok=True)
        return False


def _mount_memory(folder: Path, options: str) -> bool:
    flags = _NOSUID | _NODEV | _NOEXEC
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.mount(
        _LABEL.encode(),
        os.fsencode(folder),
        b"tmpfs",
        ctypes.c_ulong(flags),
        options.encode(),
    )
    if failed:
        _log.warning("no tmpfs for %s: %s", folder, os.strerror(ctypes.get_errno()))
    return not failed


def _mount_image(folder: Path, size: int, files: int | None) -> bool:
    """An ext4 file system in a sparse file beside the folder, about 50 ms."""
    image = _image(folder)
    with image.open("xb") as file:
        file.truncate(size)
    inodes = max(files if files is not None else size // _BYTES_PER_FILE, _LEAST_FILES)
    make = [tool("mkfs.ext4"), "-q", "-F", "-m", "0", "-b", str(_BLOCK), "-N", str(inodes)]
    quick = ["-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"]
    _run([*make, *quick, str(image)])
    _run([tool("mount"), "-o", "loop,nosuid,nodev,noexec,noatime", str(image), str(folder)])
    with contextlib.suppress(OSError):
        (folder / "lost+found").rmdir()
    return True


def _image(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.ext4")


def _run(command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _unmount(folder: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    for flags in (_NOFOLLOW, _NOFOLLOW, _NOFOLLOW | _DETACH):
        if not library.umount2(os.fsencode(folder), flags) or ctypes.get_errno() == errno.EINVAL:
            return  # gone, or not mounted any more
        time.sleep(0.01)  # a process that dies at this moment may still hold it
    reason = os.strerror(ctypes.get_errno())
    raise SandboxError(f"the volume {folder} cannot be unmounted: {reason}")

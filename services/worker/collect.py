"""Take the artifact folder that hostile code left, without being led anywhere else by it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.contracts.worker import ManifestEntry
from assay.domain.errors import AssayError
from assay.domain.failure_codes import FailureCode
from assay.evaluation.artifact import CURVE_FILE
from assay.evaluation.checkpoints import FOLDER as CHECKPOINTS

ARCHIVE = "artifact.zip"
NOT_STORED = "not-stored.txt"
_DEPTH = 16
_NAME_CAP = 512
LOG_BYTES = 8 << 20
"""Longer logs are not packed."""
_COMPRESSED = 8 << 20  # larger files are weights, which do not compress
_CHUNK = 1 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)


class UnsafeArtifact(AssayError):
    """The artifact folder holds something that is not a plain file, or too much."""

    code = FailureCode.UNSAFE_ARTIFACT


@dataclass(frozen=True)
class Bounds:
    """How much an artifact folder may hold."""

    files: int
    bytes: int


@dataclass(frozen=True)
class Found:
    """A regular file: `/`-separated name in the artifact folder, size in bytes."""

    name: str
    size: int


@contextlib.contextmanager
def opened_folder(name: str, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder that is not a link; everything below is opened through it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def scan(folder: int, bounds: Bounds) -> list[Found]:
    """The files below an open folder, by name.

    Raises:
        UnsafeArtifact: a link, a device, a FIFO, a socket, an unusable name, or over the bounds.
    """
    found: list[Found] = []
    total = 0
    for item in _walk(folder, "", _DEPTH):
        found.append(item)
        total += item.size
        if len(found) > bounds.files:
            raise UnsafeArtifact(f"the artifact folder holds more than {bounds.files} files")
        if total > bounds.bytes:
            raise UnsafeArtifact(f"the artifact folder holds more than {bounds.bytes} bytes")
    return sorted(found, key=lambda f: f.name)


def _walk(folder: int, prefix: str, depth: int) -> Iterator[Found]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if len(name) > _NAME_CAP or not name.isprintable() or "\\" in name:
                raise UnsafeArtifact(f"artifact file name {name[:80]!r} cannot be stored")
            details = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(details.st_mode):
                yield Found(name, details.st_size)
            elif stat.S_ISDIR(details.st_mode):
                yield from _walk_folder(folder, entry.name, name, depth)
            else:
                kind = "a symbolic link" if stat.S_ISLNK(details.st_mode) else "not a plain file"
                raise UnsafeArtifact(
                    f"the artifact {name} is {kind}; leave plain files only in $ASSAY_OUT"
                )


def _walk_folder(folder: int, entry: str, name: str, depth: int) -> Iterator[Found]:
    if depth == 0:
        raise UnsafeArtifact(f"artifact folders are nested deeper than {_DEPTH}")
    with opened_folder(entry, folder) as inner:
        yield from _walk(inner, f"{name}/", depth - 1)


def normalise(folder: int) -> None:
    """Give the files below an open folder equal modes and times, and no extended attributes.

    A predictor sees these, and the hash that its secret positions come from does not cover them.
    Empty folders are removed, since nothing counts or hashes their names.
    Links and devices, which `scan` refuses, are left as they are. To be called when the training
    has ended and nothing of it runs any more.

    Raises:
        OSError: this process may not change them.
    """
    os.chmod(folder, 0o755)
    _normalise(folder, _DEPTH)


def _normalise(folder: int, depth: int) -> None:
    for name in os.listdir(folder):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            os.chmod(name, 0o755, dir_fd=folder)
            with opened_folder(name, folder) as inner:
                if depth > 0:  # `scan` refuses what is deeper
                    _normalise(inner, depth - 1)
                empty = not os.listdir(inner)
            if empty:
                os.rmdir(name, dir_fd=folder)
        elif stat.S_ISREG(mode):
            os.chmod(name, 0o644, dir_fd=folder)
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                _clear(descriptor)
            finally:
                os.close(descriptor)
    _clear(folder)


def _clear(descriptor: int) -> None:
    """Remove extended attributes and access lists, and set both times to 1970."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # the file system has none
            for name in os.listxattr(descriptor):
                if name.startswith(("user.", "system.posix_acl_")):
                    os.removexattr(descriptor, name)
    os.utime(descriptor, ns=(0, 0))


def fill_holes(folder: int, found: Iterable[Found]) -> None:
    """Write every file anew in its place, where reading a file can change it.

    In a file system in memory a read through a mapping fills a hole, also where the folder is
    mounted read-only: one predictor would leave a mark that the next one finds. File systems on
    block devices do not do that, and their artifacts may be large.

    Raises:
        UnsafeArtifact: the folder has no room for what the files hold once their holes are filled,
            or a file changed its kind or size since the scan.
    """
    if os.major(os.fstat(folder).st_dev) != 0:
        return
    for item in found:
        with _opened_file(folder, item, os.O_RDWR) as descriptor:
            try:
                for start in range(0, item.size, _CHUNK):
                    _write_again(descriptor, start, min(_CHUNK, item.size - start))
            except OSError as error:
                raise _unreadable(item, error) from error
            _clear(descriptor)


def _write_again(descriptor: int, start: int, size: int) -> None:
    data = os.pread(descriptor, size, start)
    while data:
        written = os.pwrite(descriptor, data, start)
        data, start = data[written:], start + written


def fingerprint(folder: int, found: Iterable[Found]) -> str:
    """The hash of an artifact (without its curve): equal ones were trained alike, or copied.

    Raises:
        UnsafeArtifact: a file changed its kind or size since the scan.
    """
    digest = hashlib.sha256()
    for item in found:
        if item.name != CURVE_FILE:
            with (
                _opened_file(folder, item) as descriptor,
                open(descriptor, "rb", closefd=False) as file,
            ):
                digest.update(f"{item.name}\0".encode())
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def has_artifact(found: list[Found]) -> bool:
    """Whether training left anything besides its curve."""
    return any(f.name != CURVE_FILE for f in found)


def without_checkpoints(found: Iterable[Found], *, keep: Collection[str]) -> list[Found]:
    """What is worth storing: of the checkpoints, together many times the model, only `keep`."""
    wanted = tuple(f"{CHECKPOINTS}/{name}/" for name in keep)
    return [
        f for f in found if not f.name.startswith(f"{CHECKPOINTS}/") or f.name.startswith(wanted)
    ]


def inline(path: Path) -> ManifestEntry:
    """A small file as an entry that carries its own bytes."""
    data = path.read_bytes()
    return ManifestEntry(
        name=path.name,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        data=base64.b64encode(data).decode(),
    )


def build_archive(
    folder: int, found: list[Found], logs: Iterable[Path], target: Path, *, note: str = ""
) -> Path:
    """Write `target`: the artifact below `artifact/`, the logs below `logs/`.

    It is written piece by piece: the only copy on this host beside what training left. The bytes
    depend on nothing but names and contents (and the version of zlib). A `note` says why files
    that whoever opens the archive looks for are not in it.

    Raises:
        UnsafeArtifact: a file changed its kind or size since the scan.
        OSError: this host could not read or write.
    """
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for item in found:
            with _opened_file(folder, item) as descriptor:
                _store(archive, f"artifact/{item.name}", descriptor, item.size)
        for path in sorted(logs):
            with path.open("rb") as file:
                _store(archive, f"logs/{path.name}", file.fileno(), path.stat().st_size)
        if note:
            archive.writestr(zipfile.ZipInfo(NOT_STORED, _EPOCH), f"{note}\n")
    return target


@contextlib.contextmanager
def _opened_file(folder: int, item: Found, access: int = os.O_RDONLY) -> Iterator[int]:
    """Open a scanned file part by part, so that no link is followed at any level."""
    *parents, last = item.name.split("/")
    current = os.dup(folder)
    try:
        folders = [(parent, os.O_RDONLY | os.O_DIRECTORY) for parent in parents]
        for step, flags in [*folders, (last, access | os.O_NONBLOCK)]:
            try:
                inner = os.open(step, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            except OSError as error:
                raise _unreadable(item, error) from error
            os.close(current)
            current = inner
        details = os.fstat(current)
        if not stat.S_ISREG(details.st_mode) or details.st_size != item.size:
            raise UnsafeArtifact(f"the artifact {item.name} changed after training had ended")
        yield current
    finally:
        os.close(current)


def _unreadable(item: Found, error: OSError) -> UnsafeArtifact:
    return UnsafeArtifact(f"the artifact {item.name} cannot be read: {error}")


def _store(archive: zipfile.ZipFile, name: str, descriptor: int, size: int) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED if size <= _COMPRESSED else zipfile.ZIP_STORED
    info.file_size = size
    with archive.open(info, "w", force_zip64=size > 1 << 31) as target:
        offset = 0
        while chunk := os.pread(descriptor, min(_CHUNK, size - offset), offset):
            target.write(chunk)
            offset += len(chunk)

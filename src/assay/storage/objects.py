"""The object store: bytes by key, in a folder here or in S3 (`assay.storage.s3`).

Keys name content (`codebases/<sha256>.zip`) or belong to one attempt (`attempts/…/<token>/…`), so
a key is written once and its bytes never change. A manifest with hashes is an attempt's last
write; readers go result → attempt → manifest and never list a prefix.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from assay.domain.errors import NotFound, Unavailable
from assay.environments.bundle import check_name

CHUNK = 1 << 20
_UNFINISHED = ".new-"


@dataclass(frozen=True)
class Stat:
    """What a store knows of an object without reading it."""

    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class UploadUrl:
    """Where somebody without credentials may PUT one object, and with which headers."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Listed:
    """An object as a listing shows it."""

    key: str
    size: int
    modified: datetime

    @property
    def is_unfinished(self) -> bool:
        """Whether this is the rest of a write that was cut off."""
        return self.key.rpartition("/")[2].startswith(_UNFINISHED)


class Upload(Protocol):
    """An object that is being written; without `commit` nothing is stored."""

    def write(self, data: bytes) -> None:
        """Append bytes."""
        ...

    def commit(self) -> bool:
        """Store the object. Returns False, and changes nothing, if the key exists."""
        ...


class ObjectStore(Protocol):
    """Bytes by key.

    Every method raises `Unavailable` when the store cannot be used (code `disk_full`,
    `object_store_read_only`, `object_store_denied` or `object_store_unavailable`).
    """

    def put(self, key: str, data: bytes) -> bool:
        """Store bytes. Returns False, and changes nothing, if the key exists."""
        ...

    def upload(self, key: str) -> AbstractContextManager[Upload]:
        """Store an object that comes in parts, without holding it in memory."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of a key. Raises NotFound."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start` on; fewer at the end. Raises NotFound."""
        ...

    def stream(self, key: str) -> Iterator[bytes]:
        """The bytes of a key in parts. Raises NotFound before the first one."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the key is there."""
        ...

    def stat(self, key: str) -> Stat | None:
        """Size and, if the store knows it, hash; None if there is no such key."""
        ...

    def upload_url(self, key: str, size: int, sha256: str) -> UploadUrl | None:
        """Where exactly these bytes may be PUT for a while; None: only `put` reaches the store."""
        ...

    def download_url(self, key: str) -> str | None:
        """Where the key may be read for a while; None: only `get` reaches the store."""
        ...

    def list(self, prefix: str) -> Iterator[Listed]:
        """Every object below a prefix. For upkeep: readers never list."""
        ...

    def remove(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def check(self) -> None:
        """Raise `Unavailable` unless an object can be written now."""
        ...

    def __hash__(self) -> int:
        """Stores are told apart by identity, so that what they hold can be cached."""
        ...


class LocalStore:
    """A folder. A file appears under its name only when it is complete and on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, key: str, data: bytes) -> bool:
        if self._path(key).exists():
            return False
        with self.upload(key) as upload:
            upload.write(data)
            return upload.commit()

    @contextmanager
    def upload(self, key: str) -> Iterator[Upload]:
        path = self._path(key)
        with disk_faults(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                yield _LocalUpload(self.folder, file, temporary, path)
        finally:
            os.unlink(temporary)

    def get(self, key: str) -> bytes:
        with self._opened(key) as file:
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._opened(key) as file:
            file.seek(start)
            return file.read(length)

    def stream(self, key: str) -> Iterator[bytes]:
        with self._opened(key) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def exists(self, key: str) -> bool:
        return self._path(key).exists()

    def stat(self, key: str) -> Stat | None:
        try:
            return Stat(self._path(key).stat().st_size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(error, self.folder) from error

    def upload_url(self, key: str, size: int, sha256: str) -> UploadUrl | None:
        return None

    def download_url(self, key: str) -> str | None:
        return None

    def list(self, prefix: str) -> Iterator[Listed]:
        top = self.folder / prefix.rstrip("/")
        for path in sorted(top.rglob("*")) if top.is_dir() else ():
            try:
                stat = path.stat()
            except FileNotFoundError:  # removed since
                continue
            if path.is_file():
                modified = datetime.fromtimestamp(stat.st_mtime, UTC)
                yield Listed(path.relative_to(self.folder).as_posix(), stat.st_size, modified)

    def remove(self, key: str) -> None:
        with disk_faults(self.folder):
            self._path(key).unlink(missing_ok=True)

    def check(self) -> None:
        with disk_faults(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".check-") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())

    def _path(self, key: str) -> Path:
        check_name(key)
        return self.folder / key

    @contextmanager
    def _opened(self, key: str) -> Iterator[BinaryIO]:
        try:
            with self._path(key).open("rb") as file:
                yield file
        except FileNotFoundError:
            raise NotFound(f"the object {key} is not in the store") from None
        except OSError as error:
            raise _unavailable(error, self.folder) from error


class _LocalUpload:
    def __init__(self, folder: Path, file: BinaryIO, temporary: str, path: Path) -> None:
        self._folder, self._file, self._temporary, self._path = folder, file, temporary, path

    def write(self, data: bytes) -> None:
        with disk_faults(self._folder):
            self._file.write(data)

    def commit(self) -> bool:
        with disk_faults(self._folder):
            self._file.flush()
            os.fsync(self._file.fileno())
            try:
                os.link(self._temporary, self._path)  # fails if it exists, unlike rename
            except FileExistsError:
                return False
        return True


@contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn what a disk refuses, because it is full or read-only, into `Unavailable`."""
    try:
        yield
    except OSError as error:
        raise _unavailable(error, folder) from error


def _unavailable(error: OSError, folder: Path) -> Unavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(
            f"the disk of the object store ({folder}) is full; free space and try again",
            code="disk_full",
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Unavailable(
            f"the object store ({folder}) is read-only; check its permissions",
            code="object_store_read_only",
        )
    return Unavailable(
        f"the object store ({folder}) cannot be used: {error}", code="object_store_unavailable"
    )


def codebase_key(sha256: str) -> str:
    """Where a codebase is."""
    return f"codebases/{sha256}.zip"


def bundle_key(sha256: str) -> str:
    """Where an environment's bundle is."""
    return f"bundles/{sha256}.zip"


def attempt_prefix(measurement: str, attempt: str, lease_token: int) -> str:
    """What an attempt writes below; the token keeps a fenced attempt's files apart."""
    return f"attempts/{measurement}/{attempt}-{lease_token}"

"""The object store: bytes by key. Small on purpose, so that S3 fits behind it.

Keys name content (`codebases/<sha256>.zip`) or belong to one attempt (`attempts/…/<token>/…`), so
a key is written once and its bytes never change. A manifest with hashes is an attempt's last
write; readers go result → attempt → manifest and never list a prefix.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from assay.domain.errors import NotFound, Unavailable
from assay.environments.bundle import check_name


class ObjectStore(Protocol):
    """Bytes by key.

    Every method raises `Unavailable` when the store cannot be used (code `disk_full`,
    `object_store_read_only` or `object_store_unavailable`).
    """

    def put(self, key: str, data: bytes) -> bool:
        """Store bytes. Returns False, and changes nothing, if the key exists."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of a key. Raises NotFound."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the key is there."""
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
        path = self._path(key)
        if path.exists():
            return False
        with _faults(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(temporary, path)  # fails if it exists, unlike rename
                except FileExistsError:
                    return False
            finally:
                os.unlink(temporary)
        return True

    def get(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"the object {key} is not in the store") from None
        except OSError as error:
            raise _unavailable(error, self.folder) from error

    def exists(self, key: str) -> bool:
        return self._path(key).exists()

    def check(self) -> None:
        with _faults(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".check-") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())

    def _path(self, key: str) -> Path:
        check_name(key)
        return self.folder / key


@contextmanager
def _faults(folder: Path) -> Iterator[None]:
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

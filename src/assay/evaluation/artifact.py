"""Reading files that an untrusted program left behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from assay.evaluation.codes import InvalidAnswer, Rejection

MAX_JSON_BYTES = 1 << 20
CURVE_FILE = "metrics.jsonl"
"""What a training tells about itself on the way; nothing is scored by it."""
_MAX_DIGITS = 300


def read_bytes(folder: Path, name: str, max_bytes: int) -> bytes:
    """The content of the regular file `name` below `folder`.

    No link is followed anywhere below `folder` (it could point at a file of the host), and nothing
    is opened that could block or be read without end (a pipe, a device, a growing file).

    Raises:
        InvalidAnswer: `missing_artifact`, `wrong_type` or `oversized`.
        ValueError: `name` is not a relative path inside the folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\x00" in name:
        raise ValueError(f"{name!r} is not a name inside the artifact")
    descriptor = _open_inside(folder, parts, name)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise InvalidAnswer(Rejection.NOT_A_FILE, f"{name} is not a regular file")
        if info.st_size > max_bytes:
            raise InvalidAnswer(
                Rejection.OVERSIZED, f"{name} has {info.st_size} bytes, at most {max_bytes}"
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(max_bytes)
    finally:
        os.close(descriptor)


def read_json(folder: Path, name: str, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The JSON value that stands in a file; the guards of `read_bytes` hold.

    Raises:
        InvalidAnswer: as `read_bytes`; `wrong_type` if it is not JSON or says a key twice;
            `not_finite` if it holds NaN, an infinity or a number too large to be one.
        ValueError: `name` is not a relative path inside the folder.
    """
    raw = read_bytes(folder, name, max_bytes)
    try:
        return json.loads(
            raw,
            parse_constant=_reject_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_once,
        )
    except (ValueError, RecursionError):
        raise InvalidAnswer(Rejection.NOT_JSON, f"{name} is not valid JSON") from None


def hash_tree(digest: hashlib._Hash, folder: Path, leave_out: str = "") -> None:
    """Add the names of everything and the contents of all regular files below `folder`.

    Of files with several names, which names are the same file is added too. Follows no link; what
    cannot be read is left out, as no program can read it either. Of the file `leave_out` at the
    top only the name counts.
    """
    first_names: dict[tuple[int, int], str] = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in folders:
            inner = os.path.relpath(os.path.join(place, name), folder)
            digest.update(os.fsencode(inner) + b"/\0")
        for name in sorted(names):
            path = os.path.join(place, name)
            inner = os.path.relpath(path, folder)
            digest.update(os.fsencode(inner) + b"\0")
            if inner == leave_out:
                continue
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with open(os.open(path, flags), "rb") as file:
                    info = os.fstat(file.fileno())
                    if not stat.S_ISREG(info.st_mode):
                        continue
                    if info.st_nlink > 1:
                        first = first_names.setdefault((info.st_dev, info.st_ino), inner)
                        digest.update(os.fsencode(first) + f"\0{info.st_nlink}\0".encode())
                    digest.update(hashlib.file_digest(file, "sha256").digest())


def _open_inside(folder: Path, parts: tuple[str, ...], name: str) -> int:
    """Open `parts` one by one, so that no folder on the way is a link either."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(folder, flags | os.O_DIRECTORY)
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        try:
            following = os.open(
                part, flags | (os.O_NONBLOCK if last else os.O_DIRECTORY), dir_fd=current
            )
        except FileNotFoundError:
            raise InvalidAnswer(Rejection.MISSING_ARTIFACT, f"training left no {name}") from None
        except OSError as error:
            raise InvalidAnswer(
                Rejection.NOT_A_FILE, f"{name} cannot be read: {error.strerror}"
            ) from None
        finally:
            os.close(current)
        current = following
    return current


def _reject_constant(constant: str) -> NoReturn:
    raise InvalidAnswer(Rejection.NOT_FINITE, f"{constant} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    # + 0.0 makes 0.0 of -0.0, which some comparisons and all printing tell apart.
    return value + 0.0 if math.isfinite(value) else _reject_constant(text[:40])


def _whole(text: str) -> int:
    """A whole number that is a number everywhere: arithmetic with floats must not overflow."""
    if len(text) > _MAX_DIGITS:
        _reject_constant(text[:40])
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ in which of two values for one key they take; so there must not be two."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found

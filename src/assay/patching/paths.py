"""Which paths an answer may touch."""

import fnmatch
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from assay.patching.types import PatchRefused, RefusalCode


def resolve(raw: str, files: Iterable[str]) -> str:
    """The path meant by a header: `a/` and `b/` prefixes go unless such a folder really exists."""
    known = set(files)
    if raw in known:
        return raw
    for prefix in ("a/", "b/", "./"):
        if raw.startswith(prefix):
            return raw[len(prefix) :]
    return raw


def resolve_header(old: str, new: str, files: Iterable[str]) -> str:
    """The path meant by the two names of a diff's header, of which one may be /dev/null."""
    known = set(files)
    raw = old if new == "/dev/null" else new
    if old.startswith(("a/", "/dev/null")) and new.startswith(("b/", "/dev/null")):
        stripped = raw[2:]
        meant_raw = raw in known and stripped not in known and old != "/dev/null"
        return raw if meant_raw else stripped
    return resolve(raw, known)


def check(
    path: str,
    files: Mapping[str, str],
    protected: Sequence[str],
    symlinks: Mapping[str, str],
) -> None:
    """Refuse a path that may not be touched, whatever the edit.

    Names are compared without case, because the tree may be written to a file system that
    does not tell `Train.py` from `train.py`.
    """
    problem = _malformed(path)
    if problem:
        raise PatchRefused(
            RefusalCode.BAD_PATH,
            f"The path {path!r} {problem}. Use paths exactly as the codebase lists them.",
        )
    folded = _fold(path)
    if is_protected(path, protected):
        raise PatchRefused(
            RefusalCode.PROTECTED,
            f"`{path}` is protected and must not be changed, created or deleted. "
            "Send the whole change again without it.",
        )
    for link in symlinks:
        if folded == _fold(link) or folded.startswith(_fold(link) + "/"):
            raise PatchRefused(
                RefusalCode.SYMLINK, f"`{path}` is or passes a symbolic link (`{link}`)."
            )
    if path not in files:
        _check_new(path, folded, files)


def is_protected(path: str, protected: Sequence[str]) -> bool:
    """Whether a glob, or a folder, of `protected` covers the path."""
    folded = _fold(path)
    return any(_covers(_fold(pattern), folded) for pattern in protected)


def _malformed(path: str) -> str | None:
    parts = path.split("/")
    rules = {
        "is empty": not path,
        "is absolute": path.startswith(("/", "~")) or path[1:2] == ":",
        "holds a backslash or quote": "\\" in path or '"' in path,
        "holds a control character": any(unicodedata.category(c) in ("Cc", "Cf") for c in path),
        "has an empty, `.` or `..` part": any(part in ("", ".", "..") for part in parts),
        "enters `.git`": any(_fold(part) == ".git" for part in parts),
        "is too long": len(path) > 240,
        "ends a name with a space or dot": any(part.endswith((" ", ".")) for part in parts),
    }
    return next((problem for problem, broken in rules.items() if broken), None)


def _check_new(path: str, folded: str, files: Mapping[str, str]) -> None:
    for name in files:
        other = _fold(name)
        if other == folded or other.startswith(folded + "/") or folded.startswith(other + "/"):
            raise PatchRefused(
                RefusalCode.BAD_PATH, f"`{path}` cannot stand beside the existing `{name}`."
            )


def _covers(pattern: str, path: str) -> bool:
    folder = pattern.rstrip("/")
    return path == folder or path.startswith(folder + "/") or fnmatch.fnmatchcase(path, pattern)


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()

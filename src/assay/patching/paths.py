"""Which file a name in an answer means, and whether an answer may touch it."""

import fnmatch
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from assay.patching.types import PatchRefused, RefusalCode

NOWHERE = "/dev/null"


def without_prefix(name: str) -> str:
    """The name without the `a/` or `b/` that diffs put before it."""
    for prefix in ("a/", "b/", "./", "i/", "w/", "c/", "o/"):
        if name.startswith(prefix) and len(name) > len(prefix):
            return name[len(prefix) :]
    return name


def existing(name: str, files: Collection[str]) -> list[str]:
    """The files a name may mean: itself, itself without leading folders, or inside some folder.

    Several where the name does not tell; none where no file is called so.
    """
    bare = without_prefix(name)
    for exact in (name, bare):
        if exact in files:
            return [exact]
    # Of the others, those whose whole path ends the name, or whose path the whole name ends.
    parts = name.split("/")
    scored: dict[int, list[str]] = {}
    for file in files:
        if file.endswith(parts[-1]):
            names = file.split("/")
            common = _common_end(parts, names)
            if common and common in (len(names), len(bare.split("/"))):
                scored.setdefault(common, []).append(file)
    return sorted(scored[max(scored)]) if scored else []


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count


def check_name(name: str, symlinks: Iterable[str], files: Collection[str] = ()) -> None:
    """Refuse a name that could lead out of the tree, whatever file it may mean."""
    problem = _malformed(name)
    if problem:
        raise PatchRefused(
            RefusalCode.BAD_PATH,
            f"The path {name[:200]!r} {problem}. Use paths exactly as the codebase lists them.",
        )
    parts = fold(name).split("/")
    # A name of an existing file means it; any other may mean what its last parts name.
    last = 1 if name in files else len(parts)
    tails = ["/".join(parts[i:]) for i in range(last)]
    for link in symlinks:
        folded = fold(link)
        if any(tail == folded or tail.startswith(folded + "/") for tail in tails):
            raise PatchRefused(
                RefusalCode.SYMLINK, f"`{name}` is or passes a symbolic link (`{link}`)."
            )


def check_target(
    path: str, files: Mapping[str, str], protected: Sequence[str], symlinks: Iterable[str]
) -> None:
    """Refuse a path that may not be touched.

    Names are compared without case, because the tree may be written to a file system that
    does not tell `Train.py` from `train.py`.
    """
    check_name(path, symlinks, files)
    if is_protected(path, protected):
        raise PatchRefused(
            RefusalCode.PROTECTED,
            f"`{path}` is protected and must not be changed, created or deleted. "
            "Send the whole change again without it.",
        )
    if path not in files:
        check_beside(path, files)


def check_beside(path: str, files: Iterable[str]) -> None:
    """Refuse a new path that cannot stand beside the others."""
    folded = fold(path)
    for name in files:
        other = fold(name)
        if other == folded or other.startswith(folded + "/") or folded.startswith(other + "/"):
            raise PatchRefused(
                RefusalCode.BAD_PATH, f"`{path}` cannot stand beside the existing `{name}`."
            )


def is_protected(path: str, protected: Sequence[str]) -> bool:
    """Whether a glob, or a folder, of `protected` covers the path."""
    folded = fold(path)
    return any(_covers(fold(pattern), folded) for pattern in protected)


def _malformed(path: str) -> str | None:
    parts = path.split("/")
    rules = {
        "is empty": not path,
        "is absolute": any(part.startswith("~") or ":" in part[:2] for part in parts)
        or path.startswith("/"),
        "holds a backslash or quote": "\\" in path or '"' in path,
        "holds a control character": any(
            unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in path
        ),
        "has an empty, `.` or `..` part": any(part in ("", ".", "..") for part in parts),
        "enters `.git`": any(fold(part).rstrip(" .") == ".git" for part in parts),
        "is too long": len(path) > 240,
        "ends a name with a space or dot": any(part.endswith((" ", ".")) for part in parts),
    }
    return next((problem for problem, broken in rules.items() if broken), None)


def _covers(pattern: str, path: str) -> bool:
    folder = pattern.rstrip("/")
    return path == folder or path.startswith(folder + "/") or fnmatch.fnmatchcase(path, pattern)


def fold(name: str) -> str:
    """Return a name as a file system without case compares it."""
    return unicodedata.normalize("NFC", name).casefold()

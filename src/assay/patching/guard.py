"""What must hold for a patched codebase, whatever the patcher did to make it."""

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence

from assay.patching.paths import check_name, fold, is_protected
from assay.patching.shadows import find_shadows
from assay.patching.types import PatchRefused, RefusalCode

MAX_FILES = 1_000
MAX_FOLDERS = 200
MAX_NAME_BYTES = 200  # below what any file system allows
MAX_GROWTH_BYTES = 256 << 10
"""A codebase may be so much larger than its baseline: code fits, trained weights do not."""


def check_codebase(
    files: Mapping[str, str], baseline: Mapping[str, str], protected: Sequence[str]
) -> None:
    """Look at the result alone: protected files by hash, what would hide them, names, sizes.

    Independent of how the files were made, so that a mistake in patching cannot let a codebase
    through that changes what scores it.

    Raises:
        PatchRefused: `protected`, `too_large`, or the code of a bad name.
    """
    for name in sorted({*files, *baseline}):
        if is_protected(name, protected) and _digest(files, name) != _digest(baseline, name):
            raise PatchRefused(
                RefusalCode.PROTECTED,
                f"{name} is protected, and it would be changed. Leave it as it is.",
            )
    for name, hidden in find_shadows(files, baseline, protected).items():
        raise PatchRefused(
            RefusalCode.PROTECTED,
            f"Python would import `{name}` instead of `{hidden}`, or before it, and `{hidden}` is "
            f"protected. Give `{name}` another name.",
        )
    for name in files:
        if name not in baseline:
            check_name(name, ())
    problem = size_problem(_sizes(files), _sizes(baseline))
    if problem is not None:
        raise PatchRefused(
            RefusalCode.TOO_LARGE, f"{problem}. Code may not carry data or trained weights."
        )


def check_beside_each_other(files: Collection[str], baseline: Collection[str]) -> None:
    """Refuse new files that no file system could hold beside the others: names that differ only
    in case, or a file where another name needs a folder.

    A patch is checked for this as it is applied; call it for a tree that came whole.

    Raises:
        PatchRefused: `bad_path`.
    """
    names: dict[str, str] = {}
    for name in sorted(files, key=lambda name: (name not in baseline, name)):
        other = names.setdefault(fold(name), name)
        if other != name and name not in baseline:
            raise PatchRefused(
                RefusalCode.BAD_PATH, f"`{name}` cannot stand beside `{other}`: rename one."
            )
    for folded, name in names.items():
        parts = folded.split("/")
        for end in range(1, len(parts)):
            other = names.get("/".join(parts[:end]), name)
            if other != name and not {name, other} <= set(baseline):
                raise PatchRefused(
                    RefusalCode.BAD_PATH,
                    f"`{name}` cannot stand beside the file `{other}`: rename one.",
                )


def size_problem(sizes: Mapping[str, int], baseline: Mapping[str, int]) -> str | None:
    """Why a codebase with files of these sizes (bytes) is too large, or None."""
    allowed = sum(baseline.values()) + MAX_GROWTH_BYTES
    total = sum(sizes.values())
    folders = {name[:at] for name in sizes for at, c in enumerate(name) if c == "/"}
    if any(len(os.fsencode(part)) > MAX_NAME_BYTES for name in sizes for part in name.split("/")):
        return f"the codebase would have a file name of more than {MAX_NAME_BYTES} bytes"
    if len(folders) > MAX_FOLDERS:
        return f"the codebase would have {len(folders)} folders, at most {MAX_FOLDERS}"
    if total > allowed or len(sizes) > MAX_FILES:
        return (
            f"the codebase would have {len(sizes)} files with {total} bytes, at most {MAX_FILES} "
            f"files with {allowed}"
        )
    return None


def _sizes(files: Mapping[str, str]) -> dict[str, int]:
    return {name: len(text.encode("utf-8", "surrogatepass")) for name, text in files.items()}


def _digest(files: Mapping[str, str], name: str) -> bytes | None:
    text = files.get(name)
    if text is None:
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

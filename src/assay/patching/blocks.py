"""SEARCH/REPLACE blocks: reading them out of a text, and writing them."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from assay.patching.body import without_no_ops
from assay.patching.diff import changes, regions
from assay.patching.text import split_file
from assay.patching.types import Hunk, Line, PatchRefused, RefusalCode

_SEARCH = re.compile(r"(?:<{5,9}|-{7,9}) ?(?:SEARCH|ORIGINAL)\b(.*)")
_MIDDLE = re.compile(r"={5,9}$")
_REPLACE = re.compile(r"(?:>{5,9}|\+{7,9}) ?(?:REPLACE|UPDATED)$")
# What looks like a marker, but is none of those above.
_STRAY = re.compile(
    r"\s{0,20}(?:<{5,9} ?(?:SEARCH|ORIGINAL|HEAD)|>{5,9} ?(?:REPLACE|UPDATED|HEAD))\b", re.I
)
_LONGEST = 1_000  # characters of a line that are looked at
_WORD = re.compile(r"[^\s`*\"'()\[\],;<>]+")
_SUFFIXES = ("py", "sh", "md", "txt", "toml", "yaml", "yml", "json", "cfg", "ini", "rst", "ipynb")


class Block(NamedTuple):
    """One SEARCH/REPLACE block: `path` is empty when the text names no file for it."""

    path: str
    search: tuple[str, ...]
    replace: tuple[str, ...]


def read_blocks(lines: list[str], names: Iterable[str]) -> list[Block]:
    """All blocks in the lines of a text.

    A block's file is the one named on its SEARCH line or in the nearest lines above it, else that
    of the block before. Raises PatchRefused (`malformed`) for a block that does not end.
    """
    return take_blocks(lines, names)[0]


def take_blocks(lines: list[str], names: Iterable[str]) -> tuple[list[Block], list[str]]:
    """All blocks, as `read_blocks`, and the lines with blank ones in their place."""
    known = set(names)
    found: list[Block] = []
    left = list(lines)
    at = 0
    last_end = 0
    while at < len(lines):
        start = _SEARCH.match(lines[at][:_LONGEST].rstrip())
        if start is None:
            at += 1
            continue
        middle = _find(lines, at + 1, _MIDDLE, at)
        end = _find(lines, middle + 1, _REPLACE, at)
        if any(_MIDDLE.match(line.rstrip()) for line in lines[middle + 1 : end]):
            raise PatchRefused(
                RefusalCode.MALFORMED,
                f"The SEARCH block that starts on line {at + 1} of the answer has more than one "
                "`=======` line, so that its two sides cannot be told apart. Send a unified diff.",
            )
        path = _named(start[1].strip(" \t:"), known, at) or _name_above(
            lines[last_end:at], known, at
        )
        path = path or (found[-1].path if found else "")
        found.append(Block(path, tuple(lines[at + 1 : middle]), tuple(lines[middle + 1 : end])))
        left[at : end + 1] = [""] * (end + 1 - at)
        at = last_end = end + 1
    stray = next((n for n, line in enumerate(left, 1) if _STRAY.match(line[:_LONGEST])), None)
    if stray is not None:
        raise PatchRefused(
            RefusalCode.MALFORMED,
            f"Line {stray} of the answer looks like a part of a SEARCH/REPLACE block, but is not "
            "written as one. Write the markers at the start of the line, as `<<<<<<< SEARCH`, "
            "`=======` and `>>>>>>> REPLACE`.",
        )
    return found, left


def _find(lines: list[str], start: int, marker: re.Pattern[str], opened: int) -> int:
    for i in range(start, len(lines)):
        line = lines[i][:_LONGEST].rstrip()
        if marker.match(line):
            return i
        if _SEARCH.match(line):
            break
    raise PatchRefused(
        RefusalCode.MALFORMED,
        f"The SEARCH block that starts on line {opened + 1} of the answer does not end. "
        "Write `<<<<<<< SEARCH`, the exact lines, `=======`, the new lines, `>>>>>>> REPLACE`.",
    )


def _name_above(lines: list[str], known: set[str], at: int) -> str:
    """The file named in the nearest of the last lines that names one."""
    near = [line for line in lines if line.strip() and not line.startswith("```")][-3:]
    for line in reversed(near):
        name = _named(line, known, at)
        if name:
            return name
    return ""


def _named(text: str, known: set[str], at: int) -> str:
    """The one file that a line names: a known one, or what looks like a path.

    Raises PatchRefused (`malformed`) where it names several.
    """
    bare = text.strip().strip("`*#:\"' ")
    if bare in known or (len(bare.split()) == 1 and re.search(r"[./\\]", bare)):
        return bare  # a line of its own, whatever it is
    words = [word.rstrip(".:") for word in _WORD.findall(text[:_LONGEST])]
    quoted = re.findall(r"`([^`\s]+)`", text[:_LONGEST])
    names = [*dict.fromkeys(word for word in [*quoted, *words] if word in known)]
    if not names:
        names = [*dict.fromkeys(word for word in words if _is_path(word))]
    if len(names) > 1:
        raise PatchRefused(
            RefusalCode.MALFORMED,
            f"The line above the SEARCH block on line {at + 1} of the answer names several files: "
            f"{', '.join(names[:4])}. Put the one file's name alone on the line above the block.",
        )
    return names[0] if names else ""


def _is_path(word: str) -> bool:
    name, dot, suffix = word.rpartition(".")
    return bool(dot and name) and suffix in _SUFFIXES


def block_hunk(block: Block) -> Hunk:
    """A block as a hunk: lines that both sides share become context."""
    removed = [Line("-", text) for text in block.search]
    added = [Line("+", text) for text in block.replace]
    return Hunk(tuple(without_no_ops([*removed, *added])))


def search_replace_blocks(before: Mapping[str, str], after: Mapping[str, str]) -> list[Block]:
    """The edits that turn `before` into `after`, for files that exist in both.

    Each block's search lines stand once in their file. A changed final newline is not expressed.
    """
    found: list[Block] = []
    for path in sorted(before.keys() & after.keys()):
        old, new = split_file(before[path]).lines, split_file(after[path]).lines
        for region in regions(old, changes(old, new), 0):
            replace: list[str] = []
            at = region.start
            for change in region.changes:
                replace += old[at : change.old_start] + new[change.new_start : change.new_end]
                at = change.old_end
            replace += old[at : region.end]
            found.append(Block(path, tuple(old[region.start : region.end]), tuple(replace)))
    return found


def format_block(block: Block) -> str:
    """The block alone; the file's name belongs into the sentence above it."""
    lines = ("<<<<<<< SEARCH", *block.search, "=======", *block.replace, ">>>>>>> REPLACE")
    return "\n".join(lines)

"""SEARCH/REPLACE blocks: reading them out of a text, and writing them."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from assay.patching.diff import changes, regions
from assay.patching.text import split_file
from assay.patching.types import Hunk, Line, PatchRefused, RefusalCode

_SEARCH = re.compile(r"^<{5,9} ?SEARCH\b[ \t]*(\S*)\s*$")
_MIDDLE = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^>{5,9} ?REPLACE\s*$")
_NAME = re.compile(r"[A-Za-z0-9_.\-/]*[A-Za-z0-9_\-]\.[A-Za-z0-9_]+")


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
    known = set(names)
    found: list[Block] = []
    at = 0
    last_end = 0
    while at < len(lines):
        start = _SEARCH.match(lines[at])
        if start is None:
            at += 1
            continue
        middle = _find(lines, at + 1, _MIDDLE, at)
        end = _find(lines, middle + 1, _REPLACE, at)
        path = start[1] or _name_above(lines[last_end:at], known)
        path = path or (found[-1].path if found else "")
        found.append(Block(path, tuple(lines[at + 1 : middle]), tuple(lines[middle + 1 : end])))
        at = last_end = end + 1
    return found


def _find(lines: list[str], start: int, marker: re.Pattern[str], opened: int) -> int:
    for i in range(start, len(lines)):
        if marker.match(lines[i]):
            return i
        if _SEARCH.match(lines[i]):
            break
    raise PatchRefused(
        RefusalCode.MALFORMED,
        f"The SEARCH block that starts on line {opened + 1} of the answer does not end. "
        "Write `<<<<<<< SEARCH`, the exact lines, `=======`, the new lines, `>>>>>>> REPLACE`.",
    )


def _name_above(lines: list[str], known: set[str]) -> str:
    near = [line for line in lines if line.strip() and not line.startswith("```")][-3:]
    for line in reversed(near):
        quoted: list[str] = re.findall(r"`([^`\s]+)`", line)
        bare: list[str] = _NAME.findall(line)
        candidates = [*reversed(quoted), *reversed(bare)]
        for candidate in candidates:
            if candidate in known:
                return candidate
        # A name nobody knows may be a new file; a path is only believed if it stands for itself.
        alone = line.strip().strip("`*#: ")
        if _NAME.fullmatch(alone) or alone in known:
            return alone
        if quoted and _NAME.fullmatch(quoted[-1]):
            return quoted[-1]
    return ""


def block_hunk(block: Block) -> Hunk:
    """A block as a hunk: lines that both sides share become context."""
    old, new = block.search, block.replace
    lines: list[Line] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += [Line(" ", text) for text in old[i1:i2]]
            continue
        lines += [Line("-", text) for text in old[i1:i2]]
        lines += [Line("+", text) for text in new[j1:j2]]
    return Hunk(tuple(lines))


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

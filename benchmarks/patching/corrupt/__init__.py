"""One named corruption per way in which models get diffs wrong, and which of them go together.

There are two kinds of damage: after this one the right result is known; after that of
`tests.support.patching.damage`, which is drawn blindly, only invariants can be checked.
"""

from __future__ import annotations

from random import Random

from benchmarks.patching.corrupt import (
    context,
    files,
    formats,
    headers,
    order,
    paths,
    whitespace,
    wrappers,
)
from benchmarks.patching.corrupt.mode import Mode
from benchmarks.patching.model import Document

# In the order in which two of them are applied: what changes rows comes before what prints them.
MODES: dict[str, Mode] = {
    mode.name: mode
    for module in (files, context, whitespace, order, headers, paths, formats, wrappers)
    for mode in module.MODES
}
_RANK = {name: rank for rank, name in enumerate(MODES)}

# Notations without hunk headers, markers or line numbers cannot have these wrong.
_UNIFIED_ONLY = {
    "bare_context", "bare_blank", "elided", "false_no_newline", "crlf_file", "one_header_missing",
    "git_header_only", "header_repeated", "timestamps", "notes", "plus_before_minus", "noop_pairs",
    "block_replaced", "fence_whole", "fence_per_file", "fence_closing", "end_marker",
    "prose_between_hunks",
}  # fmt: skip
_OTHER_NOTATIONS = {"search_replace", "v4a"}

# Headers that say nothing about files that are made or deleted.
_EDITS_ONLY = {
    "one_header_missing", "git_header_only", "header_repeated", "invented_index", "fenced_blocks",
}  # fmt: skip

# What takes away what the other one needs, so that nothing would be left to test.
_APART = (
    {"missing", "header_repeated"}, {"missing", "fenced_blocks"}, {"missing", "git_header_only"},
    {"fused", "fenced_blocks"}, {"fused", "header_repeated"}, {"outdented", "bare_context"},
    {"header_repeated", "fenced_blocks"}, {"missing", "prose_between_hunks"},
    {"missing", "hunk_repeated"}, {"fused", "hunk_repeated"},
    {"elided", "bare_context"}, {"one_header_missing", "missing"},
    {"fused", "prose_between_hunks"},
)  # fmt: skip


def compatible(first: str, second: str) -> bool:
    """Whether two modes can be had at once."""
    pair = {first, second}
    families = {MODES[first].family, MODES[second].family}
    if len(families) == 1 or any(pair == each for each in _APART):
        return False
    if pair & _OTHER_NOTATIONS:
        other = next(iter(pair - _OTHER_NOTATIONS), "")
        return other not in _UNIFIED_ONLY and MODES[other].family not in {"header", "file"}
    if "file" in families and pair & _EDITS_ONLY:
        return False
    if pair & {"rename", "rename_bare"} and "path" in families:
        return False
    # A file operation needs its own kind of edit, and so do these.
    return "file" not in families or not families & {"context", "order", "header"}


def in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=_RANK.__getitem__))


def corrupt(random: Random, document: Document, names: tuple[str, ...]) -> Document | None:
    """The document after the named corruptions; None where one has nothing to work on."""
    found: Document | None = document
    for name in in_order(names):
        if found is None:
            return None
        found = MODES[name].apply(random, found)
    return found

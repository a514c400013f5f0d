"""No part of an answer is left out in silence: what was not read must not look like an edit."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from assay.patching.body import is_fence
from assay.patching.types import PatchRefused, RefusalCode

_DIFF_FENCE = re.compile(r"^(?:```|~~~)+\s*(?:diff|patch|udiff)\b", re.IGNORECASE)
# A header that is torn, or set in deeper than the others.
_DISGUISED = re.compile(
    r"^[\s+>|-]{0,40}(?:@@ -\d+(?:,\d+)? \+\d"
    r"|(?:--- |\+\+\+ )(?:[ab]/[\w./-]+|[\w./-]+\.\w+)\s*$"
    r"|diff --git a/|rename (?:from|to) )"
)
_INDENTED = re.compile(r"^[\s+>|-]{1,40}(?:@@(?:\s|$)|\*\*\* (?:Update|Add|Delete|Begin) )")
_ENVELOPE = re.compile(r"^\*\*\* (?!End\b|Begin\b)\w+ (?:File|to)\b", re.IGNORECASE)

# Lines that stand between the parts of a diff, or around it.
_SEPARATORS = ("*** ", "--", "Index: ", "=====", "index ", "EOF", "PATCH", "\\")


class Span(NamedTuple):
    """Lines `[start, end)` of the answer that were read as a section."""

    start: int
    end: int
    creates: bool


def check_left_over(lines: Sequence[str], spans: Sequence[Span]) -> None:
    """Refuse an answer with lines outside `spans` that look like a part of a diff."""
    read = [False] * (len(lines) + 1)
    for span in spans:
        read[span.start : span.end] = [True] * (span.end - span.start)
    creates = {span.end for span in spans if span.creates}
    ends = {span.end for span in spans}
    fence = envelope = False  # inside a fence that holds a diff, inside a V4A patch
    behind = False  # a section ended right here
    fenced = False
    for at, line in enumerate(lines):
        behind = at in ends or (behind and not line.strip() and (at in creates or not read[at]))
        if is_fence(line):
            fenced = not fenced
            fence = fenced and _DIFF_FENCE.match(line) is not None
            behind = False
            envelope = envelope and fenced  # a fence that closes ends what it holds
        fence = fence or (fenced and read[at])
        envelope = line.startswith("*** Begin Patch") or (
            envelope and not line.startswith("*** End Patch")
        )
        if read[at] or not line.strip() or is_fence(line):
            continue
        why = _suspicious(line, fence=fence, envelope=envelope, behind=behind)
        torn = read[at + 1] and line.lstrip("+ ").startswith("--- ")
        if why and not torn:
            raise left_out(line, at, why)
        behind = False


def _suspicious(line: str, *, fence: bool, envelope: bool, behind: bool) -> str:
    if _DISGUISED.match(line[:400]) or _INDENTED.match(line[:100]):
        return "a header is not where a line starts, or is torn"
    if _ENVELOPE.match(line):
        return "this kind of line is not known"
    if envelope and not line.startswith("*** ") and not _is_sentence(line):
        return "a line belongs to no hunk"
    if fence and line[0] in "+-" and line.strip("-+ "):
        return "a changed line belongs to no hunk"
    if fence and behind and not line.startswith(_SEPARATORS) and not _is_sentence(line):
        return "a line behind a hunk has no marker"
    return ""


def _is_sentence(line: str) -> bool:
    return line.rstrip().endswith((".", ":", "!", "?")) and len(line.split()) > 3


def left_out(line: str, at: int, why: str) -> PatchRefused:
    """The refusal of an answer for one of its lines."""
    return PatchRefused(
        RefusalCode.MALFORMED,
        f"The diff cannot be read: {why} (line {at + 1} of the answer: {line[:120]!r}). "
        "Was the answer cut off? Send the whole diff again; start every context line with a "
        "space, every removed line with `-`, every added line with `+`.",
    )

"""What stands around a diff: fences, prose, marks of its end."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Corruption, Mode, on_some_hunks
from benchmarks.patching.model import Document, Hunk, Section

BEFORE = (
    "Here is the implementation of the idea as a unified diff:",
    "I'll implement this change.\n\nThe key points:\n- the rate is scaled\n- the default stays",
    "Looking at the codebase, the smallest change is this.\n\n**Plan**\n1. Edit the loop.",
    "<thinking>\nThe update happens in one place only.\n</thinking>",
    "Sure! Below is the patch.",
)
AFTER = (
    "This keeps the interface as it was; nothing else has to change.",
    "**Notes**\n\n- The new value is read once.\n- Run `python train.py` to try it.",
    "Let me know if you want the value to come from the command line instead.",
    "</answer>",
)
BETWEEN = (
    "Next, the other file:",
    "And then we have to adjust the caller:",
    "### Second change",
    "Now the remaining part of the edit.",
)
END_MARKERS = (
    "*** End of diff ***",
    "EOF",
    "</diff>",
    "# End of patch",
    "*** End Patch",
    "-- \n2.39.5",
)


def _fence(kind: str) -> Corruption:
    def apply(random: Random, document: Document) -> Document | None:
        if document.layout.fence or document.layout.style != "unified":
            return None
        language = random.choice(["diff", "diff", "patch", "", "udiff"])
        return document.with_layout(fence=kind, language=language)

    return apply


def _per_file(random: Random, document: Document) -> Document | None:
    if len(document.sections) < 2:
        return None
    return _fence("per_file")(random, document)


def _before(random: Random, document: Document) -> Document | None:
    return document.with_layout(before=random.choice(BEFORE))


def _after(random: Random, document: Document) -> Document | None:
    return document.with_layout(after=random.choice(AFTER))


def _between(random: Random, document: Document) -> Document | None:
    if len(document.sections) < 2:
        return None
    return document.with_layout(between_files=tuple(random.sample(BETWEEN, 3)))


def _between_hunks(random: Random, document: Document) -> Document | None:
    if not any(len(section.hunks) > 1 for section in document.sections):
        return None
    return document.with_layout(between_hunks=tuple(random.sample(BETWEEN, 3)))


def _end_marker(random: Random, document: Document) -> Document | None:
    return document.with_layout(end_marker=random.choice(END_MARKERS))


def _final_newline(_random: Random, document: Document) -> Document | None:
    return document.with_layout(final_newline=False, before="", after="")


def _stripped(_random: Random, document: Document) -> Document | None:
    """Blank context at the end is lost with the line end."""
    last = document.sections[-1]
    rows = last.hunks[-1].rows if last.hunks else ()
    if not rows or rows[-1].mark != " " or rows[-1].text.strip():
        return None
    return document.with_layout(stripped=True)


def _marked(_random: Random, hunk: Hunk) -> Hunk | None:
    """A mark that says something about context in the middle of the file."""
    if hunk.rows[-1].mark != " " or any(row.open_end for row in hunk.rows):
        return None
    return replace(hunk, rows=(*hunk.rows[:-1], replace(hunk.rows[-1], open_end=True)))


def _false_mark(random: Random, document: Document) -> Document | None:
    """Not on the last line of a file, where the mark would be a claim about its end."""

    def ends_early(section: Section) -> bool:
        last = [row.at for hunk in section.hunks for row in hunk.rows if row.at is not None]
        return bool(last) and max(last) < len(section.base.lines) - 1

    if not all(ends_early(section) for section in document.sections):
        return None
    return on_some_hunks(_marked)(random, document)


MODES = (
    Mode("fence_whole", "wrapper", _fence("whole")),
    Mode("fence_per_file", "wrapper", _per_file, Wish(files=(2, 3))),
    Mode("fence_closing", "wrapper", _fence("closing")),
    Mode("prose_before", "wrapper", _before),
    Mode("prose_after", "wrapper", _after),
    Mode("prose_between", "wrapper", _between, Wish(files=(2, 3))),
    Mode("prose_between_hunks", "wrapper", _between_hunks, Wish(edits=(2, 4))),
    Mode("end_marker", "wrapper", _end_marker),
    Mode("final_newline_lost", "wrapper", _final_newline),
    Mode("text_stripped", "wrapper", _stripped),
    Mode("false_no_newline", "wrapper", _false_mark),
)

"""Other notations for the same edit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Mode
from benchmarks.patching.corrupt.wrappers import BETWEEN
from benchmarks.patching.model import Document, Section
from benchmarks.patching.render import render

GUTTERS = (
    "{n} {line}",
    "{n:<4}{line}",
    "{n:>4} {line}",
    "{n:>4} | {line}",
    "{n}: {line}",
    "{n}\t{line}",
)


def _fenced_blocks(random: Random, document: Document) -> Document | None:
    """Every hunk in a fence of its own, with its file's names and words between."""
    if sum(len(section.hunks) for section in document.sections) < 2:
        return None
    if any(section.action != "edit" for section in document.sections):
        return None
    document = document.over_sections(_with_header)
    return document.with_layout(
        fence="per_hunk",
        language=random.choice(["diff", "diff", ""]),
        between_files=tuple(random.sample(BETWEEN, 2)),
        between_hunks=tuple(random.sample(BETWEEN, 2)),
    )


def _with_header(section: Section) -> Section:
    return replace(section, header_per_hunk=True)


def _search_replace(random: Random, document: Document) -> Document | None:
    if any(section.action not in ("edit", "create") for section in document.sections):
        return None
    language = random.choice(["python", "", "python", "diff"])
    return document.with_layout(style="search_replace", language=language, rows_with_returns=False)


def _v4a(_random: Random, document: Document) -> Document | None:
    """The envelope of OpenAI's apply_patch; its hunks have names of scopes or nothing."""
    document = document.over_sections(lambda s: s.over_hunks(lambda h: replace(h, header="@@")))
    return document.with_layout(style="v4a", rows_with_returns=False)


def _gutter(random: Random, document: Document) -> Document | None:
    """A number before every line, as diffs are shown in reports."""
    document = document.with_layout(gutter=random.choice(GUTTERS))
    return document if render(document).count("\n") < 990 else None


MODES = (
    Mode("fenced_blocks", "format", _fenced_blocks, Wish(edits=(2, 4))),
    Mode("search_replace", "format", _search_replace),
    Mode("v4a", "format", _v4a),
    Mode("gutter", "format", _gutter),
)

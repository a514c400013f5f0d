"""Hunks and files that come in another order, or twice."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Mode
from benchmarks.patching.model import Document


def _several(document: Document) -> list[int]:
    return [n for n, s in enumerate(document.sections) if s.action == "edit" and len(s.hunks) > 1]


def _shuffled(random: Random, document: Document) -> Document | None:
    found = _several(document)
    if not found:
        return None
    index = random.choice(found)
    section = document.sections[index]
    hunks = list(section.hunks)
    while tuple(hunks) == section.hunks:
        random.shuffle(hunks)
    return document.with_section(index, replace(section, hunks=tuple(hunks)))


def _hunk_repeated(random: Random, document: Document) -> Document | None:
    found = [n for n, s in enumerate(document.sections) if s.action == "edit"]
    if not found:
        return None
    index = random.choice(found)
    section = document.sections[index]
    number = random.randrange(len(section.hunks))
    at = random.choice([number + 1, len(section.hunks)])
    return document.with_section(index, replace(section, repeated=(number, at)))


def _section_repeated(random: Random, document: Document) -> Document | None:
    found = [n for n, s in enumerate(document.sections) if s.action in ("edit", "create")]
    if not found:
        return None
    if random.random() < 0.3 and len(found) == len(document.sections):
        return replace(document, sections=document.sections * 2)
    index = random.choice(found)
    return document.with_section(index, replace(document.sections[index], copies=2))


MODES = (
    Mode("hunks_shuffled", "order", _shuffled, Wish(edits=(2, 4))),
    Mode("hunk_repeated", "order", _hunk_repeated),
    Mode("section_repeated", "order", _section_repeated),
)

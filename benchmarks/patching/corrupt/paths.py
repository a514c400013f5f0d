"""Wrong, decorated and missing names of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Corruption, Mode
from benchmarks.patching.model import Document, Section

NULL = "/dev/null"
Namer = Callable[[str, str], str]  # from a path and its side, "a" or "b"


def _named(section: Section, namer: Namer, *, git: bool = True) -> Section:
    """The section with both names printed by `namer`; /dev/null stays."""
    old, new = section.names
    old = old if old in (None, NULL) else namer(section.path, "a")
    new = new if new in (None, NULL) else namer(section.new_path, "b")
    label = namer(section.new_path, "")
    both = (namer(section.path, "a"), namer(section.new_path, "b"))
    printed = both if section.git and git else section.git
    return replace(section, names=(old, new), git=printed, label=label)


def _everywhere(make: Callable[[Random], Namer], *, git: bool = True) -> Corruption:
    def apply(random: Random, document: Document) -> Document | None:
        if any(section.action == "rename" for section in document.sections):
            return None
        namer = make(random)
        return document.over_sections(lambda section: _named(section, namer, git=git))

    return apply


def _no_prefix(_random: Random) -> Namer:
    return lambda path, _side: path


def _variant(random: Random) -> Namer:
    prefix = random.choice(
        [
            f"repo_variants_epoch{random.randint(1, 9)}/idea_{random.randint(1, 99)}",
            "codebase", "workspace/repo", f"experiments/run_{random.randint(1, 40)}/codebase",
        ]
    )  # fmt: skip
    sides = random.random() < 0.4
    return lambda path, side: f"{side}/{prefix}/{path}" if sides and side else f"{prefix}/{path}"


def _base_name(random: Random) -> Namer:
    sides = random.random() < 0.5

    def name(path: str, side: str) -> str:
        base = path.rpartition("/")[2]
        return f"{side}/{base}" if sides and side else base

    return name


def _base_name_only(random: Random, document: Document) -> Document | None:
    if not any("/" in section.path for section in document.sections):
        return None
    return _everywhere(_base_name)(random, document)


def _other_prefix(random: Random) -> Namer:
    left, right = random.choice(
        [
            ("old/", "new/"),
            ("original/", "modified/"),
            ("i/", "w/"),
            ("./", "./"),
            ("before/", "after/"),
        ]
    )
    return lambda path, side: {"a": left, "b": right}.get(side, "./") + path


def _timestamps(random: Random) -> Namer:
    stamps = random.choice(
        [
            ("\t2024-05-01 10:00:00.000000000 +0000", "\t2024-05-01 10:04:12.000000000 +0000"),
            ("\t2025-01-15 09:30:00", "\t2025-01-15 09:31:00"),
            ("\t(revision 1)", "\t(working copy)"),
        ]
    )
    return lambda path, side: f"{side}/{path}{stamps[side == 'b']}" if side else path


def _notes(random: Random) -> Namer:
    left, right = random.choice(
        [
            (" (original)", " (modified)"), (" (old)", " (new)"), ("", " (updated)"),
            ("  # original file", "  # with the new schedule"),
        ]
    )  # fmt: skip
    return lambda path, side: f"{side}/{path}{left if side == 'a' else right}" if side else path


def _quotes(random: Random) -> Namer:
    quote = random.choice(['"', "'", "`"])
    return lambda path, side: f"{quote}{side}/{path}{quote}" if side else f"{quote}{path}{quote}"


def _one_missing(random: Random, document: Document) -> Document | None:
    if any(section.action != "edit" for section in document.sections):
        return None
    keep_old = random.random() < 0.4

    def change(section: Section) -> Section:
        old, new = section.names
        return replace(section, names=(old, None) if keep_old else (None, new), git=None, meta=())

    return document.over_sections(change)


def _git_only(_random: Random, document: Document) -> Document | None:
    """`diff --git` and hunks, without the two lines between."""

    def change(section: Section) -> Section:
        git = (f"a/{section.path}", f"b/{section.new_path}")
        return replace(section, names=(None, None), git=git)

    if any(section.action not in ("edit", "rename") for section in document.sections):
        return None
    return document.over_sections(change)


def _repeated(_random: Random, document: Document) -> Document | None:
    """The names of the file over each of its hunks."""
    if not any(len(section.hunks) > 1 for section in document.sections):
        return None
    if any(section.action != "edit" for section in document.sections):
        return None
    return document.over_sections(lambda section: replace(section, header_per_hunk=True))


def _invented_index(random: Random, document: Document) -> Document | None:
    """An `index` line with names of blobs that nobody has."""
    if any(section.action != "edit" for section in document.sections):
        return None
    left, right = (f"{random.getrandbits(28):07x}" for _ in range(2))
    if random.random() < 0.4:
        left, right = "1234567", "abcdefg"

    def change(section: Section) -> Section:
        git = (f"a/{section.path}", f"b/{section.path}")
        return replace(section, git=git, meta=(f"index {left}..{right} 100644",))

    return document.over_sections(change)


MODES = (
    Mode("no_prefix", "path", _everywhere(_no_prefix)),
    Mode("variant_prefix", "path", _everywhere(_variant)),
    Mode("base_name", "path", _base_name_only),
    Mode("other_prefix", "path", _everywhere(_other_prefix)),
    Mode("timestamps", "path", _everywhere(_timestamps, git=False)),
    Mode("notes", "path", _everywhere(_notes, git=False)),
    Mode("quotes", "path", _everywhere(_quotes)),
    Mode("one_header_missing", "path", _one_missing),
    Mode("git_header_only", "path", _git_only),
    Mode("header_repeated", "path", _repeated, Wish(edits=(2, 4))),
    Mode("invented_index", "path", _invented_index),
)

"""Read the edits out of an answer: unified diffs, V4A patches and SEARCH/REPLACE blocks.

Numbers in `@@` headers place nothing: they tell where a hunk ends, if its body agrees with them,
whether the answer was cut off, and equal hunks apart.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from assay.patching import paths
from assay.patching.blocks import Block, block_hunk, take_blocks
from assay.patching.body import Bodies, is_fence
from assay.patching.cut import is_cut
from assay.patching.leftovers import Span, check_left_over, left_out
from assay.patching.markers import (
    ENVELOPE,
    EXTENDED,
    GIT,
    Numbers,
    header_name,
    is_ellipsis,
    read_numbers,
    without_note,
)
from assay.patching.types import Action, Cut, Format, Hunk, Line, PatchRefused, RefusalCode
from assay.patching.wrapper import with_plain_markers

_NEAR = 30  # lines above an `@@` line in which its file may be named
_QUOTES = re.compile(r"(?<!\w)[`'\"]|[`'\"](?!\w)")
_BINARY = re.compile(r"^(Binary files .* differ|GIT binary patch)")
_SPECIAL_MODE = re.compile(r"^(?:(?:new|deleted) file|old|new) mode (120000|160000)")
_HALVES = re.compile(r"^((?:a/)?(.+)) ((?:b/)?\2)$")


@dataclass
class RawSection:
    """The edits of one file as the answer names it: `old` and `new` are the names written there.

    Either is None where it is not given; both are for hunks without any header.
    """

    action: Action
    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)
    # What is done is said without hunks, by git's own lines or those of V4A.
    may_be_empty: bool = False
    # git's lines change the mode, which a tree of texts has not.
    mode_only: bool = False
    format: Format = "unified_diff"
    # Set when git's `a/` and `b/` have been taken off the names.
    stripped: bool = False


@dataclass
class Parsed:
    """All that an answer asks for, before any path is looked up."""

    sections: list[RawSection]
    formats: tuple[Format, ...]


def parse_answer(lines: list[str], files: Mapping[str, str]) -> Parsed:
    """The edits of an unwrapped answer.

    Raises PatchRefused: `no_diff` when there are none, `malformed`, `unsupported`.
    """
    blocks, rest = take_blocks(lines, files)
    reader = _Reader(with_plain_markers(rest), files)
    sections = reader.sections()
    sections += [_block_section(block, files) for block in blocks]
    if not sections:
        raise PatchRefused(
            RefusalCode.NO_DIFF,
            "The answer holds no edits. Send one unified diff in a ```diff fence, with "
            "`--- a/<path>` and `+++ b/<path>` lines for every file, or SEARCH/REPLACE blocks "
            "with the file's name on the line above each.",
        )
    return Parsed(sections, tuple(sorted({section.format for section in sections})))


def _block_section(block: Block, files: Mapping[str, str]) -> RawSection:
    if not block.path:
        raise PatchRefused(
            RefusalCode.MALFORMED,
            "A SEARCH/REPLACE block names no file. Put the file's name on the line above it.",
        )
    name = without_note(block.path)
    if not "".join(block.search).strip() and not paths.existing(name, files):
        hunks = [block_hunk(block._replace(search=()))]
        return RawSection("create", None, name, hunks, format="search_replace")
    hunk = block_hunk(block)
    files_meant = paths.existing(name, files)
    known = {text.rstrip() for path in files_meant for text in files[path].split("\n")}
    lines = (
        Line("~", "")
        if line.mark == " " and is_ellipsis(line.text) and line.text.rstrip() not in known
        else line
        for line in hunk.lines
    )
    hunks = [replace(hunk, lines=tuple(lines))]
    return RawSection("edit", name, name, hunks, format="search_replace")


class _Reader:
    """Walks the lines of an answer once, from header to header."""

    def __init__(self, lines: list[str], files: Mapping[str, str]) -> None:
        self.lines = lines
        self.files = files
        self.bodies = Bodies(lines)
        self.fenced = False
        self.spans: list[Span] = []
        filled = (i for i in reversed(range(len(lines))) if lines[i].strip())
        self.last = next(filled, -1)  # the last line that is not blank
        self._known: dict[tuple[str | None, str | None], Set[str]] = {}

    def sections(self) -> list[RawSection]:
        found: list[RawSection] = []
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            if is_fence(line):
                self.fenced = not self.fenced
            if _BINARY.match(line):
                raise _unsupported(line)
            section, body = self._header(at)
            if section is None and line.startswith("@@"):
                section, body = self._headless(at, found), at
            if section is None:
                at += 1
                continue
            end = self._hunks(section, body)
            self.spans.append(Span(at, end, section.action == "create"))
            at = end
            if not found or section is not found[-1]:
                found.append(section)
        check_left_over(self.lines, self.spans)
        return [section for section in found if self._says_something(section)]

    # Headers

    def _header(self, at: int) -> tuple[RawSection | None, int]:
        """The section that starts at a line, and where its hunks start."""
        if at >= len(self.lines):
            return None, at
        line = self.lines[at]
        if line.startswith("diff --git "):
            return self._git_header(at)
        envelope = ENVELOPE.match(line)
        if envelope is not None:
            return self._envelope_header(at, envelope[1], without_note(envelope[2].strip()))
        if self.bodies.is_pair(at):
            old, new = header_name(line), header_name(self.lines[at + 1])
            return self._named(old, new), at + 2
        if self.bodies.is_single(at):
            name = header_name(line)
            if name == paths.NOWHERE:
                raise self._malformed(at, "a header names no file")
            return self._named(name, name), at + 1
        if line.startswith("rename from ") and self._is_rename(at):
            return self._git_header(at - 1)
        return None, at

    def _is_rename(self, at: int) -> bool:
        return at + 1 < len(self.lines) and self.lines[at + 1].startswith("rename to ")

    def _named(self, old: str, new: str) -> RawSection:
        if new == paths.NOWHERE:
            return RawSection("delete", self._clean(old), None)
        if old == paths.NOWHERE:
            return RawSection("create", None, self._clean(new))
        return RawSection("edit", self._clean(old), self._clean(new))

    def _clean(self, name: str) -> str:
        name = "/".join(part for part in name.split("/") if part != ".") or name
        if name in self.files or paths.without_prefix(name) in self.files:
            return name
        return without_note(name)

    def _git_header(self, at: int) -> tuple[RawSection, int]:
        hit = GIT.match(self.lines[at]) if at >= 0 else None
        old, new = _two_names(_QUOTES.sub("", hit[1]).rstrip()) if hit else (None, None)
        action: Action = "edit"
        mode_only = False
        at += 1
        while at < len(self.lines) and EXTENDED.match(self.lines[at]):
            line = self.lines[at].rstrip()
            _check_kind(line)
            if line.startswith("new file mode"):
                action = "create"
            elif line.startswith("deleted file mode"):
                action = "delete"
            elif line.startswith(("rename from ", "rename to ")):
                action = "rename"
                verb, name = line.split(" ", 2)[1:]
                old, new = (name, new) if verb == "from" else (old, name)
            elif line.startswith("copy "):
                raise _unsupported(line)
            mode_only = mode_only or line.startswith("new mode ")
            at += 1
        follows = not (at < len(self.lines) and self.lines[at].startswith("diff --git "))
        plain, body = self._header(at) if follows else (None, at)
        if plain is not None and _may_be_one((old, new), (plain.old, plain.new)):
            return self._merged(RawSection(action, old, new, may_be_empty=True), plain), body
        if action == "create":
            old = None
        if action == "delete":
            new = None
        return RawSection(action, old, new, may_be_empty=True, mode_only=mode_only), at

    def _merged(self, git: RawSection, plain: RawSection) -> RawSection:
        """git's lines say what is done, the two lines below say it to which file."""
        if git.action == "rename":
            return git
        if git.action == "edit":
            return RawSection(plain.action, plain.old, plain.new, may_be_empty=True)
        name = plain.new or plain.old
        if git.action == "create":
            return RawSection("create", None, name, may_be_empty=True)
        return RawSection("delete", plain.old or name, None, may_be_empty=True)

    def _envelope_header(self, at: int, verb: str, name: str) -> tuple[RawSection, int]:
        section = RawSection("edit", name, name, may_be_empty=verb != "Update", format="v4a")
        move = self.lines[at + 1] if at + 1 < len(self.lines) else ""
        if verb == "Add":
            section.action, section.old = "create", None
        elif verb == "Delete":
            section.action, section.new = "delete", None
        elif move.startswith("*** Move to: "):
            section.action, section.may_be_empty = "rename", True
            section.new = move.removeprefix("*** Move to: ").strip()
            return section, at + 2
        return section, at + 1

    def _headless(self, at: int, found: list[RawSection]) -> RawSection:
        """The section of an `@@` line that follows no header: the file is named above it, or it
        is that of the hunk before. Raises PatchRefused where several files are named."""
        before = max(self.spans[-1].end if self.spans else 0, at - _NEAR)
        current: set[str] = set()
        if found:
            current.update(
                *(paths.existing(n, self.files) for n in (found[-1].old, found[-1].new) if n)
            )
        others = self._named_in(self.lines[before:at]) - current
        if len(others) > 1:
            raise self._malformed(at, "which file is meant is open, as several are named above")
        if others:
            name = others.pop()
            return RawSection("edit", name, name)
        if found and found[-1].action in ("edit", "rename"):
            return found[-1]
        return RawSection("edit", None, None)

    def _named_in(self, lines: Sequence[str]) -> set[str]:
        """The files of the codebase that some prose names."""
        named: set[str] = set()
        for line in lines:
            for word in re.findall(r"[\w./\-]+", line[:1000]):
                name = word.rstrip(".:")
                if name in self.files:
                    named.add(name)
                elif "." in name.rsplit("/", 1)[-1]:
                    named.update(paths.existing(name, self.files))
        return named

    # Hunks

    def _hunks(self, section: RawSection, at: int) -> int:
        """Read the hunks of a section; the index of the line behind them."""
        if at < len(self.lines) and not self._opens(at):
            at = self._add(section, at, None, "")  # no `@@` line
        while at < len(self.lines):
            if self.lines[at].startswith("@@"):
                at = self._hunk(section, at)
            elif self.lines[at].strip() or self._header(at)[0] is not None:
                break
            else:
                at += 1
        return at

    def _opens(self, at: int) -> bool:
        """Whether an `@@` line comes next, or nothing of this section."""
        while at < len(self.lines) and not self.lines[at].strip():
            at += 1
        return self.bodies.is_boundary(at)

    def _hunk(self, section: RawSection, at: int) -> int:
        numbers, scope = read_numbers(self.lines[at])
        first = at + 1
        while section.format == "v4a" and self._is_scope(first):
            scope += "\n" + read_numbers(self.lines[first])[1]
            first += 1
        before = len(section.hunks)
        end = self._add(section, first, numbers, scope)
        is_cut = numbers is not None and end > self.last and len(section.hunks) == before
        if (end == first or is_cut) and not self._is_empty_hunk(numbers):
            raise self._malformed(at, "an `@@` line is followed by no hunk lines")
        return end

    def _is_scope(self, at: int) -> bool:
        return at < len(self.lines) and self.lines[at].startswith("@@")

    def _is_empty_hunk(self, numbers: Numbers | None) -> bool:
        return numbers is not None and not numbers.old and not numbers.new

    def _add(self, section: RawSection, at: int, numbers: Numbers | None, scope: str) -> int:
        body = self.bodies.read(at, numbers, self._lines_of(section), fenced=self.fenced)
        if body.lines:
            last = body.end > self.last
            start = numbers.start if numbers else None
            torn = last and bool(self.lines[-1].strip())
            cut = self._cut(body.lines, numbers) if last else "no"
            section.hunks.append(Hunk(body.lines, scope, start, body.ends_bare, torn, cut))
        return body.end

    def _cut(self, lines: Sequence[Line], numbers: Numbers | None) -> Cut:
        unclosed = self.fenced or self.lines.count("*** Begin Patch") > self.lines.count(
            "*** End Patch"
        )
        return is_cut(lines, numbers, unclosed=unclosed, torn=bool(self.lines[-1].strip()))

    def _lines_of(self, section: RawSection) -> Set[str]:
        """The lines of the file, or the files, that a section may be for."""
        given = (section.new, section.old)
        if given not in self._known:
            names: list[str] = list(self.files) if given == (None, None) else []
            for name in given:
                names = names or (paths.existing(name, self.files) if name else [])
            texts = (line for name in names for line in self.files[name].split("\n"))
            self._known[given] = {text.rstrip() for text in texts}
        return self._known[given]

    def _says_something(self, section: RawSection) -> bool:
        if section.hunks or (section.may_be_empty and section.action != "edit"):
            return True
        if section.action == "delete":
            return True
        if section.mode_only:
            return False
        name = section.new or section.old
        raise PatchRefused(
            RefusalCode.MALFORMED,
            f"`{name}` has a header but no `@@` hunk. Send the whole diff again.",
        )

    def _malformed(self, at: int, why: str) -> PatchRefused:
        line = self.lines[at] if at < len(self.lines) else "(end of the answer)"
        return left_out(line, at, why)


def _may_be_one(git: tuple[str | None, str | None], plain: tuple[str | None, str | None]) -> bool:
    """Whether the two name lines below git's lines are for the same file: its own may do alone."""
    ends = [{name.rsplit("/", 1)[-1] for name in names if name} for names in (git, plain)]
    return not ends[0] or not ends[1] or bool(ends[0] & ends[1])


def _two_names(names: str) -> tuple[str | None, str | None]:
    """The two names of a `diff --git` line; they are told apart by being the same name twice."""
    hit = _HALVES.match(names) if len(names) < 1000 else None
    if hit is not None:
        return hit[1], hit[3]
    old, sep, new = names.partition(" b/")
    if sep:
        return old, "b/" + new
    words = names.split(" ")
    return (words[0], words[1]) if len(words) == 2 else (names, names)


def _check_kind(line: str) -> None:
    if _BINARY.match(line) or _SPECIAL_MODE.match(line):
        raise _unsupported(line)


def _unsupported(line: str) -> PatchRefused:
    return PatchRefused(
        RefusalCode.UNSUPPORTED,
        f"`{line[:100].strip()}` is not supported: an answer may edit, create, delete and rename "
        "text files. Binary files, symbolic links, submodules and copies cannot be sent.",
    )

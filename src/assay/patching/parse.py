"""Read the edits out of an answer: unified diffs and SEARCH/REPLACE blocks, fenced or not.

Numbers in `@@` headers serve one thing only: where a hunk ends, if its body agrees with them.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from assay.patching.blocks import block_hunk, read_blocks
from assay.patching.paths import resolve, resolve_header
from assay.patching.text import split_file
from assay.patching.types import Hunk, Line, PatchRefused, RefusalCode, Section

_HUNK = re.compile(r"^@@+(?: -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@)?")
_STRAY = re.compile(r"^@@( |$)")
_GIT = re.compile(r"^diff --git (.+)$")
_UNSUPPORTED = re.compile(
    r"^(rename (from|to) |copy (from|to) |old mode |new mode |Binary files |GIT binary patch"
    r"|(new|deleted) file mode (120000|160000))"
)
_MARKS: dict[str, Literal[" ", "-", "+"]] = {" ": " ", "-": "-", "+": "+"}


class _Header(NamedTuple):
    path: str
    action: Literal["edit", "create", "delete"]
    body: int  # index of the first line after the header
    git_only: bool  # no ---/+++ lines, as git writes for empty files


def parse_answer(answer: str, files: Mapping[str, str]) -> list[Section]:
    """The edits of an answer, one section per file, duplicates removed.

    Raises PatchRefused: `no_diff` when there are none, `malformed`, `unsupported`.
    """
    lines = answer.split("\n")
    if all(line.endswith("\r") for line in lines if line):
        lines = [line.removesuffix("\r") for line in lines]
    merged: dict[str, Section] = {}
    for section in [*_Reader(lines, files).sections(), *_block_sections(lines, files)]:
        known = merged.setdefault(section.path, Section(section.path, section.action, []))
        if known.action != section.action:
            raise PatchRefused(
                RefusalCode.CONFLICT,
                f"The answer both {known.action}s and {section.action}s `{section.path}`.",
            )
        known.hunks += [hunk for hunk in section.hunks if hunk not in known.hunks]
    if not merged:
        raise PatchRefused(
            RefusalCode.NO_DIFF,
            "The answer holds no edits. Send one unified diff in a ```diff fence, with "
            "`--- a/<path>` and `+++ b/<path>` lines for every file, or SEARCH/REPLACE blocks "
            "with the file's name on the line above each.",
        )
    return list(merged.values())


def _block_sections(lines: list[str], files: Mapping[str, str]) -> list[Section]:
    found = []
    for block in read_blocks(lines, files):
        if not block.path:
            raise PatchRefused(
                RefusalCode.MALFORMED,
                "A SEARCH/REPLACE block names no file. Put the file's name on the line above it.",
            )
        path = resolve(block.path, files)
        new = path not in files and not "".join(block.search).strip()
        hunk = block_hunk(block._replace(search=())) if new else block_hunk(block)
        found.append(Section(path, "create" if new else "edit", [hunk]))
    return found


class _Reader:
    """Walks the lines of an answer once, from file header to file header."""

    def __init__(self, lines: list[str], files: Mapping[str, str]) -> None:
        self.lines = lines
        self.files = files
        self.fenced = False

    def sections(self) -> list[Section]:
        found: list[Section] = []
        at = 0
        while at < len(self.lines):
            if self.lines[at].startswith("```"):
                self.fenced = not self.fenced
            header = self._header(at)
            if header is None:
                if _STRAY.match(self.lines[at]):
                    raise self._malformed(at, "a hunk belongs to no file")
                at += 1
                continue
            section, at = self._section(header)
            if section is not None:
                found.append(section)
        return found

    def _header(self, at: int) -> _Header | None:
        git = _GIT.match(self.lines[at])
        if git is not None:
            return self._git_header(at, git[1].rstrip())
        return self._plain_header(at)

    def _plain_header(self, at: int) -> _Header | None:
        if at + 1 >= len(self.lines) or not self._is_file_header(at):
            return None
        old, new = _name(self.lines[at]), _name(self.lines[at + 1])
        if new == "/dev/null":
            return _Header(resolve_header(old, new, self.files), "delete", at + 2, False)
        path = resolve_header(old, new, self.files)
        action: Literal["edit", "create"] = "create" if old == "/dev/null" else "edit"
        return _Header(path, action, at + 2, False)

    def _git_header(self, at: int, names: str) -> _Header | None:
        action: Literal["edit", "create", "delete"] = "edit"
        i = at + 1
        while i < len(self.lines) and not self._is_boundary(i):
            if _UNSUPPORTED.match(self.lines[i]):
                raise PatchRefused(
                    RefusalCode.UNSUPPORTED,
                    f"`{self.lines[i].strip()}` is not supported. Send a rename as a deleted file "
                    "and a new file; modes, links and binary files cannot be changed.",
                )
            if self.lines[i].startswith("new file mode"):
                action = "create"
            elif self.lines[i].startswith("deleted file mode"):
                action = "delete"
            elif not self.lines[i].startswith(("index ", "similarity ")):
                break
            i += 1
        plain = self._plain_header(i) if i < len(self.lines) else None
        if plain is not None:
            return plain
        # Without ---/+++ lines the two names are told apart by being the same name twice.
        half = len(names) // 2
        old = "/dev/null" if action == "create" else names[:half]
        path = resolve_header(old, names[half + 1 :], self.files)
        return _Header(path, action, i, True)

    def _section(self, header: _Header) -> tuple[Section | None, int]:
        at = header.body
        hunks: list[Hunk] = []
        known = set(split_file(self.files.get(header.path, "")).lines)
        while at < len(self.lines):
            if _HUNK.match(self.lines[at]):
                hunk, at = self._hunk(at, known)
                hunks.append(hunk)
            elif self.lines[at].strip() or self._header(at) is not None:
                break
            else:
                at += 1
        if not hunks and header.git_only and header.action == "edit":
            return None, at
        if not hunks and not header.git_only and header.action != "delete":
            raise self._malformed(header.body, f"`{header.path}` has a header but no `@@` hunk")
        path, action = header.path, header.action
        if action == "edit" and path not in self.files and hunks and not any(h.old for h in hunks):
            action = "create"  # a new file announced without /dev/null
        return Section(path, action, hunks), at

    def _hunk(self, at: int, known: set[str]) -> tuple[Hunk, int]:
        header = _HUNK.match(self.lines[at])
        if header is not None and header[0].endswith(" @@"):
            counted = self._counted(at + 1, int(header[1] or 1), int(header[2] or 1))
            if counted is not None:
                return self._make(counted[0]), counted[1]
        body, end = self._by_content(at + 1, known)
        if not body:
            raise self._malformed(at, "an `@@` line is followed by no hunk lines")
        return self._make(body), end

    def _counted(self, at: int, old: int, new: int) -> tuple[list[str], int] | None:
        """The body, if the header's numbers fit it exactly."""
        body: list[str] = []
        while at < len(self.lines) and (old > 0 or new > 0 or self.lines[at].startswith("\\")):
            line = self.lines[at]
            if line[:1] not in _MARKS and not line.startswith("\\"):
                return None
            old -= line[:1] in " -"
            new -= line[:1] in " +"
            body.append(line)
            at += 1
        fits = old == 0 and new == 0 and bool(body)
        return (body, at) if fits and self._is_boundary(at) else None

    def _by_content(self, at: int, known: set[str]) -> tuple[list[str], int]:
        body: list[str] = []
        while at < len(self.lines) and not self._is_boundary(at, blank=False):
            line = self.lines[at]
            if line[:1] in _MARKS or line.startswith("\\"):
                body.append(line)
            elif not line.strip() or line in known:
                body.append(" " + line)  # a context line that lost its marker
            elif self.fenced or any(x[:1] in ("+", "@") for x in self.lines[at : at + 8]):
                raise self._malformed(at, "a line of the diff starts with none of ` `, `+`, `-`")
            else:
                break
            at += 1
        end = at
        while body and not body[-1].strip():
            body.pop()
        return body, end

    def _is_file_header(self, at: int) -> bool:
        pair = self.lines[at : at + 2]
        return len(pair) == 2 and pair[0].startswith("--- ") and pair[1].startswith("+++ ")

    def _is_boundary(self, at: int, *, blank: bool = True) -> bool:
        if at >= len(self.lines):
            return True
        line = self.lines[at]
        if blank and not line.strip():
            # Lines that could still belong to the hunk must not be cut off by a blank one.
            rest = next((i for i in range(at, len(self.lines)) if self.lines[i].strip()), None)
            return rest is None or self._is_file_header(rest) or self.lines[rest][0] not in _MARKS
        starts = ("@@", "diff --git ", "```", "<<<<<<< SEARCH", "Index: ", "*** End")
        return line.startswith(starts) or self._is_file_header(at)

    def _make(self, body: list[str]) -> Hunk:
        lines: list[Line] = []
        bare: dict[str, bool] = {}
        for raw in body:
            if raw.startswith("\\"):
                if lines:
                    bare[lines[-1].mark] = True
                continue
            lines.append(Line(_MARKS[raw[0]], raw[1:]))
        ends_bare: bool | None = None
        if bare.get("+") or bare.get(" "):
            ends_bare = True
        elif bare.get("-"):
            ends_bare = False
        return Hunk(tuple(lines), ends_bare)

    def _malformed(self, at: int, why: str) -> PatchRefused:
        shown = self.lines[at][:120] if at < len(self.lines) else "(end of the answer)"
        return PatchRefused(
            RefusalCode.MALFORMED,
            f"The diff cannot be read: {why} (line {at + 1} of the answer: {shown!r}). "
            "Was the answer cut off? Send the whole diff again; start every context line with a "
            "space, every removed line with `-`, every added line with `+`.",
        )


def _name(header: str) -> str:
    """The path of a `---` or `+++` line, without time stamp, quotes and trailing blanks."""
    name = header[4:].split("\t")[0].strip()
    return name.strip('"') if name.startswith('"') else name

"""What patching takes, returns and raises."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MAX_LOG_CHARACTERS = 8_000


class RefusalCode(StrEnum):
    """Why an answer was not applied. A refusal changes nothing: it is all or nothing."""

    NO_DIFF = "no_diff"  # the answer holds no edits that can be read
    TOO_LARGE = "too_large"  # more text, files or hunks than the limits, or too much work
    MALFORMED = "malformed"  # starts like a diff, cannot be read to its end
    TRUNCATED = "truncated"  # the last hunk is cut off
    BAD_PATH = "bad_path"  # absolute, `..`, backslash, `.git`, control character, …
    PROTECTED = "protected"
    SYMLINK = "symlink"
    UNKNOWN_FILE = "unknown_file"
    FILE_EXISTS = "file_exists"  # a new file, or a rename, where one stands
    UNSUPPORTED = "unsupported"  # binary files, symbolic links, submodules, copies
    NO_MATCH = "no_match"
    AMBIGUOUS = "ambiguous"  # several places, or several files, with different outcomes
    ALREADY_APPLIED = "already_applied"
    CONFLICT = "conflict"  # two hunks change the same lines differently
    NO_CHANGE = "no_change"
    PLACEHOLDER = "placeholder"  # added lines say "rest unchanged" where code must stand
    SYNTAX_ERROR = "syntax_error"


# How strictly a hunk's old lines fitted, from the strictest. `aligned` tolerates paraphrased,
# missing and invented context; `whole_file` is a file that was created.
Tier = Literal[
    "exact", "trailing_whitespace", "indentation", "whitespace", "aligned", "whole_file"
]
Action = Literal["edit", "create", "delete", "rename"]
Cut = Literal["no", "unless_at_end", "yes"]
Format = Literal["unified_diff", "search_replace", "v4a"]


@dataclass(frozen=True)
class HunkRecord:
    """Where one hunk went.

    `index` counts from 1 within its file. `line` is the 1-based line of its first old line in the
    file it was placed on, `tier` how strictly it matched, `late` whether it fitted only after the
    other hunks had been applied. `score` is the share of its old text that stands there, in
    (0, 1]; it is below 1 for `aligned` hunks only.
    """

    index: int
    line: int
    tier: Tier
    removed: int
    added: int
    late: bool = False
    score: float = 1.0


@dataclass(frozen=True)
class FileRecord:
    """What happened to one file; `renamed_from` is its old path if it was renamed."""

    path: str
    change: Literal["edited", "created", "deleted", "renamed"]
    hunks: tuple[HunkRecord, ...]
    renamed_from: str | None = None


@dataclass(frozen=True)
class PatchReport:
    """The account of an applied answer; `dataclasses.asdict` makes it JSON.

    `formats` are the notations that the answer used.
    """

    files: tuple[FileRecord, ...]
    formats: tuple[Format, ...] = ()


@dataclass(frozen=True)
class PatchResult:
    """`files` is the whole tree after the edit, untouched files included."""

    files: dict[str, str]
    report: PatchReport


class PatchRefused(Exception):
    """The answer was not applied.

    `code` names the first reason; `log` tells a model what is wrong and what to send instead
    (at most `MAX_LOG_CHARACTERS` characters).
    """

    def __init__(self, code: RefusalCode, log: str) -> None:
        if len(log) > MAX_LOG_CHARACTERS:
            log = log[: MAX_LOG_CHARACTERS - 20] + "\n[log cut here]"
        super().__init__(f"{code}: {log}")
        self.code = code
        self.log = log


# ' ' stands on both sides, '-' on the old and '+' on the new one. '?' is a blank line that lost
# its marker: context where a blank line stands, new next to new lines, else nothing. '~' is an
# ellipsis that stands for unchanged lines.
Mark = Literal[" ", "-", "+", "?", "~"]


@dataclass(frozen=True)
class Line:
    """One line of a hunk; `text` has no marker and no line feed."""

    mark: Mark
    text: str


@dataclass(frozen=True)
class Hunk:
    """One change of one file, located by its content.

    `scope` is what the answer wrote behind the numbers of the `@@` line, `start` the line number
    it claims (used only to tell a repeated hunk from two equal edits). `ends_bare` is what "No
    newline at end of file" markers claim about the new file: True (no newline), False (a newline
    is added), None (nothing). `torn` says that its last line is the answer's and has no line feed,
    `cut` whether the answer seems to end in the middle of it.
    """

    lines: tuple[Line, ...]
    scope: str = ""
    start: int | None = None
    ends_bare: bool | None = None
    torn: bool = False
    cut: Cut = "no"

    @property
    def changes(self) -> bool:
        """Whether it asks for anything."""
        return self.ends_bare is not None or any(line.mark in "+-" for line in self.lines)

    @property
    def old(self) -> list[str]:
        """The lines that must stand in the file."""
        return [line.text for line in self.lines if line.mark in " -"]

    @property
    def new(self) -> list[str]:
        """The lines that stand there afterwards."""
        return [line.text for line in self.lines if line.mark not in "-~"]


@dataclass
class Section:
    """All edits of one file in an answer; `source` is its old path if it is renamed."""

    path: str
    action: Action
    hunks: list[Hunk]
    source: str | None = None

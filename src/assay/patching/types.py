"""What patching takes, returns and raises."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MAX_LOG_CHARACTERS = 8_000


class RefusalCode(StrEnum):
    """Why an answer was not applied. A refusal changes nothing: it is all or nothing."""

    NO_DIFF = "no_diff"  # the answer holds no edits that can be read
    TOO_LARGE = "too_large"  # longer than the size cap
    MALFORMED = "malformed"  # starts like a diff, cannot be read to its end
    BAD_PATH = "bad_path"  # absolute, `..`, backslash, `.git`, control character, …
    PROTECTED = "protected"
    SYMLINK = "symlink"
    UNKNOWN_FILE = "unknown_file"
    FILE_EXISTS = "file_exists"  # a new file where one stands
    UNSUPPORTED = "unsupported"  # rename, binary, mode change
    NO_MATCH = "no_match"
    AMBIGUOUS = "ambiguous"
    ALREADY_APPLIED = "already_applied"
    CONFLICT = "conflict"  # two hunks change the same lines differently
    NO_CHANGE = "no_change"
    SYNTAX_ERROR = "syntax_error"


Tier = Literal["exact", "trailing_whitespace", "blank_lines", "whole_file"]


@dataclass(frozen=True)
class HunkRecord:
    """Where one hunk went.

    `line` is the 1-based line of its first old line in the file it was placed on, `tier` how
    strictly it matched, `late` whether it fitted only after the other hunks had been applied.
    """

    index: int
    line: int
    tier: Tier
    removed: int
    added: int
    late: bool = False


@dataclass(frozen=True)
class FileRecord:
    """What happened to one file."""

    path: str
    change: Literal["edited", "created", "deleted"]
    hunks: tuple[HunkRecord, ...]


@dataclass(frozen=True)
class PatchReport:
    """The account of an applied answer; `dataclasses.asdict` makes it JSON."""

    files: tuple[FileRecord, ...]


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


@dataclass(frozen=True)
class Line:
    """One line of a hunk: `mark` is ' ' (on both sides), '-' or '+'; `text` has no line ending."""

    mark: Literal[" ", "-", "+"]
    text: str


@dataclass(frozen=True)
class Hunk:
    """One change of one file, located by its content.

    `ends_bare` says what "No newline at end of file" markers claim about the new file's end:
    True (no newline), False (a newline is added), None (nothing is claimed).
    """

    lines: tuple[Line, ...]
    ends_bare: bool | None = None

    @property
    def old(self) -> list[str]:
        return [line.text for line in self.lines if line.mark != "+"]

    @property
    def new(self) -> list[str]:
        return [line.text for line in self.lines if line.mark != "-"]


@dataclass
class Section:
    """All edits of one file in an answer, before any check."""

    path: str
    action: Literal["edit", "create", "delete"]
    hunks: list[Hunk]

"""What stands on a page: fenced blocks, commands, ideas, the files of an example."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from assay.contracts.batch import IdeaRequest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: The pages that people follow step by step: all that stands there has to work.
GUIDES = (
    ROOT / "README.md",
    DOCS / "quickstart.md",
    DOCS / "environments.md",
    *sorted((ROOT / "environments").glob("*/README.md")),
)
_BLOCK = re.compile(
    r"(?:`(?P<file>[\w./]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.M
)
_ASSIGNED = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block; `file` is the name in front of it, where the page gives one."""

    file: str | None
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a `sh` block, without comments and variables in front of it."""

    page: str
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words with blanks between them."""
        return " ".join(self.words)


def name_of(page: Path) -> str:
    """Return a page's path within the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = _BLOCK.finditer(page.read_text())
    return [Block(block["file"], block["language"], block["text"]) for block in found]


def commands(page: Path) -> list[Command]:
    """Return the commands of the `sh` blocks of a page in order."""
    found = []
    for block in blocks(page):
        if block.language != "sh":
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                while words and _ASSIGNED.fullmatch(words[0]):
                    words = words[1:]
                if words:
                    found.append(Command(name_of(page), tuple(words)))
    return found


def ideas(page: Path) -> list[IdeaRequest]:
    """Return the ideas that a page spells out, one a line of a `json` block."""
    lines = [
        line
        for block in blocks(page)
        if block.language == "json"
        for line in block.text.splitlines()
    ]
    return [IdeaRequest.model_validate_json(line) for line in lines if "text" in json.loads(line)]


def write_slope(folder: Path) -> None:
    """Write the environment that docs/environments.md shows into a folder."""
    for block in blocks(DOCS / "environments.md"):
        if block.file is not None:
            path = folder / block.file.removeprefix("environments/slope/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)

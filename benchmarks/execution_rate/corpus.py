"""Scripted answers to published ideas: one file per case, in `cases/<environment>/`.

A file begins with lines `key: value` (environment, source, fault, fixed_when), and goes on with
the texts `=== idea`, `=== answer` and, where there is one, `=== fixed`. The author of a case sends
its answer until the feedback matches `fixed_when`, and `fixed` from then on: feedback that does
not say what is wrong changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "cases"
ENVIRONMENTS = ("nanogpt", "grpo")

FAULTS: Mapping[str, str] = {
    "none": "right at once",
    "context": "its old lines, or its file, stand nowhere in the codebase, or in several places",
    "syntax": "is placed, and the result is no Python",
    "import": "a name that nobody defined, or a package that is not installed",
    "shape": "a wrong shape, type or attribute in the first step",
    "protected": "changes a protected file as well",
    "late": "an error after some steps of training",
    "malformed": "no diff, or one that is cut off",
    "hopeless": "an error in the first step, and the author never finds it",
}
#: Faults whose author has no better answer.
FINAL = ("none", "hopeless")

_KEYS = ("environment", "source", "fault", "fixed_when")
_TEXTS = ("idea", "answer", "fixed")
_FILE_NAME = re.compile(r"\d\d-[a-z0-9]+(-[a-z0-9]+)*\.txt")


class CorpusError(Exception):
    """A case that cannot be used; the message names its file and what is wrong."""


@dataclass(frozen=True)
class Case:
    """One idea and what its author answers. `name` is `<environment>/<NN>-<slug>`."""

    name: str
    environment: str
    source: str
    fault: str
    fixed_when: str | None
    idea: str
    answer: str
    fixed: str | None

    def understands(self, feedback: str) -> bool:
        """Whether the author finds the fault with this feedback."""
        if self.fixed_when is None:
            return False
        return re.search(self.fixed_when, feedback, re.IGNORECASE | re.DOTALL) is not None

    def reply(self, feedback: str) -> str:
        """What the author sends when told `feedback` (empty at first)."""
        if self.fixed is not None and self.understands(feedback):
            return self.fixed
        return self.answer


def load(folder: Path = FOLDER) -> list[Case]:
    """All cases, sorted by name.

    Raises:
        CorpusError: a file does not have the form above.
    """
    paths = sorted(folder.glob("*/*.txt"))
    if not paths:
        raise CorpusError(f"{folder}: no cases")
    cases = [_read(path) for path in paths]
    numbers = [case.name.partition("-")[0] for case in cases]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise CorpusError(f"{folder}: two cases have the number {', '.join(twice)}")
    return cases


def _read(path: Path) -> Case:
    if not _FILE_NAME.fullmatch(path.name):
        raise CorpusError(f"{path}: a case is called <NN>-<slug>.txt, lower case")
    head, texts = _split(path)
    for key in _KEYS[:3]:
        if not head.get(key):
            raise CorpusError(f"{path}: `{key}:` is missing")
    case = Case(
        name=f"{path.parent.name}/{path.stem}",
        environment=head["environment"],
        source=head["source"],
        fault=head["fault"],
        fixed_when=head.get("fixed_when"),
        idea=texts.get("idea", "").strip(),
        answer=texts.get("answer", ""),
        fixed=texts.get("fixed"),
    )
    _check(case, path)
    return case


def _split(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of a file and its texts."""
    head: dict[str, str] = {}
    texts: dict[str, list[str]] = {}
    text: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("=== "):
            name = line.removeprefix("=== ")
            if name != _TEXTS[min(len(texts), 2)] or name in texts:
                raise CorpusError(f"{path}:{number}: the texts are {', '.join(_TEXTS)}, in order")
            texts[name] = text = []
        elif text is not None:
            text.append(line)
        elif line:
            key, colon, value = line.partition(": ")
            if not colon or key not in _KEYS or key in head:
                raise CorpusError(f"{path}:{number}: not `key: value`, once, of {_KEYS}")
            head[key] = value.strip()
    return head, {name: "\n".join(lines).rstrip("\n") + "\n" for name, lines in texts.items()}


def _check(case: Case, path: Path) -> None:
    if case.environment not in ENVIRONMENTS or case.environment != path.parent.name:
        raise CorpusError(f"{path}: environment {case.environment!r} is not its folder's")
    if case.fault not in FAULTS:
        raise CorpusError(f"{path}: fault {case.fault!r}; known are {', '.join(FAULTS)}")
    if not case.idea.startswith("[Experiment]") or not case.answer.strip():
        raise CorpusError(f"{path}: needs an idea that starts with [Experiment], and an answer")
    repaired = case.fixed is not None and case.fixed_when is not None
    if case.fault in FINAL and (case.fixed is not None or case.fixed_when is not None):
        raise CorpusError(f"{path}: a case of fault {case.fault} has no fixed or fixed_when")
    if case.fault not in FINAL and not repaired:
        raise CorpusError(f"{path}: fault {case.fault} needs `fixed_when:` and `=== fixed`")
    try:
        re.compile(case.fixed_when or "")
    except re.error as error:
        raise CorpusError(f"{path}: fixed_when is no regular expression: {error}") from None
    if case.understands(""):
        raise CorpusError(f"{path}: fixed_when matches empty feedback")

"""An idea as text: `[Experiment] … [Code Changes] … [End]` (paper, appendix A).

Answers of models are read by `idea_answers`, which knows the other ways in which they write ideas.
"""

import re
from dataclasses import dataclass

# Models decorate the marks (`**[Experiment]**`, `## 2. [Experiment]`); the decoration goes.
# Repetitions are possessive: with plain ones, matching 64 KB of `*` takes quadratic time while it
# holds the interpreter's lock.
_DECORATION = r"[ \t>*#_`]*+(?:(?:idea )?\d{1,3}[.):]?)?[ \t>*#_`]*+"
_AFTER = r"[*_`:]*+"
_EXPERIMENT = re.compile(rf"^{_DECORATION}\[Experiment\]{_AFTER}", re.IGNORECASE | re.MULTILINE)
_CHANGES = re.compile(rf"\[Code Changes?\]{_AFTER}", re.IGNORECASE)
_BEFORE_CHANGES = "*#_`"
_END = re.compile(rf"^{_DECORATION}\[End\]|\[End\]{_AFTER}[ \t]*+$", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"\[(Experiment|Code Changes?|End)\]", re.IGNORECASE)


@dataclass(frozen=True)
class IdeaText:
    """`experiment`: what is tried and why. `code_changes`: how, for whoever writes the diff."""

    experiment: str
    code_changes: str


def read_idea(text: str) -> IdeaText:
    """One idea as submitted; a text without marks is an experiment without code changes."""
    start = _EXPERIMENT.search(text)
    while start is not None:
        after = _EXPERIMENT.search(text, start.end())
        body = text[start.end() : after.start() if after else None]
        end = _END.search(body)
        idea = _split(body[: end.start()] if end else body)
        if idea is not None:
            return idea
        start = after
    return IdeaText(text.strip(), "")


def format_idea(idea: IdeaText) -> str:
    """The text that `read_idea` reads back."""
    experiment, code_changes = without_marks(idea.experiment), without_marks(idea.code_changes)
    return f"[Experiment] {experiment}\n\n[Code Changes] {code_changes}\n\n[End]"


def without_marks(text: str) -> str:
    """The text with its marks in other brackets, so that it can stand between marks."""
    return _MARK.sub(r"(\1)", text)


def _split(body: str) -> IdeaText | None:
    changes = _CHANGES.search(body)
    if changes is None:
        return None
    experiment = body[: changes.start()].rstrip(_BEFORE_CHANGES).strip()
    code_changes = body[changes.end() :].strip()
    return IdeaText(experiment, code_changes) if experiment and code_changes else None

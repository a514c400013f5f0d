"""Ideas as text: `[Experiment] … [Code Changes] … [End]` (paper, appendix A)."""

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
_THINKING = re.compile(r"<(think|thinking)>.*?(</\1>|\Z)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class IdeaText:
    """`experiment`: what is tried and why. `code_changes`: how, for whoever writes the diff."""

    experiment: str
    code_changes: str


def parse_ideas(text: str, *, truncated: bool = False) -> list[IdeaText]:
    """All complete ideas of a model's answer, in order; thinking in `<think>` tags is dropped.

    `[End]` may be missing where the next idea or the text's end says as much. With `truncated`,
    a last idea without `[End]` is left out, because part of it may be missing.
    """
    spoken = _THINKING.sub("", text)
    starts = list(_EXPERIMENT.finditer(spoken))
    ideas: list[IdeaText] = []
    for i, start in enumerate(starts):
        is_last = i + 1 == len(starts)
        body = spoken[start.end() : None if is_last else starts[i + 1].start()]
        end = _END.search(body)
        if end is None and is_last and truncated:
            continue
        idea = _split(body[: end.start()] if end else body)
        if idea is not None:
            ideas.append(idea)
    return ideas


def read_idea(text: str) -> IdeaText:
    """One idea as submitted; a text without marks is an experiment without code changes."""
    ideas = parse_ideas(text)
    return ideas[0] if ideas else IdeaText(text.strip(), "")


def format_idea(idea: IdeaText) -> str:
    """The text that `parse_ideas` reads back."""
    return f"[Experiment] {idea.experiment}\n\n[Code Changes] {idea.code_changes}\n\n[End]"


def _split(body: str) -> IdeaText | None:
    changes = _CHANGES.search(body)
    if changes is None:
        return None
    experiment = body[: changes.start()].rstrip(_BEFORE_CHANGES).strip()
    code_changes = body[changes.end() :].strip()
    return IdeaText(experiment, code_changes) if experiment and code_changes else None

"""Read the ideas out of a model's answer, in the forms in which models write them.

Models are asked for `[Experiment] … [Code Changes] … [End]` and also write headings, bold labels,
JSON or tags. Three styles are tried in this order, and the first that gives an idea is taken:

1. marks in brackets: `[Experiment]`, `[Experiment 2: Muon]`, `[Code]`, `【End】`;
2. JSON, alone or in a fence: `[{"experiment": …, "code_changes": …}]`;
3. labels: `## Experiment 1: Muon`, `**Code Changes:**`, `<experiment>`, `- Changes: …`.

Looser styles are not looked for beside stricter ones: a model that outlines its ideas before it
writes them down would have proposed them twice.

Nothing of an answer is dropped. A passage is in an idea, in the thinking of one idea, among the
passages that look like ideas and cannot be read (`unread`), or in `rest`. Only marks go, with
their decoration. Thinking is what `<think>` blocks and the text in front of an idea hold.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.llm import prompts
from assay.llm.ideas import IdeaText, without_marks

Kind = Literal["idea", "experiment", "changes", "end", "skip"]

#: So many places are tried at which JSON may begin in an answer that holds more than JSON.
_JSON_STARTS = 20
_JSON_KEYS = {
    "experiment": ("experiment", "idea", "proposal", "hypothesis", "description", "what"),
    "code_changes": ("code_changes", "code_change", "changes", "code", "implementation", "how"),
    "thinking": ("thinking", "thoughts", "reasoning", "rationale", "analysis"),
}

# Repetitions are possessive where what follows may fail: a text of `*` alone would otherwise take
# quadratic time, while the interpreter's lock is held.
_NUMBER = r"[ \t]*+(?:(?:no\.?|number|nr\.?)[ \t]*+)?#?(?:\d{1,3}|[A-H])(?![\w])"
_DECORATION = r"[ \t>*#_`+•-]*+(?:(?:idea )?\d{1,3}[.):][ \t]*+)?[ \t>*#_`]*+"
_AFTER = r"[ \t]*+[*_`]*+(?:[ \t]*+[:：])?[*_`]*+"
_START = "experiment|idea|proposal"
_CODE = r"code[ _-]?(?:changes?|modifications?|edits?)"
_CHANGES = (
    rf"{_CODE}|code|changes?(?: (?:required|needed))?|modifications?"
    r"|implementation(?: (?:details?|plan|notes?|steps))?"
)
_FLAGS = re.IGNORECASE | re.MULTILINE
_BRACKETS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "experiment",
        re.compile(
            rf"^{_DECORATION}[\[【](?:{_START})(?:{_NUMBER})?"
            rf"(?:[ \t]*+[:：–—-](?P<title>[^\n\]】]*+))?[\]】]{_AFTER}",
            _FLAGS,
        ),
    ),
    ("changes", re.compile(rf"[\[【]{_CODE}(?:{_NUMBER})?[\]】]{_AFTER}", _FLAGS)),
    (
        "changes",
        re.compile(
            rf"^{_DECORATION}[\[【](?:{_CHANGES})(?:{_NUMBER})?"
            rf"(?:[ \t]*+[:：–—-](?P<title>[^\n\]】]*+))?[\]】]{_AFTER}",
            _FLAGS,
        ),
    ),
    (
        "end",
        re.compile(
            rf"^{_DECORATION}[\[【]/?end(?: of)?(?: (?:{_START}))?(?:{_NUMBER})?[\]】]{_AFTER}"
            rf"|[\[【]end[\]】]{_AFTER}[ \t]*+$",
            _FLAGS,
        ),
    ),
)
# A label is followed by a colon, or is a line of its own; a heading may go on behind its number.
_BEHIND = rf"(?:{_NUMBER})?[*_`]*+(?:[ \t]*+[:：][*_`]*+|[ \t]+[–—-](?=[ \t])|[ \t]*+$)"
_LABELS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("idea", re.compile(rf"^{_DECORATION}(?:idea|proposal){_BEHIND}", _FLAGS)),
    ("idea", re.compile(r"^[ \t]*+<(?:idea|proposal)(?P<title>[^>\n]*+)>", _FLAGS)),
    ("experiment", re.compile(rf"^{_DECORATION}experiment(?: idea)?{_BEHIND}", _FLAGS)),
    ("experiment", re.compile(r"^[ \t]*+<experiment(?P<title>[^>\n]*+)>", _FLAGS)),
    ("changes", re.compile(rf"^{_DECORATION}(?:{_CHANGES}){_BEHIND}", _FLAGS)),
    ("changes", re.compile(rf"<(?:{_CODE}|codechanges|changes|implementation)>", _FLAGS)),
    ("end", re.compile(rf"^{_DECORATION}end(?: of (?:{_START}))?{_BEHIND}", _FLAGS)),
    ("end", re.compile(r"</(?:idea|proposal)>[ \t]*+$|^[ \t]*+<end ?/?>", _FLAGS)),
    ("skip", re.compile(rf"</?(?:ideas|proposals|{_CODE}|codechanges|changes|implementation)>"
                        r"[ \t]*+$", _FLAGS)),
    ("skip", re.compile(r"</experiment>[ \t]*+$", _FLAGS)),
)  # fmt: skip
#: Thinking is tagged at the beginning of a line: ideas may speak of such tags within one.
_THINKING = re.compile(
    r"^[ \t]*+<(think|thinking|reasoning|scratchpad)>(?P<text>.*?)(?:</\1>|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_CLOSES = re.compile(r"^[ \t]*+</(?:think|thinking)>[ \t]*+$", _FLAGS)
_FENCE = re.compile(r"^[ \t]*+(?:```|~~~)(?:text|txt|markdown|md)?(?P<language>[^\n]*+)", _FLAGS)
_BARE_FENCE = re.compile(
    r"[ \t]*+(?:```|~~~)(?:text|txt|markdown|md|json\w?|xml)?[ \t]*+", re.IGNORECASE
)
_BLANK = re.compile(r"(?:[ \t]*+\n)++")
_JSON_START = re.compile(r"^[ \t]*+(?=[\[{])", re.MULTILINE)
_RULE = re.compile(r"[ \t]*+(?:-{3,}|[*_]{3,}|[*#_`>-]{1,6})?[ \t]*+")
_EXAMPLE = re.compile(r"(?:^|\n)[ \t>*#_]*(?:for )?example(?: idea)?[ \t:*_]*$", re.IGNORECASE)
_HOLLOW = re.compile(r"[\s.…<>()\[\]{}*_`\-–—]*")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class ReadIdea:
    """An idea of an answer, with the thinking that belongs to it alone."""

    idea: IdeaText
    thinking: str = ""


@dataclass(frozen=True)
class ReadAnswer:
    """What an answer holds, all of it.

    `unread`: passages that look like ideas and cannot be read, the whole answer if there is no
    idea in it. `rest`: what stands behind the last idea.
    """

    ideas: tuple[ReadIdea, ...]
    unread: tuple[str, ...] = ()
    rest: str = ""


def read_answer(text: str, *, truncated: bool = False) -> ReadAnswer:
    """The ideas of a model's answer, in order, and what else it holds. Never raises.

    With `truncated`, a last idea that does not end is unread, because part of it may be missing.
    Ideas that only show the form (the prompt's own words, an ellipsis, an example) are not taken.
    """
    spoken, thoughts = _without_thinking(text.replace("\r\n", "\n").replace("\r", "\n"))
    for pieces in _readings(spoken, truncated):
        if any(piece.idea is not None for piece in pieces):
            return _assembled(pieces, thoughts)
    thinking = "\n\n".join(thought.text for thought in thoughts)
    return ReadAnswer((), (spoken.strip(),) if spoken.strip() else (), thinking)


def _readings(text: str, truncated: bool) -> Iterator[list[_Piece]]:
    """The text as each style reads it, the strictest first."""
    yield _read_brackets(text, truncated)
    yield _read_json(text)
    yield _read_labels(text, truncated)


@dataclass(frozen=True)
class _Thought:
    """A block of thinking, and where it stood in the text that is left without it."""

    at: int
    text: str


@dataclass
class _Piece:
    """A passage of an answer, from `start` to `end`: an idea, or none.

    `changes_at`: where the code changes of the idea begin. `closed`: its end was marked.
    """

    start: int
    end: int
    text: str
    idea: IdeaText | None = None
    thinking: list[str] = field(default_factory=list)
    is_unread: bool = False
    changes_at: int = 0
    closed: bool = False


@dataclass(frozen=True)
class _Mark:
    kind: Kind
    start: int
    end: int
    title: str
    is_bracket: bool


def _without_thinking(text: str) -> tuple[str, list[_Thought]]:
    """The text without its blocks of thinking, and these."""
    thoughts: list[_Thought] = []
    kept: list[str] = []
    length = last = 0
    opening = _THINKING.search(text)
    closing = _CLOSES.search(text)
    if closing and not (opening and opening.start() < closing.start()):
        # The tag that opened it was part of the prompt, or the server took it away.
        thoughts.append(_Thought(0, text[: closing.start()].strip()))
        last = closing.end()
    for block in _THINKING.finditer(text, last):
        kept.append(text[last : block.start()])
        length += block.start() - last
        thoughts.append(_Thought(length, block["text"].strip()))
        last = block.end()
        if text[last : last + 1] not in ("", "\n"):  # a mark may follow on the same line
            kept.append("\n")
            length += 1
    kept.append(text[last:])
    return "".join(kept), thoughts


# -- marks ----------------------------------------------------------------------------------


def _read_brackets(text: str, truncated: bool) -> list[_Piece]:
    """Read by marks in brackets; one that has no code changes in this style, by labels too."""
    pieces: list[_Piece] = []
    for piece in _read_marks(text, _marks(text, _BRACKETS), truncated):
        if piece.is_unread and not (truncated and piece.end == len(text)):
            inner = _shifted(_read_labels(piece.text, truncated), piece.start)
            if any(part.idea is not None for part in inner):
                pieces += inner
                continue
        pieces.append(piece)
    return pieces


def _read_labels(text: str, truncated: bool) -> list[_Piece]:
    marks = [*_marks(text, _BRACKETS), *_outside_code(text, _marks(text, _LABELS))]
    return _read_marks(text, _apart(marks), truncated)


def _marks(text: str, patterns: Iterable[tuple[Kind, re.Pattern[str]]]) -> list[_Mark]:
    found = []
    for kind, pattern in patterns:
        for match in pattern.finditer(text):
            title = match.groupdict().get("title") or ""
            is_bracket = patterns is _BRACKETS
            found.append(_Mark(kind, match.start(), match.end(), _title(title), is_bracket))
    return _apart(found)


def _title(text: str) -> str:
    """The title in a mark; of a tag's attributes, their values."""
    values = re.findall(r'"([^"]*)"', text)
    return " ".join(values) if values else text.strip()


def _apart(marks: list[_Mark]) -> list[_Mark]:
    """Marks in order, without those that begin within another."""
    found: list[_Mark] = []
    for mark in sorted(marks, key=lambda m: (m.start, -m.end)):
        if not found or mark.start >= found[-1].end:
            found.append(mark)
    return found


def _outside_code(text: str, marks: Sequence[_Mark]) -> Iterator[_Mark]:
    """Labels that are not within fenced code. A fence that begins with a label wraps an idea."""
    starts = {mark.start for mark in marks}
    fences = list(_FENCE.finditer(text))
    code: list[tuple[int, int]] = []
    i = 0
    while i + 1 < len(fences):
        wraps = not fences[i]["language"] and _next_line(text, fences[i].end()) in starts
        if not wraps:
            code.append((fences[i].start(), fences[i + 1].start()))
        i += 1 if wraps else 2
    position = 0
    for mark in marks:
        while position < len(code) and code[position][1] <= mark.start:
            position += 1
        if position == len(code) or mark.start < code[position][0]:
            yield mark


def _next_line(text: str, at: int) -> int:
    """Where the first line begins, behind a place, that is not blank."""
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _read_marks(text: str, marks: Sequence[_Mark], truncated: bool) -> list[_Piece]:
    """Cut a text at its marks: into ideas, what begins like one, and what is between them."""
    pieces: list[_Piece] = []
    openings = [i for i, mark in enumerate(marks) if mark.kind in ("idea", "experiment")]
    openings = [i for n, i in enumerate(openings) if not _is_again(text, marks, openings, n)]
    done = 0
    for n, i in enumerate(openings):
        start = marks[i].start
        limit = marks[openings[n + 1]].start if n + 1 < len(openings) else len(text)
        last = openings[n + 1] if n + 1 < len(openings) else len(marks)
        end_mark = next((m for m in marks[i + 1 : last] if m.kind == "end"), None)
        if start > done:
            pieces.append(_Piece(done, start, text[done:start]))
        stop = end_mark.start if end_mark else limit
        inner = [m for m in marks[i:last] if m.start < stop]
        piece = _Piece(start, stop, text[start:stop], closed=end_mark is not None)
        is_cut = truncated and limit == len(text) and end_mark is None
        if is_cut or not _fill(piece, text, inner, stop):
            piece.is_unread = is_cut or any(m.is_bracket for m in inner) or len(inner) > 1
        elif _shows_the_form(piece, pieces):
            piece.idea, piece.thinking = None, []
        pieces.append(piece)
        done = end_mark.end if end_mark else limit
    if done < len(text):
        pieces.append(_Piece(done, len(text), text[done:]))
    return pieces


def _is_again(text: str, marks: Sequence[_Mark], openings: Sequence[int], n: int) -> bool:
    """Whether an experiment begins within the idea that the mark before it began.

    `## Idea 1: Muon` is followed by `**Experiment:**`, and `[Experiment] Experiment:` is one.
    """
    if not n or marks[openings[n]].kind != "experiment":
        return False
    before, here = openings[n - 1], openings[n]
    if any(mark.kind in ("changes", "end") for mark in marks[before + 1 : here]):
        return False
    if marks[before].kind == "idea":
        return True
    return not text[marks[before].end : marks[here].start].strip()


def _fill(piece: _Piece, text: str, marks: Sequence[_Mark], stop: int) -> bool:
    """Read the idea between marks into its piece; whether there is one."""
    first = next((i for i, m in enumerate(marks) if m.kind == "changes"), None)
    if first is None:
        return False
    changes = marks[first]
    begins = [m for m in marks[:first] if m.kind in ("idea", "experiment")]
    parts: list[str] = [m.title for m in begins]
    thinking: list[str] = []
    if len(begins) > 1:  # the title of the idea is its first line; what follows is said before it
        head = text[begins[0].end : begins[-1].start]
        title, _, said = head.strip("\n").partition("\n")
        parts.append(_clean(title))
        thinking.append(_clean(said))
    parts.append(_clean(_skipped(text, begins[-1].end, changes.start, marks)))
    experiment = "\n".join(part for part in parts if part)
    code = _clean(_skipped(text, changes.end, stop, marks[first + 1 :]))
    code = "\n".join(part for part in (changes.title, code) if part)
    if not experiment or not code:
        return False
    piece.idea = IdeaText(without_marks(experiment), without_marks(code))
    piece.thinking = [part for part in thinking if part]
    piece.changes_at = changes.end
    return True


def _skipped(text: str, start: int, end: int, marks: Sequence[_Mark]) -> str:
    """A passage without closing tags."""
    kept, last = [], start
    for mark in marks:
        if mark.kind == "skip" and last <= mark.start and mark.end <= end:
            kept.append(text[last : mark.start])
            last = mark.end
    return "".join([*kept, text[last:end]])


def _clean(text: str) -> str:
    """A passage without what belongs to the marks around it: rules, decoration, half a fence."""
    lines = text.strip("\n").split("\n")
    first, last = 0, len(lines)
    has_half = len(_FENCE.findall(text)) % 2 == 1
    while first < last and _is_edge(lines[first], has_half):
        has_half = has_half and not _FENCE.match(lines[first])
        first += 1
    while first < last and _is_edge(lines[last - 1], has_half):
        has_half = has_half and not _FENCE.match(lines[last - 1])
        last -= 1
    if first < last and lines[first].count("**") % 2 and lines[first].rstrip().endswith("**"):
        lines[first] = lines[first].rstrip()[:-2]  # of a bold label: **Experiment 1: Muon**
    return "\n".join(lines[first:last]).strip()


def _is_edge(line: str, has_half: bool) -> bool:
    if _BARE_FENCE.fullmatch(line):
        return has_half
    return _RULE.fullmatch(line) is not None


# -- what only shows the form ---------------------------------------------------------------


def _shows_the_form(piece: _Piece, before: Sequence[_Piece]) -> bool:
    """Whether a passage is the prompt's own form or an example, and no idea."""
    assert piece.idea is not None
    experiment, code = piece.idea.experiment, piece.idea.code_changes
    if _HOLLOW.fullmatch(experiment) or _HOLLOW.fullmatch(code):
        return True
    said = [_plain(experiment), _plain(code)]
    if any(words and said[i].startswith(words) for i, words in enumerate(_form())):
        return True
    return bool(before) and before[-1].idea is None and bool(
        _EXAMPLE.search(before[-1].text.rstrip())
    )  # fmt: skip


@functools.cache
def _form() -> tuple[str, str]:
    """The words that stand for experiment and code changes where the prompt shows the form."""
    text = prompts.template("ideator_system")
    marks = _marks(text, _BRACKETS)
    begin = next((m for m in marks if m.kind == "experiment"), None)
    changes = next((m for m in marks if m.kind == "changes"), None)
    end = next((m for m in marks if m.kind == "end"), None)
    if begin is None or changes is None or end is None:
        return ("", "")
    return (
        _plain(text[begin.end : changes.start])[:60],
        _plain(text[changes.end : end.start])[:60],
    )


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))


# -- JSON -----------------------------------------------------------------------------------


def _read_json(text: str) -> list[_Piece]:
    """Read ideas that are objects, or texts, of JSON. One that breaks off is no JSON."""
    pieces: list[_Piece] = []
    done = 0
    for start, end, value in _json_values(text):
        ideas = [idea for idea in map(_object_idea, _flat(value)) if idea is not None]
        if not ideas:
            continue
        if start > done:
            pieces.append(_Piece(done, start, text[done:start]))
        for n, (idea, thinking, other) in enumerate(ideas):
            at = start if n == 0 else end
            pieces.append(_Piece(at, end, "", idea, thinking, closed=True, changes_at=at))
            if other:
                pieces.append(_Piece(end, end, other))
        unread = [v for v in _flat(value) if _object_idea(v) is None]
        if unread:
            shown = "\n".join(json.dumps(v, ensure_ascii=False) for v in unread)
            pieces.append(_Piece(end, end, shown, is_unread=True))
        done = end
    if done < len(text):
        pieces.append(_Piece(done, len(text), text[done:]))
    return pieces


def _json_values(text: str) -> Iterator[tuple[int, int, Any]]:
    """Values of JSON in a text and where they stand, fences included."""
    fences = list(_FENCE.finditer(text))
    fenced = [
        (opens.start(), closes.end(), value)
        for opens, closes in zip(fences[::2], fences[1::2], strict=False)
        if (value := _loads(text[opens.end() : closes.start()])) is not None
    ]
    if fenced:
        yield from fenced
        return
    decoder, done = json.JSONDecoder(), 0
    for n, match in enumerate(_JSON_START.finditer(text)):
        if n == _JSON_STARTS:
            return
        if match.end() < done:
            continue
        try:
            value, done = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        yield match.end(), done, value


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flat(value: Any) -> list[Any]:
    """The values that may be ideas: of a list, or of an object that holds a list of them."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict) and _object_idea(value) is None:
        lists = [each for each in value.values() if isinstance(each, list)]
        objects = [each for each in value.values() if isinstance(each, dict)]
        if len(lists) == 1 and len(value) == 1:
            return lists[0]
        if objects and len(objects) == len(value):
            return objects
    return [value]


def _object_idea(value: Any) -> tuple[IdeaText, list[str], str] | None:
    """The idea of a value of JSON, its thinking and what else a text holds; or None."""
    if isinstance(value, str):
        inner = _read_brackets(value, truncated=False)
        ideas = [piece.idea for piece in inner if piece.idea is not None]
        others = [piece.text.strip() for piece in inner if piece.idea is None]
        return (ideas[0], [], "\n".join(filter(None, others))) if len(ideas) == 1 else None
    if not isinstance(value, dict):
        return None
    keys = {re.sub(r"\W+", "_", str(key).strip().lower()): key for key in value}
    found: dict[str, str] = {}
    used: set[str] = set()
    for name, spellings in _JSON_KEYS.items():
        key = next((keys[spelling] for spelling in spellings if spelling in keys), None)
        if key is not None:
            found[name] = _json_text(value[key])
            used.add(key)
    if not found.get("experiment") or not found.get("code_changes"):
        return None
    more = [f"{key}: {_json_text(v)}" for key, v in value.items() if key not in used]
    idea = IdeaText(
        without_marks("\n".join([found["experiment"], *more])),
        without_marks(found["code_changes"]),
    )
    if _shows_the_form(_Piece(0, 0, "", idea), ()):
        return None
    return idea, [found["thinking"]] if found.get("thinking") else [], ""


def _json_text(value: Any) -> str:
    """A value of JSON as a person writes it."""
    if isinstance(value, str):
        return value.replace("\r\n", "\n").strip()
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "\n".join(f"- {each.strip()}" for each in value)
    return json.dumps(value, ensure_ascii=False)


# -- together -------------------------------------------------------------------------------


def _shifted(pieces: list[_Piece], by: int) -> list[_Piece]:
    for piece in pieces:
        piece.start, piece.end = piece.start + by, piece.end + by
        piece.changes_at += by
    return pieces


def _assembled(pieces: Sequence[_Piece], thoughts: Sequence[_Thought]) -> ReadAnswer:
    """Give every piece and every thought to the idea that it belongs to."""
    owners = [i for i, piece in enumerate(pieces) if piece.idea is not None]
    said: dict[int, list[tuple[int, str]]] = {i: [] for i in owners}
    rest: list[tuple[int, str]] = []
    unread: list[str] = []

    def give(owner: int | None, at: int, text: str) -> None:
        if text:
            (rest if owner is None else said[owner]).append((at, text))

    for i, piece in enumerate(pieces):
        if piece.idea is not None:
            for text in piece.thinking:
                give(i, piece.start, text)
        elif piece.is_unread:
            unread.append(piece.text.strip())
        else:
            at = piece.start + len(piece.text) - len(piece.text.lstrip())
            give(next((o for o in owners if o > i), None), at, _clean(piece.text))
    for thought in thoughts:
        give(_owner(pieces, owners, thought.at), thought.at, thought.text)
    ideas = [_read_idea(pieces[i], said[i]) for i in owners]
    return ReadAnswer(tuple(ideas), tuple(unread), _joined(rest))


def _read_idea(piece: _Piece, said: list[tuple[int, str]]) -> ReadIdea:
    assert piece.idea is not None
    return ReadIdea(piece.idea, _joined(said))


def _owner(pieces: Sequence[_Piece], owners: Sequence[int], at: int) -> int | None:
    """The idea that a thought belongs to: the one it is in, else the next.

    A thought behind the code changes of an idea without an end mark is about the next idea.
    """
    for n, i in enumerate(owners):
        piece = pieces[i]
        if at <= piece.start:
            return i
        if at < piece.end or (at == piece.end and not piece.closed):
            offset = at - piece.start
            is_behind = (
                not piece.closed
                and n + 1 < len(owners)
                and at > piece.changes_at
                and not piece.text[offset:].strip()
            )
            return owners[n + 1] if is_behind else i
    return None


def _joined(said: Sequence[tuple[int, str]]) -> str:
    return "\n\n".join(text for _, text in sorted(said, key=lambda each: each[0]))

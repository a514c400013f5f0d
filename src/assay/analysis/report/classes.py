"""Whether an idea tunes hyper-parameters or changes the algorithm, by a rule on its diff.

The paper asks a model to judge; a rule gives the same answer every time and can be checked. An
idea is hyper-parameter tuning if everything that it changes is the value of something that the
baseline already has:

- in a configuration file (.toml, .json, .yaml, .yml, .cfg, .ini), any change;
- elsewhere, lines that are the same before and after once every literal (number, text, True,
  False, None, and arithmetic of numbers alone) is taken for the same one.

Comments, blank lines and the order of lines count for nothing. All else is algorithmic.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

_CONFIGURATION = (".toml", ".json", ".yaml", ".yml", ".cfg", ".ini")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_LITERAL = "¤"
_WORDS = frozenset({"True", "False", "None"})
_SKIPPED = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
)
# Arithmetic of numbers: a sign before one, or an operator between two.
_SIGN = re.compile(rf"(?<![\w)\]{_LITERAL}] )[-+~] {_LITERAL}")
_ARITHMETIC = re.compile(rf"{_LITERAL}(?: (?:\*\*|//|[-+*/%]) {_LITERAL})+")
_BRACKETED = re.compile(rf"(?<![\w)\]] )\( {_LITERAL} \)")
#: A literal as a pattern finds it in a line that Python's tokenizer cannot read.
_PLAIN = re.compile(
    r"""(?P<literal>(?<![\w.])\d[\w.]*(?:e[+-]?\d+)?|"[^"]*"|'[^']*')|(?P<other>\w+|[^\w\s])""",
    re.IGNORECASE,
)


class Change(StrEnum):
    """What an idea changes."""

    HYPERPARAMETER = "hyper-parameter"
    ALGORITHMIC = "algorithmic"


def classify(diff: str) -> Change | None:
    """Return what a unified diff changes; None if it changes nothing that counts."""
    is_changed = False
    for name, removed, added in _changes(diff):
        if name.endswith(_CONFIGURATION):
            is_changed = True
            continue
        before, after = _shape(removed), _shape(added)
        if before != after:
            return Change.ALGORITHMIC
        is_changed = is_changed or bool(before)
    return Change.HYPERPARAMETER if is_changed else None


def _changes(diff: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Give what is removed and added at each place of each file."""
    name = ""
    removed: list[str] = []
    added: list[str] = []
    before = after = 0
    for line in diff.split("\n"):
        if before <= 0 and after <= 0:
            if removed or added:
                yield name, removed, added
                removed, added = [], []
            if line.startswith("diff --git "):
                names = line.removeprefix("diff --git ")
                name = names[len(names) // 2 + 3 :]
            elif found := _HUNK.match(line):
                before, after = int(found[1] or 1), int(found[2] or 1)
            continue
        mark = line[:1]
        if mark == "-":
            removed.append(line[1:])
        elif mark == "+":
            added.append(line[1:])
        elif mark != "\\" and (removed or added):
            yield name, removed, added
            removed, added = [], []
        before -= mark not in ("+", "\\")
        after -= mark not in ("-", "\\")
    if removed or added:
        yield name, removed, added


def _shape(lines: list[str]) -> Counter[str]:
    """Return what is left of lines when their literals are taken for equal."""
    shapes = (_without_values(line) for line in lines)
    return Counter(shape for shape in shapes if shape)


def _without_values(line: str) -> str:
    text = " ".join(_tokens(line.strip()))
    previous = ""
    while text != previous:
        previous = text
        text = _SIGN.sub(_LITERAL, text)
        text = _ARITHMETIC.sub(_LITERAL, text)
        text = _BRACKETED.sub(_LITERAL, text)
    return text


def _tokens(line: str) -> list[str]:
    try:
        found = list(tokenize.generate_tokens(io.StringIO(line).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        # One line of a longer expression, or no Python.
        code = line.partition(" #")[0] if not line.startswith("#") else ""
        return [_LITERAL if m["literal"] else m["other"] for m in _PLAIN.finditer(code)]
    return [
        _LITERAL
        if token.type in (tokenize.NUMBER, tokenize.STRING) or token.string in _WORDS
        else token.string
        for token in found
        if token.type not in _SKIPPED
    ]

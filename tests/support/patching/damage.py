"""Damage to answers, drawn at random.

There are two kinds of damage: what `benchmarks.patching.corrupt` does is mild enough that the
right result is known; after this one only invariants can be checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Lines = list[str]
Mutation = Callable[[random.Random, Lines], Lines]

TOKENS = (
    "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "<<<<<<< SEARCH train.py", "------- SEARCH",
    "+++++++ REPLACE", "<<<<<<< HEAD", "*** Begin Patch", "*** End Patch", "*** End of File",
    "*** Update File: train.py", "*** Add File: new.py", "*** Delete File: list.txt",
    "*** Move to: moved.py", "*** Update File: predict.py", "```", "```diff", "````", "~~~",
    "--- a/train.py", "+++ b/train.py", "--- /dev/null", "+++ /dev/null", "+++ b/predict.py",
    "--- a/predict.py", "diff --git a/train.py b/train.py", "diff --git a/x b/predict.py",
    "diff --git a/predict.py b/x", "index 123..456 100644", "new file mode 100644",
    "new file mode 120000", "new file mode 160000", "deleted file mode 100644",
    "old mode 100644", "new mode 100755", "similarity index 90%", "rename from train.py",
    "rename from predict.py", "rename to predict.py", "rename to moved.py", "rename to safe/x",
    "copy from predict.py", "copy to y.py", "GIT binary patch", "literal 4", "delta 3",
    "Binary files a/x and b/x differ", "Index: train.py", "@@", "@@ @@", "@@ ... @@",
    "@@ -1 +1 @@", "@@ -0,0 +1,3 @@", "@@ -1,3 +0,0 @@", "@@ def warm(step: int) -> float:",
    "@@ -999999999999,5 +1 @@", "\\ No newline at end of file", "...", " ...", "-...", "+...",
    "# ... rest unchanged", "+    # ... existing code ...", "", " ", "+", "-", "---", "+++", "--",
    "--- ", "+++ ", "In `train.py`:", "predict.py", "`predict.py`", "File: train.py", "EOF",
)  # fmt: skip
NAMES = (
    "train.py", "predict.py", "Predict.py", "safe/data.txt", "safe/../predict.py", "/etc/passwd",
    "../x.py", "a/../../x", "pkg/model.py", "model.py", "other/model.py", "link/x", "pkg/out/x",
    ".git/config", "pkg/.GIT/hooks/x", "C:\\x", "x\\y", "~/x", "", ".", "/", "a/", "b/train.py",
    "a/a/train.py", "./train.py", "././predict.py", "pkg//model.py", "train.py/", "train.py/x",
    "repo/train.py", '"train.py"', '"pr\\145dict.py"', "'predict.py'", "predict.py\t2026-01-01",
    "predict.py (new)", "predict\u0301.py", "ｐredict.py", "predict.py\u200b", "new.py",
    "list.txt", "safe", "safe/", "SAFE/x", "/dev/null", "dev/null", "nul", "x" * 300,
    "pred\x00ict.py",
)  # fmt: skip
CHARACTERS = (
    "\0", "\x01", "\x0b", "\x0c", "\r", "\x1b[2J", "\x1c", "\x1e", "\x85", "\u2028", "\u2029",
    "\u202e", "\ufeff", "\u200b", "\xa0", "\u3000", "\u201c", "\u2019", "\u2013", "\ud800", "\t",
    " ", "  ", "    ", "\\", '"', "'", "`", "(", ")", "\U0001f600", "9" * 30,
)  # fmt: skip


def mutate(draw: random.Random, text: str, donor: str, times: int | None = None) -> str:
    """The text after a few mutations; `donor` is where foreign lines come from."""
    lines, foreign = text.split("\n"), donor.split("\n")
    for _ in range(times if times is not None else draw.choice((1, 1, 2, 3, 5, 8))):
        if draw.random() < 0.1:
            lines = draw.choice((_splice, _cross))(draw, lines, foreign) or [""]
        else:
            lines = draw.choice(MUTATIONS)(draw, lines) or [""]
    return "\n".join(lines)


def _at(draw: random.Random, lines: Sequence[str]) -> int:
    return draw.randrange(len(lines))


def _span(draw: random.Random, lines: Sequence[str]) -> tuple[int, int]:
    start = _at(draw, lines)
    return start, min(len(lines), start + draw.choice((1, 1, 2, 4, 10)))


def _duplicate(draw: random.Random, lines: Lines) -> Lines:
    start, end = _span(draw, lines)
    at = draw.choice((end, _at(draw, lines)))
    return lines[:at] + lines[start:end] + lines[at:]


def _drop(draw: random.Random, lines: Lines) -> Lines:
    start, end = _span(draw, lines)
    return lines[:start] + lines[end:]


def _move(draw: random.Random, lines: Lines) -> Lines:
    start, end = _span(draw, lines)
    rest = lines[:start] + lines[end:] or [""]
    at = _at(draw, rest)
    return rest[:at] + lines[start:end] + rest[at:]


def _shuffle(draw: random.Random, lines: Lines) -> Lines:
    start, end = _span(draw, lines)
    part = lines[start:end]
    draw.shuffle(part)
    return lines[:start] + part + lines[end:]


def _remark(draw: random.Random, lines: Lines) -> Lines:
    """Another marker, or none, in front of a line."""
    at = _at(draw, lines)
    body = lines[at][1:] if lines[at][:1] in ("+", "-", " ") else lines[at]
    return [
        *lines[:at],
        draw.choice(("+", "-", " ", "", "\\", "++", "- ")) + body,
        *lines[at + 1 :],
    ]


def _renumber(draw: random.Random, lines: Lines) -> Lines:
    headers = [i for i, line in enumerate(lines) if line.startswith("@@")]
    if not headers:
        return lines
    at = draw.choice(headers)
    numbers = [draw.choice((0, 1, 2, 7, 30, 10**6, 10**30)) for _ in range(4)]
    header = draw.choice((
        "@@ -{},{} +{},{} @@", "@@ -{} +{} @@", "@@", "@@ ... @@", "@@ -{},{} +{},{} @@ def f():",
        "@@ -{},{} +{},{}", "@ -{},{} +{},{} @@", "@@ -x,y +z @@",
    )).format(*numbers)  # fmt: skip
    return [*lines[:at], header, *lines[at + 1 :]]


def _rename(draw: random.Random, lines: Lines) -> Lines:
    """Another file name where one stands."""
    marks = ("--- ", "+++ ", "diff --git ", "rename ", "*** Update", "*** Add", "*** Delete")
    named = [i for i, line in enumerate(lines) if line.startswith(marks) or line in NAMES]
    if not named:
        return lines
    at = draw.choice(named)
    words = lines[at].split(" ")
    words[-1] = draw.choice(("a/", "b/", "", "", "c/", "src/")) + draw.choice(NAMES)
    return [*lines[:at], " ".join(words), *lines[at + 1 :]]


def _token(draw: random.Random, lines: Lines) -> Lines:
    at = _at(draw, lines)
    return [*lines[:at], draw.choice(TOKENS), *lines[at + draw.randrange(2) :]]


def _splice(draw: random.Random, lines: Lines, foreign: Lines) -> Lines:
    start, end = _span(draw, foreign)
    if draw.random() < 0.3:
        start, end = 0, len(foreign)
    at = _at(draw, lines)
    return lines[:at] + foreign[start:end] + lines[at + draw.randrange(2) :]


def _cross(draw: random.Random, lines: Lines, foreign: Lines) -> Lines:
    return lines[: _at(draw, lines)] + foreign[_at(draw, foreign) :]


def _cut(draw: random.Random, lines: Lines) -> Lines:
    text = "\n".join(lines)
    return text[: draw.randrange(len(text) + 1)].split("\n")


def _character(draw: random.Random, lines: Lines) -> Lines:
    at = _at(draw, lines)
    line = lines[at]
    i = draw.randrange(len(line) + 1)
    new = (
        line[:i]
        + draw.choice(CHARACTERS) * draw.choice((1, 1, 1, 3))
        + line[i + draw.randrange(2) :]
    )
    return [*lines[:at], *new.split("\n"), *lines[at + 1 :]]


def _shift(draw: random.Random, lines: Lines) -> Lines:
    """Indent or outdent a few lines, behind their marker or as a whole."""
    start, end = _span(draw, lines)
    by = draw.choice((" ", "    ", "\t", "> ", "12\t", "  3 | "))
    moved = []
    for line in lines[start:end]:
        mark = line[:1] if draw.random() < 0.7 and line[:1] in ("+", "-", " ") else ""
        body = line[len(mark) :]
        moved.append(mark + (body.lstrip() if draw.random() < 0.3 else by + body))
    return lines[:start] + moved + lines[end:]


def _endings(draw: random.Random, lines: Lines) -> Lines:
    end = draw.choice(("\r", " ", "\t", "\r\r", "  "))
    if draw.random() < 0.5:
        return [line + end for line in lines]
    start, stop = _span(draw, lines)
    return lines[:start] + [line + end for line in lines[start:stop]] + lines[stop:]


def _fence(draw: random.Random, lines: Lines) -> Lines:
    start, end = _span(draw, lines)
    return [*lines[:start], "```", *lines[start:end], "```", *lines[end:]]


def _join(draw: random.Random, lines: Lines) -> Lines:
    at = _at(draw, lines)
    return [*lines[:at], " ".join(lines[at : at + 2]), *lines[at + 2 :]]


def _reverse(draw: random.Random, lines: Lines) -> Lines:
    """Swap what is added with what is removed, everywhere or in a few lines."""
    swap = {"+": "-", "-": "+"}
    start, end = (0, len(lines)) if draw.random() < 0.5 else _span(draw, lines)
    turned = [swap.get(line[:1], line[:1]) + line[1:] for line in lines[start:end]]
    return lines[:start] + turned + lines[end:]


MUTATIONS: tuple[Mutation, ...] = (
    _duplicate, _drop, _drop, _move, _shuffle, _remark, _remark, _renumber, _rename, _token,
    _token, _cut, _character, _character, _shift, _endings, _fence, _join,
    _reverse,
)  # fmt: skip

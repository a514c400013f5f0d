"""What the fuzzer starts from: trees, and right answers for them in each notation."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator
from typing import NamedTuple

from assay.patching.text import split_file

PROTECTED = ("predict.py", "safe/*")
SYMLINKS = {"link": "/etc", "pkg/out": "../../out"}

_TRAIN = """\
import math

RATE = 0.001
STEPS = 400


def warm(step: int) -> float:
    rate = RATE
    return rate * min(1.0, step / 100)


def cool(step: int) -> float:
    rate = RATE
    return rate * 0.5 * (1 + math.cos(math.pi * step / STEPS))


class Trainer:
    def __init__(self, model, rate=RATE):
        self.model = model
        self.rate = rate

    def step(self, batch):
        loss = self.model(batch)

        loss.backward()
        return loss


if __name__ == "__main__":
    print(warm(1), cool(2))
"""
_MODEL = """\
\"\"\"A model.\"\"\"


class Block:
    width = 8
    depth = 2

    def forward(self, x):
        for _ in range(self.depth):
            x = x + self.width
        return x


class Head:
    width = 8

    def forward(self, x):
        return x
"""
TREES: tuple[dict[str, str], ...] = (
    {"train.py": _TRAIN, "pkg/model.py": _MODEL, "predict.py": "x = 1\n", "safe/data.txt": "d\n"},
    {
        "train.py": _TRAIN.replace("\n", "\r\n"),
        "pkg/model.py": "\ufeff" + _MODEL.rstrip("\n"),
        "other/model.py": _MODEL,
        "predict.py": "x = 1",
        "run.sh": "set -e\npython train.py\n\n\npython train.py",
    },
    {
        "list.txt": "a\nb\na\nb\n\n\na\nb\n",
        "mixed.txt": "one\r\ntwo\nthree\rfour\n\x0cfive\u2028six\n",
        "empty.txt": "",
        "tabs.py": "def f(x):\n\tif x:\n\t\treturn 1\n\treturn 2\n",
        "predict.py": "x = 1\n",
    },
)


class Answer(NamedTuple):
    """A text aimed at the tree of that number."""

    tree: int
    text: str


def right_answers(draw: random.Random, count: int) -> Iterator[tuple[Answer, dict[str, str]]]:
    """Edits of the trees, written in a notation drawn at random, and the trees they lead to."""
    for _ in range(count):
        number = draw.randrange(len(TREES))
        before = TREES[number]
        after = edited(draw, before)
        if after != before:
            deletes = before.keys() - after.keys()  # which blocks cannot say
            write = draw.choice((as_diff, as_diff, as_v4a, as_diff if deletes else as_blocks))
            text = write(before, after, draw.choice((1, 3, 3, 5)))
            yield Answer(number, _wrapped(draw, text)), after


def edited(draw: random.Random, tree: dict[str, str]) -> dict[str, str]:
    """The tree after one to four edits of lines, and now and then of whole files."""
    after = dict(tree)
    names = [name for name in tree if name not in PROTECTED and not name.startswith("safe/")]
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(names)
        if name in after:
            after[name] = _edited_text(draw, after[name])
    if draw.random() < 0.15:
        after[f"new_{draw.randrange(3)}.py"] = f"value = {draw.randrange(9)}\n"
    if draw.random() < 0.1:
        after.pop(draw.choice(names), None)
    if draw.random() < 0.1 and (name := draw.choice(names)) in after:
        after[f"moved_{name.rpartition('/')[2]}"] = after.pop(name)
    return after


def _edited_text(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        lines.insert(at, lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = lines[at].replace("1", "2").replace("rate", "pace").replace("a", "A")
    elif kind == 3:
        blank = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines.insert(at, f"{blank}value = {draw.randrange(99)}")
    else:
        lines[at : at + 2] = lines[at : at + 2][::-1]
    return "\n".join(lines)


def _hunks(old: str, new: str, context: int) -> Iterator[tuple[int, int, list[str]]]:
    left, right = split_file(old).lines, split_file(new).lines
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        body: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                body += [" " + line for line in left[i1:i2]]
                continue
            body += ["-" + line for line in left[i1:i2]] + ["+" + line for line in right[j1:j2]]
        yield group[0][1] + 1, group[0][3] + 1, body


def _changed(before: dict[str, str], after: dict[str, str]) -> Iterator[tuple[str, str]]:
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            kind = "create" if old is None else "delete" if new is None else "edit"
            yield path, kind


def as_diff(before: dict[str, str], after: dict[str, str], context: int = 3) -> str:
    """A unified diff as git writes it, without regard to whether its context is unique."""
    parts: list[str] = []
    for path, kind in _changed(before, after):
        parts.append(f"diff --git a/{path} b/{path}")
        parts += {"create": ["new file mode 100644"], "delete": ["deleted file mode 100644"]}.get(
            kind, []
        )
        parts.append("--- /dev/null" if kind == "create" else f"--- a/{path}")
        parts.append("+++ /dev/null" if kind == "delete" else f"+++ b/{path}")
        for old, new, body in _hunks(before.get(path, ""), after.get(path, ""), context):
            sizes = [sum(line[0] in marks for line in body) for marks in (" -", " +")]
            parts.append(f"@@ -{old},{sizes[0]} +{new},{sizes[1]} @@")
            parts += body
    return "\n".join(parts) + "\n"


def as_blocks(before: dict[str, str], after: dict[str, str], context: int = 3) -> str:
    """SEARCH/REPLACE blocks; they cannot say that a file is deleted."""
    parts: list[str] = []
    for path, _ in _changed(before, after):
        for _, _, body in _hunks(before.get(path, ""), after[path], context):
            parts += [path, "<<<<<<< SEARCH"]
            parts += [line[1:] for line in body if line[0] != "+"]
            parts.append("=======")
            parts += [line[1:] for line in body if line[0] != "-"]
            parts.append(">>>>>>> REPLACE")
    return "\n".join(parts) + "\n"


def as_v4a(before: dict[str, str], after: dict[str, str], context: int = 3) -> str:
    """The envelope that OpenAI's models are trained on."""
    parts = ["*** Begin Patch"]
    words = {"create": "Add", "delete": "Delete", "edit": "Update"}
    for path, kind in _changed(before, after):
        parts.append(f"*** {words[kind]} File: {path}")
        if kind == "create":
            parts += ["+" + line for line in split_file(after[path]).lines]
        elif kind == "edit":
            for _, _, body in _hunks(before[path], after[path], context):
                parts += ["@@", *body]
    return "\n".join([*parts, "*** End Patch"]) + "\n"


def _wrapped(draw: random.Random, text: str) -> str:
    fenced = f"```diff\n{text}```\n"
    return draw.choice((text, text, fenced, f"Here it is.\n\n{fenced}\nThat is all.\n"))

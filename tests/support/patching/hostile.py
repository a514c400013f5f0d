"""Answers made to be slow, large or crooked, and the trees they are aimed at.

Each builder makes its input when it is called. The patcher may not take more than two
seconds for one of them, or end with anything but a result or `PatchRefused`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

#: Sizes above, and safely below, any limit on the length of an answer.
OVER, UNDER = 10_000_000, 300_000


class Hostile(NamedTuple):
    """A tree and the answer aimed at it."""

    files: dict[str, str]
    answer: str


Builder = Callable[[], Hostile]
SMALL = {
    "train.py": "import math\n\n\ndef warm(step):\n    return step\n",
    "notes.txt": "a\nb\nc\n",
}


def _diff(path: str, *hunks: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n" + "".join(f"@@ -1 +1 @@\n{hunk}" for hunk in hunks)


def _lines(count: int, form: str = "value_{0} = {0}\n") -> str:
    return "".join(form.format(i) for i in range(count))


def _on_small(answer: str) -> Builder:
    return lambda: Hostile(dict(SMALL), answer)


def _inside(text: str) -> Builder:
    """The text as prose and as a line of a hunk."""
    body = _diff("notes.txt", f" a\n-b\n+{text}\n c\n")
    return _on_small(f"{text}\n\n```diff\n{body}```\n{text}\n")


def _headed(text: str) -> Builder:
    """The text as prose, and wherever a name or numbers are read."""
    return _on_small(
        f"{text}\n--- {text}\n+++ {text}\n@@ {text}\n-b\n+B\n*** Update File: {text}\n"
        f"{text}\n<<<<<<< SEARCH {text}\nb\n=======\nB\n>>>>>>> REPLACE {text}\n"
    )


def _large_diff() -> Hostile:
    hunks = (f" value_{i} = {i}\n+x\n" for i in range(400_000))
    return Hostile({"big.txt": _lines(1000)}, _diff("big.txt", *hunks))


def _many_hunks() -> Hostile:
    hunks = (
        f" value_{i} = {i}\n-value_{i + 1} = {i + 1}\n+value_{i + 1} = 0\n"
        for i in range(0, 50_000, 5)
    )
    return Hostile({"big.txt": _lines(50_000)}, _diff("big.txt", *hunks))


def _many_wrong_hunks() -> Hostile:
    hunks = (f" value_{i} = {i}\n-other_{i} = {i}\n+x = {i}\n" for i in range(10_000))
    return Hostile({"big.txt": _lines(20_000)}, _diff("big.txt", *hunks))


def _many_equal_hunks() -> Hostile:
    block = "def f():\n    x = 1\n    return x\n\n"
    hunks = (f"     x = 1\n-    return x\n+    return {i}\n" for i in range(2_000))
    return Hostile({"big.py": block * 2_000}, _diff("big.py", *hunks))


def _joint_placement() -> Hostile:
    """Every hunk fits everywhere, and only all of them together could decide."""
    block = "    rate = 1\n    step = 2\n"
    hunks = "".join(f"@@ -{i} +{i} @@\n     rate = 1\n-    step = 2\n" for i in range(300))
    text = "def f():\n" + block * 3_000
    return Hostile({"big.py": text}, f"--- a/big.py\n+++ b/big.py\n{hunks}")


def _equal_lines() -> Hostile:
    return Hostile({"big.txt": "x\n" * 50_000}, _diff("big.txt", " x\n" * 500 + "-x\n+y\n"))


def _equal_lines_apart() -> Hostile:
    hunk = " x\n" * 1_500 + "+y\n" + " x\n" * 1_500
    return Hostile({"big.txt": "x\n" * 50_000}, _diff("big.txt", hunk))


def _equal_lines_once_not() -> Hostile:
    """Almost fits at every line, and nowhere."""
    hunk = " x\n" * 2_000 + "-z\n+y\n"
    return Hostile({"big.txt": "x\n" * 50_000}, _diff("big.txt", hunk))


def _two_words() -> Hostile:
    draw = random.Random(1)
    lines = [draw.choice(("    x = 1", "    y = 2")) for _ in range(20_000)]
    hunk = "".join(f" {draw.choice(lines)}\n" for _ in range(400)) + "-    x = 1\n+    z = 3\n"
    return Hostile({"big.txt": "\n".join(lines) + "\n"}, _diff("big.txt", hunk))


def _paraphrased(hunks: int, size: int, file_lines: int) -> Builder:
    def build() -> Hostile:
        draw = random.Random(2)
        words = ["rate", "step", "loss", "model", "batch", "width", "seed", "decay"]
        lines = [
            f"    {draw.choice(words)}_{draw.randrange(60)} = {draw.choice(words)} * {i % 97}"
            for i in range(file_lines)
        ]
        parts = []
        for number in range(hunks):
            start = draw.randrange(file_lines - size)
            body = [f" {_rephrase(draw, line)}\n" for line in lines[start : start + size]]
            body[size // 2] = f"-{lines[start + size // 2]}\n+    changed = {number}\n"
            parts.append("".join(body))
        return Hostile({"big.txt": "\n".join(lines) + "\n"}, _diff("big.txt", *parts))

    return build


def _rephrase(draw: random.Random, line: str) -> str:
    return line if draw.random() < 0.4 else line.replace(" * ", draw.choice((" + ", "*", " - ")))


def _long_line() -> Hostile:
    line = "x = [" + "1, " * 340_000 + "]"
    return Hostile({"long.py": f"a = 1\n{line}\nb = 2\n"}, _diff("long.py", f"-{line}\n+x = []\n"))


def _long_line_within_limits(changed: bool) -> Builder:
    def build() -> Hostile:
        line = "".join(f"word{i} " for i in range(14_000))
        old = line.replace("word5", "werd5") if changed else line
        files = {"long.txt": f"a\n{line}\nb\n{line[:-2]}\n"}
        return Hostile(files, _diff("long.txt", f" a\n-{old}\n+{line[::-1]}\n b\n"))

    return build


def _many_long_lines() -> Hostile:
    draw = random.Random(3)
    lines = ["".join(draw.choice("abcd ") for _ in range(4_000)) for _ in range(60)]
    body = "".join(f" {line[:2000]}x{line[2001:]}\n" for line in lines[10:40])
    return Hostile({"long.txt": "\n".join(lines)}, _diff("long.txt", f"{body}-{lines[40]}\n+y\n"))


def _nested(text: str, *, in_base: bool) -> Builder:
    def build() -> Hostile:
        files = {"deep.py": "a = 1\nb = 2\n" + (f"x = {text}\n" if in_base else "")}
        new = "3" if in_base else text
        return Hostile(files, _diff("deep.py", f" a = 1\n-b = 2\n+b = {new}\n"))

    return build


def _elif_chain() -> Hostile:
    chain = "if a == 0:\n    b = 0\n" + _lines(20_000, "elif a == {0}:\n    b = {0}\n")
    return Hostile({"deep.py": chain}, _diff("deep.py", "     b = 777\n+    c = 1\n"))


def _indented_deeply() -> Hostile:
    body = "".join(f"+{' ' * i}if x:\n" for i in range(700)) + f"+{' ' * 700}pass\n"
    return Hostile(dict(SMALL), f"--- /dev/null\n+++ b/deep.py\n@@ -0,0 +1 @@\n{body}")


def _chain_of_late_hunks() -> Hostile:
    hunks = (f"-step {i}\n+step {i + 1}\n" for i in range(3_000))
    return Hostile({"n.txt": "step 0\n" + _lines(3_000, "line {}\n")}, _diff("n.txt", *hunks))


def _many_added() -> Hostile:
    return Hostile(dict(SMALL), _diff("notes.txt", " a\n" + "+x\n" * 20_000 + " b\n"))


def _many_added_in_many_places() -> Hostile:
    block = "    rate = 1\n    step = 2\n"
    hunk = "     rate = 1\n" + "+    x = 1\n" * 20_000 + "     step = 2\n"
    return Hostile({"big.py": "def f():\n" + block * 300}, _diff("big.py", hunk))


def _hunks_upon_hunks(count: int) -> Builder:
    """Every hunk is placed between what the one before it added and the same line."""

    def build() -> Hostile:
        hunks = (f" new {i}\n+new {i + 1}\n line 0\n" for i in range(count))
        return Hostile({"n.txt": "new 0\n" + _lines(3_000, "line {}\n")}, _diff("n.txt", *hunks))

    return build


def _many_scopes() -> Hostile:
    text = _lines(3_000, "def f{0}():\n    a = 1\n    b = 2\n")
    hunks = (
        f"@@ -1 +1 @@ def f{i}():\n     a = 1\n-    b = 2\n+    b = {i}\n" for i in range(990)
    )
    return Hostile({"big.py": text}, "--- a/big.py\n+++ b/big.py\n" + "".join(hunks))


def _equal_lines_of_two_kinds() -> Hostile:
    hunks = (" y\n" * 950 + " x\n" * 950 + f"+z{i}\n" for i in range(20))
    return Hostile({"big.txt": "x\n" * 9_000 + "y\n" * 9_000}, _diff("big.txt", *hunks))


def _indented_every_way() -> Hostile:
    """Each line says something else about how the answer's indentation is to be read."""
    text = "".join(f"{' ' * (i % 60)}v{i} = 1\n" for i in range(2_000))
    told = "".join(f" {' ' * (i * 7 % 97)}v{i} = 1\n" for i in range(1_999))
    hunks = (f"{told}+ x{i}\n v1999 = 1\n" for i in range(8))
    return Hostile({"big.txt": text}, _diff("big.txt", *hunks))


def _files_with_many_added(count: int) -> Hostile:
    files = {f"file_{i}.py": _lines(500) for i in range(count)}
    hunk = " value_0 = 0\n" + "+x = 1\n" * 350 + " value_1 = 1\n"
    return Hostile(files, "".join(_diff(name, hunk) for name in files))


def _same_names() -> Hostile:
    files = {f"folder_{i}/model.py": f"width = {i}\n" for i in range(10_000)}
    return Hostile(files, "".join(_diff("model.py", f"-width = {i}\n+w\n") for i in range(2_000)))


def _many_files(count: int) -> Builder:
    def build() -> Hostile:
        files = {f"pkg/file_{i}.py": f"width = {i}\n" for i in range(count)}
        parts = (_diff(f"pkg/file_{i}.py", f"-width = {i}\n+width = 0\n") for i in range(count))
        return Hostile(files, "".join(parts))

    return build


def _renames() -> Hostile:
    files = {f"f{i}.txt": f"{i}\n" for i in range(5_000)}
    parts = (
        f"diff --git a/f{i}.txt b/f{i + 1}.txt\nsimilarity index 100%\n"
        f"rename from f{i}.txt\nrename to f{i + 1}.txt\n"
        for i in range(5_000)
    )
    return Hostile(files, "".join(parts))


def _blocks(count: int, search: str, replace: str) -> str:
    one = f"<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"
    return "notes.txt\n" + one * count


def _elided(count: int) -> Builder:
    def build() -> Hostile:
        search = "".join(f"value_{i * 3} = {i * 3}\n...\n" for i in range(count))
        hunk = "".join(f" value_{i * 3} = {i * 3}\n ...\n" for i in range(count)) + "-x\n+y\n"
        block = f"big.txt\n<<<<<<< SEARCH\n{search}=======\n...\nnew\n...\n>>>>>>> REPLACE\n"
        return Hostile({"big.txt": _lines(20_000)}, block + _diff("big.txt", hunk))

    return build


def _v4a(count: int) -> str:
    update = "*** Update File: notes.txt\n@@ def nowhere():\n a\n-b\n+B\n*** End of File\n"
    return "*** Begin Patch\n" + update * count + "*** End Patch\n"


RUNS = {
    "blanks": " ",
    "tabs": "\t",
    "less-than": "<",
    "equals": "=",
    "dashes": "-",
    "pluses": "+",
    "at signs": "@",
    "stars": "*",
    "backticks": "`",
    "dots": ".",
    "slashes": "/",
    "quotes": '"',
    "backslashes": "\\",
    "digits": "9",
    "a/": "a/",
    "letters": "a",
}
_NESTED = {
    "parentheses": "(" * 100_000 + ")" * 100_000,
    "brackets": "[" * 100_000 + "]" * 100_000,
    "minus signs": "-" * 100_000 + "1",
    "nots": "not " * 50_000 + "a",
    "attributes": "a" + ".a" * 50_000,
    "sums": "a" + "+a" * 50_000,
    "calls": "a" + "()" * 50_000,
    "lambdas": "lambda: " * 20_000 + "a",
    "digits": "9" * 200_000,
    "f-strings": 'f"{' * 200 + "a" + '}"' * 200,
}


def _runs() -> dict[str, Builder]:
    made: dict[str, Builder] = {}
    for name, text in RUNS.items():
        run = text * (UNDER // len(text) // 6)
        made[f"run of {name}"] = _inside(run)
        made[f"run of {name} in headers"] = _headed(run)
        made[f"run of {name}, then a word"] = _inside(f"{run} SEARCH x")
        short = f"{text * (400 // len(text))} x\n"
        made[f"many runs of {name}"] = _inside(short * (UNDER // len(short) // 6))
    made["run of blanks in a header"] = _on_small(
        f"--- a/notes.txt{' ' * 100_000}x\n+++ b/notes.txt\t{' ' * 100_000}\n@@ -1 +1 @@\n-b\n+B\n"
    )
    made["run of numbers after @@"] = _on_small(
        "--- a/notes.txt\n+++ b/notes.txt\n@@ " + "-1,1 +1,1 " * 20_000 + "\n-b\n+B\n"
    )
    made["names of a header repeated"] = _on_small("diff --git " + "a/x b/x " * 30_000 + "\n")
    made["5 MB line of blanks"] = _inside(" " * 1_250_000)
    made["5 MB line of a diff"] = _on_small(_diff("notes.txt", "-b\n+" + "y" * 5_000_000 + "\n"))
    return made


def _sizes() -> dict[str, Builder]:
    return {
        "10 MB of prose": lambda: Hostile(dict(SMALL), "words and more words\n" * (OVER // 21)),
        "10 MB without a line end": lambda: Hostile(dict(SMALL), "x" * OVER),
        "10 MB diff": _large_diff,
        "10 MB of characters of four bytes": lambda: Hostile(SMALL, "\U0001f600" * (OVER // 4)),
        "10,000 hunks": _many_hunks,
        "10,000 hunks that fit nowhere": _many_wrong_hunks,
        "2,000 hunks that fit in 2,000 places": _many_equal_hunks,
        "300 hunks that fit in 3,000 places": _joint_placement,
        "3,000 hunks, each on the one before": _chain_of_late_hunks,
        "60 KB of added lines": _many_added,
        "20,000 added lines in 300 places": _many_added_in_many_places,
        "100 hunks upon hunks": _hunks_upon_hunks(100),
        "990 hunks upon hunks": _hunks_upon_hunks(990),
        "990 hunks in named functions": _many_scopes,
        "20 hunks of equal lines of two kinds": _equal_lines_of_two_kinds,
        "8 hunks of 2,000 indentations": _indented_every_way,
        "350 added lines in each of 99 files": lambda: _files_with_many_added(99),
        "100,000 @@ lines": _on_small("--- a/notes.txt\n+++ b/notes.txt\n" + "@@\n" * 100_000),
        "100,000 @@ lines with numbers": _on_small(
            "--- a/notes.txt\n+++ b/notes.txt\n" + "@@ -1 +1 @@\n" * 100_000
        ),
        "100,000 sections": lambda: Hostile(
            dict(SMALL), _lines(100_000, "--- a/f{0}\n+++ b/f{0}\n@@ -1 +1 @@\n-x\n+y\n")
        ),
        "100,000 headers": _on_small("diff --git a/notes.txt b/notes.txt\n" * 100_000),
        "20,000 lines of one name": _on_small("--- a/notes.txt\n" * 20_000),
        "10,000 sections of one file": _on_small(_diff("notes.txt", "-b\n+B\n") * 5_000),
        "2,000 files of one base name": _same_names,
        "3,000 files": _many_files(3_000),
        "5,000 renames in a row": _renames,
        "100,000 blank lines": _on_small(_diff("notes.txt", " a\n" + "\n" * 100_000 + "-b\n+B\n")),
        "100,000 markers of a bare end": _on_small(
            _diff("notes.txt", "-b\n+B\n" + "\\ No newline at end of file\n" * 100_000)
        ),
        "50,000 fences": _on_small("```diff\n" * 50_000),
        "50,000 fences that close": _on_small("```diff\n```\n" * 25_000),
        "fences that grow": _on_small("\n".join("`" * i for i in range(3, 700))),
    }


def _contents() -> dict[str, Builder]:
    nested = {
        f"nested {name} {where}": _nested(text, in_base=where == "in the file")
        for name, text in _NESTED.items()
        for where in ("in the answer", "in the file")
    }
    return nested | {
        "20,000 elif": _elif_chain,
        "700 levels of indentation": _indented_deeply,
        "50,000 equal lines": _equal_lines,
        "50,000 equal lines, insertion": _equal_lines_apart,
        "50,000 equal lines, but one": _equal_lines_once_not,
        "20,000 lines of two kinds": _two_words,
        "2,000 lines paraphrased": _paraphrased(1, 2_000, 5_000),
        "20 hunks of 100 lines paraphrased": _paraphrased(20, 100, 5_000),
        "200 hunks of 20 lines paraphrased": _paraphrased(200, 20, 20_000),
        "1 MB line": _long_line,
        "100 kB line": _long_line_within_limits(changed=False),
        "100 kB line paraphrased": _long_line_within_limits(changed=True),
        "30 lines of 4 kB paraphrased": _many_long_lines,
        "2,000 elisions": _elided(2_000),
        "6,000 elisions": _elided(6_000),
        "10,000 elided lines": _on_small(_diff("notes.txt", " ...\n" * 10_000 + "-b\n+B\n")),
        "10,000 SEARCH markers": _on_small("notes.txt\n" + "<<<<<<< SEARCH\nb\n" * 10_000),
        "10,000 middle markers": _on_small("<<<<<<< SEARCH\nb\n" + "=======\n" * 10_000),
        "5,000 blocks": _on_small(_blocks(5_000, "b\n", "B\n")),
        "5,000 empty blocks": _on_small(_blocks(5_000, "", "")),
        "5,000 V4A updates": _on_small(_v4a(5_000)),
        "10,000 V4A scopes": _on_small(
            "*** Begin Patch\n*** Update File: train.py\n" + "@@ def warm(step):\n" * 10_000
        ),
    }


def _characters() -> dict[str, Builder]:
    odd = {
        "NUL": "\0",
        "lone surrogate": "\ud800",
        "reversed pair of surrogates": "\udc00\ud83d",
        "direction override": "\u202e",
        "line separator": "\u2028",
        "byte order mark": "\ufeff",
        "escape": "\x1b]0;x\x07",
        "combining characters": "e" + "\u0301" * 5_000,
        "characters that grow when folded": "\ufb03" * 2_000,
    }
    made = {f"{name} in a line": _inside(text) for name, text in odd.items()}
    for name, text in odd.items():
        made[f"{name} in a name"] = _on_small(_diff(f"no{text}tes.txt", "-b\n+B\n"))
        made[f"{name} in a block"] = _on_small(
            f"new{text}.txt\n" + _blocks(1, f"b{text}\n", f"B{text}\n").partition("\n")[2]
        )
    for digits in (20, 5_000, 200_000):
        nines = "9" * digits
        made[f"numbers of {digits} digits"] = _on_small(
            f"--- a/notes.txt\n+++ b/notes.txt\n@@ -{nines},{nines} +{nines} @@\n a\n-b\n+B\n"
        )
    made["a count of 10 to the 9"] = _on_small(
        "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,1000000000 +1,1000000000 @@\n a\n-b\n+B\n"
    )
    made["digits of another script"] = _on_small(
        "--- a/notes.txt\n+++ b/notes.txt\n@@ -\u0661,\u00b2 +\u0661 @@\n a\n-b\n+B\n"
    )
    made["a name of 200 kB"] = _on_small(_diff("x" * 200_000, "-b\n+B\n"))
    made["a name of 50,000 folders"] = _on_small(_diff("a/" * 50_000 + "x", "-b\n+B\n"))
    return made


HOSTILE: dict[str, Builder] = {**_sizes(), **_runs(), **_contents(), **_characters()}

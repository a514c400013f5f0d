"""Two places, or two files, where an answer fits with different outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from benchmarks.patching import phrases, sources
from benchmarks.patching.lines import indent_of, squash
from benchmarks.patching.model import Case, Tree
from benchmarks.patching.proof import weight
from benchmarks.patching.refuse.write import block, case, envelope, unified, wrapped
from tests.support.patching.python import parses

LENGTH = 4


def _twin_places(random: Random, lines: list[str], length: int) -> tuple[int, int] | None:
    """Two runs of equal lines, apart from each other, that say something."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for start in range(len(lines) - length):
        run = tuple(lines[start : start + length])
        if (
            run[0].strip()
            and run[-1].strip()
            and sum(weight(squash(x)) for x in run) >= length - 1
        ):
            found[run].append(start)
    twins = [places for places in found.values() if places[-1] - places[0] > length]
    if not twins:
        return None
    places = random.choice(twins)
    return places[0], places[-1]


def _twins(random: Random, length: int = LENGTH) -> tuple[Tree, str, list[str], int] | None:
    """A tree, a file with a run of lines that stands twice, that run, and one of its places."""
    tree = sources.some_tree(random)
    paths = sorted(path for path in tree if path.endswith(".py"))
    random.shuffle(paths)
    for path in paths:
        lines = tree[path].split("\n")
        places = _twin_places(random, lines, length)
        if places:
            at = random.choice(places)
            return tree, path, lines[at : at + length], at
    return None


def _edit(random: Random, run: list[str]) -> list[str]:
    """Rows that put a line into the middle of the run, or replace one there."""
    at = len(run) // 2
    new = f"+{indent_of(run[at])}{phrases.statement(random)}"
    middle = [f" {run[at]}", new] if random.random() < 0.5 else [f"-{run[at]}", new]
    return [*(f" {line}" for line in run[:at]), *middle, *(f" {line}" for line in run[at + 1 :])]


def _header(_random: Random, rows: list[str], at: int) -> str:
    old = sum(row[0] != "+" for row in rows)
    new = sum(row[0] != "-" for row in rows)
    return f"@@ -{at + 1},{old} +{at + 1},{new} @@"


def _exact(random: Random) -> Case | None:
    found = _twins(random)
    if not found:
        return None
    tree, path, run, _ = found
    return case(tree, wrapped(random, unified(path, _edit(random, run))))


def _with_numbers(random: Random) -> Case | None:
    """Line numbers point at one of the places; they are what models get wrong most."""
    found = _twins(random)
    if not found:
        return None
    tree, path, run, at = found
    rows = _edit(random, run)
    return case(tree, wrapped(random, unified(path, rows, _header(random, rows, at))))


def _near_numbers(random: Random) -> Case | None:
    found = _twins(random)
    if not found:
        return None
    tree, path, run, at = found
    rows = _edit(random, run)
    shift = random.choice([-6, -2, 1, 3, 8])
    return case(
        tree, wrapped(random, unified(path, rows, _header(random, rows, max(0, at + shift))))
    )


def _damaged(random: Random) -> Case | None:
    """The same, with one line of context in other words: it is as wrong at either place."""
    found = _twins(random, 6)
    if not found:
        return None
    tree, path, run, at = found
    rows = _edit(random, run)
    indent = indent_of(run[0])
    rows[0] = random.choice(
        [f" {indent}# {random.choice(phrases.REMARKS)}", f" {run[0]} # as before"]
    )
    return case(tree, wrapped(random, unified(path, rows, _header(random, rows, at))))


def _respaced(random: Random) -> Case | None:
    """Equal lines, whose white space is damaged in the answer."""
    found = _twins(random)
    if not found:
        return None
    tree, path, run, _ = found
    rows = [row[0] + " " + row[1:] if row[1:].strip() else row for row in _edit(random, run)]
    return case(tree, wrapped(random, unified(path, rows)))


def _twin_functions(random: Random) -> Case | None:
    """A function that exists twice under two names, and an edit of what the two share."""
    tree = sources.some_tree(random)
    paths = sorted(path for path in tree if path.endswith(".py"))
    path = random.choice(paths)
    name = random.choice(phrases.NAMES)
    body = phrases.block(random, "    ")
    body = [*body, f"    {name} = {name} * 0.{random.randint(2, 9)}", f"    return {name}"]
    twins = [
        f"\n\ndef {kind}_{name}(batch, step):\n" + "\n".join(body) for kind in ("warm", "cool")
    ]
    text = tree[path].rstrip("\n") + "".join(twins) + "\n"
    if not parses(text):
        return None
    tree[path] = text
    rows = _edit(random, body[-3:])
    header = random.choice(["@@", f"@@ -{text.count(chr(10)) - 2},3 +1,4 @@"])
    return case(tree, wrapped(random, unified(path, rows, header)))


def _search_replace(random: Random) -> Case | None:
    found = _twins(random)
    if not found:
        return None
    tree, path, run, _ = found
    rows = _edit(random, run)
    new = [row[1:] for row in rows if row[0] != "-"]
    return case(tree, block(path, run, new))


def _v4a(random: Random) -> Case | None:
    found = _twins(random)
    if not found:
        return None
    tree, path, run, _ = found
    return case(tree, envelope(f"*** Update File: {path}", "@@", *_edit(random, run)))


def _files(random: Random) -> Case | None:
    """A base name that two files have, and content that both hold."""
    tree = sources.some_tree(random)
    path = random.choice(sorted(path for path in tree if path.endswith(".py")))
    base = path.rpartition("/")[2]
    text = tree.pop(path)
    tree[f"data/{base}"] = text
    tree[f"model/{base}"] = text + "\n\nVERSION = 2\n"
    lines = text.split("\n")
    spots = [
        n for n in range(3, len(lines) - 4) if lines[n].strip() and lines.count(lines[n]) == 1
    ]
    if not spots:
        return None
    at = random.choice(spots)
    rows = _edit(random, lines[at - 2 : at + 3])
    prefix = random.choice([("a/", "b/"), ("", ""), ("idea_7/", "idea_7/")])
    return case(tree, wrapped(random, unified(base, rows, old=prefix[0], new=prefix[1])))


MAKERS: dict[str, Callable[[Random], Case | None]] = {
    "ambiguous": _exact,
    "ambiguous_numbers": _with_numbers,
    "ambiguous_near_numbers": _near_numbers,
    "ambiguous_damaged": _damaged,
    "ambiguous_respaced": _respaced,
    "ambiguous_twins": _twin_functions,
    "ambiguous_search_replace": _search_replace,
    "ambiguous_v4a": _v4a,
    "ambiguous_files": _files,
}

"""True edits of one file, of the kinds that a model makes when it implements an idea."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random

from benchmarks.patching import phrases
from benchmarks.patching.lines import indent_of
from tests.support.patching.python import parses

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Splice:
    """Lines [start, stop) become `lines`."""

    start: int
    stop: int
    lines: tuple[str, ...]


Edit = Callable[[Random, "Source"], list[Splice] | None]


@dataclass(frozen=True)
class Source:
    """A Python file, read once."""

    lines: tuple[str, ...]
    functions: tuple[Function, ...]
    top: tuple[ast.stmt, ...]
    classes: tuple[ast.ClassDef, ...]


@lru_cache(maxsize=256)
def read_source(text: str) -> Source:
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, Function)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return Source(tuple(text.split("\n")), tuple(functions), tuple(tree.body), tuple(classes))


def _start(node: ast.stmt) -> int:
    """Index of a statement's first line, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)]) - 1


def _stop(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _alone(source: Source, node: ast.stmt) -> bool:
    """Whether a statement shares its lines with no other."""
    first, last = source.lines[_start(node)], source.lines[_stop(node) - 1]
    rest = last[node.end_col_offset or 0 :].strip()
    return not first[: node.col_offset].strip() and (not rest or rest.startswith("#"))


def _body(function: Function) -> list[ast.stmt]:
    """Statements of a function without its docstring."""
    body = function.body
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:]
    return body


def _blocks(function: Function) -> Iterator[list[ast.stmt]]:
    """Every list of statements inside a function, its own body first."""
    yield _body(function)
    for node in ast.walk(function):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            statements = isinstance(block, list) and block and isinstance(block[0], ast.stmt)
            if node is not function and statements:
                yield block


def _some_block(random: Random, source: Source, at_least: int = 1) -> list[ast.stmt] | None:
    if not source.functions:
        return None
    function = random.choice(source.functions)
    blocks = [
        b for b in _blocks(function) if len(b) >= at_least and all(_alone(source, n) for n in b)
    ]
    return random.choice(blocks) if blocks else None


def _indent(source: Source, node: ast.stmt) -> str:
    return indent_of(source.lines[_start(node)])


def _plain(nodes: list[ast.stmt]) -> bool:
    """Whether no string runs over several lines: such lines must not be re-indented."""
    for node in nodes:
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Constant | ast.JoinedStr)
                and inner.end_lineno != inner.lineno
            ):
                return False
    return True


def constant(random: Random, source: Source) -> list[Splice] | None:
    """Another number."""
    numbers = [
        node
        for function in source.functions
        for node in ast.walk(function)
        if isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and source.lines[node.lineno - 1].isascii()
    ]
    if not numbers:
        return None
    node = random.choice(numbers)
    line = source.lines[node.lineno - 1]
    old = line[node.col_offset : node.end_col_offset]
    new = phrases.other_number(random, old)
    changed = line[: node.col_offset] + new + line[node.end_col_offset :]
    return [Splice(node.lineno - 1, node.lineno, (changed,))]


def condition(random: Random, source: Source) -> list[Splice] | None:
    """Another comparison, or one more condition."""
    lines = [
        node.lineno - 1
        for function in source.functions
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.While) and node.test.lineno == node.test.end_lineno
    ]
    if not lines:
        return None
    at = random.choice(lines)
    found = re.fullmatch(r"(\s*(?:el)?(?:if|while) )(.*)(:\s*)", source.lines[at])
    if not found:
        return None
    name = random.choice(["self.enabled", "step > 0", "not frozen", "epoch >= warmup_epochs"])
    return [Splice(at, at + 1, (f"{found[1]}({found[2]}) and {name}{found[3]}",))]


def signature(random: Random, source: Source) -> list[Splice] | None:
    """One more parameter, and often its use."""
    if not source.functions:
        return None
    function = random.choice(source.functions)
    at = function.lineno - 1
    found = re.fullmatch(r"(\s*(?:async )?def \w+\(.*?)(\)\s*(?:->.*)?:)\s*", source.lines[at])
    if not found or "**" in found[1] or found[1].endswith(", "):
        return None
    name, value = random.choice(phrases.PARAMETERS)
    comma = "" if found[1].endswith("(") else ", "
    splices = [Splice(at, at + 1, (f"{found[1]}{comma}{name}={value}{found[2]}",))]
    body = _body(function)
    if body and random.random() < 0.6 and _alone(source, body[0]):
        start = _start(body[0])
        use = f"{_indent(source, body[0])}self_{name} = {name} if {name} is not None else {value}"
        splices.append(Splice(start, start, (use,)))
    return splices


def insert_statement(random: Random, source: Source) -> list[Splice] | None:
    """One new statement."""
    block = _some_block(random, source)
    if block is None:
        return None
    node = random.choice(block)
    at = _start(node) if random.random() < 0.6 else _stop(node)
    if isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break):
        at = _start(node)
    return [Splice(at, at, (_indent(source, node) + phrases.statement(random),))]


def insert_block(random: Random, source: Source) -> list[Splice] | None:
    """Some new lines with a comment."""
    block = _some_block(random, source)
    if block is None:
        return None
    node = random.choice(block)
    lines = phrases.block(random, _indent(source, node))
    return [Splice(_start(node), _start(node), tuple(lines))]


def remove(random: Random, source: Source) -> list[Splice] | None:
    """Statements that go, together with a blank line that would stand double."""
    block = _some_block(random, source, 2)
    if block is None:
        return None
    index = random.randrange(len(block) - 1)
    nodes = block[index : index + random.choice([1, 1, 2])]
    start, stop = _start(nodes[0]), _stop(nodes[-1])
    if stop - start > 12 or len(nodes) == len(block):
        return None
    return [Splice(start, stop, ())]


def wrap(random: Random, source: Source) -> list[Splice] | None:
    """Statements that come under an `if` or a `with`."""
    block = _some_block(random, source)
    if block is None:
        return None
    index = random.randrange(len(block))
    nodes = block[index : index + random.randint(1, 3)]
    start, stop = _start(nodes[0]), _stop(nodes[-1])
    if stop - start > 15 or not _plain(nodes):
        return None
    indent = _indent(source, nodes[0])
    inner = [f"    {line}" if line.strip() else line for line in source.lines[start:stop]]
    return [Splice(start, stop, (indent + random.choice(phrases.WRAPPERS), *inner))]


def unwrap(random: Random, source: Source) -> list[Splice] | None:
    """The body of an `if` or a `with` that becomes unconditional."""
    nodes = [
        node
        for function in source.functions
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.With) and not getattr(node, "orelse", None)
        and _stop(node) - _start(node) <= 12 and node.body[0].lineno > node.lineno
        and not source.lines[node.lineno - 1].lstrip().startswith("elif")
    ]  # fmt: skip
    if not nodes:
        return None
    node = random.choice(nodes)
    body = node.body
    if not _plain(body) or not all(_alone(source, each) for each in body):
        return None
    shift = body[0].col_offset - node.col_offset
    lines = [
        line[shift:] if line.strip() else line
        for line in source.lines[_start(body[0]) : _stop(node)]
    ]
    return [Splice(_start(node), _stop(node), tuple(lines))]


def rename_variable(random: Random, source: Source) -> list[Splice] | None:
    """A local variable that gets a better name in its whole function."""
    if not source.functions:
        return None
    function = random.choice(source.functions)
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    stored = sorted({node.id for node in names if isinstance(node.ctx, ast.Store)})
    uses = {name: [node for node in names if node.id == name] for name in stored}
    fitting = [name for name in stored if 2 <= len(uses[name]) <= 14 and len(name) > 1]
    if not fitting:
        return None
    old = random.choice(fitting)
    new = random.choice([f"{old}_value", f"new_{old}", f"current_{old}", f"{old}s"])
    if any(node.id == new for node in names):
        return None
    lines = {node.lineno - 1 for node in uses[old]}
    if not all(source.lines[at].isascii() for at in lines):
        return None
    splices = []
    for at in sorted(lines):
        line = source.lines[at]
        for node in sorted(uses[old], key=lambda n: -n.col_offset):
            if node.lineno - 1 == at:
                line = line[: node.col_offset] + new + line[node.end_col_offset :]
        splices.append(Splice(at, at + 1, (line,)))
    return splices


def move(random: Random, source: Source) -> list[Splice] | None:
    """A function that comes to stand before another one."""
    scopes = [list(source.top), *(node.body for node in source.classes)]
    pairs = [
        (before, after)
        for scope in scopes
        for before, after in pairwise(scope)
        if isinstance(before, Function) and isinstance(after, Function)
        and _stop(after) - _start(after) <= 25
    ]  # fmt: skip
    if not pairs:
        return None
    before, after = random.choice(pairs)
    gap = source.lines[_stop(before) : _start(after)]
    if any(line.strip() for line in gap):
        return None
    first = source.lines[_start(before) : _stop(before)]
    second = source.lines[_start(after) : _stop(after)]
    return [Splice(_start(before), _stop(after), (*second, *gap, *first))]


def add_import(random: Random, source: Source) -> list[Splice] | None:
    """A module that the idea needs."""
    imports = [node for node in source.top if isinstance(node, ast.Import | ast.ImportFrom)]
    if not imports:
        return None
    node = imports[-1] if random.random() < 0.5 else random.choice(imports)
    text = random.choice(phrases.IMPORTS)
    if text in source.lines or not _alone(source, node):
        return None
    at = _stop(node)
    return [Splice(at, at, (text,))]


def comment(random: Random, source: Source) -> list[Splice] | None:
    """A comment that is new, or says something else."""
    existing = [n for n, line in enumerate(source.lines) if re.match(r"\s+# \w", line)]
    if existing and random.random() < 0.5:
        at = random.choice(existing)
        text = f"{indent_of(source.lines[at])}# {random.choice(phrases.REMARKS)}"
        return [Splice(at, at + 1, (text,))]
    block = _some_block(random, source)
    if block is None:
        return None
    node = random.choice(block)
    text = f"{_indent(source, node)}# {random.choice(phrases.REMARKS)}"
    return [Splice(_start(node), _start(node), (text,))]


def helper(random: Random, source: Source) -> list[Splice] | None:
    """A new function before an existing one, at the top or in a class."""
    nodes = [node for node in source.top if isinstance(node, Function | ast.ClassDef)]
    nodes += [node for c in source.classes for node in c.body if isinstance(node, Function)]
    if not nodes:
        return None
    node = random.choice(nodes)
    indent = _indent(source, node)
    gap = ("",) if indent else ("", "")
    lines = phrases.helper(random, indent)
    return [Splice(_start(node), _start(node), (*lines, *gap))]


def replace_body(random: Random, source: Source) -> list[Splice] | None:
    """The end of a block that is computed in another way."""
    block = _some_block(random, source, 2)
    if block is None:
        return None
    index = random.randrange(1, len(block))
    start, stop = _start(block[index]), _stop(block[-1])
    if stop - start > 15:
        return None
    indent = _indent(source, block[index])
    lines = phrases.block(random, indent)
    return [Splice(start, stop, (*lines, f"{indent}return {random.choice(phrases.NAMES)}"))]


def through_variable(random: Random, source: Source) -> list[Splice] | None:
    """`return x` that becomes `y = x`, something with y, `return y`."""
    nodes = [
        node
        for function in source.functions
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
        and node.lineno == node.end_lineno and _alone(source, node)
    ]  # fmt: skip
    if not nodes:
        return None
    node = random.choice(nodes)
    line = source.lines[node.lineno - 1]
    name = random.choice(phrases.NAMES)
    indent = indent_of(line)
    lines = (line.replace("return ", f"{name} = ", 1), indent + phrases.clip(random, name))
    return [Splice(node.lineno - 1, node.lineno, (*lines, f"{indent}return {name}"))]


def append(random: Random, source: Source) -> list[Splice] | None:
    """A new function at the end of the file."""
    end = len(source.lines)
    while end and not source.lines[end - 1]:
        end -= 1
    return [Splice(end, end, ("", "", *phrases.helper(random, "")))]


EDITS: dict[str, tuple[Edit, int]] = {
    "constant": (constant, 4), "condition": (condition, 2), "signature": (signature, 3),
    "insert_statement": (insert_statement, 4), "insert_block": (insert_block, 5),
    "remove": (remove, 3), "wrap": (wrap, 3), "unwrap": (unwrap, 1), "move": (move, 1),
    "rename_variable": (rename_variable, 2), "import": (add_import, 3), "comment": (comment, 1),
    "helper": (helper, 3), "replace_body": (replace_body, 2), "append": (append, 1),
    "through_variable": (through_variable, 2),
}  # fmt: skip


def _apart(splices: list[Splice], taken: list[Splice]) -> bool:
    return all(a.stop + 1 < b.start or b.stop + 1 < a.start for a in splices for b in taken)


def _spliced(lines: tuple[str, ...], splices: list[Splice]) -> str:
    out = list(lines)
    for splice in sorted(splices, key=lambda s: -s.start):
        out[splice.start : splice.stop] = splice.lines
    return "\n".join(out)


def edit_python(random: Random, text: str, number: int) -> tuple[str, tuple[str, ...]] | None:
    """A file after some edits, with their kinds; it parses."""
    source = read_source(text)
    taken: list[Splice] = []
    kinds: list[str] = []
    names = list(EDITS)
    weights = [EDITS[name][1] for name in names]
    for _ in range(number * 6):
        if len(kinds) == number:
            break
        name = random.choices(names, weights)[0]
        splices = EDITS[name][0](random, source)
        if splices and _apart(splices, taken):
            taken += splices
            kinds.append(name)
    result = _spliced(source.lines, taken)
    if not kinds or result == text or not parses(result):
        return None
    return result, tuple(kinds)


def edit_other(random: Random, text: str) -> tuple[str, tuple[str, ...]] | None:
    """A shell script, settings or notes with another number, or with one more line."""
    lines = text.split("\n")
    numbered = [n for n, line in enumerate(lines) if re.search(r"[ =]\d", line)]
    if random.random() < 0.6 and numbered:
        at = random.choice(numbered)
        lines[at] = re.sub(
            r"(?<=[ =])\d[\d.e-]*",
            lambda m: phrases.other_number(random, m[0]),
            lines[at],
            count=1,
        )
        kind = "other_constant"
    else:
        at = random.choice([n for n, line in enumerate(lines) if line and line[-1] != "\\"])
        mark = {"#": "# Part of the experiment.", "-": "- `warmup`: steps before the full rate."}
        new = mark.get(lines[at][0], f"{indent_of(lines[at])}warmup=200")
        lines.insert(at + 1, new)
        kind = "other_line"
    result = "\n".join(lines)
    return (result, (kind,)) if result != text else None

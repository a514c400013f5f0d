"""Tests use public names: what they need is passed in, and nothing private is read or replaced.

A test that reaches behind a name with an underscore breaks when the code is reordered, and says
nothing about what a caller sees. Programs in string literals are not looked at: what attacks a
sandbox reaches wherever it can.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: An object's own names.
OWN = frozenset({"self", "cls"})
#: Documented calls of the standard library, whose names begin with an underscore.
DOCUMENTED = frozenset({"os._exit", "sys._getframe"})
#: Calls whose arguments name what they read or replace: an attribute, or a dotted path.
BY_NAME = frozenset({"setattr", "delattr", "getattr", "hasattr", "object", "patch"})


@cache
def programs() -> dict[str, ast.Module]:
    """Return all tests and benchmarks, by path."""
    paths = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_bytes()) for path in sorted(paths)}


def is_private(name: str) -> bool:
    """Whether a part of a dotted name is private."""
    return any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__"))
        for part in name.split(".")
    )


def names_imported(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def names_reached(node: ast.AST) -> Iterator[str]:
    """Yield the names by which an expression reads or replaces something of another object."""
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner not in OWN and f"{owner}.{node.attr}" not in DOCUMENTED:
            yield node.attr
    elif isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first, *others = node.args[:2] or [ast.Constant(None)]
        if called in BY_NAME and getattr(first, "id", "") not in OWN:
            yield from (
                argument.value
                for argument in (first, *others)
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every use of a private name of something else."""
    for node in ast.walk(tree):
        for name in (*names_imported(node), *names_reached(node)):
            if is_private(name):
                yield getattr(node, "lineno", 0), name


def test_no_test_and_no_benchmark_uses_a_private_name() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, tree in programs().items()
        for line, name in private_names(tree)
    ]
    assert found == [], "pass in what the test needs, or make the name public"


def test_no_test_imports_a_benchmark() -> None:
    found = [
        f"{path}: {name}"
        for path, tree in programs().items()
        if path.startswith("tests/")
        for node in ast.walk(tree)
        for name in names_imported(node)
        if name.split(".")[0] == "benchmarks"
    ]
    assert found == [], "what both use belongs in tests/support"


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import assay._part", "assay._part"),
        ("from assay.part import _name", "assay.part._name"),
        ("from assay._part import name", "assay._part.name"),
        ("from assay.part import _name as name", "assay.part._name"),
        ("client._http.close()", "_http"),
        ("clock._last -= 20", "_last"),
        ("super()._take(1)", "_take"),
        ("monkeypatch.setattr(module, '_SECONDS', 0.1)", "_SECONDS"),
        ("monkeypatch.setattr('assay.part._SECONDS', 0.1)", "assay.part._SECONDS"),
        ("setattr(thing, '_state', 1)", "_state"),
        ("getattr(thing, '_state')", "_state"),
        ("mock.patch.object(thing, '_call')", "_call"),
        ("mock.patch('assay._part.name')", "assay._part.name"),
    ],
)
def test_uses_of_private_names_are_found(program: str, name: str) -> None:
    assert name in [found for _, found in private_names(ast.parse(program))]


@pytest.mark.parametrize(
    "program",
    [
        "from __future__ import annotations",
        "from services.worker.__main__ import main",
        "self._state = cls._made(self.__class__.__name__)",
        "setattr(self, '_state', 1)",
        "os._exit(7)",
        "getattr(module, '__file__', None)",
        "_helper(Path(__file__))",
        "ATTACK = 'import assay; assay.part._name'",
        "monkeypatch.setattr(module, 'SECONDS', 0.1)",
    ],
)
def test_other_names_are_left_alone(program: str) -> None:
    assert list(private_names(ast.parse(program))) == []

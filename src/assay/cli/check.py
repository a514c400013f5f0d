"""What `assay env check` looks at: whether a folder is an environment that will work."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.contracts.environment import KnobSpec, RecipeSpec
from assay.domain.errors import AssayError
from assay.environments import Environment, prepare_data
from assay.patching.paths import is_protected


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    ok: bool
    detail: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_environment(folder: Path, profile: str | None, *, prepare: bool) -> Iterator[Finding]:
    """Every check, as it is made. `profile` is the one to prepare; the smallest by default."""
    try:
        environment = Environment.load(folder)
    except AssayError as error:
        yield Finding("manifest", False, str(error))
        return
    profiles = ", ".join(environment.manifest.profiles)
    yield Finding("manifest", True, f"{environment.id}; profiles: {profiles}")
    yield _named_like_its_folder(environment)
    try:
        files = environment.codebase
    except (AssayError, UnicodeDecodeError) as error:
        yield Finding("codebase", False, f"must hold text files only: {error}")
        return
    yield from _codebase(environment, files)
    for knob in environment.manifest.knobs:
        yield _knob(knob, files)
    for recipe in environment.manifest.recipes:
        yield _recipe(recipe, files)
    if environment.manifest.vendored:
        yield Finding("vendored", True, _listed(list(environment.manifest.vendored)))
    yield _evaluator(folder / "evaluator" / "evaluate.py")
    if prepare:
        yield _prepares(environment, profile or smallest_profile(environment))


def smallest_profile(environment: Environment) -> str:
    """`tiny` if there is one, else that with the shortest training."""
    profiles = environment.manifest.profiles
    if "tiny" in profiles:
        return "tiny"
    return min(profiles, key=lambda name: profiles[name].budget.seconds)


def _named_like_its_folder(environment: Environment) -> Finding:
    same = environment.folder.resolve().name == environment.name
    detail = "the folder has the same name" if same else "the folder must have the same name"
    return Finding("name", same, f"{environment.name}: {detail}")


def _codebase(environment: Environment, files: dict[str, str]) -> Iterator[Finding]:
    broken = []
    for name, text in files.items():
        if name.endswith(".py"):
            try:
                ast.parse(text)
            except SyntaxError as error:
                broken.append(f"{name}:{error.lineno}: {error.msg}")
    yield Finding("codebase", bool(files) and not broken, "; ".join(broken) or _listed(files))
    for pattern in environment.manifest.codebase.protected:
        hits = [name for name in files if is_protected(name, (pattern,))]
        yield Finding("protected", bool(hits), f"{pattern}: {_listed(hits) or 'matches no file'}")
    entry_points = environment.manifest.entry_points
    for argv in (entry_points.train, entry_points.predict or ()):
        scripts = [word for word in argv if word.endswith(".py")]
        for script in scripts:
            there = script in files
            detail = script if there else f"{script} is not in codebase/"
            yield Finding("entry point", there, detail)


def _knob(knob: KnobSpec, files: dict[str, str]) -> Finding:
    label = f"knob {knob.name}"
    text = files.get(knob.file)
    if text is None:
        return Finding(label, False, f"{knob.file} is not in codebase/")
    count = text.splitlines().count(knob.line)
    if count != 1:
        return Finding(label, False, f"its line stands {count} times in {knob.file}, not once")
    current = [v for v in knob.values if knob.line.endswith(v) and _ends_at_a_word(knob.line, v)]
    if current:
        return Finding(label, False, f"{current[0]!r} is the baseline's value already")
    return Finding(label, True, f"{knob.file}, {len(knob.values)} other values")


def _ends_at_a_word(line: str, value: str) -> bool:
    before = line[: -len(value)]
    return not before or before[-1] in " =(,:"


def _recipe(recipe: RecipeSpec, files: dict[str, str]) -> Finding:
    label = f"recipe {recipe.name}"
    misses = []
    for edit in recipe.edits:
        if edit.file not in files:
            misses.append(f"{edit.file} is not in codebase/")
            continue
        count = files[edit.file].count(edit.search)
        if count != 1:
            misses.append(f"its text stands {count} times in {edit.file}")
    if recipe.kind == "misfit":
        detail = "; ".join(misses) or "all its texts are found, so it is no misfit"
        return Finding(label, bool(misses), f"misfit: {detail}")
    return Finding(label, not misses, "; ".join(misses) or f"{recipe.kind}: fits")


def _evaluator(path: Path) -> Finding:
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, UnicodeDecodeError) as error:
        return Finding("evaluator", False, f"evaluator/evaluate.py: {error}")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "evaluate":
            count = len(node.args.posonlyargs) + len(node.args.args)
            detail = "defines evaluate(run)" if count == 1 else f"evaluate takes {count} arguments"
            return Finding("evaluator", count == 1, detail)
    return Finding("evaluator", False, "evaluator/evaluate.py defines no function evaluate(run)")


def _prepares(environment: Environment, profile: str) -> Finding:
    label = f"prepare {profile}"
    with tempfile.TemporaryDirectory(prefix="assay-check-") as folder:
        try:
            data = prepare_data(environment, profile, Path(folder))
        except AssayError as error:
            return Finding(label, False, str(error))
        sizes = []
        for split in ("train", "search", "sealed"):
            files = [p for p in (data / split).rglob("*") if p.is_file()]
            sizes.append(f"{split} {sum(p.stat().st_size for p in files)} bytes")
        return Finding(label, True, ", ".join(sizes))


def _listed(names: object) -> str:
    listed = list(names) if isinstance(names, list | dict) else []
    return ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")

"""The documentation names what there is and nothing else, and its links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel
from pydantic_settings import BaseSettings

from assay.cli.app import build_app
from assay.cli.check import check_environment
from assay.contracts.environment import EnvironmentManifest
from assay.domain.failure_codes import FailureCode
from assay.evaluation import Rejection
from assay.storage.database import FAULTS
from assay.storage.settings import RetentionSettings, ServerSettings
from assay.telemetry import LogSettings
from services.implementer.settings import ImplementerSettings
from services.local.settings import LocalSettings
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings
from tests.docs.reading import DOCS, ROOT, write_slope

SETTINGS: list[type[BaseSettings]] = [
    ImplementerSettings,
    LocalSettings,
    LogSettings,
    RetentionSettings,
    SchedulerSettings,
    ServerSettings,
    WorkerSettings,
]
#: Calls that take a code by position, and at which one.
CODE_AT = {
    "CallRecord": 1,
    "FieldError": 2,
    "answer": 3,
    "field": 2,
}
#: Dictionaries of code from which codes are taken.
CODE_TABLES = {"codes"}
_CODE = re.compile(r"[a-z]+(_[a-z]+)*")


@cache
def page(name: str) -> str:
    return (DOCS / name).read_text()


def pages() -> list[Path]:
    """Every Markdown file that belongs to the project."""
    skipped = {".venv", ".assay", ".git", "build", "dist", "node_modules"}
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(
            part in skipped or part.startswith(".") for part in path.relative_to(ROOT).parts
        )
    )


def variables() -> dict[str, Any]:
    """Every variable of every settings class, with its default."""
    return {
        f"{kind.model_config['env_prefix']}{name.upper()}": field.default
        for kind in SETTINGS
        for name, field in kind.model_fields.items()
    }


@pytest.mark.parametrize("variable", sorted(variables()))
def test_every_setting_is_in_operations_with_its_default(variable: str) -> None:
    rows = [line for line in page("operations.md").splitlines() if f"| `{variable}`" in line]
    assert len(rows) == 1, f"{variable} needs one row in docs/operations.md"
    default = variables()[variable]
    own = "*" in rows[0].split("|")[1]  # set by `assay serve`; the default is the worker's
    if isinstance(default, bool | int | float | str | dict | list | Path) and not own:
        assert f"`{plain(default)}`" in rows[0].split("|")[2], rows[0]


def plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_no_setting_is_named_that_does_not_exist() -> None:
    known = set(variables())
    for path in pages():
        named = re.findall(
            r"ASSAY_(?:IMPLEMENTER|LOCAL|SCHEDULER|SERVER|WORKER)_[A-Z0-9_]*[A-Z0-9]",
            path.read_text(),
        )
        assert set(named) <= known, path


def test_every_endpoint_is_in_api() -> None:
    described = json.loads(page("openapi.json"))["paths"]
    missing = [
        f"{verb.upper()} {path}"
        for path, verbs in described.items()
        for verb in verbs
        if f"`{verb.upper()} {path}`" not in page("api.md")
    ]
    assert not missing


def test_api_names_no_endpoint_that_does_not_exist() -> None:
    described = json.loads(page("openapi.json"))["paths"]
    named = re.findall(r"^\| `(GET|POST|PUT|DELETE) (/[^`]*)`", page("api.md"), re.MULTILINE)
    assert [(v, p) for v, p in named if v.lower() not in described.get(p, {})] == []


def commands() -> list[str]:
    """Every command of the command line, as it is typed."""

    def below(command: Any, name: str) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield name
            return
        for verb, inner in command.commands.items():
            yield from below(inner, f"{name} {verb}")

    return sorted(below(typer.main.get_command(build_app([])), "assay"))


def test_every_command_is_in_cli() -> None:
    found = commands()
    assert "assay batch submit" in found
    assert "assay serve" in found
    assert [c for c in found if f"| `{c}` |" not in page("cli.md")] == []


def test_cli_names_no_command_that_does_not_exist() -> None:
    named = re.findall(r"^\| `(assay [a-z ]+)` \|", page("cli.md"), re.MULTILINE)
    assert set(named) <= set(commands())


def manifest_keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a manifest model and of the models in it."""
    for name, field in model.model_fields.items():
        yield name
        for inner in inner_models(field.annotation):
            yield from manifest_keys(inner)


def inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from inner_models(argument)


def test_every_key_of_a_manifest_is_in_environments() -> None:
    reference = page("environments.md").partition("## `environment.toml`")[2].partition("\n## ")[0]
    spans = " ".join(re.findall(r"`[^`]+`|\*\*[^*]+\*\*", reference))
    words = set(re.findall(r"[a-z_]+", spans))
    keys = set(manifest_keys(EnvironmentManifest))
    assert {"protected", "evaluation_seconds", "search", "bound"} <= keys
    assert keys <= words


def test_the_environment_on_the_page_is_a_sound_one(tmp_path: Path) -> None:
    folder = tmp_path / "slope"
    write_slope(folder)
    findings = list(check_environment(folder, None, prepare=True))
    assert [f for f in findings if not f.ok] == []
    assert findings[0].detail.partition(";")[0] in page("environments.md"), (
        "the id on the page is another one"
    )


@cache
def error_codes() -> dict[str, str]:
    """Every code that the source raises, answers or stores, with a place where it does."""
    found: dict[str, str] = {}
    for folder in ("src", "services"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            for code, line in codes_in(ast.parse(path.read_text())):
                found.setdefault(code, f"{where}:{line}")
    for code in FailureCode:
        found.setdefault(code.value, "assay.domain.failure_codes")
    for _, code, _ in FAULTS:
        found.setdefault(code, "assay.storage.database")
    return found


def codes_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values += [k.value for k in node.keywords if k.arg == "code"]
            at = CODE_AT.get(called(node))
            values += [node.args[at]] if at is not None and len(node.args) > at else []
        elif isinstance(node, ast.ClassDef):
            values += [
                a.value for a in node.body if is_named(a, {"code"}) and isinstance(a, ast.Assign)
            ]
        elif isinstance(node, ast.Assign) and is_named(node, CODE_TABLES):
            values += node.value.values if isinstance(node.value, ast.Dict) else []
        elif isinstance(node, ast.FunctionDef):
            values += defaults_of_code(node.args)
        for value in values:
            code = value.value if isinstance(value, ast.Constant) else None
            if isinstance(code, str) and _CODE.fullmatch(code):
                yield code, value.lineno


def called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))


def is_named(node: ast.AST, names: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(t, ast.Name) and t.id in names for t in targets)


def defaults_of_code(arguments: ast.arguments) -> list[ast.expr]:
    named = [*arguments.posonlyargs, *arguments.args]
    pairs = zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True)
    return [default for argument, default in pairs if argument.arg == "code"]


def test_codes_are_found_at_all() -> None:
    expected = {"epoch_exists", "not_found", "unauthorized", "crashed", "leak", "no_match", "lost"}
    expected |= {"invalid", "disk_full", "database_busy", "rate_limited", "isolation_required"}
    assert expected <= set(error_codes())


def test_the_number_of_sentences_about_predictors_is_in_evaluation() -> None:
    count = len(Rejection)
    assert f"one of the {count} sentences" in page("evaluation.md")
    assert 2 * count + 2 < 64


def test_every_error_code_is_in_errors_with_an_anchor() -> None:
    text = page("errors.md")
    missing = {
        code: where for code, where in error_codes().items() if f'<a id="{code}"></a>`' not in text
    }
    assert not missing


def test_an_anchor_stands_once() -> None:
    anchors = re.findall(r'<a id="(\w+)">', page("errors.md"))
    assert len(anchors) == len(set(anchors))


def slug(heading: str) -> str:
    """The anchor that a heading gets where Markdown is shown."""
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return text.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {slug(h) for h in headings} | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        aim = (path.parent / file).resolve() if file else path
        assert aim.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(aim), f"{target}: there is no such heading"


def test_the_picture_is_small_and_loads_nothing() -> None:
    picture = (DOCS / "images" / "demo.svg").read_text()
    assert len(picture) < 150_000
    assert "@font-face" not in picture
    assert "url(http" not in picture

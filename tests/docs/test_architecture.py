"""The page on architecture names files, functions and imports that are there, and what has to be
told in several places is told in all of them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import get_args

import pytest

from assay.broker.names import queue_name
from assay.llm.names import Provider
from assay.llm.prices import price_table
from assay.sandbox.choose import BackendName
from assay.search.strategy import strategy_names
from assay.storage.outbox import Topic

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
IMPORT = re.compile(r"^\s*(?:from|import) (?:assay|services)\.(\w+)", re.MULTILINE)
PATH = re.compile(r"[\w.*<>-]+(/[\w.*<>-]+)*/?")
NOUN = re.compile(r"<\w+>")
#: Without the picture: what somebody reads in ten minutes.
MOST_WORDS = 2_400
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text()


def spans(prose: str = PROSE) -> Iterator[tuple[str, list[str]]]:
    """Each path on the page, with the names that are said to be in it."""
    top = {path.name for path in ROOT.iterdir()}
    for span in re.findall(r"`([^`\n]+)`", prose):
        path, _, names = span.partition(": ")
        if PATH.fullmatch(path) and path.split("/")[0] in top:
            yield path, [name.strip() for name in names.split(",") if name]


@cache
def defined(path: str) -> set[str]:
    """What a module defines, methods included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            found |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return found


def test_the_page_is_found_to_name_what_it_names() -> None:
    found = list(spans())
    assert len(found) > 200
    assert ("services/worker/attempt.py", ["run_attempt"]) in found
    assert ("src/assay/sandbox/choose.py", ["BackendName", "open_sandbox", "ISOLATING"]) in found
    assert {"environments/*/environment.toml", "src/assay/cli/<noun>.py"} <= dict(found).keys()


def test_every_path_is_there() -> None:
    named = {NOUN.sub("*", path) for path, _ in spans()}
    assert sorted(path for path in named if not any(ROOT.glob(path))) == []


def test_every_name_is_in_its_file() -> None:
    named = [(path, name) for path, names in spans() for name in names]
    missing = {f"{path}: {name}" for path, name in named if name not in defined(path)}
    assert sorted(missing) == []


def test_the_page_is_read_in_ten_minutes() -> None:
    assert len([word for word in PROSE.split() if re.search(r"\w", word)]) <= MOST_WORDS


def table(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    after = PAGE.split(f"\n{heading}", 1)[1].splitlines()
    start = next(i for i, line in enumerate(after) if line.startswith("|--"))
    lines = takewhile(lambda line: line.startswith("|"), after[start + 1 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def decisions() -> list[list[str]]:
    """The rows of the table of decisions: what, where, test."""
    return [row for row in table("## Where a decision is made") if not row[0].startswith("**")]


def test_every_decision_has_a_place_and_a_test() -> None:
    rows = decisions()
    assert len(rows) > 50
    for row in rows:
        what, where, test = row
        assert any(path.startswith(("src/", "services/")) for path, _ in spans(where)), what
        assert all(path.startswith("tests/") for path, _ in spans(test)), what
        assert any(spans(test)), what


def test_a_failure_code_is_in_its_file() -> None:
    rows = table("[Codes](errors.md) by name")
    assert len(rows) > 5
    for where, codes in rows:
        module = text(where.strip("`"))
        named = [code for code in re.findall(r"`(\w+)`", codes) if code.islower()]
        said = {code: (f'"{code}"', f"FailureCode.{code.upper()}") for code in named}
        assert [code for code in named if not any(s in module for s in said[code])] == [], where


def test_the_modules_of_a_noun_are_there() -> None:
    folders = (
        "src/assay/contracts",
        "services/implementer/routers",
        "services/implementer/views",
        "src/assay/client",
        "src/assay/cli",
    )
    rows = table("grouped in `src/assay/storage/schema/`")
    assert len(rows) > 5
    plurals = {"batch": "batches", "search": "searches"}
    for noun, *cells in rows:
        for folder, cell in zip(folders, cells, strict=True):
            singular = folder.endswith(("contracts", "cli"))
            ruled = noun if singular else plurals.get(noun, f"{noun}s")
            names = cell.split(", ") if cell else [ruled]
            assert [n for n in names if not (ROOT / folder / f"{n}.py").is_file()] == [], noun


def test_the_files_of_an_environment_are_there() -> None:
    rows = table("## What lies in an environment")
    assert len(rows) > 5
    for _, _, *cells in rows:
        for environment, cell in zip(("nanogpt", "grpo", "toy"), cells, strict=True):
            folder = ROOT / "environments" / environment
            names = re.findall(r"`([\w./]+)`", cell)
            assert [name for name in names if not any(folder.rglob(name.strip("/")))] == []


def imported(folder: str) -> set[str]:
    """The parts of this project that a folder imports, other than itself."""
    found: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        found |= set(IMPORT.findall(path.read_text()))
    return found - {folder.rpartition("/")[2]}


def table_of_folders() -> dict[str, set[str]]:
    """What each folder imports, as the page has it."""
    rows = re.findall(r"^\| `(\S+)` \| [^|]+ \| ([^|]+) \|$", PAGE.split("\n## Folders")[1], re.M)
    return {
        folder: set() if names == "nothing" else set(names.split(", ")) for folder, names in rows
    }


def test_every_folder_is_in_the_table() -> None:
    parts = [*(ROOT / "src" / "assay").iterdir(), *(ROOT / "services").iterdir()]
    folders = {p.relative_to(ROOT).as_posix() for p in parts if (p / "__init__.py").exists()}
    assert set(table_of_folders()) == folders


def test_a_folder_imports_what_the_table_says() -> None:
    table = table_of_folders()
    assert {folder: imported(folder) for folder in table} == table


def test_a_provider_is_known_everywhere() -> None:
    extra = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]["llm"]
    places = (
        "src/assay/cli/doctor.py",
        "deploy/docker-compose.yaml",
        "deploy/.env.example",
        "docs/cli.md",
        "docs/operations.md",
    )
    for provider in set(Provider) - {Provider.OFFLINE}:
        module = f"src/assay/llm/{provider}.py"
        assert re.search(rf"Provider\.{provider.name}: \"\w+\"", text("src/assay/llm/factory.py"))
        assert any(name.startswith(f"{provider}:") for name in price_table().models)
        assert any(requirement.startswith(str(provider)) for requirement in extra)
        key = re.search(r'^KEY = "(\w+)"$', text(module), re.MULTILINE)
        assert key is not None
        assert [path for path in places if key[1] not in text(path)] == []


def test_a_strategy_is_known_everywhere() -> None:
    for strategy in strategy_names():
        assert re.search(rf"\b{strategy}\b", text("docs/search.md"))
        assert re.search(rf"\b{strategy}\b", text("src/assay/cli/search.py"))


def test_a_sandbox_is_known_everywhere() -> None:
    for backend in get_args(BackendName):
        assert text("src/assay/sandbox/choose.py").count(f'"{backend}"') > 1  # the type is one
        assert re.search(rf"\b{backend}\b", text("docs/security.md"), re.IGNORECASE)
        assert re.search(rf"--sandbox [a-z|]*\b{backend}\b", text("docs/cli.md"))


def test_an_environment_is_whole() -> None:
    needed = "evaluator/evaluate.py", "prepare.py", "baseline.json", "README.md", "codebase/*"
    for manifest in sorted((ROOT / "environments").glob("*/environment.toml")):
        folder = manifest.parent
        assert [name for name in needed if not any(folder.glob(name))] == [], folder.name


def metrics() -> list[str]:
    """The names of Prometheus metrics in the source, as it gives them."""
    sources = ("src/assay/telemetry/counts.py", "services/implementer/metrics.py")
    names = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"assay_[a-z_]+", node.value)
    }
    return sorted(names)


def test_metrics_are_found() -> None:
    assert {"assay_queue_measurements", "assay_http_requests", "assay_workers"} <= set(metrics())


def test_a_metric_is_documented() -> None:
    """Counters are read with `_total` at their end; of an f-string only the beginning is known."""
    endings = {name: ".*`" if name.endswith("_") else "(_total)?`" for name in metrics()}
    page = text("docs/operations.md")
    assert [name for name, end in endings.items() if not re.search(f"`{name}{end}", page)] == []


@pytest.mark.parametrize("topic", list(Topic))
def test_a_message_has_receivers(topic: Topic) -> None:
    """One in the embedded service, and one among the servers: all but a worker's doorbell name
    the topic."""
    assert f"Topic.{topic.name}:" in text("services/local/service.py")
    receivers = "services/implementer/worker.py", "services/scheduler/cli.py"
    by_name = any(f"(Topic.{topic.name}," in text(path) for path in receivers)
    assert by_name or f'queue_name("{topic.value}"' in text("services/worker/cli.py")
    assert queue_name(topic.value, "x").startswith(f"assay.{topic.value}")

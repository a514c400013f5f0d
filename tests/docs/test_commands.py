"""What the guides tell people to type works: each command is parsed, and most of them run.

A command of a `sh` block is run against a service, in the order of its page, unless it is one of
`NOT_RUN` or `DRY_RUN`. A new command is therefore run by the next `make test`, or fails it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from assay.cli.app import build_app
from assay.environments import Catalog
from assay.llm import ImplementRequest
from assay.llm.offline.literal import LiteralImplementer
from assay.patching import apply_answer
from tests.docs.reading import (
    DOCS,
    GUIDES,
    ROOT,
    Command,
    blocks,
    commands,
    ideas,
    name_of,
    write_slope,
)
from tests.support.needs import missing
from tests.support.service import ServiceProcess

README, QUICKSTART = ROOT / "README.md", DOCS / "quickstart.md"
MODEL = "needs a key, and asks a provider"
#: Commands that are parsed and not run, and why. A `…` is what the reader fills in.
NOT_RUN = {
    "git clone …": "needs the address of the repository",
    "cd assay": "follows the clone",
    ". .venv/bin/activate": "changes the reader's shell",
    "make demo": "takes minutes; tests/cli/test_demo.py runs it on a fake service",
    "assay doctor": "reports on this machine; tests/cli/test_doctor.py runs it",
    "assay serve": "never ends; the fixture below starts it",
    "assay batch submit ten.jsonl --env nanogpt --profile tiny "
    "--executor anthropic:claude-opus-4-5 --max-cost 2 --wait": MODEL,
    "assay search start nanogpt --profile tiny --ideator anthropic:claude-opus-4-5 "
    "--executor anthropic:claude-opus-4-5 --max-cost 10": MODEL,
}
#: Commands that run with --dry-run here because they train for minutes.
DRY_RUN = {
    "assay batch submit ideas.jsonl --env nanogpt --profile tiny --seeds 0-4 --wait": (
        "test_the_idea_of_the_readme_is_better runs it"
    ),
    "assay search start nanogpt --profile tiny --epochs 3 --batch-size 4": (
        "the quick start runs the same search on toy"
    ),
}
#: Whole, or as tables show it.
_ID = re.compile(r"(bat|exp|srch)_[0-9a-z]{8}(?:[0-9a-z]{18})?\b")
_SHORTENED = re.compile(r"(bat|exp|srch)_[0-9a-z]*…")


@dataclass
class Reader:
    """Somebody who follows a page: a folder, a running service, and the ids seen so far."""

    folder: Path
    api: str
    seen: dict[str, str] = field(default_factory=dict)

    def fill_in(self, text: str) -> str:
        """Put this service's address and the newest ids in place of those of the page."""
        text = text.replace("http://127.0.0.1:8000", self.api)
        return _SHORTENED.sub(lambda found: self.seen[found[1]], text)

    def assay(self, *words: str) -> str:
        """Run a command in this process; return what it printed on stdout."""
        result = self.invoke(*words)
        assert result.exit_code == 0, f"assay {' '.join(words)}: {result.output}"
        return self.note(result.stdout)

    def invoke(self, *words: str) -> Result:
        """Run a command in this process, whatever comes of it."""
        words = tuple(self.fill_in(word) for word in words)
        return CliRunner().invoke(build_app(words), words, env={"ASSAY_API_URL": self.api})

    def curl(self, *words: str) -> str:
        """Run curl; return the body of the answer."""
        command = ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "120"]
        command += [self.fill_in(word) for word in words]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return self.note(done.stdout)

    def note(self, printed: str) -> str:
        """Remember the first id of each kind: what ranks first in a table."""
        for found in reversed(list(_ID.finditer(printed))):
            self.seen[found[1]] = found[0]
        return printed


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ServiceProcess]]:
    """A service on the public data that also finds the environments of the reader's folder."""
    folder = tmp_path_factory.mktemp("reader")
    write_slope(folder / "environments" / "slope")
    found = {"ASSAY_ENVIRONMENTS": str(folder / "environments")}
    service = ServiceProcess(folder / "data", env=found)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ANTHROPIC_API_KEY", raising=False)
        service.start()
    yield folder, service
    service.stop()


@pytest.fixture
def reader(served: tuple[Path, ServiceProcess], monkeypatch: pytest.MonkeyPatch) -> Reader:
    folder, service = served
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    return Reader(folder, str(service.ready["api"]))


def typed() -> list[Command]:
    return [command for page in GUIDES for command in commands(page)]


def pages() -> list[str]:
    """The text of every page, without its blocks."""
    paths = {*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *GUIDES}
    return [re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL) for path in paths]


def write_ideas(page: Path, path: Path) -> None:
    path.write_text("".join(f"{idea.model_dump_json()}\n" for idea in ideas(page)))


@functools.cache
def assay() -> Any:
    """The command line with everything that packages bring; its commands do nothing."""
    app = build_app(["serve", "implement-worker", "scheduler", "migrate"])
    command: Any = typer.main.get_command(app)
    disarm(command)
    return command


def disarm(command: Any) -> None:
    """Make a command, and all commands below it, do nothing."""
    command.callback = None
    for one in getattr(command, "commands", {}).values():
        disarm(one)


def parse(words: Sequence[str]) -> None:
    """Parse a command line as `assay` does, without running it.

    Raises:
        typer.TyperException: it is wrong.
    """
    assay().main(list(words), prog_name="assay", standalone_mode=False)


@pytest.mark.parametrize("command", typed(), ids=lambda c: f"{c.page}: {c.text}")
def test_every_command_is_parsed_by_its_program(command: Command) -> None:
    program, *words = command.words
    if program == "assay":
        parse(words)
    elif program == "make":
        assert_targets_exist(words)
    else:
        assert program == "curl" or command.text in NOT_RUN, "say in NOT_RUN why it cannot run"


def test_every_command_in_the_text_is_parsed() -> None:
    """A command may be named without what it takes; an option or a verb has to exist."""
    named = {span for page in pages() for span in re.findall(r"`assay ([^`<…|\n][^`<|\n]*)", page)}
    assert {"demo --keep-serving", "batch submit --dry-run"} <= named
    assert [span for span in sorted(named) if is_wrong(shlex.split(span.rstrip("\\")))] == []


def is_wrong(words: Sequence[str]) -> bool:
    """Whether a command line is wrong for another reason than that something is missing."""
    try:
        parse(words)
    except typer.TyperException as error:
        return type(error).__name__ not in ("MissingParameter", "NoArgsIsHelpError")
    return False


def test_what_is_not_run_is_on_a_page() -> None:
    on_pages = {command.text for command in typed()}
    assert on_pages >= {*NOT_RUN, *DRY_RUN}


def test_a_wrong_option_is_noticed() -> None:
    for wrong in ("batch submit x.jsonl --env toy --no-such", "batch sumbit x", "search start"):
        with pytest.raises(typer.TyperException):
            parse(wrong.split())


def assert_targets_exist(words: Sequence[str]) -> None:
    """`make -n` knows the targets, and a benchmark's file exists."""
    done = subprocess.run(
        ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in words:
        if word.startswith("bench-"):
            module = ROOT / "benchmarks" / word.removeprefix("bench-").replace("-", "_")
            assert module.is_dir() or module.with_suffix(".py").is_file(), word


def test_every_make_target_in_the_text_exists() -> None:
    named = {target for page in pages() for target in re.findall(r"`make ([a-z-]+)", page)}
    assert {"demo", "test", "bench-overhead"} <= named
    for target in sorted(named):
        assert_targets_exist([target])


@pytest.mark.parametrize("page", [README, QUICKSTART], ids=name_of)
def test_every_idea_on_a_page_applies_and_compiles(page: Path) -> None:
    environment = next(
        Catalog().get(words[words.index("--env") + 1])
        for words in (command.words for command in commands(page))
        if "--env" in words
    )
    found = ideas(page)
    assert found
    for idea in found:
        changed = carried_out(environment.codebase, idea.text)
        for name in changed:
            compile(changed[name], name, "exec")


def carried_out(codebase: dict[str, str], idea: str) -> dict[str, str]:
    """Return the files that an idea changes, as `offline:literal` changes them."""
    request = ImplementRequest("any", codebase, (), idea)
    answer = asyncio.run(LiteralImplementer().implement(request))
    files = apply_answer(codebase, answer.text).files
    return {name: text for name, text in files.items() if codebase.get(name) != text}


def test_the_idea_of_the_readme_reaches_the_profile_it_runs_in(tmp_path: Path) -> None:
    (idea,) = ideas(README)
    codebase = Catalog().get("nanogpt").codebase
    changed = carried_out(codebase, idea.text)
    assert tiny(changed["config.py"], tmp_path) != tiny(codebase["config.py"], tmp_path)


def tiny(config: str, folder: Path) -> str:
    """Every value of nanogpt's profile `tiny`."""
    path = folder / "config.py"
    path.write_text(config)
    return repr(runpy.run_path(str(path))["PROFILES"]["tiny"]())


def follow(page: Path, reader: Reader) -> str:
    """Run what a page says to type, apart from curl; return what was printed."""
    write_ideas(page, reader.folder / "ideas.jsonl")
    printed = []
    for command in commands(page):
        if command.text in NOT_RUN or command.words[0] == "curl":
            continue
        assert command.words[0] == "assay"
        extra = ["--dry-run"] if command.text in DRY_RUN else []
        printed.append(reader.assay(*command.words[1:], *extra))
    return "".join(printed)


@pytest.mark.parametrize("page", [p for p in GUIDES if p != QUICKSTART], ids=name_of)
def test_the_commands_of_a_page_work_in_its_order(page: Path, reader: Reader) -> None:
    follow(page, reader)


def test_the_quick_start_works_and_shows_what_it_prints(reader: Reader) -> None:
    printed = follow(QUICKSTART, reader)
    shown = [block.text for block in blocks(QUICKSTART) if block.language == "text"]
    numbers = {n for text in shown for n in re.findall(r"(?<![\d.])\d\.\d{4}", text)}
    assert len(numbers) > 6
    assert {number for number in numbers if number not in printed} == set(), printed


def test_the_http_calls_of_the_readme_work_in_their_order(reader: Reader) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    batch = {"environment": "toy", "profile": "tiny"}
    batch["ideas"] = [idea.model_dump() for idea in ideas(QUICKSTART)]
    (reader.folder / "batch.json").write_text(json.dumps(batch))
    answers = [reader.curl(*c.words[1:]) for c in commands(README) if c.words[0] == "curl"]
    assert len(answers) == 3
    assert "event: batch.finished" in answers[1]
    states = [experiment["state"] for experiment in json.loads(answers[2])["data"]]
    assert states == ["succeeded", "succeeded"]


def test_the_estimate_in_the_readme_is_the_one_of_the_command(reader: Reader) -> None:
    write_ideas(QUICKSTART, reader.folder / "ideas.jsonl")
    (idea, _) = (reader.folder / "ideas.jsonl").read_text().splitlines()
    varied = [idea.replace("smaller", f"{n} times smaller") for n in range(10)]
    (reader.folder / "ten.jsonl").write_text("\n".join(varied))
    (submit,) = (c for c in commands(README) if "ten.jsonl" in c.words)
    result = reader.invoke(*submit.words[1:])
    assert "needs a key" in result.stderr
    (shown,) = (b.text for b in blocks(README) if "(--max-cost)" in b.text)
    assert shown in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_idea_of_the_readme_is_better(reader: Reader) -> None:
    """On one seed against two: the gain is three times the spread of the baseline's seeds."""
    (submit,) = (c for c in commands(README) if "ideas.jsonl" in c.words)
    write_ideas(README, reader.folder / "ideas.jsonl")
    words = ["0" if word == "0-4" else word for word in submit.words[1:]]
    data = json.loads(reader.assay(*words, "--baseline-seeds", "2", "--json"))["data"]
    (experiment,) = data["experiments"]
    assert experiment["comparison"]["effect"] > 0.03

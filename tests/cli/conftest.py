"""The CLI against a fake service over real HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from assay.cli import output
from assay.cli.app import build_app
from tests.support.fake_answers import serve
from tests.support.fake_service import FakeService


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout, which must be one JSON document."""
        return json.loads(self.out)


@dataclass
class Cli:
    """Runs commands in this process."""

    service: FakeService
    url: str
    sleep: Callable[[float], None] = time.sleep
    """How the commands wait."""

    def __call__(self, *arguments: str, stdin: str | None = None) -> Answer:
        result = CliRunner().invoke(
            build_app(arguments, sleep=self.sleep), ["--api", self.url, *arguments], input=stdin
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def cli(service: FakeService) -> Iterator[Cli]:
    with serve(service) as url:
        yield Cli(service, url)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colours and no width of somebody's terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("ASSAY_DEBUG", raising=False)
    assert output.PIPE_WIDTH >= 140


@pytest.fixture
def ideas(tmp_path: Path) -> str:
    """A file with five ideas, of which one fits nowhere and one crashes."""
    texts = ["[Experiment] first", "[Experiment] second", "absent", "boom", "[Experiment] fifth"]
    path = tmp_path / "ideas.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)

"""`assay demo`: on a fake service, started as a child process like the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from assay.cli import server
from assay.cli.demonstration import Demonstration, choose_ideas, unmet, unmet_by_search
from assay.cli.output import Output
from assay.client import Client
from assay.contracts.search import SearchBody
from assay.domain.errors import AssayError, Unavailable
from assay.search.ask import Setting
from tests.cli.conftest import Cli
from tests.cli.test_analysis import comparison, experiment
from tests.support.fake_service import CODEBASE

FAKE_SERVE = textwrap.dedent(
    """
    import json, signal, sys, time
    from tests.support.fake_answers import serve
    from tests.support.fake_service import FakeService
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    with serve(FakeService()) as url:
        print("a line that is no JSON")
        print(json.dumps({"event": "ready", "api": url, "database": "db", "objects": "objs",
                          "sandbox": "bubblewrap", "sandbox_reason": "it works"}), flush=True)
        while not stop:
            time.sleep(0.02)
    open(sys.argv[sys.argv.index("--data-dir") + 1] + "/stopped", "w").close()
    """
)


@pytest.fixture
def fake_serve(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "fake_serve.py"
    path.write_text(FAKE_SERVE)
    return (sys.executable, str(path))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_a_service_is_started_used_and_stopped_in_order(
    tmp_path: Path, fake_serve: tuple[str, ...]
) -> None:
    with server.serving(tmp_path / "data", program=fake_serve) as ready:
        assert (ready.database, ready.objects, ready.sandbox) == ("db", "objs", "bubblewrap")
        with Client(ready.api) as client:
            assert client.version() == "9.9"
    assert (tmp_path / "data" / "stopped").exists()


def test_a_service_is_stopped_when_the_work_fails(
    tmp_path: Path, fake_serve: tuple[str, ...]
) -> None:
    with pytest.raises(ZeroDivisionError), server.serving(tmp_path / "d", program=fake_serve):
        raise ZeroDivisionError
    assert (tmp_path / "d" / "stopped").exists()


def test_a_service_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import sys; sys.exit('no such thing')")
    with pytest.raises(Unavailable, match="no such thing"):
        with server.serving(tmp_path, program=program):
            raise AssertionError("never ready")


def test_a_service_that_is_never_ready(tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(60)")
    with pytest.raises(Unavailable, match="not ready"):
        with server.serving(tmp_path, program=program, start_seconds=0.3):
            raise AssertionError("never ready")


def test_the_ideas_are_always_the_same_and_hold_both_failures(cli: Cli) -> None:
    with Client(cli.url) as client:
        environment = client.environments.get("fake")
    setting = Setting(environment, "tiny", CODEBASE)
    ideas = choose_ideas(environment, setting)
    assert ideas == choose_ideas(environment, setting)
    texts = [idea.text for idea in ideas]
    assert sum("recipe=absent" in t for t in texts) == 1
    assert sum("recipe=boom" in t for t in texts) == 1
    bare = environment.model_copy(update={"recipes": []})
    with pytest.raises(AssayError, match="too few"):
        choose_ideas(bare, Setting(bare, "tiny", CODEBASE))


def test_the_demonstration_shows_what_came_of_it(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(cli.url) as client:
        show = Demonstration(client, Output(), "fake", "tiny")
        missing = show.run()
    printed = capsys.readouterr()
    assert missing == []
    assert "not a language model" in printed.err
    assert "Read back from the API" in printed.out
    assert "The best idea's diff" in printed.out
    assert "ZeroDivisionError" in printed.out
    assert "Best so far" in printed.out
    assert "\x1b" not in printed.out + printed.err
    record: dict[str, Any] = show.record()
    assert len(record["experiments"]) == 10
    assert [len(e["ideas"]) for e in cli.service.epochs[record["search"].id]] == [4, 4]


def failed(position: int, stage: str) -> Any:
    failure = {"stage": stage, "code": "c", "message": "m"}
    return experiment(position, state="failed", failure=failure)


def test_every_broken_promise_is_named() -> None:
    good = [experiment(i, metric=2.0, comparison=comparison()) for i in range(8)]
    whole = [*good, failed(8, "implement"), failed(9, "train")]
    assert unmet(whole) == []
    assert "at least 8" in unmet(whole[1:])[0]
    noise = comparison(verdict="undecided")
    dull = [experiment(i, metric=2.0, comparison=noise) for i in range(8)]
    assert unmet([*dull, *whole[8:]]) == [
        "missing: an idea that is called better than the baseline"
    ]
    assert unmet(whole[:9]) == ["missing: an idea that failed at train"]
    assert unmet([*whole[:8], whole[9]]) == ["missing: an idea that failed at implement"]
    assert unmet_by_search(None)
    assert unmet_by_search(SearchBody.model_construct(state="running", best=[]))


def run_demo(
    tmp_path: Path, program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, *flags: str
) -> subprocess.Popen[str]:
    """`assay demo` as a process of its own, with another `serve`."""
    folder = tmp_path / "environments"
    code = textwrap.dedent(
        f"""
        import functools, signal
        from assay.cli import server
        # Where the tests run in a shell's background, SIGINT is ignored from the start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server.serving = functools.partial(server.serving, program={program!r})
        from assay.cli import main
        main(["demo", "--env", "fake", "--profile", "tiny", *{flags!r}])
        """
    )
    environment = {**os.environ, "ASSAY_ENVIRONMENTS": str(folder), "NO_COLOR": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def environment_folder(tmp_path: Path) -> None:
    from tests.cli.test_env import MANIFEST, PREPARE

    path = tmp_path / "environments" / "fake"
    (path / "codebase").mkdir(parents=True)
    (path / "evaluator").mkdir()
    (path / "environment.toml").write_text(MANIFEST)
    (path / "prepare.py").write_text(PREPARE)
    (path / "evaluator" / "evaluate.py").write_text("def evaluate(run):\n    return {}\n")


@pytest.mark.usefixtures("environment_folder")
def test_the_demo_as_a_whole(
    tmp_path: Path, fake_serve: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run_demo(tmp_path, fake_serve, monkeypatch)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "sandbox: bubblewrap (it works)" in err
    assert "Everything came out as promised" in out
    assert "database: db" in out
    assert (tmp_path / ".assay" / "demo" / "stopped").exists()
    assert "\x1b" not in out + err


@pytest.mark.usefixtures("environment_folder")
@pytest.mark.slow
def test_the_demo_keeps_serving_until_it_is_interrupted(
    tmp_path: Path, fake_serve: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run_demo(tmp_path, fake_serve, monkeypatch, "--keep-serving")
    assert process.stderr is not None
    for line in process.stderr:
        if "until Ctrl-C" in line:
            break
    assert not (tmp_path / ".assay" / "demo" / "stopped").exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert (tmp_path / ".assay" / "demo" / "stopped").exists()


@pytest.mark.usefixtures("environment_folder")
def test_the_demo_fails_if_a_promise_is_not_kept(
    tmp_path: Path, fake_serve: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(fake_serve[1])
    script.write_text(
        script.read_text().replace("FakeService())", "FakeService(outcome=lambda text: 3.0))")
    )
    process = run_demo(tmp_path, fake_serve, monkeypatch)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "The demo failed: missing: an idea that failed at train" in out
    assert (tmp_path / ".assay" / "demo" / "stopped").exists()

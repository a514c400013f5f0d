"""What all adapters share: candidates are experiments, each codebase once; failures are scores."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest
from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

from assay.adapters import Candidate, Evaluator, NoResult, Score
from assay.adapters.gepa import CandidateEvaluator
from assay.adapters.openevolve import ProgramEvaluator
from assay.client import Client
from assay.contracts.batch import ExperimentBody
from assay.domain.errors import InvalidInput
from tests.docs.reading import DOCS, blocks
from tests.support.service import ServiceProcess
from tests.support.waiting import wait_until

OLD = "STEP = 0.6"


@pytest.fixture(autouse=True)
def _address(service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_API_URL", str(service.ready["api"]))


@pytest.fixture
def evaluator() -> Iterator[Evaluator]:
    with Evaluator("toy", "tiny") as evaluator:
        yield evaluator


def with_step(evaluator: Evaluator, step: object) -> dict[str, str]:
    """The program with another step."""
    text = evaluator.file("search.py")
    assert OLD in text
    return {"search.py": text.replace(OLD, f"STEP = {step}")}


def submitted(client: Client) -> list[ExperimentBody]:
    return list(client.experiments.list())


def test_candidates_are_measured_together_and_failures_are_scores(
    evaluator: Evaluator, client: Client
) -> None:
    before = len(list(client.batches.list()))
    program = evaluator.file("search.py")
    good, same, crashed, protected, hidden, torn = evaluator.score_all(
        [
            Candidate(with_step(evaluator, 0.3)),
            Candidate(with_step(evaluator, 0.3)),
            Candidate({"search.py": f"{program}\nraise ValueError('\\x1b[2J\\u202eno')\n"}),
            Candidate({"landscape.py": "def load_landscape(): ...\n"}),
            Candidate({"landscape/__init__.py": ""}),
            Candidate({"search.py": "\ud800"}),
        ]
    )
    assert len(list(client.batches.list())) == before + 1
    shown = client.experiments.get(good.experiment or "")
    assert (good.reward, good.metric, good.state) == (shown.reward, shown.metric, "succeeded")
    assert good.codebase == shown.codebase
    assert shown.comparison is not None
    assert good.verdict is not None
    assert good.feedback.startswith(f"score {shown.metric:.6g} on 1 seed")
    assert same is good

    failed = client.experiments.get(crashed.experiment or "")
    assert failed.failure is not None
    assert (crashed.state, crashed.reward, crashed.metric) == ("failed", 0.0, None)
    assert crashed.failure.startswith("train (crashed): ValueError: ")
    assert not {"\x1b", "\u202e"} & set(crashed.failure), "it is printed on terminals"
    for refused, said in ((protected, "protected"), (hidden, "landscape"), (torn, "unicode")):
        assert (refused.state, refused.experiment) == ("refused", None)
        assert (refused.reward, refused.succeeded) == (0.0, False)
        assert said in refused.failure


def test_a_codebase_is_submitted_once_while_threads_ask_for_it(
    evaluator: Evaluator, client: Client
) -> None:
    before = len(submitted(client))
    ready = threading.Barrier(8)

    def ask(number: int) -> Score:
        ready.wait()
        return evaluator.score(with_step(evaluator, 0.31 if number % 2 else 0.32))

    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(ask, range(8)))
    assert len(submitted(client)) == before + 2
    assert len({score.experiment for score in scores}) == 2
    assert scores[0] == scores[2] != scores[1]

    by_hash = evaluator.score(scores[0].codebase)
    assert by_hash is scores[0]


def test_seeds_are_measurements_of_one_experiment(evaluator: Evaluator, client: Client) -> None:
    score = evaluator.score(with_step(evaluator, 0.3), seeds=[0, 1])
    experiment = client.experiments.get(score.experiment or "")
    seeds = [client.measurements.get(each).seed for each in experiment.measurements]
    assert sorted(seeds) == [0, 1]
    assert score.reward == experiment.reward


def score_in_child(evaluator: Evaluator, steps: list[float], told: Connection) -> None:
    told.send([evaluator.score(with_step(evaluator, step)).codebase for step in steps])
    evaluator.close()


def test_a_forked_process_has_its_own_connection(evaluator: Evaluator) -> None:
    """Two processes that read from one connection would take each other's answers."""
    evaluator.score(with_step(evaluator, 0.3))
    steps = [0.3, 0.33, 0.34]
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=score_in_child, args=(evaluator, steps, there))
    child.start()
    own = [evaluator.score(with_step(evaluator, step)).codebase for step in steps]
    assert here.recv() == own
    child.join()
    assert child.exitcode == 0


def test_what_is_cancelled_has_no_score_and_can_be_asked_for_again(
    evaluator: Evaluator, client: Client
) -> None:
    waiting = {"search.py": "import time\n\ntime.sleep(15)\n"}
    known = {batch.id for batch in client.batches.list()}

    def cancel() -> None:
        def new() -> list[str]:
            return [batch.id for batch in client.batches.list() if batch.id not in known]

        wait_until(lambda: bool(new()), "the candidate is submitted")
        (batch,) = new()
        known.add(batch)
        client.batches.cancel(batch)

    for _ in range(2):
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(evaluator.score, waiting)
            cancel()
            with pytest.raises(NoResult, match=r"was not measured \(cancelled"):
                asked.result()


def test_what_cannot_work_is_refused_with_the_remedy(evaluator: Evaluator) -> None:
    with pytest.raises(InvalidInput, match=r"seeds: name at least one"):
        Evaluator("toy", "tiny", seeds=[])
    with ProgramEvaluator("toy", "tiny", file="nothing.py") as openevolve:
        with pytest.raises(
            InvalidInput, match=r"nothing\.py: the codebase has landscape\.py, sea"
        ):
            _ = openevolve.program
    with CandidateEvaluator("toy", "tiny") as gepa:
        wrong: Any = [("a plain text", None)]
        with pytest.raises(InvalidInput, match="seed_candidate: give texts by file name"):
            gepa(wrong)
        wrong = [({}, "x")]
        with pytest.raises(InvalidInput, match="dataset: 'x' is no seed"):
            gepa(wrong)


@pytest.mark.parametrize("package", ["openevolve", "skydiscover"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    adapter = importlib.import_module(f"assay.adapters.{package}")
    with pytest.raises(ImportError, match=rf"pip install 'assay\[{package}\]'"):
        adapter.ProgramEvaluator("toy", "tiny", file="search.py")


def test_gepa_tells_its_model_why_a_candidate_failed() -> None:
    with CandidateEvaluator("toy", "tiny") as evaluate:
        program = evaluate.file("search.py").replace("STEP = 0.6", "STEP = undefined")
        prompts: list[str] = []

        def reflect(prompt: str | list[dict[str, Any]]) -> str:
            assert isinstance(prompt, str)
            prompts.append(prompt)
            return f"```\n{program.replace('undefined', '0.3')}\n```"

        best = optimize_anything(
            {"search.py": program},
            batch_evaluator=evaluate,
            dataset=[0, 1],
            config=GEPAConfig(
                engine=EngineConfig(max_candidate_proposals=1),
                reflection=ReflectionConfig(reflection_lm=reflect),
            ),
        )
        assert "## Error\ntrain (crashed): NameError: name 'undefined' is not" in prompts[0]
        fixed = [evaluate.score(best.best_candidate, seeds=[seed]) for seed in (0, 1)]
        assert best.val_subscores[1] == {0: fixed[0].reward, 1: fixed[1].reward}
        assert best.val_subscores[0] == {0: 0.0, 1: 0.0}


def test_the_loop_of_the_page_works(capsys: pytest.CaptureFixture[str]) -> None:
    *_, last = (block for block in blocks(DOCS / "adapters.md") if block.language == "python")
    names: dict[str, Any] = {}
    exec(compile(last.text, "adapters.md", "exec"), names)
    names["evaluate"].close()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert all(line.split()[1:3] == ["score", line.split()[0]] for line in printed)

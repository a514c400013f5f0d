"""Whatever an evaluator does, an outcome comes out; in time, and with nothing left running."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation import (
    Evaluation,
    EvaluationCancelled,
    EvaluationOutcome,
    Rejection,
    evaluate_artifact,
    evaluate_in_child,
    start_evaluation_server,
)
from assay.sandbox import SandboxSettings
from tests.evaluation.conftest import MakeRequest

DOCKER = os.environ.get("ASSAY_TEST_DOCKER")

PREDICT = """
import json, os, struct, sys
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
answers.write(struct.pack("<4sI", b"ASSY", 15) + b'{{"op": "ready"}}')
answers.flush()
sys.stdin.buffer.peek(1)
{setup}
while len(prefix := sys.stdin.buffer.read(8)) == 8:
    header = json.loads(sys.stdin.buffer.read(struct.unpack("<4sI", prefix)[1]))
    sys.stdin.buffer.read(4)
    {each}
    text = json.dumps({{"seq": header["seq"],
                        "arrays": [{{"name": "y", "dtype": "uint8", "shape": [1]}}]}}).encode()
    answers.write(struct.pack("<4sI", b"ASSY", len(text)) + text + bytes([7]))
    answers.flush()
"""

ASK = """
import numpy as np
def evaluate(run):
    with run.predictor() as predictor:
        for reveals in (False, True):
            y = predictor.ask("q", {"x": np.zeros(1, np.int32)}, {"y": ("uint8", (1,))},
                              reveals=reveals)["y"]
    return {"m": int(y[0])}
"""


def failure_code(outcome: EvaluationOutcome) -> str:
    assert outcome.metrics is None
    assert outcome.failure is not None
    return outcome.failure.code


def test_the_evaluator_sees_its_inputs_and_its_metrics_come_out(request_for: MakeRequest) -> None:
    request = request_for("""
    def evaluate(run):
        found = run.read_json("a.json", max_bytes=100)
        assert run.held_out.name == "held_out"
        return {"m": found["x"] * run.config["size"], "m/extra": run.seed}
    """)
    (request.artifact_dir / "a.json").write_text('{"x": 2}')
    outcome = evaluate_artifact(request)
    assert outcome.metrics == {"m": 6.0, "m/extra": 11.0}
    assert outcome.failure is None
    assert 0 < outcome.cpu_seconds < 5
    assert 0 < outcome.seconds < 5


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("return {'m': float('nan')}", FailureCode.NOT_FINITE, "m is nan"),
        ("return {'m': 1.0, 'z': float('inf')}", FailureCode.NOT_FINITE, "z is inf"),
        ("return {'m': -1e101}", FailureCode.NOT_FINITE, r"m is -1e\+101"),
        ("return {'other': 1.0}", FailureCode.EVALUATOR_ERROR, "metric 'm'"),
        ("return None", FailureCode.EVALUATOR_ERROR, "metric 'm'"),
        ("return {'m': '1.0'}", FailureCode.EVALUATOR_ERROR, "str"),
        ("return {'m': [1.0]}", FailureCode.EVALUATOR_ERROR, "list"),
        ("1 / 0", FailureCode.EVALUATOR_ERROR, r"ZeroDivisionError.*evaluate.py:1"),
        ("raise SystemExit(3)", FailureCode.EVALUATOR_ERROR, "SystemExit"),
        ("import nothing_of_this_name", FailureCode.EVALUATOR_ERROR, "nothing_of_this_name"),
        ("run.reject('wrong_shape', 'no points')", FailureCode.WRONG_SHAPE, "no points"),
        ("run.reject('no such code', '')", FailureCode.EVALUATOR_ERROR, "no such code"),
        ("run.reject('crashed', '')", FailureCode.EVALUATOR_ERROR, "declare it under"),
        ("run.reject('evaluation_interrupted', '')", FailureCode.EVALUATOR_ERROR, "declare it"),
        ("run.read_json('a.json')", FailureCode.MISSING_ARTIFACT, "a.json"),
        ("run.predictor()", FailureCode.EVALUATOR_ERROR, "no predict entry point"),
    ],
)
def test_whatever_goes_wrong_has_a_code(
    request_for: MakeRequest, body: str, code: FailureCode, words: str
) -> None:
    outcome = evaluate_artifact(request_for(f"def evaluate(run): {body}"))
    assert failure_code(outcome) is code
    assert outcome.failure is not None
    with pytest.raises(ValueError, match=words):
        raise ValueError(f"{outcome.failure.message} {outcome.failure.detail}")


def test_an_evaluator_that_is_no_python_is_an_evaluator_error(request_for: MakeRequest) -> None:
    for text in ("def evaluate(run:", "x = 1"):
        outcome = evaluate_artifact(request_for(text))
        assert failure_code(outcome) is FailureCode.EVALUATOR_ERROR


def test_secret_numbers_depend_on_the_held_out_text(request_for: MakeRequest) -> None:
    request = request_for(
        "def evaluate(run): return {'m': int(run.secret_rng().integers(1 << 40))}"
    )
    held_out = request.held_out / "deep"
    held_out.mkdir()
    drawn = []
    for text, seed in (("a", 1), ("a", 1), ("b", 1), ("a", 2)):
        (held_out / "text.bin").write_text(text)
        outcome = evaluate_artifact(dataclasses.replace(request, seed=seed))
        assert outcome.metrics is not None
        drawn.append(outcome.metrics["m"])
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_secret_samples_are_other_ones_for_another_codebase_or_artifact(
    request_for: MakeRequest,
) -> None:
    request = request_for("")

    def drawn() -> int:
        return int(Evaluation.begin(request).artifact_rng("x").integers(1 << 60))

    found = [drawn()]
    (request.artifact_dir / "model").write_text("weights")
    found.append(drawn())
    (request.codebase_dir / "model.py").write_text("leak = 1")
    found.append(drawn())
    (request.held_out / "text.bin").write_text("text")
    found.append(drawn())
    assert len(set(found)) == 4
    assert drawn() == found[-1]
    assert Evaluation.begin(request).artifact_rng("y").integers(1 << 60) != found[-1]


def test_an_exception_cannot_carry_held_out_data_away(request_for: MakeRequest) -> None:
    outcome = evaluate_artifact(
        request_for("""
        def evaluate(run):
            raise KeyError("the answer is 42")
        """)
    )
    assert failure_code(outcome) is FailureCode.EVALUATOR_ERROR
    assert outcome.failure is not None
    assert outcome.failure.message == Rejection.EVALUATOR_ERROR.sentence
    assert outcome.failure.detail == "KeyError: 'the answer is 42' (evaluate.py:3)"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("'no points'", "no points"),
        ("f'no {run.config[\"size\"]}'", Rejection.WRONG_SHAPE.sentence),
        ("'no ' + str(run.config['size'])", Rejection.WRONG_SHAPE.sentence),
    ],
)
def test_an_evaluator_rejects_in_its_own_words_if_they_are_literals(
    request_for: MakeRequest, message: str, told: str
) -> None:
    outcome = evaluate_artifact(
        request_for(f"def evaluate(run): run.reject('wrong_shape', {message})")
    )
    assert outcome.failure is not None
    assert outcome.failure.message == told
    assert outcome.failure.detail in ("no points", "no 3")


def test_a_missing_file_is_named_if_the_evaluator_names_it(request_for: MakeRequest) -> None:
    named = evaluate_artifact(request_for("def evaluate(run): run.read_json('a.json')"))
    computed = evaluate_artifact(
        request_for("def evaluate(run): run.read_bytes(f'{run.seed}.bin', 9)")
    )
    assert named.failure is not None
    assert computed.failure is not None
    assert named.failure.message == f"a.json: {Rejection.MISSING_ARTIFACT.sentence}"
    assert computed.failure.message == Rejection.MISSING_ARTIFACT.sentence
    assert "11.bin" in computed.failure.detail


def test_a_predictor_answers_and_its_cpu_time_counts(request_for: MakeRequest) -> None:
    setup = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    outcome = evaluate_artifact(request_for(ASK, PREDICT.format(setup=setup, each="")))
    assert outcome.metrics == {"m": 7.0}
    assert outcome.cpu_seconds > 0.3


def test_the_predictor_sees_what_it_is_promised_and_no_data(request_for: MakeRequest) -> None:
    setup = textwrap.dedent("""
    config = json.load(open(os.environ["ASSAY_CONFIG"]))
    assert config == {"size": 3}
    assert open(os.path.join(os.environ["ASSAY_OUT"], "model")).read() == "weights"
    assert os.environ["ASSAY_SEED"] == "12" and os.environ["ASSAY_PROFILE"] == "tiny"
    assert os.environ["ASSAY_HARDWARE_CLASS"] == "cpu-fp32"
    assert os.environ["OMP_NUM_THREADS"] == os.environ["ASSAY_THREADS"] == "1"
    assert "ASSAY_DATA" not in os.environ and os.path.exists("predict.py")
    """)
    request = request_for(ASK, PREDICT.format(setup=setup, each=""))
    (request.artifact_dir / "model").write_text("weights")
    outcome = evaluate_artifact(request)
    assert outcome.metrics == {"m": 7.0}, outcome.failure


def test_why_a_predictor_cannot_start_is_for_the_workers_log(request_for: MakeRequest) -> None:
    predict = PREDICT.format(setup="raise KeyError('blocks.0.weight')", each="")
    outcome = evaluate_artifact(request_for(ASK, predict))
    assert failure_code(outcome) is FailureCode.PREDICTOR_DIED
    assert outcome.failure is not None
    assert outcome.failure.message == Rejection.DIED_AT_START.sentence
    assert "code 1" in outcome.failure.detail
    assert "KeyError: 'blocks.0.weight'" in outcome.failure.detail


def test_what_a_predictor_says_after_it_saw_secrets_is_dropped(request_for: MakeRequest) -> None:
    setup = "print('before', flush=True); asked = 0"
    each = "asked += 1; asked == 2 and (print('the labels are', 42, flush=True), sys.exit(9))"
    outcome = evaluate_artifact(request_for(ASK, PREDICT.format(setup=setup, each=each)))
    assert failure_code(outcome) is FailureCode.PREDICTOR_DIED
    assert outcome.failure is not None
    assert outcome.failure.message == Rejection.PREDICTOR_DIED.sentence
    assert "before" in outcome.failure.detail
    assert "labels" not in outcome.failure.detail


def test_a_silent_predictor_runs_into_the_deadline_and_dies(request_for: MakeRequest) -> None:
    setup = "import time; time.sleep(60)"
    request = request_for(ASK, PREDICT.format(setup=setup, each=""), seconds=1.0)
    started = time.monotonic()
    outcome = evaluate_artifact(request)
    assert failure_code(outcome) is FailureCode.TIMEOUT
    assert time.monotonic() - started < 10
    assert not [p for p in psutil.Process().children(recursive=True) if _is_predictor(p)]
    assert not list(request.sandbox.scratch.iterdir())


def test_a_child_gives_the_same_outcome(request_for: MakeRequest) -> None:
    request = request_for("""
    import os
    def evaluate(run): return {'m': os.getpid()}
    """)
    start_evaluation_server()
    first, second = evaluate_in_child(request), evaluate_in_child(request)
    assert first.metrics is not None
    assert second.metrics is not None
    assert len({first.metrics["m"], second.metrics["m"], float(os.getpid())}) == 3


def test_a_child_talks_to_a_predictor(request_for: MakeRequest) -> None:
    outcome = evaluate_in_child(request_for(ASK, PREDICT.format(setup="", each="")))
    assert outcome.metrics == {"m": 7.0}, outcome.failure


def test_a_small_evaluation_in_a_child_is_quick(request_for: MakeRequest) -> None:
    request = request_for("def evaluate(run): return {'m': 1.0}")
    start_evaluation_server()
    evaluate_in_child(request)
    durations = []
    for _ in range(5):
        started = time.monotonic()
        evaluate_in_child(request)
        durations.append(time.monotonic() - started)
    # About 10 ms; an interpreter of its own would take ten times as long.
    assert min(durations) < 0.1


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "__import__('time').sleep(60)",
        "__import__('ctypes').CDLL(None).sleep(60)",
    ],
)
def test_an_evaluator_that_does_not_end_is_killed(request_for: MakeRequest, body: str) -> None:
    request = request_for(f"def evaluate(run):\n    {body}", seconds=0.5)
    started = time.monotonic()
    outcome = evaluate_in_child(request)
    assert failure_code(outcome) is FailureCode.TIMEOUT
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("message", "told"),
    [("'Circles overlap.'", "Circles overlap."), ("f'{1 + 1} overlap'", "It overlaps.")],
)
def test_an_evaluator_rejects_with_a_code_that_its_environment_declares(
    request_for: MakeRequest, message: str, told: str
) -> None:
    evaluator = f"def evaluate(run): run.reject('infeasible', {message})"
    request = request_for(evaluator, declared_failures={"infeasible": "It overlaps."})
    outcome = evaluate_in_child(request)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.message) == ("infeasible", told)
    undeclared = evaluate_in_child(request_for(evaluator))
    assert failure_code(undeclared) is FailureCode.EVALUATOR_ERROR


def test_an_evaluator_that_is_killed_is_the_hosts_fault(request_for: MakeRequest) -> None:
    outcome = evaluate_in_child(
        request_for("import os\ndef evaluate(run): os.kill(os.getpid(), 9)")
    )
    assert failure_code(outcome) is FailureCode.EVALUATION_INTERRUPTED


def test_cancelling_stops_child_and_predictor(request_for: MakeRequest, tmp_path: Path) -> None:
    mark = tmp_path / "artifact" / "started"
    setup = (
        "import time, pathlib;"
        f"pathlib.Path({str(mark)!r}).write_text(str(os.getpid()));"
        "time.sleep(60)"
    )
    request = request_for(ASK, PREDICT.format(setup=setup, each=""))
    cancel = threading.Event()

    def when_started() -> None:
        for _ in range(200):
            if mark.exists() and mark.read_text():
                break
            time.sleep(0.05)
        cancel.set()

    watcher = threading.Thread(target=when_started)
    watcher.start()
    with pytest.raises(EvaluationCancelled):
        evaluate_in_child(request, cancel)
    watcher.join()
    assert not psutil.pid_exists(int(mark.read_text()))


def test_a_child_does_not_import_the_callers_main_module(
    request_for: MakeRequest, tmp_path: Path
) -> None:
    """A worker's command takes a second to import, and may do things when it is."""
    request = request_for("def evaluate(run): return {'m': 1.0}")
    script = tmp_path / "main.py"
    count = tmp_path / "imports"
    script.write_text(
        textwrap.dedent(f"""
        import pathlib, pickle, sys
        with open({str(count)!r}, "a") as file:
            file.write("x")
        if __name__ == "__main__":
            from assay.evaluation import evaluate_in_child
            request = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
            assert evaluate_in_child(request).metrics == {{"m": 1.0}}
            assert __spec__ is None
        """)
    )
    pickled = tmp_path / "request"
    pickled.write_bytes(pickle.dumps(request))
    subprocess.run([sys.executable, str(script), str(pickled)], check=True)
    assert count.read_text() == "x"


def test_children_do_not_outlive_a_killed_caller(request_for: MakeRequest, tmp_path: Path) -> None:
    mark = tmp_path / "artifact" / "started"
    request = request_for(f"""
    import os, pathlib, time
    def evaluate(run):
        pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))
        time.sleep(60)
    """)
    pickled = tmp_path / "request"
    pickled.write_bytes(pickle.dumps(request))
    code = (
        "import pathlib, pickle, sys; from assay.evaluation import evaluate_in_child;"
        "evaluate_in_child(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(pickled)])
    deadline = time.monotonic() + 20
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    caller.kill()
    caller.wait()
    child = int(mark.read_text())
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not psutil.pid_exists(child)


@pytest.mark.bubblewrap
def test_under_bubblewrap_nothing_passes_from_one_instance_to_the_next(
    request_for: MakeRequest, tmp_path: Path
) -> None:
    setup = textwrap.dedent("""
    import glob
    places = ["/tmp", "/dev/shm", ".", os.environ["ASSAY_OUT"], os.environ.get("HOME", "/")]
    assert not [found for place in places for found in glob.glob(place + "/left-behind")]
    for place in places:
        try:
            open(place + "/left-behind", "w").write("t = 17")
        except OSError:
            continue
    """)
    evaluator = """
    import numpy as np
    def evaluate(run):
        for _ in range(2):
            with run.predictor() as predictor:
                predictor.ask("q", {"x": np.zeros(1, np.int32)}, {"y": ("uint8", (1,))},
                              reveals=False)
        return {"m": 1.0}
    """
    request = request_for(
        evaluator,
        PREDICT.format(setup=setup, each=""),
        sandbox=SandboxSettings("bubblewrap", scratch=tmp_path / "scratch"),
    )
    outcome = evaluate_in_child(request)
    assert outcome.metrics == {"m": 1.0}, outcome.failure
    assert not list((tmp_path / "codebase").glob("left-behind"))
    assert not list((tmp_path / "artifact").glob("left-behind"))


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow]),
    ],
)
def test_a_predictor_does_not_see_the_curve(
    request_for: MakeRequest, tmp_path: Path, backend: str
) -> None:
    """It is not in the hash that the secret positions come from, so nothing may depend on it."""
    setup = textwrap.dedent("""
    out = os.environ["ASSAY_OUT"]
    assert open(out + "/metrics.jsonl").read() == ""
    assert open(out + "/deep/metrics.jsonl").read() == "deep"
    assert sorted(os.listdir(out)) == ["deep", "metrics.jsonl"]
    """)
    request = request_for(
        ASK,
        PREDICT.format(setup=setup, each=""),
        sandbox=SandboxSettings(backend, scratch=tmp_path / "scratch", docker_host=DOCKER),
    )
    (request.artifact_dir / "deep").mkdir()
    (request.artifact_dir / "deep" / "metrics.jsonl").write_text("deep")
    (request.artifact_dir / "metrics.jsonl").write_text('{"step": 1}')
    outcome = evaluate_artifact(request)
    assert outcome.metrics == {"m": 7.0}, outcome.failure
    assert (request.artifact_dir / "metrics.jsonl").read_text() == '{"step": 1}'


def _is_predictor(process: psutil.Process) -> bool:
    try:
        return "predict.py" in " ".join(process.cmdline())
    except psutil.Error:
        return False

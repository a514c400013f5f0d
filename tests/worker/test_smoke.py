"""Smokes: a codebase is started, and ended as soon as it has shown that it starts."""

import json
import os
import threading
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from assay.contracts.environment import EnvironmentManifest
from assay.sandbox import Exit
from assay.storage.shapes import bound_seconds
from services.worker.gpus import lock_folder
from services.worker.smoke import SmokeWatch
from tests.support.fake_worker_api import Record
from tests.worker.conftest import Lab

STEPS = """
curve = (out / "metrics.jsonl").open("a")
def point(**values):
    curve.write(json.dumps(values) + "\\n")
    curve.flush()
"""
#: Nothing but a kill ends this.
HANG = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def smoke(lab: Lab, train: str, profile: str = "long", **changes: Any) -> Record:
    """Assign a smoke of this code."""
    return lab.assign(lab.codebase(train), profile, kind="smoke", **changes)


def passed(end: dict[str, Any]) -> str:
    """How a smoke passed; it says nothing else."""
    assert (end["state"], end["failure"]) == ("succeeded", None)
    assert (end["metrics"], end["artifacts"]) == ({}, [])
    assert end["started"]
    return str(end["provenance"]["passed"])


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_it_passes_as_soon_as_steps_were_taken_and_nothing_is_left(lab: Lab) -> None:
    lab.start(grace_seconds=60)
    header = "point(step=0, parameters=7)\npoint(step=0, loss=2.0)\n"
    said = "print(os.environ['ASSAY_SECONDS'], config['budget'], os.environ['ASSAY_PROFILE'])\n"
    config = "config = json.load(open(os.environ['ASSAY_CONFIG']))\n"
    child = (
        "import subprocess\n"
        "sleep = ['sleep', '600']\n"
        "child = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
    )
    train = f"{STEPS}{config}{said}{child}{header}point(step=1, loss=1.5)\n{HANG}"
    record = smoke(lab, train)
    end = lab.api.finished(record)
    assert passed(end) == "stepped"
    budget, pids = record.logs["train"].decode().splitlines()
    assert budget == "600 {'seconds': 600.0, 'evaluation_seconds': 120.0} long"
    assert not any(is_alive(int(pid)) for pid in pids.split())
    assert record.points[2]["values"] == {"loss": 1.5}
    assert "evaluation_seconds" not in end["provenance"]
    assert record.uploads == {}


def test_a_hang_before_the_first_step_is_alive(lab: Lab) -> None:
    """As is everything that is slow: only its measurement can tell."""
    lab.start(grace_seconds=60)
    header = "point(step=0, parameters=7)\npoint(step=0, loss=2.0)\n"
    end = lab.api.finished(smoke(lab, f"{STEPS}{header}{HANG}"))
    assert passed(end) == "alive"
    assert 4 <= end["seconds"] < 15


def test_a_budget_below_the_seconds_of_a_smoke_ends_it_well(lab: Lab) -> None:
    lab.start()
    assert passed(lab.api.finished(smoke(lab, "time.sleep(600)", "brief"))) == "alive"


@pytest.mark.parametrize("train", ["", "answer(score=1.0)", "raise SystemExit"])
def test_a_training_that_ends_well_passes(lab: Lab, train: str) -> None:
    lab.start()
    assert passed(lab.api.finished(smoke(lab, train))) == "exited"


@pytest.mark.parametrize(
    ("train", "line"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError: invalid syntax"),
        (
            f"{STEPS}point(step=0, parameters=7)\nimport numpy as np\n"
            "def forward(x):\n    return x @ np.ones((3, 2))\n"
            "point(step=0, loss=float(forward(np.ones((2, 2))).sum()))",
            "ValueError: matmul: Input operand 1 has a mismatch",
        ),
        (f"{STEPS}point(step=0, loss=1)\nraise KeyError('momentum')", "KeyError: 'momentum'"),
    ],
)
def test_a_crash_fails_with_its_last_line_and_the_log_has_it_all(
    lab: Lab, train: str, line: str
) -> None:
    lab.start()
    record = smoke(lab, train)
    end = lab.api.finished(record)
    failure = end["failure"]
    assert (end["state"], end["infrastructure"]) == ("failed", False)
    assert (failure["stage"], failure["code"]) == ("train", "crashed")
    assert failure["message"].startswith(line)
    *above, last = record.logs["train"].decode().strip().splitlines()
    assert last == failure["message"]
    assert any(text.lstrip().startswith("File ") and "train.py" in text for text in above)


def test_a_limit_is_a_failure_of_the_code(lab: Lab) -> None:
    lab.start()
    eat = "hog = []\nwhile True: hog.append(bytearray(os.urandom(1 << 24)))"
    end = lab.api.finished(smoke(lab, f"import os\n{eat}", memory_bytes=1 << 28))
    assert (end["state"], end["failure"]["code"]) == ("failed", "memory_exceeded")


def test_one_that_nobody_wants_is_cancelled(lab: Lab) -> None:
    lab.start(progress_seconds=0.1)
    record = smoke(lab, "print('on', flush=True)\ntime.sleep(600)")
    lab.api.wait(lambda: record.logs)
    with lab.api.changed:
        lab.api.stop.add("att_1")
        lab.api.changed.notify_all()
    assert lab.api.finished(record)["state"] == "cancelled"


def test_a_worker_that_stops_gives_it_back(lab: Lab) -> None:
    lab.start(progress_seconds=0.1)
    record = smoke(lab, "print('on', flush=True)\ntime.sleep(600)")
    lab.api.wait(lambda: record.logs)
    lab.stop()
    end = lab.api.finished(record)
    assert (end["infrastructure"], end["failure"]["code"]) == (True, "worker_stopped")


def test_a_score_of_the_same_code_is_scored(lab: Lab) -> None:
    lab.start()
    codebase = lab.codebase(f"{STEPS}point(step=0, a=1)\npoint(step=1, a=2)\nanswer(score=4.0)")
    assert passed(lab.api.finished(lab.assign(codebase, kind="smoke"))) in ("stepped", "exited")
    end = lab.api.finished(lab.assign(codebase))
    assert end["metrics"] == {"score": 4.0, "goal": 3.0, "is_sealed": 0.0}
    assert len(end["provenance"]["held_out"]) == 64


@pytest.mark.bubblewrap
def test_it_is_as_isolated_as_a_measurement(lab: Lab) -> None:
    lab.start(sandbox="bubblewrap", grace_seconds=60)
    probe = "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)"
    crashed = smoke(lab, probe, needs_isolation=True)
    message = lab.api.finished(crashed)["failure"]["message"]
    assert message.startswith(("OSError: ", "ConnectionRefusedError: ", "PermissionError: "))
    steps = f"{STEPS}point(step=0, a=1)\npoint(step=1, a=2)\n{HANG}"
    assert passed(lab.api.finished(smoke(lab, steps, needs_isolation=True))) == "stepped"


class Killed(threading.Event):
    """A handle of which only the kill is watched."""

    pid = 0

    def kill(self) -> None:
        self.set()

    def gauges(self) -> dict[str, float]:
        return {}


ENDED = {"wall_seconds": 1.0, "cpu_seconds": 0.1, "peak_memory_bytes": None}


@pytest.mark.parametrize(
    ("lines", "is_enough"),
    [
        (['{"step": 0, "a": 1}', '{"step": 1, "a": 1}'], True),
        (['{"step": 0, "a": 1}', '{"step": 0, "a": 2}', '{"step": 10, "a": 2}'], True),
        (['{"a": 1}', '{"a": 2}'], True),
        (['{"step": 0, "a": 1}', '{"step": 0, "b": 1}'], False),
        (['{"step": 0, "a": 1}', '{"step": 1, "a": NaN}'], False),
        (['{"step": 0, "a": 1}', "step 1: loss 2.0"], False),
        (['{"a": 1}'], False),
        ([], False),
    ],
)
def test_which_curves_show_that_steps_were_taken(
    tmp_path: Path, lines: list[str], is_enough: bool
) -> None:
    noted, handle = threading.Event(), Killed()
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    descriptor = os.open(tmp_path, os.O_RDONLY)
    watch = SmokeWatch(descriptor, 30 if is_enough else 0.3, noted.set)
    watch.start(handle)  # type: ignore[arg-type]
    assert handle.wait(10)
    watch.stop()
    os.close(descriptor)
    assert noted.is_set()
    wanted = "stepped" if is_enough else "alive"
    assert watch.passed(Exit("cancelled", -9, **ENDED)) == wanted
    assert watch.passed(Exit("wall", -9, **ENDED)) == wanted
    assert watch.passed(Exit("exited", 1, **ENDED)) is None
    assert watch.passed(Exit("memory", -9, **ENDED)) is None


def test_an_end_by_somebody_else_is_none(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    watch = SmokeWatch(descriptor, 30, lambda: None)
    watch.start(Killed())  # type: ignore[arg-type]
    watch.stop()
    os.close(descriptor)
    assert watch.passed(Exit("cancelled", -15, **ENDED)) is None
    assert watch.passed(Exit("wall", -9, **ENDED)) == "alive"  # nobody watched any more
    assert watch.passed(Exit("exited", 0, **ENDED)) == "exited"


def manifest(profiles: dict[str, dict[str, Any]], **smoke: Any) -> EnvironmentManifest:
    return EnvironmentManifest.model_validate(
        {
            "name": "some",
            "title": "Some",
            "problem": "Answer.",
            "metric": {"name": "score", "direction": "maximize"},
            "entry_points": {"train": ["python", "train.py"]},
            "profiles": profiles,
            **({"smoke": smoke} if smoke else {}),
        }
    )


def sized(seconds: float, gpus: int = 0) -> dict[str, Any]:
    budget = {"seconds": seconds, "evaluation_seconds": 30, "cpu_seconds": 40, "tokens": 9}
    return {"gpus": gpus, "budget": budget, "config": {"a": 1}}


@pytest.mark.parametrize(
    ("profiles", "said", "name", "seconds"),
    [
        ({"large": sized(900), "tiny": sized(120)}, {}, "tiny", 20),
        ({"tiny": sized(10), "large": sized(900)}, {}, "tiny", 10),
        ({"tiny": sized(50), "mini": sized(5)}, {}, "tiny", 20),
        ({"tiny": sized(5, gpus=1), "large": sized(900), "small": sized(60)}, {}, "small", 20),
        ({"tiny": sized(50), "mini": sized(90)}, {"profile": "mini", "seconds": 60}, "mini", 60),
    ],
)
def test_which_profile_a_smoke_has(
    profiles: dict[str, Any], said: dict[str, Any], name: str, seconds: float
) -> None:
    found = manifest(profiles, **said)
    chosen = found.smoke_profile(name)
    assert chosen is not None
    assert (chosen[0], chosen[1].budget.seconds) == (name, seconds)
    assert chosen[1].budget.evaluation_seconds == 30
    whole = found.profiles[name]
    assert chosen[1].model_copy(update={"budget": whole.budget}) == whole
    assert chosen[1].budget.tokens == 9
    again = EnvironmentManifest.model_validate(json.loads(found.model_dump_json()))
    assert again == found
    assert ("smoke" in found.model_dump()) == bool(said)


def test_an_environment_for_gpus_alone_has_no_smokes() -> None:
    assert manifest({"paper": sized(900, gpus=8)}).smoke_profile("paper") is None


SMALL = {"cpus": 2, "memory_gb": 1.5, "config": {"a": 2, "b": 3}}


def test_a_profile_with_a_smoke_of_its_own_is_tried_as_itself() -> None:
    whole = sized(900, gpus=8) | {"cpus": 32, "artifact_gb": 4.0}
    found = manifest({"tiny": sized(50), "paper": whole | {"smoke": SMALL}, "other": whole})
    chosen = found.smoke_profile("paper")
    assert chosen is not None
    name, small = chosen
    assert (name, small.cpus, small.gpus, small.memory_gb) == ("paper", 2, 1, 1.5)
    assert small.config == {"a": 2, "b": 3}
    assert small.budget.seconds == 90
    # A host that has not prepared the profile's data has as long for it as a measurement has.
    measured = manifest({"paper": sized(900, gpus=8)}).profiles["paper"]
    assert bound_seconds(small) - 90 == bound_seconds(measured)
    for without in ("tiny", "other"):
        chosen = found.smoke_profile(without)
        assert chosen is not None
        assert (chosen[0], chosen[1].budget.seconds) == ("tiny", 20)
    again = EnvironmentManifest.model_validate(json.loads(found.model_dump_json()))
    assert again == found
    stored = found.model_dump()["profiles"]
    assert ("smoke" in stored["tiny"], "artifact_gb" in stored["tiny"]) == (False, False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"gpus": 9}, "smoke.gpus: 9 is more than the 8 of the profile; lower it"),
        ({"seconds": 901}, "smoke.seconds: 901 is more than the 900"),
        ({"memory_gb": 3}, "smoke.memory_gb: 3 is more than the 2"),
        ({"flags": []}, "Extra inputs"),
    ],
)
def test_a_smoke_is_no_larger_than_its_profile(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        manifest({"paper": sized(900, gpus=8) | {"smoke": said}})


def test_the_codebase_sees_its_own_profile_made_small(lab: Lab) -> None:
    """On declared devices, since there is no driver."""
    device = f"GPU-{uuid.uuid4()}"
    lab.start(gpus=[device])
    said = """
config = json.load(open(os.environ["ASSAY_CONFIG"]))
names = ("PROFILE", "GPUS", "THREADS", "SECONDS")
print(json.dumps([os.environ[f"ASSAY_{name}"] for name in names]))
print(json.dumps(config), flush=True)
"""
    train = f"{STEPS}{said}point(step=0, loss=2)\npoint(step=1, loss=1)\n{HANG}"
    record = smoke(lab, train, "large", gpus=1)
    try:
        end = lab.api.finished(record, 60)
    finally:
        Path(lock_folder(), f"assay-gpu-{device}.lock").unlink(missing_ok=True)
    assert passed(end) == "stepped"
    assert record.devices == [device]
    variables, config = map(json.loads, record.logs["train"].decode().splitlines())
    assert variables == ["large", "1", "1", "600"]
    budget = {"seconds": 600.0, "evaluation_seconds": 120.0}
    assert config == {"goal": 3, "width": 8, "steps": 2, "budget": budget}


def test_a_smoke_of_its_own_ends_after_its_own_seconds(lab: Lab) -> None:
    lab.start(grace_seconds=60)
    end = lab.api.finished(smoke(lab, HANG, "large"), 60)
    assert passed(end) == "alive"
    assert 4 <= end["seconds"] < 60


def test_code_that_fails_only_at_the_sizes_of_its_profile_fails_its_smoke(lab: Lab) -> None:
    lab.start()
    train = """
config = json.load(open(os.environ["ASSAY_CONFIG"]))
if os.environ["ASSAY_PROFILE"] == "large":
    raise RuntimeError(f"no kernel for width {config['width']}")
"""
    assert passed(lab.api.finished(smoke(lab, train, "small"))) == "exited"
    record = smoke(lab, train, "large")
    failure = lab.api.finished(record, 60)["failure"]
    assert (failure["stage"], failure["code"]) == ("train", "crashed")
    assert failure["message"] == "RuntimeError: no kernel for width 8"
    assert b"Traceback" in record.logs["train"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"profile": "paper"}, "'paper' is no profile with gpus = 0; those are: tiny"),
        ({"profile": "none"}, "'none' is no profile with gpus = 0"),
        ({"seconds": 0}, "greater than 0"),
        ({"second": 3}, "Extra inputs"),
    ],
)
def test_a_manifest_that_cannot_be_right(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        manifest({"tiny": sized(5), "paper": sized(900, gpus=8)}, **said)

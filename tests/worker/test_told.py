"""What leaves the worker about a predictor that misbehaves: the same, whatever it chose.

The codebase of both attempts is the same. Its predictor reads its choice from a file outside, as
if it came from the held-out data, and everything reported to the API must be equal but for times.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from assay.evaluation import Rejection
from tests.support.fake_worker_api import Record
from tests.worker.conftest import Lab

CHOICES = (b"osen one", b"lost two")
"""As the length of a header, `osen` is 1852142447."""

MODEL = """
import json, os, pathlib, struct, sys, time
choice = pathlib.Path(CHOICE).read_bytes()
count = len(os.listdir(os.path.dirname(CHOICE))) - 1  # earlier instances of this predictor

def question():
    _, length = struct.unpack("<4sI", sys.stdin.buffer.read(8))
    return json.loads(sys.stdin.buffer.read(length))

def send(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

VALUE = 2.0
"""

MISBEHAVIOURS = {
    "header length": ("question(); send(b'ASSY' + choice[:4])", "score", "oversized"),
    "exit code": ("question(); os._exit(choice[0])", "score", "predictor_died"),
    "better than the bound": ("VALUE = 10.0 + choice[0]", "guard", "implausible"),
    "another score at the second look": (
        "pathlib.Path(CHOICE + str(count)).touch(); VALUE = 3.0 + count * choice[0] / 50",
        "guard",
        "not_confirmed",
    ),
}
SLOW = {
    "exception": ("question(); raise KeyError(choice)", "score", "predictor_died"),
    "words on stderr": ("os.write(2, choice); os._exit(1)", "score", "predictor_died"),
    "signal": ("question(); os.kill(os.getpid(), choice[0] % 2 * 3 + 6)", "score", None),
    "frame that is none": ("question(); send(choice)", "score", "malformed_frame"),
    "NaN": ("VALUE = [float('nan'), -float('nan')][choice[0] % 2]", "score", "not_finite"),
    "infinity": ("VALUE = [1, -1][choice[0] % 2] * float('inf')", "score", "not_finite"),
    "flood": ("question(); send(choice * 100_000)", "score", "malformed_frame"),
}

TIMES = {"seconds", "lease_token"}
FACTS_OF_TIME = {
    "train_seconds",
    "train_cpu_seconds",
    "train_starved_seconds",
    "peak_memory_bytes",
    "evaluation_seconds",
    "evaluation_cpu_seconds",
    "rescore_seconds",
    "rescore_cpu_seconds",
}


def everything_told(record: Record) -> bytes:
    """All that the API was told, in bytes, without times."""
    assert record.end is not None
    end: dict[str, Any] = {k: v for k, v in record.end.items() if k not in TIMES}
    facts = {k: v for k, v in end["provenance"].items() if k not in FACTS_OF_TIME}
    told = end | {"provenance": facts}
    text = json.dumps([told, record.points, record.system, record.states], sort_keys=True)
    files = [record.logs, record.uploads]
    return text.encode() + b"".join(n.encode() + d for f in files for n, d in sorted(f.items()))


def compare(lab: Lab, folder: Path, code: str, stage: str, expected: str | None) -> None:
    place = folder / "choice"
    model = (MODEL + code).replace("CHOICE", repr(str(place / "made")))
    lab.start()
    codebase = lab.codebase("answer(ask=True)", model=model)
    told = []
    for choice in CHOICES:
        place.mkdir()
        (place / "made").write_bytes(choice)
        record = lab.assign(codebase, rescore={"beyond": 2.5})
        failure = lab.api.finished(record)["failure"]
        assert failure["stage"] == stage
        assert expected in (None, failure["code"])
        told.append(everything_told(record))
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    assert told[0] == told[1]
    assert b"1852142447" not in told[0]


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_how_a_predictor_misbehaves_tells_nothing(lab: Lab, tmp_path: Path, name: str) -> None:
    compare(lab, tmp_path, *MISBEHAVIOURS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_how_else_a_predictor_misbehaves_tells_nothing(
    lab: Lab, tmp_path: Path, name: str
) -> None:
    compare(lab, tmp_path, *SLOW[name])


def test_the_worker_logs_what_it_does_not_tell(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.start()
    model = MODEL.split("choice =")[0] + (
        "magic, length = struct.unpack('<4sI', sys.stdin.buffer.read(8))\n"
        "sys.stdout.buffer.write(b'ASSYosen'); sys.stdout.buffer.flush(); time.sleep(20)\n"
    )
    record = lab.submit("answer(ask=True)", model=model)
    failure = lab.api.finished(record)["failure"]
    assert failure["message"] == Rejection.LARGE_HEADER.sentence
    assert record.logs["score"].decode() == f"{Rejection.LARGE_HEADER.sentence}\n"
    assert "1852142447" in caplog.text


def test_nothing_is_sampled_while_a_predictor_runs(lab: Lab) -> None:
    """A predictor could use more and less memory over time, and be read off the curve."""
    lab.start(sample_seconds=0.05, progress_seconds=0.05)
    record = lab.submit("time.sleep(0.5); answer(score=1.0, sleep=1.0)")
    lab.api.wait(lambda: "finalizing" in record.states)
    assert "sampler" not in {thread.name for thread in threading.enumerate()}
    assert lab.api.finished(record)["state"] == "succeeded"
    assert record.system

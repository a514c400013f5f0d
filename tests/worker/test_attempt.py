"""Attempts from claim to finish, over real HTTP and real processes."""

import base64
import errno
import io
import json
import os
import time
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.contracts.environment import Profile
from assay.domain.hashing import derive_seed
from assay.storage.shapes import bound_seconds
from services.worker import collect
from services.worker.settings import WorkerSettings
from tests.support.fake_worker_api import TOKEN
from tests.worker.conftest import Lab

ALLOWED = {
    "ASSAY_DATA",
    "ASSAY_OUT",
    "ASSAY_CONFIG",
    "ASSAY_SEED",
    "ASSAY_PROFILE",
    "ASSAY_HARDWARE_CLASS",
    "ASSAY_GPUS",
    "ASSAY_THREADS",
    "ASSAY_SECONDS",
    "CUDA_VISIBLE_DEVICES",
    "ASSAY_SANDBOX_TOKEN",  # by which the subprocess sandbox finds strays
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE",
    "HOME",
    "TMPDIR",
    "PATH",
    "LANG",
    "PWD",
    "LC_CTYPE",
}


def failure_of(end: dict[str, Any]) -> tuple[str, str, str]:
    """State of the attempt, stage and code of its failure."""
    return end["state"], end["failure"]["stage"], end["failure"]["code"]


def test_use_of_the_host_is_not_sampled_while_held_out_data_is_read(lab: Lab) -> None:
    """GPU memory and bytes on disk, every few seconds, would tell more than a rounded score."""
    scoring = 2.0
    lab.start(sample_seconds=0.05)
    record = lab.submit(f"time.sleep(0.3)\nanswer(score=1.0, sleep={scoring})\n")
    facts = lab.api.finished(record)["provenance"]
    assert facts["evaluation_seconds"] > scoring
    samples = [point["seconds"] for point in record.system.values()]
    assert len(samples) >= 3
    # Samples count from before training, so this leaves the preparation as much time as scoring.
    assert max(samples) < facts["train_seconds"] + scoring


def test_only_what_was_scored_twice_is_reported_with_a_second_evaluation(lab: Lab) -> None:
    lab.start()
    codebase = lab.codebase("answer(ask=True)")
    twice = lab.assign(codebase, rescore={"beyond": None})
    end = lab.api.finished(twice)
    assert end["rescore"]["metrics"] == {"score": 2.0, "goal": 3.0} == end["metrics"]
    assert end["rescore"]["seconds"] == end["provenance"]["rescore_seconds"] > 0
    assert "rescored" not in end["provenance"]
    once = lab.api.finished(lab.assign(codebase))
    assert once["state"] == "succeeded"
    assert "rescore" not in once  # an API of an older version would refuse it


def test_success_carries_metric_curve_log_and_provenance(lab: Lab) -> None:
    lab.start()
    record = lab.submit(
        "sys.stdout.buffer.write(b'one\\r\\x00\\xff\\n'); sys.stdout.flush()\n"
        "print('two', file=sys.stderr)\n"
        "with (out / 'metrics.jsonl').open('w') as file:\n"
        '    file.write(\'{"step": 0, "train/loss": 2.5}\\nnonsense\\n\')\n'
        '    file.write(\'{"step": 1, "train/loss": NaN, "lr": 0.1}\\n{"step": 2, "a": 1}\')\n'
        "config = json.load(open(os.environ['ASSAY_CONFIG']))\n"
        "assert config['goal'] == 3 and config['budget']['seconds'] == 20\n"
        "assert open(os.environ['ASSAY_DATA'] + '/data.txt').read() == 'train'\n"
        "answer(score=4.0)\n"
    )
    end = lab.api.finished(record)
    assert (end["state"], end["failure"]) == ("succeeded", None)
    assert end["metrics"] == {"score": 4.0, "goal": 3.0, "is_sealed": 0.0}
    assert record.logs == {"train": b"one\r\x00\xff\ntwo\n"}
    assert record.points == {
        0: {"seq": 0, "step": 0.0, "values": {"train/loss": 2.5}},
        2: {"seq": 2, "step": 1.0, "values": {"lr": 0.1}},
        3: {"seq": 3, "step": 2.0, "values": {"a": 1.0}},
    }
    facts = end["provenance"]
    assert facts["isolated"] is False
    assert facts["sandbox"] == "subprocess"
    assert facts["seed"] == 7
    assert facts["evaluation_seed"] == derive_seed(7, "evaluation")
    assert facts["hardware_class"] == "cpu-test"
    hashes = {facts[split] for split in ("train", "held_out", "sealed")}
    assert len(hashes) == 3
    assert {len(each) for each in hashes} == {64}
    assert 0 < facts["train_seconds"] < 15
    assert end["seconds"] == pytest.approx(facts["train_seconds"] + facts["evaluation_seconds"])
    with zipfile.ZipFile(io.BytesIO(record.uploads["artifact.zip"])) as archive:
        names = ["artifact/answer.json", "artifact/metrics.jsonl", "logs/train.log"]
        assert archive.namelist() == names
        assert archive.read("logs/train.log") == record.logs["train"]
    assert end["artifacts"][0]["bytes"] == len(record.uploads["artifact.zip"])


@pytest.mark.parametrize("installed", [None, "0.11.0"])
def test_provenance_has_vllms_version_where_it_is_installed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, installed: str | None
) -> None:
    found = [each for each in metadata.distributions() if each.metadata["Name"] != "vllm"]
    if installed is not None:
        found.append(SimpleNamespace(metadata={"Name": "vllm"}, version=installed))
    monkeypatch.setattr(metadata, "distributions", lambda: found)
    lab.start()
    end = lab.api.finished(lab.submit("answer(score=1.0)"))
    assert end["provenance"].get("vllm", "absent") == (installed or "absent")


def test_a_short_attempt_costs_three_requests(lab: Lab) -> None:
    lab.start(progress_seconds=30)
    lab.api.finished(lab.submit("answer(score=1.0)"))
    lab.api.requests.clear()
    lab.api.finished(lab.submit("answer(score=2.0)"))
    kinds = [
        (method, path.split("/")[-1] if "attempts" in path else path.split("/")[3])
        for method, path in lab.api.requests
        if not path.endswith("/sync")
    ]
    assert kinds == [
        ("POST", "claim"),
        ("GET", "codebases"),
        ("POST", "finish"),
    ]


def test_a_large_artifact_is_uploaded_before_the_end_is_reported(lab: Lab) -> None:
    lab.start()
    noise = "(out / 'noise').write_bytes(os.urandom(100_000))\nanswer(score=1.0)"
    record = lab.submit(f"import os\n{noise}")
    end = lab.api.finished(record)
    assert end["artifacts"][0]["data"] is None
    assert end["artifacts"][0]["bytes"] == len(record.uploads["artifact.zip"]) > 100_000


def test_checkpoints_are_scored_and_the_best_is_kept(lab: Lab) -> None:
    lab.start()
    train = """
for name, value in (("01", 1.5), ("02", 1.9), ("03", 1.7)):
    (out / "unfinished").mkdir()
    (out / "unfinished" / "value").write_text(str(value))
    (out / "checkpoints").mkdir(exist_ok=True)
    (out / "unfinished").rename(out / "checkpoints" / name)
    time.sleep(0.5)
answer(checkpoints=True)
"""
    end = lab.api.finished(lab.submit(train))
    assert end["state"] == "succeeded", end["failure"]
    metrics = end["metrics"]
    assert (metrics["score"], metrics["best"]) == (1.9, 2)
    assert 0.4 < metrics["seconds/02"] - metrics["seconds/01"] < 5
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(end["artifacts"][0]["data"])))
    names = {name for name in archive.namelist() if name.startswith("artifact/")}
    assert names == {"artifact/answer.json", "artifact/checkpoints/02/value"}
    assert len(end["provenance"]["sealed"]) == 64


def test_a_confirmation_is_scored_on_the_sealed_split(lab: Lab) -> None:
    lab.start()
    for kind, split in (("score", "search"), ("confirm", "sealed")):
        end = lab.api.finished(lab.assign(lab.codebase("answer(score=1.0)"), kind=kind))
        assert end["state"] == "succeeded", end["failure"]
        assert end["provenance"]["scored_on"] == split
        assert end["metrics"]["is_sealed"] == (split == "sealed")


def test_a_predictor_of_a_checkpoint_sees_nothing_that_came_later(lab: Lab) -> None:
    """An early checkpoint whose code would load the weights of the end."""
    lab.start()
    train = """
(out / "unfinished").mkdir()
(out / "unfinished" / "empty").touch()
(out / "checkpoints").mkdir()
(out / "unfinished").rename(out / "checkpoints" / "01")
(out / "value").write_text("0.5")
answer(checkpoints=True)
"""
    end = lab.api.finished(lab.submit(train))
    assert end["state"] == "succeeded", end["failure"]
    assert end["metrics"]["score"] == 2.0  # what the predictor says without a value


def test_an_artifact_that_is_too_large_is_scored_and_not_stored(lab: Lab) -> None:
    lab.start(artifact_bytes=1000)
    curve = '{"step": 1, "loss": 2.0}'
    train = f"(out / 'metrics.jsonl').write_text({curve!r} + chr(10))\n"
    train += "(out / 'large').write_bytes(bytes(5000))\nanswer(score=1.0)"
    end = lab.api.finished(lab.submit(train))
    assert end["state"] == "succeeded", end["failure"]
    facts = end["provenance"]
    assert facts["artifact_not_stored"] > 5000
    both = "profile 'small' allows 268435456 (artifact_gb), this worker 1000"
    assert both in facts["artifact_not_stored_because"]
    remedy = "(ASSAY_WORKER_ARTIFACT_BYTES): raise ASSAY_WORKER_ARTIFACT_BYTES"
    assert facts["artifact_not_stored_because"].endswith(remedy)
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(end["artifacts"][0]["data"])))
    assert archive.namelist() == ["artifact/metrics.jsonl", "not-stored.txt"]
    note = archive.read("not-stored.txt").decode()
    assert note == f"{facts['artifact_not_stored_because']}\n"


@pytest.mark.parametrize(
    ("size", "most", "remedy"),
    [
        (5_000, 1 << 30, "raise artifact_gb"),
        (5_000, 1_000, "raise artifact_gb and ASSAY_WORKER_ARTIFACT_BYTES"),
        (1_500, 1_000, "raise ASSAY_WORKER_ARTIFACT_BYTES"),
    ],
)
def test_both_bounds_of_an_artifact_are_named_and_which_to_raise(
    lab: Lab, size: int, most: int, remedy: str
) -> None:
    """Profile `stingy` allows 2,000 bytes."""
    lab.start(artifact_bytes=most)
    train = f"(out / 'large').write_bytes(bytes({size}))\nanswer(score=1.0)"
    end = lab.api.finished(lab.submit(train, profile="stingy"))
    assert end["metrics"]["score"] == 1.0
    why = end["provenance"]["artifact_not_stored_because"]
    allows = f"profile 'stingy' allows 2000 (artifact_gb), this worker {most}"
    assert allows in why
    assert why.endswith(f": {remedy}")


def test_a_profile_may_allow_more_than_a_quarter_of_a_gigabyte() -> None:
    budget = {"seconds": 9}
    assert Profile.model_validate({"budget": budget}).artifact_bytes == 1 << 28
    large = Profile.model_validate({"budget": budget, "artifact_gb": 4})
    assert large.artifact_bytes == 4 << 30
    assert WorkerSettings(token="t").artifact_bytes >= large.artifact_bytes
    # It has to arrive before the attempt counts as lost.
    usual = bound_seconds(Profile.model_validate({"budget": budget}))
    assert bound_seconds(large) - usual == (4 - 0.25) * 1024 / 10


NOISE = "import os\n(out / 'noise').write_bytes(os.urandom(3_000_000))\nanswer(score=1.0)"


def put_of(method: str, path: str) -> bool:
    return method == "PUT" and path.endswith("/artifacts/artifact.zip")


def test_an_upload_that_breaks_off_is_repeated(lab: Lab) -> None:
    lab.start()
    faults: list[int | str] = ["drop", 503, "drop"]
    lab.api.intercept = lambda method, path: (
        faults.pop() if faults and put_of(method, path) else None
    )
    record = lab.submit(NOISE)
    end = lab.api.finished(record, 60)
    assert (end["state"], faults) == ("succeeded", [])
    assert "artifact_not_stored" not in end["provenance"]
    assert len(record.uploads["artifact.zip"]) == end["artifacts"][0]["bytes"] > 3_000_000


@pytest.mark.parametrize("fault", [503, 422, "drop"])
def test_a_result_does_not_fail_because_its_artifact_cannot_be_uploaded(
    lab: Lab, fault: int | str
) -> None:
    lab.start(finish_seconds=2)
    lab.api.intercept = lambda method, path: fault if put_of(method, path) else None
    end = lab.api.finished(lab.submit(NOISE), 60)
    assert (end["state"], end["metrics"]["score"]) == ("succeeded", 1.0)
    facts = end["provenance"]
    assert facts["artifact_not_stored"] > 3_000_000
    assert "could not be stored" in facts["artifact_not_stored_because"]
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(end["artifacts"][0]["data"])))
    assert archive.namelist() == ["not-stored.txt"]


def test_an_upload_gives_up_in_time_for_the_result_to_count(lab: Lab) -> None:
    """After so long the service takes the attempt for lost, and measures it again."""
    lab.start()
    lab.api.intercept = lambda method, path: 503 if put_of(method, path) else None
    record = lab.assign(lab.codebase(NOISE), bound_seconds=20)
    end = lab.api.finished(record, 60)
    assert (end["state"], end["metrics"]["score"]) == ("succeeded", 1.0)
    assert "could not be stored" in end["provenance"]["artifact_not_stored_because"]


def test_a_disk_without_room_for_the_archive_costs_the_artifact_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = collect.build_archive

    def full(folder: int, found: Any, *rest: Any, **more: Any) -> Path:
        if found:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(folder, found, *rest, **more)

    monkeypatch.setattr(collect, "build_archive", full)
    lab.start()
    end = lab.api.finished(lab.submit(NOISE), 60)
    assert (end["state"], end["metrics"]["score"]) == ("succeeded", 1.0)
    assert "could not be stored" in end["provenance"]["artifact_not_stored_because"]


def test_a_long_attempt_reports_while_it_goes_on(lab: Lab) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit(
        "curve = (out / 'metrics.jsonl').open('w', buffering=1)\n"
        "for step in range(20):\n"
        "    print('line', step)\n"
        "    curve.write(json.dumps({'step': step, 'loss': 1 / (step + 1)}) + '\\n')\n"
        "    time.sleep(0.02)\n"
        "answer(score=1.0, sleep=0.3)\n"
    )
    lab.api.wait(lambda: record.logs.get("train") and record.points)
    assert record.end is None
    lab.api.finished(record)
    assert record.logs["train"] == "".join(f"line {n}\n" for n in range(20)).encode()
    assert sorted(record.points) == list(range(20))
    assert record.states == ["running", "finalizing"]


def test_crash_says_the_last_line_of_the_traceback(lab: Lab) -> None:
    lab.start()
    record = lab.submit("print('before')\nraise ValueError('shape (3,) is wrong')\n")
    end = lab.api.finished(record)
    assert failure_of(end) == ("failed", "train", "crashed")
    assert end["failure"]["message"] == "ValueError: shape (3,) is wrong"
    assert end["infrastructure"] is False
    assert end["started"] is True
    assert record.logs["train"].startswith(b"before\nTraceback")
    assert record.uploads == {}


@pytest.mark.parametrize(
    ("train", "profile", "code"),
    [
        ("time.sleep(60)", "short", "wall_budget_exceeded"),
        ("pass", "small", "no_artifact"),
        ("(out / 'metrics.jsonl').write_text('{}')", "small", "no_artifact"),
        (
            "answer(score=1); os.symlink('/etc/passwd', out / 'best.pt')",
            "small",
            "unsafe_artifact",
        ),
        ("answer(score=1); os.mkfifo(out / 'pipe')", "small", "unsafe_artifact"),
        ("os.symlink('/etc/passwd', out / 'metrics.jsonl')", "small", "unsafe_artifact"),
        ("os.kill(os.getpid(), 11)", "small", "crashed"),
    ],
)
def test_failures_of_training(lab: Lab, train: str, profile: str, code: str) -> None:
    lab.start(progress_seconds=0.1)
    record = lab.submit(train, profile=profile)
    end = lab.api.finished(record)
    assert failure_of(end) == ("failed", "train", code)
    assert end["infrastructure"] is False
    assert record.points == {}


def test_invalid_answer_has_the_code_of_the_evaluation(lab: Lab) -> None:
    lab.start()
    end = lab.api.finished(lab.submit("(out / 'other.json').write_text('{}')"))
    assert failure_of(end) == ("failed", "score", "missing_artifact")
    assert "answer.json" in end["failure"]["message"]


def test_implausible_metric_does_not_count(lab: Lab) -> None:
    lab.start()
    record = lab.submit("answer(score=10.5)")
    end = lab.api.finished(record)
    assert failure_of(end) == ("failed", "guard", "implausible")
    assert end["metrics"] == {}
    assert "artifact.zip" in record.uploads


def test_predictor_gets_the_codebase_as_it_was_before_training(lab: Lab) -> None:
    lab.start()
    end = lab.api.finished(
        lab.submit("open('model.py', 'w').write('VALUE = 9.0')\nanswer(ask=True)\n")
    )
    assert end["metrics"]["score"] == 2.0


def test_protected_files_are_restored(lab: Lab) -> None:
    lab.start()
    record = lab.submit("answer(ask=True)", predict="raise SystemExit('cheat')")
    end = lab.api.finished(record)
    assert end["metrics"]["score"] == 2.0
    assert end["provenance"]["restored"] == ["predict.py"]


def test_nothing_of_the_worker_reaches_the_code(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_WORKER_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    lab.start()
    record = lab.submit("print(json.dumps(dict(os.environ)))\nanswer(score=1)\n")
    lab.api.finished(record)
    seen = json.loads(record.logs["train"])
    assert set(seen) <= ALLOWED
    assert TOKEN not in seen.values()
    assert seen["ASSAY_SEED"] == "7"
    assert seen["OMP_NUM_THREADS"] == seen["ASSAY_THREADS"] == "1"
    assert seen["ASSAY_SECONDS"] == "20"


def test_cancel_stops_the_training(lab: Lab) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit("print(os.getpid())\ntime.sleep(60)\n")
    lab.api.wait(lambda: record.logs.get("train"))
    began = time.monotonic()
    with lab.api.changed:
        lab.api.stop.add("att_1")
        lab.api.changed.notify_all()
    end = lab.api.finished(record)
    assert time.monotonic() - began < 20
    assert failure_of(end) == ("cancelled", "train", "cancelled")
    assert not Path("/proc", record.logs["train"].decode().strip()).exists()


def test_cancel_reaches_the_evaluation(lab: Lab) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit("time.sleep(0.2)\nanswer(score=1, sleep=60)\n")
    lab.api.wait(lambda: "finalizing" in record.states)
    began = time.monotonic()
    with lab.api.changed:
        lab.api.stop.add("att_1")
        lab.api.changed.notify_all()
    assert lab.api.finished(record)["state"] == "cancelled"
    assert time.monotonic() - began < 20


def test_an_attempt_fenced_at_its_upload_is_discarded(lab: Lab) -> None:
    lab.start()
    lab.api.intercept = lambda method, path: (
        lab.api.fenced.add("att_1") if method == "PUT" else None
    )
    large = "(out / 'noise').write_bytes(os.urandom(100_000))\nanswer(score=1)"
    record = lab.submit(f"import os\n{large}")
    lab.api.wait(lambda: any(method == "PUT" for method, _ in lab.api.requests))
    lab.api.intercept = lambda method, path: None
    assert lab.api.finished(lab.submit("answer(score=1)"))["state"] == "succeeded"
    assert record.finishes == []
    assert not any("att_1/finish" in path for _, path in lab.api.requests)


def test_a_log_without_end_is_cut(lab: Lab) -> None:
    lab.start(log_bytes=1 << 16)
    code = "for n in range(3000):\n    print(f'{n:0999}')\nraise ValueError('in the end')\n"
    record = lab.submit(code)
    end = lab.api.finished(record)
    assert failure_of(end) == ("failed", "train", "crashed")
    assert end["failure"]["message"] == "ValueError: in the end"
    log = record.logs["train"]
    head, _, tail = log.partition(b"\n[... ")
    assert head == b"".join(b"%0999d\n" % n for n in range(66))[: 1 << 16]
    left_out, _, end_of_log = tail.partition(b" bytes left out ...]\n")
    assert len(end_of_log) == 1 << 16
    assert 0 < len(head) + int(left_out) + len(end_of_log) - 3_000_000 < 1000  # the traceback
    assert end_of_log.endswith(b"ValueError: in the end\n")


@pytest.mark.parametrize("by_sync", [True, False])
def test_a_fenced_attempt_is_killed_and_discarded(lab: Lab, by_sync: bool) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit("print(os.getpid(), flush=True)\ntime.sleep(60)\n")
    lab.api.wait(lambda: record.logs.get("train"))
    pid = record.logs["train"].decode().strip()
    assert Path("/proc", pid).exists()
    with lab.api.changed:
        if by_sync:
            lab.api.fenced.add("att_1")
            lab.api.changed.notify_all()
        else:
            record.lease_token += 1  # a report finds out first
    if not by_sync:
        with (lab.scratch / "attempts" / "att_1" / "train.log").open("a") as log:
            log.write("more\n")
    deadline = time.monotonic() + 5
    while lab.workspaces() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lab.workspaces() == []
    assert not Path("/proc", pid).exists()
    assert record.finishes == []
    assert lab.api.finished(lab.submit("answer(score=1)"))["state"] == "succeeded"


def test_a_result_survives_an_outage_of_the_api(lab: Lab) -> None:
    lab.start()
    down: list[float] = []

    def outage(method: str, path: str) -> int | str | None:
        if path.endswith("/finish") and not down:
            down.append(time.monotonic())
        if down and time.monotonic() - down[0] < 1:
            return "drop" if time.monotonic() - down[0] < 0.5 else 503
        return None

    lab.api.intercept = outage
    record = lab.submit("print('done')\nanswer(score=5.0)\n")
    end = lab.api.finished(record)
    assert time.monotonic() - down[0] >= 1
    assert len(record.finishes) == 1
    assert end["metrics"]["score"] == 5.0
    assert record.logs["train"] == b"done\n"


def test_a_lost_answer_to_finish_is_asked_for_again(lab: Lab) -> None:
    lab.start()
    lost: list[str] = []

    def lose(path: str) -> bool:
        if path.endswith("/finish") and len(lost) < 2:
            lost.append(path)
            return True
        return False

    lab.api.lose_answer = lose
    record = lab.submit("answer(score=5.0)")
    lab.api.wait(lambda: len(record.finishes) == 3)
    assert record.finishes[0] == record.finishes[1] == record.finishes[2]


def test_a_damaged_codebase_is_not_the_ideas_fault(lab: Lab) -> None:
    lab.start()
    good = lab.codebase("answer(score=1)")
    wrong = "0" * 64
    lab.api.trees[wrong] = lab.api.trees[good]
    end = lab.api.finished(lab.assign(wrong))
    assert failure_of(end) == ("failed", "start", "corrupt_transfer")
    assert end["infrastructure"] is True
    assert end["started"] is False


def test_a_wrong_hardware_class_is_refused(lab: Lab) -> None:
    lab.start()
    end = lab.api.finished(lab.assign(lab.codebase(""), hardware_class="cpu-other"))
    assert failure_of(end) == ("failed", "start", "wrong_hardware")
    assert end["infrastructure"] is True


def test_a_fault_of_the_host_is_tried_again_elsewhere(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("services.worker.workspace.write_readable", full)
    lab.start()
    end = lab.api.finished(lab.submit("answer(score=1)"))
    assert failure_of(end) == ("failed", "start", "host_failed")
    assert "No space left" in end["failure"]["message"]
    assert end["infrastructure"] is True


@pytest.mark.bubblewrap
def test_isolated_attempt(lab: Lab) -> None:
    lab.start(sandbox="bubblewrap")
    secret = lab.scratch.parent / "secret"
    secret.write_text("secret")
    record = lab.submit(
        "import socket\n"
        f"print(os.path.exists({str(secret)!r}), sorted(os.environ))\n"
        "data = os.environ['ASSAY_DATA']\n"
        "print(os.listdir(data), os.listdir(data + '/..'))\n"
        "try:\n"
        "    open(data + '/data.txt', 'a')\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "open('model.py', 'w').write('VALUE = 9.0')\n"
        "os.chmod(out, 0)\n"
        "os.chmod(out, 0o700)\n"
        "answer(ask=True)\n"
    )
    end = lab.api.finished(record)
    assert end["failure"] is None, (end["failure"], record.logs)
    assert end["metrics"]["score"] == 2.0
    assert end["provenance"]["isolated"] is True
    assert all(end["provenance"]["guarantees"].values())
    first, second, third = record.logs["train"].decode().splitlines()
    assert first.startswith("False")
    assert "ASSAY_WORKER" not in first
    assert "['data.txt']" in second
    assert "search" not in second
    assert third in ("Read-only file system", "Permission denied")
    lab.stop()
    assert os.listdir(lab.scratch / "attempts") == ["probes"]


def test_code_that_nobody_trusts_is_given_back_where_nothing_isolates_it(lab: Lab) -> None:
    lab.start()
    codebase = lab.codebase("answer(score=1)")
    end = lab.api.finished(lab.assign(codebase, needs_isolation=True))
    assert failure_of(end) == ("failed", "start", "not_isolated")
    assert end["infrastructure"] is True
    assert "isolates nothing" in end["failure"]["message"]
    assert lab.api.finished(lab.assign(codebase, needs_isolation=False))["state"] == "succeeded"


def test_a_full_disk_is_the_codes_own_fault(lab: Lab) -> None:
    lab.start(disk_files=100)
    code = "for n in range(1000):\n    (out / str(n)).touch()\nanswer(score=1)\ntime.sleep(20)\n"
    end = lab.api.finished(lab.submit(code))
    assert failure_of(end) == ("failed", "train", "disk_exceeded")

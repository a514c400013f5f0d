"""The worker as a whole: registration, leases, draining, stopping, leftovers."""

import contextlib
import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from assay.domain.errors import Unavailable
from services.worker.api import ApiRefused, StaleIncarnation
from services.worker.settings import WorkerSettings
from services.worker.supervisor import Worker
from tests.support.fake_worker_api import TOKEN
from tests.worker.conftest import Lab

FOREVER = "print(os.getpid(), flush=True)\ntime.sleep(60)\n"


def test_registration_says_what_the_worker_is(lab: Lab) -> None:
    worker = lab.start()
    lab.api.wait(lambda: lab.api.syncs)
    body = lab.api.registrations[0]
    assert worker.id == "wrk_1"
    assert (body["name"], body["cpus"], body["hardware_class"]) == ("bench", 1, "cpu-test")
    assert (body["sandbox"], body["isolated"]) == ("subprocess", False)
    assert body["guarantees"]["no_network"] is False
    assert body["info"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert body["info"]["held_out_key"] == ""


def test_held_out_keys_are_told_apart_and_not_told(lab: Lab) -> None:
    keys = ["a-long-secret-key", "another-long-secret-key"]
    for count, key in enumerate(keys, start=1):
        lab.start(held_out_key=SecretStr(key))
        lab.api.wait(lambda count=count: len(lab.api.registrations) == count)
        lab.stop()
    told = {body["info"]["held_out_key"] for body in lab.api.registrations}
    assert len(told - {""}) == 2
    assert not any(key in str(lab.api.registrations) for key in keys)


def test_leases_of_queued_and_running_attempts_are_renewed(lab: Lab) -> None:
    lab.start()
    for _ in range(3):  # more than the worker has slots
        lab.submit(FOREVER)
    everything = {"att_1", "att_2", "att_3"}
    lab.api.wait(
        lambda: any({h["attempt"] for h in s["held"]} == everything for s in lab.api.syncs)
    )
    lab.api.wait(lambda: lab.api.records["att_1"].claims == 1)
    assert lab.api.records["att_3"].claims == 0


def test_an_assignment_that_is_repeated_starts_once(lab: Lab) -> None:
    lab.start(cpus=2)
    record = lab.submit(FOREVER)
    lab.api.wait(lambda: record.claims == 1)
    spec = {
        "attempt": "att_1",
        "lease_token": record.lease_token,
        "measurement": "mea_1",
        "kind": "score",
        "codebase": lab.codebase(FOREVER),
        "environment": "tiny",
        "bundle": lab.bundle.sha256,
        "profile": "small",
        "seed": 7,
        "hardware_class": "cpu-test",
        "cpus": 1,
        "gpus": 0,
        "memory_bytes": 1 << 29,
    }
    repeated = lab.api.assign(spec)
    count = len(lab.api.syncs)
    lab.api.wait(lambda: len(lab.api.syncs) > count + 1)
    assert repeated.claims == 0


def test_ring_ends_the_wait(lab: Lab) -> None:
    worker = lab.start(poll_seconds=0, sync_seconds=60)
    lab.api.wait(lambda: lab.api.syncs)
    record = lab.submit("answer(score=1)")
    began = time.monotonic()
    time.sleep(0.2)
    assert record.claims == 0
    worker.ring()
    lab.api.finished(record)
    assert time.monotonic() - began < 30


def test_stop_hands_attempts_back(lab: Lab) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit(FOREVER)
    lab.api.wait(lambda: record.logs.get("train"))
    lab.stop()
    assert record.end is not None
    assert record.end["infrastructure"] is True
    assert record.end["failure"]["code"] == "worker_stopped"
    assert lab.api.syncs[-1]["draining"] is True
    assert lab.api.syncs[-1]["held"] == []


def test_drain_finishes_what_is_held(lab: Lab) -> None:
    worker = lab.start()
    record = lab.submit("time.sleep(0.5)\nanswer(score=1)\n")
    lab.api.wait(lambda: record.claims)
    worker.drain()
    lab.workers[0][1].join(60)
    assert not lab.workers[0][1].is_alive()
    assert record.end is not None
    assert record.end["state"] == "succeeded"


def test_an_api_that_is_away_at_first_is_waited_for(lab: Lab) -> None:
    began = time.monotonic()
    lab.api.intercept = lambda method, path: "drop" if time.monotonic() - began < 0.8 else None
    lab.start()
    assert lab.api.finished(lab.submit("answer(score=1)"))["state"] == "succeeded"
    assert lab.errors == []


def test_an_api_that_forgot_the_worker_gets_a_new_incarnation(lab: Lab) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit(FOREVER)
    lab.api.wait(lambda: record.logs.get("train"))
    with lab.api.changed:
        lab.api.known = False
    lab.api.wait(lambda: len(lab.api.registrations) == 2)
    first, second = lab.api.registrations
    assert first["incarnation"] != second["incarnation"]
    assert lab.api.finished(lab.submit("answer(score=1)"))["state"] == "succeeded"
    assert record.finishes == []


def test_a_second_worker_of_the_same_name_ends_the_first(lab: Lab) -> None:
    lab.start(progress_seconds=0.05)
    record = lab.submit(FOREVER)
    lab.api.wait(lambda: record.logs.get("train"))
    pid = record.logs["train"].decode().strip()
    with lab.api.changed:
        lab.api.stale = True
    lab.workers[0][1].join(60)
    assert [type(e) for e in lab.errors] == [StaleIncarnation]
    assert record.finishes == []
    assert not Path("/proc", pid).exists()


def test_a_wrong_token_is_an_error(lab: Lab) -> None:
    lab.start(token="wrong")
    lab.workers[0][1].join(60)
    assert [type(e) for e in lab.errors] == [ApiRefused]


def test_leftovers_of_a_killed_worker_are_removed(lab: Lab, tmp_path: Path) -> None:
    attempts = lab.scratch / "attempts"
    outside = tmp_path / "outside"
    (attempts / "att_9" / "out").mkdir(parents=True)
    (attempts / "att_9" / "out" / "link").symlink_to(outside)
    (attempts / "att_8").symlink_to(outside)
    outside.mkdir()
    (outside / "precious").touch()
    deep = attempts / "att_7"
    deep.mkdir()
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.fchmod(descriptor, 0)
    os.close(descriptor)
    lab.start()
    lab.api.wait(lambda: lab.api.syncs)
    assert lab.workspaces() == []
    assert (outside / "precious").exists()


def test_two_workers_do_not_share_a_scratch_folder(lab: Lab) -> None:
    lab.start()
    lab.api.wait(lambda: lab.api.syncs)
    second = Worker(WorkerSettings(**lab.settings))
    with pytest.raises(Unavailable, match="ASSAY_WORKER_SCRATCH"):
        second.run()


def test_slots_work_side_by_side(lab: Lab) -> None:
    lab.start(cpus=2)
    marks = [lab.scratch.parent / f"mark{n}" for n in range(2)]
    for own, other in (marks, marks[::-1]):
        lab.submit(
            f"own, other = pathlib.Path({str(own)!r}), pathlib.Path({str(other)!r})\n"
            "own.touch()\n"
            "while not other.exists():\n"
            "    time.sleep(0.01)\n"
            "answer(score=1)\n"
        )
    for record in lab.api.records.values():
        assert lab.api.finished(record)["state"] == "succeeded"


def command(lab: Lab) -> "subprocess.Popen[bytes]":
    """`python -m services.worker` with the laboratory's settings."""
    variables = {f"ASSAY_WORKER_{k.upper()}": str(v) for k, v in lab.settings.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "services.worker"],
        env={"PATH": os.environ["PATH"], **variables},
        stderr=subprocess.PIPE,
    )


def test_sigterm_ends_the_command_with_its_processes(lab: Lab) -> None:
    lab.settings |= {"drain_seconds": 0, "progress_seconds": 0.1}
    with command(lab) as process:
        record = lab.submit(FOREVER)
        lab.api.wait(lambda: record.logs.get("train"))
        process.terminate()
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 0
    assert TOKEN.encode() not in errors
    assert record.end is not None
    assert record.end["failure"]["code"] == "worker_stopped"
    assert not Path("/proc", record.logs["train"].decode().strip()).exists()


def running_with(text: str) -> list[str]:
    """Processes whose environment holds a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
    return found


@pytest.mark.bubblewrap
def test_a_killed_worker_takes_its_sandboxes_along(lab: Lab) -> None:
    lab.settings |= {"sandbox": "bubblewrap", "progress_seconds": 0.1}
    seed = 1_000_000_007
    with command(lab) as process:
        record = lab.assign(lab.codebase(FOREVER), seed=seed)
        lab.api.wait(lambda: record.logs.get("train"))
        assert running_with(str(seed))
        process.kill()
        process.communicate(timeout=15)
    assert lab.workspaces() == ["att_1"]
    deadline = time.monotonic() + 5
    while running_with(str(seed)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running_with(str(seed)) == []
    lab.start()
    lab.api.wait(lambda: len(lab.api.registrations) == 2)
    assert lab.workspaces() == []


def test_wrong_settings_are_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.worker"],
        env={"PATH": os.environ["PATH"], "ASSAY_WORKER_TOKN": "x", "ASSAY_WORKER_CPUS": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "ASSAY_WORKER_TOKEN" in done.stderr
    assert "ASSAY_WORKER_CPUS" in done.stderr


def test_of_a_package_that_is_installed_twice_the_first_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on `sys.path`: that is what programs import."""
    plain = metadata.distributions

    shadowed = SimpleNamespace(metadata={"Name": "PyTest"}, version="0.0.1")
    monkeypatch.setattr(metadata, "distributions", lambda: [*plain(), shadowed])
    lab.start()
    lab.api.wait(lambda: lab.api.syncs)
    told = lab.api.registrations[-1]["info"]["packages"]
    assert told["pytest"] == pytest.__version__

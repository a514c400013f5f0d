"""Trainings that compile before they ask for their data, and whose clock starts then.

Only profiles with GPUs have a warm-up; what is measured here is the clock, so no device is taken.
"""

import dataclasses
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.worker import AttemptSpec
from services.worker.checkpoints import CheckpointWatch
from services.worker.folders import remove_tree
from services.worker.journal import Journal, new_notes
from services.worker.warm_up import Gate, hold_back
from services.worker.workspace import Workspace, open_workspace
from tests.support.fake_worker_api import Record
from tests.worker.conftest import Lab

#: What the page about environments shows, in a loop that ends.
ASK = """
data = pathlib.Path(os.environ["ASSAY_DATA"])
def ask():
    open(os.environ["ASSAY_ASK"], "x").close()
    while not data.is_dir():
        time.sleep(0.01)
"""


def trained(lab: Lab, code: str, profile: str = "warm") -> tuple[Record, dict[str, Any]]:
    record = lab.assign(lab.codebase(ASK + code), profile)
    return record, lab.api.finished(record, 120)


@pytest.mark.slow
def test_the_clock_starts_when_the_data_is_asked_for(lab: Lab) -> None:
    """It compiles for longer than its budget, and then has all of it."""
    lab.start(sample_seconds=0.5)
    record, end = trained(
        lab,
        """
assert os.environ["ASSAY_SECONDS"] == "6"
print("before", data.exists(), sorted(os.listdir(data.parent)))
(out / "checkpoints").mkdir()
(out / "early").mkdir()
(out / "early" / "value").write_text("1")
(out / "early").rename(out / "checkpoints" / "1")
time.sleep(7)
ask()
print("after", (data / "data.txt").read_text())
time.sleep(1)
(out / "late").mkdir()
(out / "late" / "value").write_text("2")
(out / "late").rename(out / "checkpoints" / "2")
time.sleep(1)
answer(checkpoints=True)
""",
    )
    assert end["failure"] is None, (end["failure"], record.logs)
    assert record.logs["train"].decode().splitlines() == ["before False []", "after train"]
    facts = end["provenance"]
    assert facts["train_warm_up_seconds"] > 7
    assert 2 < facts["train_seconds"] < 6
    # The budget alone counts as what the measurement took.
    whole = facts["train_seconds"] + facts["evaluation_seconds"]
    assert end["seconds"] == pytest.approx(whole, abs=0.01)
    # So do times to a target; what was there before the data has none.
    assert end["metrics"]["seconds/1"] == 0.0
    assert 1 <= end["metrics"]["seconds/2"] < 6
    values = [record.system[seq]["values"] for seq in sorted(record.system)]
    shown = [each["warm_up_seconds"] for each in values if "warm_up_seconds" in each]
    assert shown == sorted(shown)
    assert 7 <= shown[-1] == pytest.approx(facts["train_warm_up_seconds"], abs=1.0)


@pytest.mark.slow
def test_the_budget_ends_what_asked(lab: Lab) -> None:
    lab.start()
    _, end = trained(lab, "time.sleep(1)\nask()\ntime.sleep(600)")
    assert end["failure"]["code"] == "wall_budget_exceeded"
    assert re.search(r"after [\d.]+ s of 6 s", end["failure"]["message"])


def test_who_does_not_ask_in_time_fails(lab: Lab) -> None:
    lab.start()
    record, end = trained(lab, "time.sleep(600)", "hasty")
    assert (end["state"], end["infrastructure"]) == ("failed", False)
    assert (end["failure"]["stage"], end["failure"]["code"]) == ("train", "warm_up_exceeded")
    assert re.search(
        r"after [\d.]+ s of warm-up, of 1 s: .*\$ASSAY_ASK", end["failure"]["message"]
    )
    assert record.uploads == {}


def test_who_never_asks_and_ends_is_judged_by_what_it_left(lab: Lab) -> None:
    lab.start()
    record, end = trained(lab, "print(data.exists())\nanswer(score=0.5)")
    assert end["metrics"]["score"] == 0.5
    assert record.logs["train"] == b"False\n"
    facts = end["provenance"]
    assert facts["train_seconds"] == 0 < facts["train_warm_up_seconds"]


@pytest.mark.parametrize(
    "made",
    ["os.symlink('/etc/shadow', asked)", "os.mkfifo(asked)", "os.mkdir(asked)"],
)
def test_what_asks_is_not_opened(lab: Lab, made: str) -> None:
    lab.start()
    code = f"asked = os.environ['ASSAY_ASK']\n{made}\n"
    code += "while not data.is_dir(): time.sleep(0.01)\nanswer(score=0.5)"
    _, end = trained(lab, code)
    assert end["metrics"]["score"] == 0.5


def test_without_a_warm_up_nothing_is_asked(lab: Lab) -> None:
    lab.start()
    code = "assert 'ASSAY_ASK' not in os.environ\nassert (data / 'data.txt').is_file()\n"
    _, end = trained(lab, f"{code}answer(score=0.5)", "gpus")
    assert end["metrics"]["score"] == 0.5
    assert "train_warm_up_seconds" not in end["provenance"]


def test_data_that_cannot_be_given_is_the_hosts_fault(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the training would wait, and be blamed for it."""
    rename = os.rename

    def broken(source: Any, target: Any, **how: Any) -> None:
        if Path(source).name == "waiting":
            raise OSError(5, "Input/output error")
        rename(source, target, **how)

    monkeypatch.setattr(os, "rename", broken)
    lab.start()
    _, end = trained(lab, "ask()")
    assert end["failure"]["code"] == "host_failed"
    assert end["infrastructure"] is True


@pytest.mark.bubblewrap
def test_inside_a_sandbox_the_data_is_out_of_reach_until_then(lab: Lab) -> None:
    """The folder is read-only, and nowhere else is a file of the data."""
    lab.start(sandbox="bubblewrap")
    record, end = trained(
        lab,
        """
def found():
    top = pathlib.Path("/assay")
    return sorted(str(p.relative_to(top)) for p in top.rglob("data.txt"))
def refused(act):
    try:
        act()
    except OSError as error:
        return error.errno
print(found(), refused(lambda: data.mkdir()))
ask()
print(found(), refused(lambda: (data / "data.txt").write_text("changed")))
print(refused(lambda: os.link(data / "data.txt", out / "mine")))
answer(score=0.5)
""",
    )
    assert end["failure"] is None, (end["failure"], record.logs)
    lines = record.logs["train"].decode().splitlines()
    assert lines == ["[] 30", "['gate/data/data.txt'] 30", "18"]  # EROFS, EROFS, EXDEV


SPEC = {
    "attempt": "att_1",
    "lease_token": 41,
    "measurement": "mea_1",
    "kind": "score",
    "codebase": "c",
    "environment": "tiny",
    "bundle": "b",
    "profile": "warm",
    "seed": 7,
    "hardware_class": "gpu",
    "cpus": 1,
    "gpus": 2,
    "memory_bytes": 1 << 29,
}


class Clock:
    """A handle of which nothing but the clock is looked at."""

    def __init__(self) -> None:
        self.started: list[float | None] = []

    def start_clock(self, at: float | None = None) -> None:
        self.started.append(at)


@dataclasses.dataclass
class Held:
    """A workspace whose data is held back, as a killed worker leaves it."""

    space: Workspace
    journal: Journal

    def gate(self) -> tuple[Gate, Clock]:
        watch = CheckpointWatch(self.space.out_descriptor, 1 << 20)
        return Gate(self.space, self.journal, watch), Clock()

    def adopted(self) -> list[float | None]:
        """What the next worker does before it waits for the training."""
        gate, clock = self.gate()
        gate.start(clock)  # type: ignore[arg-type]
        gate.stop()
        return clock.started


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    data = tmp_path / "cache" / "train"
    (data / "more").mkdir(parents=True)
    (data / "data.txt").write_text("train")
    (data / "more" / "data.txt").write_text("more")
    (tmp_path / "attempts").mkdir()
    sizes = {"disk_bytes": 1 << 24, "disk_files": 100}
    with open_workspace(tmp_path / "attempts", "att_1", {}, {}, **sizes) as space:
        notes = new_notes(AttemptSpec.model_validate(SPEC), [], {})
        journal = Journal(space.folder, notes)
        journal.note(training_began=time.monotonic() - 100)
        hold_back(data, space)
        yield Held(space, journal)
    assert (data / "more" / "data.txt").read_text() == "more"


def test_the_data_is_linked_and_not_copied(held: Held) -> None:
    assert (held.space.waiting / "more" / "data.txt").stat().st_nlink == 2
    assert os.listdir(held.space.gate) == []
    hold_back(Path("/nowhere"), held.space)  # a worker that adopts the training does not again
    held.space.ask.joinpath("data").touch()
    assert len(held.adopted()) == 1
    assert sorted(os.listdir(held.space.gate / "data")) == ["data.txt", "more"]


def test_data_on_another_file_system_is_copied_beforehand(
    held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    held.space.gate.rmdir()  # as if it had not been done
    monkeypatch.setattr(os, "link", no_links)
    hold_back(tmp_path / "cache" / "train", held.space)
    assert (held.space.waiting / "data.txt").stat().st_nlink == 1
    assert "9 bytes of data were copied" in caplog.text
    assert "ASSAY_WORKER_SCRATCH" in caplog.text


def test_who_asked_while_no_worker_lived_gets_the_data_at_once(held: Held) -> None:
    held.space.ask.joinpath("data").touch()
    os.utime(held.space.ask / "data", (0, 0))  # its own time means nothing
    before = time.monotonic()
    (at,) = held.adopted()
    assert at is not None
    assert before <= at <= time.monotonic()
    assert held.journal.notes.clock_began == at


def test_an_adopted_training_keeps_its_clock(held: Held) -> None:
    held.space.ask.joinpath("data").touch()
    (at,) = held.adopted()
    time.sleep(0.1)
    assert held.adopted() == [at]


def test_a_worker_that_died_before_it_noted_the_start_of_the_clock(held: Held) -> None:
    """The gate says when the data was moved in: only workers can change it."""
    held.space.waiting.rename(held.space.gate / "data")
    at = time.time() - 30
    os.utime(held.space.gate, (at, at))
    (found,) = held.adopted()
    assert found == pytest.approx(time.monotonic() - 30, abs=5)


def test_nobody_asked(held: Held) -> None:
    assert held.adopted() == []
    assert held.journal.notes.clock_began is None
    assert not (held.space.gate / "data").exists()


def test_a_training_is_watched_until_it_asks(held: Held) -> None:
    gate, clock = held.gate()
    gate.start(clock)  # type: ignore[arg-type]
    threading.Timer(0.2, held.space.ask.joinpath("data").touch).start()
    deadline = time.monotonic() + 30
    while not clock.started and time.monotonic() < deadline:
        time.sleep(0.01)
    gate.stop()
    assert clock.started == [held.journal.notes.clock_began]


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_checkpoint_of_a_time_without_a_worker_is_not_from_before_the_clock(
    held: Held, is_noted: bool
) -> None:
    """It is looked for as soon as the training is adopted; to find its container takes longer."""
    held.space.waiting.rename(held.space.gate / "data")
    at = time.time() - 30
    os.utime(held.space.gate, (at, at))
    if is_noted:
        held.journal.note(clock_began=time.monotonic() - 30)
    made = held.space.out / "checkpoints" / "1"
    made.mkdir(parents=True)
    (made / "value").write_text("1")
    watch = CheckpointWatch(held.space.out_descriptor, 1 << 20)
    watch.start(time.monotonic() - 100, stands=True)
    gate = Gate(held.space, held.journal, watch)
    found = watch.stop()
    gate.stop()
    assert [each.seconds for each in found] == [pytest.approx(30, abs=5)]


def test_a_folder_that_is_hard_to_remove_leaves_the_modes_of_the_cache(tmp_path: Path) -> None:
    """They would tell the next training what this one did: the data is linked, not copied."""
    data = tmp_path / "data"
    data.write_text("train")
    data.chmod(0o444)
    folder = tmp_path / "attempt"
    for name in ("a", "b", "c", "d"):  # before and after what is deep, in whatever order
        (folder / name).mkdir(parents=True)
        (folder / name / "data").hardlink_to(data)
    before = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(3000):
            os.mkdir("deep")
            os.chdir("deep")
    finally:
        os.chdir(before)
    assert remove_tree(folder)
    assert stat.S_IMODE(data.stat().st_mode) == 0o444

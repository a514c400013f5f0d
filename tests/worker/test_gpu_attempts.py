"""Attempts on a host with GPUs: declared ones, or those of a driver in memory."""

import fcntl
import os
import uuid
from pathlib import Path

import pytest

from services.worker import supervisor
from services.worker.gpus import Gpus, lock_folder
from services.worker.nvml import Nvml
from tests.worker.conftest import Lab
from tests.worker.fake_nvml import FakeGpu, FakeNvml

LOOK = """
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["ASSAY_GPUS"], flush=True)
answer(ask=True)
"""
PREDICTOR_LOOKS = """
import os
VALUE = len(os.environ["CUDA_VISIBLE_DEVICES"]) / 100 + int(os.environ["ASSAY_GPUS"])
"""


@pytest.fixture
def uuids() -> list[str]:
    return [f"GPU-{uuid.uuid4()}" for _ in range(2)]


def test_an_attempt_has_its_devices_and_says_so(lab: Lab, uuids: list[str]) -> None:
    lab.start(gpus=uuids, hardware_class=None)
    lab.api.wait(lambda: lab.api.syncs)
    body = lab.api.registrations[0]
    assert body["gpus"] == 2
    assert [d["uuid"] for d in body["devices"]] == uuids
    assert body["hardware_class"] == "gpu-unknown"
    assert lab.api.syncs[0]["usable_gpus"] == 2
    codebase = lab.codebase(LOOK, model=PREDICTOR_LOOKS)
    record = lab.assign(codebase, "gpus", gpus=2, hardware_class="gpu-unknown")
    end = lab.api.finished(record, 60)
    assert end["failure"] is None, (end["failure"], record.logs)
    assert record.logs["train"].decode().split() == [",".join(uuids), "2"]
    assert end["metrics"]["score"] == len(",".join(uuids)) / 100 + 2  # the predictor has them, too
    assert record.devices == uuids
    facts = end["provenance"]
    assert facts["gpus"] == uuids
    assert facts["gpu_health"] == "unchecked"


def test_attempts_without_gpus_see_none(lab: Lab, uuids: list[str]) -> None:
    lab.start(gpus=uuids)
    record = lab.submit("print(repr(os.environ['CUDA_VISIBLE_DEVICES']))\nanswer(score=1)")
    end = lab.api.finished(record, 60)
    assert record.logs["train"] == b"''\n"
    assert record.devices == []
    assert "gpus" not in end["provenance"]


def test_devices_are_free_again_when_the_end_is_told(lab: Lab, uuids: list[str]) -> None:
    lab.start(gpus=uuids, cpus=2, memory_bytes=1 << 31)
    for _ in range(3):
        record = lab.assign(lab.codebase("answer(score=1)"), "gpus", gpus=2)
        assert lab.api.finished(record, 60)["state"] == "succeeded"


def test_a_device_of_another_worker_is_refused(lab: Lab, uuids: list[str]) -> None:
    path = lock_folder() / f"assay-gpu-{uuids[0]}.lock"
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        lab.start(gpus=uuids)
        record = lab.assign(lab.codebase("answer(score=1)"), "gpus", gpus=2)
        end = lab.api.finished(record, 60)
        assert end["infrastructure"] is True
        assert end["failure"]["code"] == "gpu_unavailable"
        assert end["started"] is False
        lab.api.wait(lambda: lab.api.syncs[-1]["usable_gpus"] == 1)
        (trouble,) = lab.api.syncs[-1]["troubles"]
        assert (trouble["uuid"], trouble["state"]) == (uuids[0], "other_worker")
        assert "another worker" in trouble["detail"]
    finally:
        os.close(descriptor)


@pytest.mark.bubblewrap
def test_parts_of_a_gpu_are_left_out_under_bubblewrap(lab: Lab, uuids: list[str]) -> None:
    """Before an attempt needs them: none fails for it."""
    uuids[:] = [uuids[0].replace("GPU-", "MIG-")]
    lab.start(gpus=uuids, sandbox="bubblewrap")
    lab.api.wait(lambda: lab.api.syncs)
    assert lab.api.syncs[0]["usable_gpus"] == 0
    (trouble,) = lab.api.syncs[0]["troubles"]
    assert trouble["state"] == "unreachable"
    assert "ASSAY_WORKER_SANDBOX=docker" in trouble["detail"]


FAILS_IN = {
    "train": ("print('on', flush=True); time.sleep(1); raise SystemExit(1)", "VALUE = 1.0"),
    "score": ("print('on', flush=True); time.sleep(1); answer(ask=True)", "raise SystemExit(1)"),
}


@pytest.mark.parametrize("stage", FAILS_IN)
@pytest.mark.parametrize("sick", [True, False])
def test_a_gpu_in_trouble_excuses_what_failed_on_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, sick: bool
) -> None:
    uuid_, (code, model) = f"GPU-{uuid.uuid4()}", FAILS_IN[stage]
    driver = FakeNvml(FakeGpu(uuid_), FakeGpu(f"{uuid_}-2"))
    nvml = Nvml(driver)
    gpus = Gpus(nvml.devices(), nvml, tmp_path)
    monkeypatch.setattr(supervisor, "open_gpus", lambda _: gpus)
    lab.start(hardware_class="gpu-fake")
    submitted = lab.codebase(code, model=model)
    record = lab.assign(submitted, "gpus", gpus=2, hardware_class="gpu-fake")
    lab.api.wait(lambda: record.logs.get("train"), 30)
    if sick:
        driver.gpus[1].lost = True
    end = lab.api.finished(record, 60)
    assert end["infrastructure"] is sick, end["failure"]
    assert (end["failure"]["code"] == "gpu_trouble") is sick
    assert sick or end["failure"]["stage"] == stage


@pytest.fixture(autouse=True)
def _no_locks_left(uuids: list[str]) -> object:
    yield
    for each in uuids:
        Path(lock_folder(), f"assay-gpu-{each}.lock").unlink(missing_ok=True)

"""Which GPUs an attempt gets, and whether one may be used again; the driver is in memory."""

import fcntl
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from assay.contracts.worker import Device
from assay.domain.errors import InvalidInput
from assay.domain.states import DeviceState
from services.worker import nvml as nvml_module
from services.worker.gpus import NO_GPUS, Gpus, GpusUnavailable, open_gpus
from services.worker.hardware import gpu_class
from services.worker.nvml import Nvml, NvmlError, Trouble
from services.worker.settings import WorkerSettings
from tests.worker.fake_nvml import GIB, FakeGpu, FakeNvml

A, B, C = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")


@pytest.fixture
def driver() -> FakeNvml:
    return FakeNvml(FakeGpu(A), FakeGpu(B), FakeGpu(C))


class Clock:
    """The worker's clock, which a test sets forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead = seconds


def offered(driver: FakeNvml, locks: Path, clock: Clock | None = None) -> Gpus:
    nvml = Nvml(driver)
    return Gpus(nvml.devices(), nvml, locks, settle_seconds=0.3, clock=clock or Clock())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpus(driver: FakeNvml, tmp_path: Path, clock: Clock) -> Gpus:
    return offered(driver, tmp_path, clock)


def test_devices_are_what_the_driver_shows(gpus: Gpus) -> None:
    assert [d.uuid for d in gpus.devices] == [A, B, C]
    assert gpus.devices[0] == Device(uuid=A, name="NVIDIA H200", memory_bytes=141 * GIB)


def test_devices_are_given_once(gpus: Gpus) -> None:
    first, second = gpus.take(2), gpus.take(1)
    assert (first.uuids, second.uuids) == ((A, B), (C,))
    with pytest.raises(GpusUnavailable, match="1 GPUs are needed, 0"):
        gpus.take(1)
    second.release()
    second.release()
    assert gpus.take(1).uuids == (C,)


def test_all_or_nothing(gpus: Gpus) -> None:
    taken = gpus.take(2)
    with pytest.raises(GpusUnavailable, match="2 GPUs are needed, 1"):
        gpus.take(2)
    assert gpus.take(1).uuids == (C,)
    taken.release()


def test_none_are_none(gpus: Gpus) -> None:
    assert gpus.take(0) is NO_GPUS
    assert gpus.adopt([]) is NO_GPUS
    NO_GPUS.release()


def test_two_workers_of_a_host_share_no_device(
    driver: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = offered(driver, tmp_path), offered(driver, tmp_path)
    mine = ours.take(2)
    assert theirs.take(1).uuids == (C,)
    assert "another worker of this host uses it" in caplog.text
    assert theirs.usable() == 1
    with pytest.raises(GpusUnavailable):
        theirs.take(1)
    mine.release()


HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_process(gpus: Gpus, tmp_path: Path, clock: Clock) -> None:
    gpus.take(1).release()
    path = tmp_path / f"assay-gpu-{A}.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        lease = gpus.take(1)
        assert lease.uuids == (B,)
        lease.release()
        holder.kill()
    clock.forward(11)
    assert gpus.usable() == 3
    assert gpus.take(1).uuids == (A,)


Spoil = Callable[[FakeGpu], Any]
TROUBLES: dict[str, tuple[Spoil, str, str]] = {
    "process": (lambda g: setattr(g, "processes", 1), "in_use", "1 processes still use it"),
    "memory": (lambda g: setattr(g, "used", 2 * GIB), "memory_in_use", "2048 MiB of its memory"),
    "xid": (lambda g: g.xids.extend([31, 79]), "lost", "Xid 79"),
    "dbe": (lambda g: g.xids.append(48), "memory_errors", "Xid 48"),
    "gsp": (lambda g: g.xids.append(119), "driver_error", "Xid 119"),
    "ecc": (lambda g: setattr(g, "ecc", 2), "memory_errors", "2 memory errors"),
    "rows": (lambda g: setattr(g, "rows", (0, 1, 1, 0)), "memory_errors", "wait to be replaced"),
    "worn": (lambda g: setattr(g, "rows", (0, 1, 0, 1)), "memory_errors", "wears out"),
    "lost": (lambda g: setattr(g, "lost", True), "lost", "error 15"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_device_in_trouble_is_not_used_again(
    gpus: Gpus, driver: FakeNvml, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    lease = gpus.take(1)
    spoil, state, said = TROUBLES[name]
    spoil(driver.gpus[0])
    lease.release()
    assert said in caplog.text
    assert gpus.usable() == 2
    assert list(gpus.troubles()) == [A]
    assert gpus.troubles()[A].state.value == state
    assert said in gpus.troubles()[A].detail
    assert gpus.take(2).uuids == (B, C)
    with pytest.raises(GpusUnavailable):
        gpus.take(1)


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_errors_of_a_program_are_not_the_devices(gpus: Gpus, driver: FakeNvml, xid: int) -> None:
    lease = gpus.take(1)
    assert driver.gpus[0].watched
    driver.gpus[0].xids.append(xid)
    lease.release()
    assert gpus.usable() == 3


def test_memory_the_driver_keeps_is_not_in_use(gpus: Gpus, driver: FakeNvml) -> None:
    driver.gpus[0].reserved = 5 * GIB
    driver.gpus[0].used = GIB  # below a hundredth
    gpus.take(1).release()
    assert gpus.usable() == 3


def test_what_clears_away_in_time_is_fine(driver: FakeNvml, tmp_path: Path) -> None:
    nvml = Nvml(driver)
    gpus = Gpus(nvml.devices(), nvml, tmp_path, settle_seconds=20)
    lease = gpus.take(1)
    driver.gpus[0].used = 100 * GIB
    threading.Timer(0.3, lambda: setattr(driver.gpus[0], "used", 0)).start()
    lease.release()
    assert gpus.usable() == 3


def test_a_device_is_looked_at_before_its_first_use(gpus: Gpus, driver: FakeNvml) -> None:
    driver.gpus[0].processes = 1  # somebody else's
    assert gpus.take(1).uuids == (B,)
    assert gpus.usable() == 2


def test_trouble_that_passes_is_seen_less_and_less_often(
    gpus: Gpus, driver: FakeNvml, clock: Clock
) -> None:
    lease = gpus.take(1)
    driver.gpus[0].processes = 1
    lease.release()
    driver.gpus[0].processes = 0
    assert gpus.usable() == 2  # not looked at again yet
    driver.gpus[0].processes = 1
    clock.forward(11)
    assert gpus.usable() == 2
    driver.gpus[0].processes = 0
    clock.forward(25)
    assert gpus.usable() == 2  # twenty seconds this time
    clock.forward(35)
    assert gpus.usable() == 3
    assert gpus.take(1).uuids == (A,)


def test_a_driver_that_came_back_is_asked_anew(gpus: Gpus, driver: FakeNvml, clock: Clock) -> None:
    lease = gpus.take(3)
    driver.broken = True
    lease.release()
    assert gpus.usable() == 0
    clock.forward(11)
    assert gpus.usable() == 0
    driver.broken = False
    for gpu in driver.gpus:
        gpu.watched = False
    clock.forward(60)
    assert gpus.usable() == 3


def test_a_driver_that_hangs_is_not_waited_for(driver: FakeNvml, tmp_path: Path) -> None:
    nvml = Nvml(driver, call_seconds=0.1)
    gpus = Gpus(nvml.devices(), nvml, tmp_path, settle_seconds=0.3)
    lease = gpus.take(1)
    driver.go.clear()
    lease.release()
    assert gpus.usable() == 0
    assert {trouble.state for trouble in gpus.troubles().values()} == {DeviceState.NO_ANSWER}
    with pytest.raises(NvmlError, match="does not answer"):
        gpus.gauges([B])
    driver.go.set()


def test_adopted_devices_are_taken_and_checked(gpus: Gpus, driver: FakeNvml) -> None:
    driver.gpus[1].used = 100 * GIB  # by what is adopted
    lease = gpus.adopt([B])
    assert gpus.usable() == 3
    assert gpus.take(2).uuids == (A, C)
    lease.release()
    assert gpus.usable() == 2
    with pytest.raises(GpusUnavailable, match="not this worker's"):
        gpus.adopt([A])
    with pytest.raises(GpusUnavailable, match="not this worker's"):
        gpus.adopt(["GPU-strange"])


def test_parts_of_a_gpu_are_slots(tmp_path: Path) -> None:
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    parts = [FakeGpu(f"MIG-{n}", name, 10 * GIB) for n in range(3)]
    driver = FakeNvml(FakeGpu(A, "NVIDIA H100 80GB HBM3", 80 * GIB, parts=parts))
    gpus = offered(driver, tmp_path)
    assert [d.uuid for d in gpus.devices] == ["MIG-0", "MIG-1", "MIG-2"]
    for part in parts:
        part.reserved = 0  # parts tell the first version only
    lease = gpus.take(2)
    assert "utilisation" not in str(gpus.gauges(lease.uuids))
    driver.gpus[0].xids.append(48)  # told of the whole
    lease.release()
    assert gpus.usable() == 2


def test_a_gpu_without_parts_or_error_counts(tmp_path: Path) -> None:
    driver = FakeNvml(FakeGpu(A, "NVIDIA L4", 23 * GIB, ecc=None))
    gpus = offered(driver, tmp_path)
    gpus.take(1).release()
    assert gpus.usable() == 1


def test_facts_and_gauges(gpus: Gpus) -> None:
    lease = gpus.take(2)
    assert gpus.facts(lease.uuids) == {
        "gpus": [A, B],
        "gpu_names": ["NVIDIA H200"] * 2,
        "gpu_driver": "580.1",
        "gpu_health": "nvml",
    }
    assert gpus.facts(()) == {}
    shown = gpus.gauges(lease.uuids)
    assert shown["gpu1_utilisation"] == 0.75
    assert shown["gpu0_power_watts"] == 350
    assert gpus.gauges(()) == {}


def test_declared_devices_are_not_looked_at(tmp_path: Path) -> None:
    gpus = Gpus([Device(uuid=A)], None, tmp_path)
    lease = gpus.take(1)
    assert gpus.facts(lease.uuids)["gpu_health"] == "unchecked"
    assert gpus.gauges(lease.uuids) == {}
    lease.release()
    assert gpus.usable() == 1


def test_a_lock_is_never_followed_elsewhere(gpus: Gpus, tmp_path: Path) -> None:
    (tmp_path / f"assay-gpu-{A}.lock").symlink_to(tmp_path / "elsewhere")
    assert gpus.take(1).uuids == (B,)
    assert not (tmp_path / "elsewhere").exists()


# ---- what is seen without an attempt ----


def test_trouble_of_an_idle_device_is_seen_before_anybody_needs_it(
    gpus: Gpus, driver: FakeNvml, clock: Clock
) -> None:
    assert gpus.usable() == 3
    driver.gpus[1].processes = 1
    assert gpus.usable() == 3  # not looked at again yet
    clock.forward(31)
    assert gpus.usable() == 2
    assert gpus.troubles()[B].state is DeviceState.IN_USE
    driver.gpus[1].processes = 0
    clock.forward(45)
    assert gpus.usable() == 3
    assert gpus.troubles() == {}


def test_a_device_that_leaves_the_bus_under_a_program_is_told_and_left_out(
    gpus: Gpus, driver: FakeNvml, clock: Clock
) -> None:
    lease = gpus.take(1)
    driver.gpus[0].processes = 8  # the program's own: no trouble
    clock.forward(31)
    assert gpus.usable() == 3
    driver.gpus[0].xids.append(79)
    clock.forward(62)
    assert gpus.usable() == 2
    assert gpus.troubles()[A].state is DeviceState.LOST
    driver.gpus[0].processes = 0
    found = gpus.trouble(lease.uuids)  # the look has taken the event; it is still known
    assert found is not None
    assert found.state is DeviceState.LOST
    lease.release()
    assert gpus.usable() == 2


def test_a_stranger_on_the_device_of_a_program_that_failed_is_to_blame(
    gpus: Gpus, driver: FakeNvml
) -> None:
    lease = gpus.take(2)
    assert gpus.trouble(lease.uuids) is None
    driver.gpus[1].processes = 1
    found = gpus.trouble(lease.uuids)
    assert found is not None
    assert found.state is DeviceState.IN_USE
    lease.release()
    assert gpus.usable() == 2


def test_memory_that_a_program_left_does_not_excuse_it(gpus: Gpus, driver: FakeNvml) -> None:
    lease = gpus.take(1)
    driver.gpus[0].used = 100 * GIB
    assert gpus.trouble(lease.uuids) is None


def test_a_device_that_the_sandbox_cannot_hand_out_is_left_out(gpus: Gpus) -> None:
    gpus.reach_through(lambda uuid: "use docker" if uuid == B else None)
    assert gpus.usable() == 2
    assert gpus.troubles()[B] == Trouble(DeviceState.UNREACHABLE, "use docker")
    assert gpus.take(2).uuids == (A, C)


def test_a_lock_that_is_held_for_a_moment_is_waited_for(gpus: Gpus, tmp_path: Path) -> None:
    """Another worker takes it while it looks at the device."""
    path = tmp_path / f"assay-gpu-{A}.lock"
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Timer(0.05, lambda: os.close(descriptor)).start()
    assert gpus.take(1).uuids == (A,)


# ---- a GPU that also shows a desktop ----


def desktop(driver: FakeNvml, used: int, **of: Any) -> FakeGpu:
    gpu = driver.gpus[0]
    gpu.total, gpu.used = 24 * GIB, used
    for name, value in of.items():
        setattr(gpu, name, value)
    return gpu


def test_a_desktop_does_not_block_a_device_and_may_grow(
    gpus: Gpus, driver: FakeNvml, clock: Clock
) -> None:
    gpu = desktop(driver, 1200 << 20, desktop={1: 300 << 20, 2: 700 << 20}, screen=True)
    gpu.computing = {2}  # a browser, or a toolkit that draws with Vulkan
    lease = gpus.take(1)
    assert lease.uuids == (A,)
    gpu.desktop[3], gpu.used = 3 * GIB, gpu.used + 3 * GIB
    lease.release()
    clock.forward(31)
    assert gpus.usable() == 3


@pytest.mark.parametrize(
    ("spoil", "state"),
    [
        (lambda gpu: setattr(gpu, "processes", 1), DeviceState.IN_USE),
        (lambda gpu: setattr(gpu, "used", gpu.used + 2 * GIB), DeviceState.MEMORY_IN_USE),
    ],
)
def test_what_is_not_the_desktops_blocks_it(
    gpus: Gpus, driver: FakeNvml, spoil: Spoil, state: DeviceState
) -> None:
    gpu = desktop(driver, GIB, desktop={1: GIB}, screen=True)
    lease = gpus.take(1)
    spoil(gpu)
    lease.release()
    assert gpus.troubles()[A].state is state


@pytest.mark.parametrize("of", [{"desktop": {1: None, 2: GIB}}, {"screen": True}])
def test_a_desktop_of_untold_size_may_have_a_quarter(
    gpus: Gpus, driver: FakeNvml, of: dict[str, Any]
) -> None:
    gpu = desktop(driver, 5 * GIB, **of)
    lease = gpus.take(1)
    assert lease.uuids == (A,)
    gpu.used = 7 * GIB
    lease.release()
    assert gpus.troubles()[A].state is DeviceState.MEMORY_IN_USE


def test_without_a_screen_nothing_is_forgiven(gpus: Gpus, driver: FakeNvml) -> None:
    desktop(driver, GIB)
    assert gpus.take(1).uuids == (B,)


# ---- which are offered ----


def uuids_of(
    loaded: Path, driver: FakeNvml, wanted: str | list[str] = "auto", **environment: str
) -> list[str]:
    opened = open_gpus(
        wanted, driver=loaded, open_driver=lambda: Nvml(driver), environment=environment
    )
    return [device.uuid for device in opened.devices]


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [B]),
        ("2,0", [C, A]),
        ("0,-1,2", [A]),
        (f"{C},{A}", [C, A]),
        ("GPU-b", [B]),
        (" 1 , 2 ", [B, C]),
    ],
)
def test_auto_offers_what_the_worker_was_allocated(
    loaded: Path, driver: FakeNvml, text: str, found: list[str]
) -> None:
    assert uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES=text) == found
    named = uuids_of(loaded, driver, [C], CUDA_VISIBLE_DEVICES=text)
    assert named == [C], "named UUIDs win"


@pytest.mark.parametrize("text", ["3", "x", "GPU-", "GPU-z", "0,0", f"0,{A}"])
def test_an_allocation_that_fits_nothing_is_an_error(
    loaded: Path, driver: FakeNvml, text: str
) -> None:
    with pytest.raises(InvalidInput, match="ASSAY_WORKER_GPUS"):
        uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES=text)


def test_numbers_are_refused_where_cuda_counts_differently(loaded: Path) -> None:
    driver = FakeNvml(FakeGpu(A, "NVIDIA GT 710"), FakeGpu(B))
    with pytest.raises(InvalidInput, match="PCI_BUS_ID"):
        uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES="0")
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES="0", **order) == [A]
    assert uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES=B) == [B]


def test_the_gpus_of_a_slurm_job_are_numbers_of_nodes(loaded: Path) -> None:
    driver = FakeNvml(FakeGpu(A, minor=5), FakeGpu(B, minor=4), FakeGpu(C, minor=6))
    assert uuids_of(loaded, driver, SLURM_JOB_GPUS="5,6") == [A, C]
    assert uuids_of(loaded, driver, SLURM_JOB_GPUS="4-5") == [A, B]
    assert uuids_of(loaded, driver, SLURM_JOB_GPUS="5,6", SLURM_STEP_GPUS="6") == [C]
    assert uuids_of(loaded, driver, SLURM_JOB_GPUS="5", CUDA_VISIBLE_DEVICES="1") == [B]
    for text in ("0", "all"):
        with pytest.raises(InvalidInput, match="SLURM_JOB_GPUS"):
            uuids_of(loaded, driver, SLURM_JOB_GPUS=text)


def test_an_allocated_part_of_a_gpu_is_that_part(loaded: Path) -> None:
    parts = [FakeGpu(f"MIG-{n}", "NVIDIA H100 80GB HBM3 MIG 1g.10gb") for n in "abc"]
    driver = FakeNvml(FakeGpu(A, "NVIDIA H100 80GB HBM3", parts=parts))
    assert uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES="MIG-c,MIG-a") == ["MIG-c", "MIG-a"]
    assert uuids_of(loaded, driver, CUDA_VISIBLE_DEVICES="0") == ["MIG-a", "MIG-b", "MIG-c"]


def test_one_gpu_off_the_bus_does_not_take_the_others_with_it(
    loaded: Path, driver: FakeNvml
) -> None:
    driver.gpus[1].lost = True
    opened = partial(open_gpus, driver=loaded, open_driver=lambda: Nvml(driver), environment={})
    for wanted, name in (("auto", "GPU 1"), ([A, B, C], B)):
        gpus = opened(wanted)
        assert [device.uuid for device in gpus.devices] == [A, C]
        assert {uuid: found.state for uuid, found in gpus.troubles().items()} == {
            name: DeviceState.LOST
        }
        assert gpus.usable() == 2


def test_auto_takes_all_and_none_takes_none(driver: FakeNvml, tmp_path: Path) -> None:
    loaded = tmp_path / "nvidiactl"
    loaded.touch()
    opened = partial(open_gpus, driver=loaded, open_driver=lambda: Nvml(driver), environment={})
    assert len(opened("auto").devices) == 3
    assert opened("none").devices == []
    assert [d.uuid for d in opened([C, A]).devices] == [C, A]
    with pytest.raises(InvalidInput, match="has no GPU-x"):
        opened(["GPU-x"])


def test_without_a_driver_there_are_only_declared_ones(tmp_path: Path) -> None:
    opened = partial(open_gpus, driver=tmp_path / "nvidiactl")
    assert opened("auto").devices == []
    assert opened([A]).devices == [Device(uuid=A)]


def test_a_driver_nobody_can_ask_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match=r"pip install 'assay\[gpu\]'"):
        nvml_module.open_nvml()


def test_a_library_that_is_absent_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError(self.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setitem(sys.modules, "pynvml", Absent())
    assert nvml_module.open_nvml() is None


@pytest.mark.parametrize(
    ("given", "found"),
    [("auto", "auto"), ("none", "none"), (f'["{A}"]', [A]), ('["MIG-1-2/3/4"]', ["MIG-1-2/3/4"])],
)
def test_settings(monkeypatch: pytest.MonkeyPatch, given: str, found: object) -> None:
    monkeypatch.setenv("ASSAY_WORKER_GPUS", given)
    assert WorkerSettings(token="x").gpus == found


@pytest.mark.parametrize("given", ["all", '["0"]', f'["{A}", "{A}"]', '["GPU-"]', "0"])
def test_wrong_settings(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("ASSAY_WORKER_GPUS", given)
    with pytest.raises(ValidationError):
        WorkerSettings(token="x")


@pytest.mark.parametrize(
    ("name", "memory", "found"),
    [
        ("NVIDIA H200", 143771 << 20, "gpu-h200-141"),
        ("NVIDIA H100 80GB HBM3", 81559 << 20, "gpu-h100-80"),
        ("NVIDIA A100-SXM4-40GB", 40960 << 20, "gpu-a100-sxm4-40"),
        ("NVIDIA GeForce RTX 4090", 24564 << 20, "gpu-rtx-4090-24"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 << 30, "gpu-h100-mig-10"),
        ("unknown", 0, "gpu-unknown"),
    ],
)
def test_hardware_classes(name: str, memory: int, found: str) -> None:
    assert gpu_class([Device(uuid=A, name=name, memory_bytes=memory)]) == found


def test_gpus_of_several_kinds_need_a_worker_each() -> None:
    devices = [Device(uuid=A, name="NVIDIA H200"), Device(uuid=B, name="NVIDIA L4")]
    with pytest.raises(InvalidInput, match="several kinds"):
        gpu_class(devices)


# ---- the real library ----


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="no nvidia-ml-py here")
def test_the_fake_speaks_the_calls_of_the_library() -> None:
    import pynvml  # type: ignore[import-not-found]

    for name, value in inspect.getmembers(FakeNvml):
        if name.startswith(("nvml", "NVML_")):
            real = getattr(pynvml, name)
            if callable(real):
                wanted = [p for p in inspect.signature(value).parameters if p != "self"]
                assert len(inspect.signature(real).parameters) == len(wanted), name
            else:
                assert real == value, name
    used = Path(nvml_module.__file__).read_text()
    for name in dir(pynvml):
        if name.startswith(("nvmlDevice", "nvmlEvent")) and f"module.{name}(" in used:
            assert hasattr(FakeNvml, name), name


@pytest.mark.gpu
@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="no NVIDIA GPU here")
def test_real_devices() -> None:
    gpus = open_gpus("auto")
    assert gpus.devices
    assert all(d.uuid.startswith(("GPU-", "MIG-")) for d in gpus.devices)
    lease = gpus.take(1)
    assert gpus.gauges(lease.uuids)["gpu0_memory_bytes"] >= 0
    lease.release()
    assert gpus.usable() == len(gpus.devices)

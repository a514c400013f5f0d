"""GPUs of a sandbox without an engine: which device nodes a UUID stands for, and that only they
are there. The driver is a folder of the form the real one has, its nodes are `/dev/null`."""

from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Mount, SandboxError
from assay.sandbox import bubblewrap as backend
from assay.sandbox.gpus import gpu_mounts

FIRST = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
SECOND = "GPU-22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def driver(tmp_path: Path) -> tuple[Path, Path]:
    """What a driver with two GPUs shows: its folder in /proc, and its nodes."""
    facts, devices = tmp_path / "gpus", tmp_path / "dev"
    # As on real hosts, the order of the bus is not the order of the minor numbers.
    for bus, uuid, minor in (("0000:0a:00.0", SECOND, 1), ("0000:0b:00.0", FIRST, 0)):
        (facts / bus).mkdir(parents=True)
        (facts / bus / "information").write_text(
            f"Model: \t\t NVIDIA Something\nIRQ:   \t\t 100\nGPU UUID: \t {uuid}\n"
            f"Bus Type: \t PCIe\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    devices.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (devices / name).symlink_to("/dev/null")
    return facts, devices


def test_a_uuid_stands_for_one_node_and_the_shared_ones(driver: tuple[Path, Path]) -> None:
    targets = [mount.target for mount in gpu_mounts((SECOND,), *driver)]
    assert targets == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    both = {mount.target for mount in gpu_mounts((FIRST, SECOND), *driver)}
    assert both == {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert gpu_mounts((), Path("/nowhere"), Path("/nowhere")) == ()


@pytest.mark.parametrize("gpu", ["0", "all", "GPU-33333333", "MIG-44444444"])
def test_what_the_driver_does_not_know_is_refused(driver: tuple[Path, Path], gpu: str) -> None:
    with pytest.raises(SandboxError, match="knows no GPU"):
        gpu_mounts((gpu,), *driver)


def test_a_missing_node_is_refused(driver: tuple[Path, Path]) -> None:
    (driver[1] / "nvidia-uvm").unlink()
    with pytest.raises(SandboxError, match="nvidia-uvm is missing"):
        gpu_mounts((FIRST,), *driver)
    (driver[1] / "nvidia-uvm").write_text("not a device")
    with pytest.raises(SandboxError, match="nvidia-uvm is missing"):
        gpu_mounts((FIRST,), *driver)


@pytest.mark.bubblewrap
def test_a_program_sees_the_nodes_it_was_given_and_no_other(
    bubblewrap: Any, driver: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mounts_here(gpus: tuple[str, ...]) -> tuple[Mount, ...]:
        return gpu_mounts(gpus, *driver)

    monkeypatch.setattr(backend, "gpu_mounts", mounts_here)
    code = """
import os
print(sorted(name for name in os.listdir("/dev") if name.startswith("nvidia")))
print(os.environ.get("CUDA_VISIBLE_DEVICES"))
for name in ("/dev/nvidia1", "/dev/nvidiactl"):
    os.write(os.open(name, os.O_RDWR), b"x")
"""
    given = bubblewrap.finish(code, gpus=(SECOND,))
    assert given.out == f"['nvidia-uvm', 'nvidia1', 'nvidiactl']\n{SECOND}\n", given.err
    assert (given.exit.reason, given.exit.code) == ("exited", 0), given.err
    none = bubblewrap.start(code).wait()
    assert none.out == "[]\nNone\n"
    assert "No such file" in none.err

"""GPUs of a sandbox without an engine: which device nodes a UUID stands for, and that only they
are there. The driver is a folder of the form the real one has, its nodes are `/dev/null`."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import CudaTrial, Mount, SandboxError, SandboxSettings, choose, gpu_problem
from assay.sandbox import bubblewrap as backend
from assay.sandbox.gpus import driver_libraries, gpu_mounts
from tests.support.needs import missing

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


@pytest.mark.parametrize("gpu", ["0", "all", "GPU-33333333"])
def test_what_the_driver_does_not_know_is_refused(driver: tuple[Path, Path], gpu: str) -> None:
    with pytest.raises(SandboxError, match="knows no GPU"):
        gpu_mounts((gpu,), *driver)


def test_a_part_of_a_gpu_is_refused_with_a_remedy(tmp_path: Path) -> None:
    settings = SandboxSettings("bubblewrap", scratch=tmp_path)
    part = "MIG-44444444"
    problem = gpu_problem(settings, part)
    assert problem is not None
    assert "ASSAY_WORKER_SANDBOX=docker" in problem
    for name in ("docker", "subprocess"):
        assert gpu_problem(replace(settings, name=name), part) is None


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


NAMES_ITS_THREADS = """
import os, threading
for folder in os.listdir("/proc/self/task"):
    path = f"/proc/self/task/{folder}/comm"
    with open(path, "w") as file:
        file.write("cuda")
    assert open(path).read() == "cuda\\n"
for path in ("/proc/1/mem", "/proc/1/task/1/mem", "/proc/1/oom_score_adj", "/proc/1/new",
             "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/new"):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        print("opened", path)
    except OSError:
        pass
print(os.listdir("/proc/1"))
# Would count up a number of the whole host, which /proc/self/sessionid shows.
if os.path.exists("/proc/self/loginuid"):
    try:
        os.write(os.open("/proc/thread-self/loginuid", os.O_WRONLY), str(os.getuid()).encode())
        print("logged in")
    except PermissionError:
        pass
"""


@pytest.mark.bubblewrap
@pytest.mark.parametrize("sees_held_out", [False, True])
def test_a_program_with_a_gpu_names_its_threads_and_reaches_no_init(
    bubblewrap: Any,
    driver: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    sees_held_out: bool,
) -> None:
    """CUDA does the first, and fails with error 304 where it cannot."""
    monkeypatch.setattr(backend, "gpu_mounts", lambda gpus: gpu_mounts(gpus, *driver))
    ended = bubblewrap.finish(NAMES_ITS_THREADS, gpus=(SECOND,), sees_held_out=sees_held_out)
    assert ended.out == "[]\n", ended.err


# ---- the driver's libraries ----

Library = Callable[[str], Path]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Makes a folder with a driver library that names its folder."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "libcuda.so.1").write_text(name)
        return folder

    return make


def test_the_folder_of_the_workers_own_path_comes_first(library: Library, tmp_path: Path) -> None:
    known, own = library("known"), library("own")
    found = partial(driver_libraries, (FIRST,), cache=tmp_path / "cache", folders=(known,))
    path = {"LD_LIBRARY_PATH": f"/nowhere::relative:{tmp_path}:{own}"}
    assert found(path).variables == {"LD_LIBRARY_PATH": str(own)}
    assert found({}).variables == {"LD_LIBRARY_PATH": str(known)}
    assert found({}, folders=()).variables == {}


def test_nothing_is_said_where_the_loader_knows_or_no_gpu_is_given(
    library: Library, tmp_path: Path
) -> None:
    known = library("known")
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib/libcuda.so.1\0")
    assert driver_libraries((FIRST,), {}, cache, (known,)).variables == {}
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libm.so.6\0")
    assert driver_libraries((FIRST,), {}, cache, (known,)).variables != {}
    assert driver_libraries((), {"LD_LIBRARY_PATH": str(known)}).variables == {}


def test_a_folder_that_holds_too_much_is_not_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "libcuda.so.1").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        with pytest.raises(SandboxError, match="holds too much"):
            driver_libraries((FIRST,), {"LD_LIBRARY_PATH": str(home)})


LOADS = """
import os
path = os.environ["LD_LIBRARY_PATH"]
print(path, open(os.path.join(path, "libcuda.so.1")).read())
"""


@pytest.mark.bubblewrap
def test_a_program_with_a_gpu_reaches_the_library_of_the_driver(
    bubblewrap: Any,
    driver: tuple[Path, Path],
    library: Library,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on NixOS: a folder in /run of links to a store, neither of which a sandbox shows."""
    store, run = library("store/driver/lib"), tmp_path / "run/lib"
    run.mkdir(parents=True)
    (run / "libcuda.so.1").symlink_to(store / "libcuda.so.1")
    monkeypatch.setattr(backend, "gpu_mounts", lambda gpus: gpu_mounts(gpus, *driver))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(run))
    assert bubblewrap.finish(LOADS, gpus=(SECOND,)).out == f"{run} store/driver/lib\n"
    assert "KeyError: 'LD_LIBRARY_PATH'" in bubblewrap.start(LOADS).wait().err


# ---- whether CUDA starts ----

#: The driver's library as far as a trial asks it. As the real one it names its threads; `WITHIN`
#: may forbid it to start where a variable of the worker is missing, which no sandbox passes on.
CUDA = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) {
    FILE *name = fopen("/proc/thread-self/comm", "w");
    if (!name || WITHIN) return 304;
    return fclose(name);
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuGetErrorName(int code, const char **name) {
    *name = "CUDA_ERROR_OPERATING_SYSTEM";
    return 0;
}
"""


@pytest.fixture
def cuda(
    driver: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Give this host a driver's library that does not start where a condition in C holds."""

    if shutil.which("cc") is None:
        missing("cc, a C compiler, is not installed")

    def make(within: str) -> None:
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        (folder / "cuda.c").write_text(CUDA)
        command = ["cc", "-shared", "-fPIC", f"-DWITHIN={within}", "-o"]
        subprocess.run(
            [*command, str(folder / "libcuda.so.1"), str(folder / "cuda.c")], check=True
        )
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
        monkeypatch.setenv("ASSAY_OUTSIDE", "yes")

    monkeypatch.setattr(backend, "gpu_mounts", lambda gpus: gpu_mounts(gpus, *driver))
    monkeypatch.setattr(choose, "gpu_mounts", lambda gpus: gpu_mounts(gpus, *driver))
    return make


@pytest.mark.bubblewrap
def test_cuda_is_tried_in_the_sandbox(cuda: Callable[[str], None], tmp_path: Path) -> None:
    trial = CudaTrial(SandboxSettings("bubblewrap", scratch=tmp_path))
    cuda('!getenv("ASSAY_OUTSIDE")')
    problem = trial.problem(FIRST)
    assert problem is not None
    assert "not in a bubblewrap sandbox (error 304, CUDA_ERROR_OPERATING_SYSTEM)" in problem
    cuda("0")
    assert trial.problem(FIRST) is None
    cuda('!getenv("ASSAY_OUTSIDE")')
    assert trial.problem(FIRST) is None, "what worked once is not tried again"
    assert trial.problem(SECOND) is not None


@pytest.mark.bubblewrap
def test_a_host_without_cuda_is_no_fault_of_the_sandbox(
    cuda: Callable[[str], None], tmp_path: Path
) -> None:
    cuda("1")
    assert CudaTrial(SandboxSettings("bubblewrap", scratch=tmp_path)).problem(FIRST) is None


def test_a_gpu_that_cannot_be_handed_out_is_not_tried(tmp_path: Path) -> None:
    trial = CudaTrial(SandboxSettings("bubblewrap", scratch=tmp_path))
    assert "ASSAY_WORKER_SANDBOX=docker" in str(trial.problem("MIG-1"))


def test_a_plain_program_with_a_gpu_is_told_of_it(
    plain: Any, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library("own")))
    assert plain.finish(LOADS, gpus=(FIRST,)).out.endswith("own own\n")
    assert "KeyError" in plain.start(LOADS).wait().err

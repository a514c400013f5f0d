"""What honest code does works inside every isolating sandbox: the filter allows enough."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.environments import Environment
from assay.sandbox import Limits, Mount, SandboxSettings, SandboxSpec, open_sandbox
from tests.sandbox.docker_engine import HOST, require_docker
from tests.support.service import ServiceProcess
from tests.support.workloads import ROOT, WORKLOADS, knob_batch, patient_copy

QUICK = ("files", "sockets", "supervision", "system")
# Docker has both the filter and the profile, so what takes long is tried there alone.
PROGRAMS = [
    *(pytest.param("bubblewrap", name, marks=pytest.mark.bubblewrap) for name in QUICK),
    *(pytest.param("docker", name, marks=pytest.mark.docker) for name in sorted(WORKLOADS)),
]
LIMITS = Limits(300, 6 << 30, processes=512, open_files=2048)


@pytest.mark.parametrize(("backend", "name"), PROGRAMS)
def test_a_program_that_was_recorded_runs(
    backend: str,
    name: str,
    settings: Callable[[str], SandboxSettings],
    folder: Path,
    tmp_path: Path,
) -> None:
    if backend == "docker":
        require_docker()
    scope = f"test-{os.getpid()}"
    sandbox = open_sandbox(replace(settings(backend), docker_host=HOST, scope=scope))
    program = tmp_path / "program"
    program.mkdir()
    (program / "program.py").write_text(WORKLOADS[name])
    log = folder / "log"
    with log.open("wb") as output:
        spec = SandboxSpec(
            name="workload",
            argv=(sandbox.python, "/job/program.py"),
            env={"OMP_NUM_THREADS": "2"},
            mounts=(Mount(program, "/job"),),
            cwd="/tmp",
            limits=LIMITS,
            stdout=output.fileno(),
            stderr=output.fileno(),
        )
        ended = sandbox.start(spec).wait()
    assert (ended.reason, ended.code) == ("exited", 0), log.read_text()[-3000:]


@pytest.mark.timeout(900)  # minutes on a quiet machine, more on a busy one
@pytest.mark.docker
@pytest.mark.parametrize("name", ["grpo", "nanogpt", "toy"])
def test_an_environment_trains_and_is_scored(name: str, tmp_path: Path) -> None:
    require_docker()
    env = {
        "ASSAY_WORKER_DOCKER_HOST": HOST,
        "ASSAY_WORKER_PROBE": "quick",
        "ASSAY_ENVIRONMENTS": str(patient_copy(name, tmp_path / "environments")),
    }
    service = ServiceProcess(tmp_path / "data", sandbox="docker", env=env)
    service.start()
    try:
        with service.client() as client:
            request = knob_batch(Environment.load(ROOT / "environments" / name))
            batch = client.batches.create(request).id
            client.batches.wait(batch, timeout=1800)
            (experiment,) = client.experiments.list(batch=batch)
        assert experiment.state == "succeeded", experiment.failure
    finally:
        service.stop()

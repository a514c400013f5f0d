"""What a training may start, and how many threads its processes are told to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from assay.contracts.environment import Budget, Profile
from assay.contracts.worker import AttemptSpec
from assay.environments import Environment
from services.worker.settings import WorkerSettings
from services.worker.training import Training, limits_of, training_environment

NANOGPT = Path(__file__).resolve().parents[2] / "environments" / "nanogpt"
SEEN = {"data": "/d", "out": "/o", "config": "/c", "tmp": "/tmp"}


def training(profile: Profile) -> Training:
    spec = AttemptSpec(
        attempt="att_1",
        lease_token=1,
        measurement="msr_1",
        kind="idea",
        codebase="c",
        environment="e",
        bundle="b",
        profile="p",
        seed=7,
        hardware_class="cpu",
        cpus=profile.cpus,
        gpus=profile.gpus,
        memory_bytes=profile.memory_bytes,
    )
    return Training(spec, profile, ("python", "train.py"), Path("/data"))


def profile_of(**keys: Any) -> Profile:
    return Profile(budget=Budget(seconds=10), **keys)


def processes(profile: Profile, **settings: Any) -> int:
    return limits_of(training(profile), WorkerSettings(token="x", **settings)).processes


def threads(profile: Profile) -> dict[str, str]:
    shown = training_environment(training(profile), SEEN)
    return {name: value for name, value in shown.items() if "THREADS" in name}


def test_eight_ranks_share_the_processors_and_may_compile() -> None:
    paper = Environment.load(NANOGPT).profile("paper")
    assert set(threads(paper).values()) == {"4"}
    assert "TORCHINDUCTOR_COMPILE_THREADS" in threads(paper)
    # Each rank: threads of OpenMP, the compiler and its children, and a hundred of CUDA and NCCL.
    assert processes(paper) >= 8 * (4 + 3 * 4 + 100)


def test_a_profile_without_gpus_is_told_nothing_new() -> None:
    tiny = Environment.load(NANOGPT).profile("tiny")
    libraries = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    assert threads(tiny) == dict.fromkeys(("ASSAY_THREADS", *libraries), "1")
    assert processes(tiny) == 256
    assert processes(profile_of(cpus=16)) == 256


@pytest.mark.parametrize(
    ("cpus", "gpus", "each"), [(8, 1, "8"), (4, 8, "1"), (9, 2, "4"), (6, 0, "6")]
)
def test_every_process_has_its_share_of_threads(cpus: int, gpus: int, each: str) -> None:
    assert set(threads(profile_of(cpus=cpus, gpus=gpus)).values()) == {each}


def test_more_gpus_and_processors_allow_more_processes() -> None:
    allowed = [processes(profile_of(cpus=c, gpus=g)) for c, g in ((4, 1), (8, 1), (32, 8))]
    assert allowed == sorted(set(allowed))
    assert allowed[0] > 256


def test_a_profile_states_its_own_and_the_operator_bounds_it() -> None:
    profile = profile_of(gpus=1, processes=300)
    assert processes(profile) == 300
    assert processes(profile, processes=100) == 100
    assert processes(profile, processes=1000) == 300
    with pytest.raises(ValidationError, match="processes"):
        profile_of(processes=0)


def test_a_profile_that_states_none_is_stored_without_the_key() -> None:
    assert "processes" not in profile_of().model_dump()
    assert profile_of(processes=9).model_dump()["processes"] == 9

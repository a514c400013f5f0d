"""Smokes that need a GPU: where they are queued, what they cost, and when they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from assay.domain.states import MeasurementKind
from assay.storage import schema
from services.implementer.context import Context
from services.implementer.limits import Gates
from services.implementer.loop import Shared
from services.implementer.pool import ImplementPool
from services.implementer.smoke import Waiter, fitting_class
from tests.implementer.conftest import batch
from tests.implementer.scripted import Scripted
from tests.implementer.test_loop import GOOD
from tests.support.waiting import wait_until

PROFILE = """
[profiles.eight]
cpus = 2
gpus = 8
memory_gb = 2.0
[profiles.eight.budget]
seconds = 1800
evaluation_seconds = 60
[profiles.eight.smoke]
cpus = 1
memory_gb = 1.0
seconds = 90
config = { n_layer = 4 }
"""


@pytest.fixture(autouse=True)
def _a_profile_for_gpus(environments: Path) -> None:
    manifest = environments / "count" / "environment.toml"
    manifest.write_text(manifest.read_text() + PROFILE)


def resize(context: Context, **values: Any) -> None:
    with context.db.write() as session:
        session.execute(update(schema.Worker).values(**values))


def submit(api: TestClient, **options: Any) -> Any:
    chosen = {"preflight": "smoke", "allow_unisolated": True, "baseline_seeds": 0, **options}
    body = batch(profile="eight", executor="offline:literal", options=chosen)
    return api.post("/v1/batches", json=body | {"hardware_class": "gpu-h100"})


def measurements(context: Context, kind: MeasurementKind) -> list[schema.Measurement]:
    table = schema.Measurement
    with context.db.read() as session:
        return list(session.scalars(select(table).where(table.kind == kind.value)))


def implement(context: Context, until: Any) -> None:
    """Let a model answer every idea, until something holds."""
    waiter = Waiter(context, look_s=0.01, no_worker_pause_s=0.05)
    shared = Shared(Gates(context.settings.models), waiter)
    model = Scripted(lambda _: GOOD)
    pool = ImplementPool(context, open_executor=lambda *_: model, shared=shared)
    pool.start()
    try:
        wait_until(until)
    finally:
        pool.stop()


def test_it_is_queued_for_one_gpu_of_the_class_of_the_batch(
    api: TestClient, context: Context
) -> None:
    resize(context, gpus=1, hardware_class="gpu-h100")
    assert submit(api).status_code == 202
    implement(context, lambda: measurements(context, MeasurementKind.SMOKE))
    (smoke,) = measurements(context, MeasurementKind.SMOKE)
    assert (smoke.profile, smoke.hardware_class) == ("eight", "gpu-h100")
    assert (smoke.cpus, smoke.gpus, smoke.memory_bytes) == (1, 1, 1 << 30)
    assert smoke.budget_seconds == 90
    with context.db.read() as session:
        shape = session.get_one(schema.Shape, smoke.shape_id)
    assert (shape.gpus, shape.hardware_class) == (1, "gpu-h100")
    assert shape.bound_seconds == 90 + 2 * (60 + 900) + 60
    assert measurements(context, MeasurementKind.SCORE) == []


@pytest.mark.parametrize(
    "lacks", [{"gpus": 0}, {"hardware_class": "gpu-l4"}, {"memory_bytes": 1 << 20}]
)
def test_it_is_refused_where_no_worker_of_the_class_fits(
    api: TestClient, context: Context, lacks: dict[str, Any]
) -> None:
    resize(context, **({"gpus": 1, "hardware_class": "gpu-h100"} | lacks))
    refused = submit(api).json()
    assert refused["errors"][0]["code"] == "no_smoke_worker"
    said = (
        "no live worker of class gpu-h100 fits a smoke of profile 'eight' (1 CPUs, 1 GPUs, 1 GB)"
    )
    assert said in refused["errors"][0]["message"]


def test_another_class_does_for_a_smoke_without_gpus_alone(
    api: TestClient, context: Context
) -> None:
    resize(context, gpus=1, hardware_class="gpu-h100")
    manifest = context.environments.get("count").manifest
    _, small = manifest.smoke_profile("eight") or (None, None)
    _, tiny = manifest.smoke_profile("tiny") or (None, None)
    assert small is not None
    assert tiny is not None
    with context.db.read() as session:

        def found(profile: Any, preferred: str | None) -> str | None:
            return fitting_class(session, profile, preferred, isolated=False)

        assert (
            found(small, "gpu-h100") == found(small, None) == found(tiny, "gpu-l4") == "gpu-h100"
        )
        assert found(small, "gpu-l4") is None


def test_a_batch_counts_its_smokes_among_its_gpu_hours(api: TestClient, context: Context) -> None:
    resize(context, gpus=1, hardware_class="gpu-h100")
    chosen = {"preflight": "smoke", "allow_unisolated": True, "seeds": [0, 1]}
    body = batch("One.", "Two.", profile="eight", options=chosen)
    body["hardware_class"] = "gpu-h100"
    url = "/v1/batches?dry_run=true"
    said = api.post(url, json=body).json()
    assert said["gpu_hours"] == 2 * (2 * 8 * 0.5 + 90 / 3600)
    body["options"]["preflight"] = "compile"
    assert api.post(url, json=body).json()["gpu_hours"] == 2 * 2 * 8 * 0.5


def test_a_cap_that_does_not_pay_for_it_ends_the_idea_without_it(
    api: TestClient, context: Context
) -> None:
    resize(context, gpus=1, hardware_class="gpu-h100")
    made = submit(api, max_gpu_hours=0.01)
    assert made.status_code == 202, made.text

    def failures() -> list[dict[str, Any]]:
        with context.db.read() as session:
            return [f for f in session.scalars(select(schema.Experiment.failure)) if f]

    implement(context, failures)
    assert [failure["code"] for failure in failures()] == ["gpu_hours_cap"]
    assert measurements(context, MeasurementKind.SMOKE) == []

"""A codebase that crashes early in training goes back to its model, once, and the chain shows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.placement import Placement
from assay.domain.states import AttemptState, FailureStage, MeasurementKind
from assay.llm import ImplementRequest
from assay.storage import attempts, batches, schema
from assay.storage.attempts import Outcome, Piece, Telemetry
from services.implementer.context import Context
from services.implementer.judging import Patched
from services.implementer.limits import Gates
from services.implementer.loop import Shared, take_up
from services.implementer.pool import ImplementPool
from services.implementer.smoke import Waiter
from tests.implementer.scripted import Scripted
from tests.implementer.test_loop import GOOD, MISFIT, implement, samples, submit
from tests.implementer.test_pool import state
from tests.support.waiting import wait_until

TTL = timedelta(seconds=60)
TRACE = (
    "starting\nTraceback (most recent call last):\n"
    '  File "/work/code/train.py", line 3, in <module>\n    STEP = 4\n'
    "RuntimeError: size of tensor a (4) must match\n"
)
CRASH = Failure(
    FailureStage.TRAIN, FailureCode.CRASHED, "RuntimeError: size of tensor a (4) must match"
)
MENDED = GOOD.replace("STEP = 4", "STEP = 5")


def measure(
    context: Context,
    measurement: str,
    failure: Failure | None = None,
    log: str = TRACE,
    minutes: float = 0,
    is_smoke: bool = False,
) -> None:
    """Run a measurement on the only worker, to this end, after so long."""
    db = context.db
    with db.write() as session:
        worker = session.scalars(select(schema.Worker.id)).one()
        attempt = attempts.assign(db, session, Placement(measurement, worker), TTL)
        assert attempt is not None
        lease = (attempt.id, worker, attempt.lease_token)
        attempts.claim(db, session, *lease, TTL)
        attempts.progress(db, session, *lease, Telemetry(), AttemptState.RUNNING)
        session.flush()
        began = schema.Attempt.started_at
        earlier = db.now(session) - timedelta(minutes=minutes)
        session.execute(
            update(schema.Attempt).where(schema.Attempt.id == lease[0]).values({began: earlier})
        )
        outcome = Outcome(AttemptState.FAILED, failure, started=True)
        if failure is None and is_smoke:
            outcome = Outcome(AttemptState.SUCCEEDED, started=True)
        elif failure is None:
            outcome = Outcome(AttemptState.SUCCEEDED, metric=1.0, metrics={"score": 1.0})
        report = Telemetry((Piece("train", 0, log.encode()),))
        attempts.finish(db, session, *lease, outcome, report)


def decisive(context: Context, experiment: str) -> list[str]:
    """The measurements that decide an experiment now."""
    link = schema.ExperimentMeasurement
    with context.db.read() as session:
        return list(
            session.scalars(
                select(link.measurement_id).where(
                    link.experiment_id == experiment, link.role == "score"
                )
            )
        )


def crashed(context: Context, **options: Any) -> str:
    """An experiment whose codebase has just crashed in training."""
    experiment = submit(context, **options)
    assert isinstance(implement(context, experiment, Scripted(lambda _: GOOD)), Patched)
    (measurement,) = decisive(context, experiment)
    measure(context, measurement, CRASH)
    return experiment


def test_the_model_gets_the_traceback_and_its_new_codebase_is_measured(
    context: Context, api: TestClient
) -> None:
    experiment = crashed(context)
    assert state(context, experiment) == "implementing"
    assert decisive(context, experiment) == []

    model = Scripted(lambda _: MENDED)
    assert isinstance(implement(context, experiment, model), Patched)
    (asked,) = model.asked
    assert asked.previous_answer == GOOD
    log = asked.patch_log or ""
    assert "size of tensor a (4) must match" in log
    assert "starting" not in log, "what was printed before the traceback does not help"
    assert ">    3\tSTEP = 4" in log, "the line that failed, as the edit left it"

    (measurement,) = decisive(context, experiment)
    assert state(context, experiment) == "queued"
    measure(context, measurement)
    assert state(context, experiment) == "succeeded"

    body = api.get(f"/v1/experiments/{experiment}").json()
    (repair,) = body["repairs"]
    assert repair["state"] == "repaired"
    assert repair["failure"]["message"] == CRASH.message
    assert repair["repaired"] == body["codebase"] != repair["codebase"]
    assert body["measurements"] == [measurement]
    failed = api.get(f"/v1/measurements/{repair['measurement']}").json()
    assert failed["state"] == "failed", "the original failure stays on record"
    record = api.get(f"/v1/implementations/{body['implementation']}").json()
    assert [(s["revision"], s["is_repair"]) for s in record["samples"]] == [(0, False), (1, True)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (MISFIT, "no_match"),
        (GOOD, "unchanged"),
        (GOOD.replace("+STEP = 4", "+STEP = 4  # surely"), "unchanged"),
        ("I give up.", "no_diff"),
    ],
)
def test_a_repair_that_comes_to_nothing_leaves_the_failure(
    context: Context, answer: str, says: str
) -> None:
    experiment = crashed(context)
    implement(context, experiment, Scripted(lambda _: answer))
    assert state(context, experiment) == "failed"
    with context.db.read() as session:
        row = session.get_one(schema.Experiment, experiment)
        repair = session.scalars(select(schema.Repair)).one()
        assert row.failure is not None
        assert (row.failure["stage"], row.failure["code"]) == ("train", "crashed")
        assert CRASH.message in row.failure["message"]
        assert says in row.failure["message"]
        assert row.codebase_id == repair.codebase_id
        assert repair.state == "refused"
    assert len(decisive(context, experiment)) == 1, "what crashed decides it, as before"


def test_only_so_often(context: Context) -> None:
    experiment = crashed(context, repairs=2)
    for number in (5, 6):
        answer = GOOD.replace("STEP = 4", f"STEP = {number}")
        implement(context, experiment, Scripted(lambda _, a=answer: a))
        (measurement,) = decisive(context, experiment)
        measure(context, measurement, CRASH)
    assert state(context, experiment) == "failed"
    with context.db.read() as session:
        repairs = session.scalars(select(schema.Repair).order_by(schema.Repair.number)).all()
        assert [r.state for r in repairs] == ["repaired", "repaired"]
        assert repairs[0].repaired_id == repairs[1].codebase_id


@pytest.mark.parametrize(
    ("options", "failure", "minutes"),
    [
        ({"repairs": 0}, CRASH, 0),
        ({}, CRASH, 6),
        ({}, Failure(FailureStage.TRAIN, FailureCode.WALL_BUDGET_EXCEEDED, "too slow"), 0),
        ({}, Failure(FailureStage.SCORE, FailureCode.NOT_FINITE, "NaN"), 0),
        ({"executor": "offline:literal"}, CRASH, 0),
    ],
)
def test_other_failures_stay_failures(
    context: Context, options: dict[str, Any], failure: Failure, minutes: float
) -> None:
    experiment = submit(context, **options)
    name = options.get("executor", "anthropic:claude-opus-4-5")
    implement(context, experiment, Scripted(lambda _: GOOD, name=name))
    (measurement,) = decisive(context, experiment)
    measure(context, measurement, failure, minutes=minutes)
    assert state(context, experiment) == "failed"


def test_a_crash_without_a_traceback_is_not_sent_back(context: Context) -> None:
    experiment = submit(context)
    implement(context, experiment, Scripted(lambda _: GOOD))
    (measurement,) = decisive(context, experiment)
    killed = Failure(
        FailureStage.TRAIN, FailureCode.CRASHED, "killed by SIGSEGV; nothing was logged"
    )
    measure(context, measurement, killed, log="")
    model = Scripted(lambda _: MENDED)
    implement(context, experiment, model)
    assert model.asked == []
    assert state(context, experiment) == "failed"


def test_two_ideas_with_one_codebase_are_repaired_one_by_one(context: Context) -> None:
    first, second = submit(context), submit(context)
    for experiment in (first, second):
        implement(context, experiment, Scripted(lambda _: GOOD))
    shared = decisive(context, first)
    assert shared == decisive(context, second)
    measure(context, shared[0], CRASH)
    implement(context, first, Scripted(lambda _: MENDED))
    implement(context, second, Scripted(lambda _: MISFIT))
    assert (state(context, first), state(context, second)) == ("queued", "failed")


def test_a_cancelled_experiment_is_not_repaired(context: Context) -> None:
    experiment = crashed(context)
    with context.db.write() as session:
        batches.cancel_experiment(context.db, session, experiment)
    assert take_up(context, experiment) is None
    with context.db.read() as session:
        assert session.scalars(select(schema.Repair.state)).one() == "refused"


def smokes(context: Context) -> list[str]:
    with context.db.read() as session:
        return list(
            session.scalars(
                select(schema.Measurement.id)
                .where(
                    schema.Measurement.kind == MeasurementKind.SMOKE.value,
                    schema.Measurement.state == "queued",
                )
                .order_by(schema.Measurement.id)
            )
        )


def eager(context: Context, model: Scripted) -> ImplementPool:
    """A pool that asks this model, and looks at its smokes all the time."""
    waiter = Waiter(context, look_s=0.01, no_worker_pause_s=0.05)
    shared = Shared(Gates(context.settings.models), waiter)
    return ImplementPool(context, open_executor=lambda *_: model, shared=shared)


def test_a_codebase_that_does_not_start_is_revised_before_it_is_measured(
    context: Context, api: TestClient
) -> None:
    def answer(request: ImplementRequest) -> str:
        return MENDED if "size of tensor" in (request.patch_log or "") else GOOD

    model = Scripted(answer)
    experiment = submit(context, preflight="smoke", allow_unisolated=True)
    pool = eager(context, model)
    pool.start()
    try:
        wait_until(lambda: len(smokes(context)) == 1)
        assert state(context, experiment) == "implementing"
        measure(context, smokes(context)[0], CRASH)
        wait_until(lambda: len(smokes(context)) == 1)
        measure(context, smokes(context)[0], is_smoke=True)
        wait_until(lambda: state(context, experiment) == "queued")
    finally:
        pool.stop()
    first, second = samples(context, experiment)
    assert (first.state, first.code, first.fitted) == ("refused", "smoke_failed", True)
    assert (second.state, second.fitted) == ("applied", True)
    body = api.get(f"/v1/experiments/{experiment}").json()
    assert set(body["smokes"]) == {first.smoke_id, second.smoke_id}
    assert body["measurements"] == decisive(context, experiment)
    assert body["state"] == "queued", "a smoke decides nothing"


def test_cancelling_the_batch_cancels_its_smokes(context: Context) -> None:
    experiment = submit(context, preflight="smoke", allow_unisolated=True)
    pool = eager(context, Scripted(lambda _: GOOD))
    pool.start()
    try:
        wait_until(lambda: len(smokes(context)) == 1)
        with context.db.write() as session:
            batches.cancel_experiment(context.db, session, experiment)
    finally:
        pool.stop()
    assert smokes(context) == []


def test_a_smoke_that_no_worker_can_run_is_refused(api: TestClient, context: Context) -> None:
    body = {
        "environment": "count",
        "profile": "tiny",
        "ideas": [{"text": "Fours."}],
        "options": {"preflight": "smoke"},
        "hardware_class": "cpu",
    }
    assert api.post("/v1/batches", json=body).status_code == 202
    with context.db.write() as session:
        session.execute(update(schema.Worker).values(cpus=0))
    refused = api.post("/v1/batches", json=body).json()
    assert refused["errors"][0]["pointer"] == "/options/preflight", refused


def test_a_crash_of_the_process_does_not_lose_a_repair(context: Context) -> None:
    experiment = crashed(context)
    assert take_up(context, experiment) is not None  # and dies
    taken = take_up(context, experiment)
    assert taken is not None
    assert taken[0].repair is not None
    model = Scripted(lambda _: MENDED)
    assert isinstance(implement(context, experiment, model), Patched)
    assert len(model.asked) == 1

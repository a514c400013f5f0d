"""The execution report counts a finished batch once, and adds up to the same as counting all."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from assay.domain.states import ExperimentState
from assay.storage import schema
from tests.implementer.test_report_execution import (
    CRASHED,
    MISFIT,
    NOON,
    OPUS,
    SONNET,
    Scene,
    api,
    only,
    report,
    scene,
)
from tests.support.statements import counted

__all__ = ["api", "scene"]
#: Tables with a row or more for each experiment.
_LARGE = {"experiment", "implementation", "sample", "model_call", "attempt"}


def finish(scene: Scene, ideas: int, number: int = 0, **changes: Any) -> str:
    """A batch whose ideas have ended: a third scored, a third crashed, a third refused."""
    id_, experiments = scene.submit(ideas, **changes)
    for place, experiment in enumerate(experiments, number):
        scene.call(experiment)
        if place % 3 == 0:
            scene.fit(experiment)
            scene.score(experiment, 10.0 + place, 12.0 + place)
        elif place % 3 == 1:
            codebase = scene.patch(experiment, started=True)
            scene.attempt(scene.measure(codebase, experiment, state="failed"), 7.0)
            scene.end(experiment, CRASHED)
        else:
            scene.fit(experiment, fitted=place % 2 == 0)
            scene.end(experiment, MISFIT)
    return id_


def reference(scene: Scene) -> dict[str, dict[str, Any]]:
    """What a report says of each executor, counted one experiment after another."""
    found: dict[str, dict[str, Any]] = {}
    with scene.db.read() as session:
        batches = {each.id: each for each in session.scalars(select(schema.Batch))}
        metrics: dict[str, list[float]] = {}
        link, result = schema.ExperimentMeasurement, schema.Result
        for experiment, metric in session.execute(
            select(link.experiment_id, result.metric).join(
                result, result.measurement_id == link.measurement_id
            )
        ):
            metrics.setdefault(experiment, []).append(metric or 0.0)
        for each in session.scalars(select(schema.Experiment)):
            row = found.setdefault(
                batches[each.batch_id].executor,
                {"submitted": 0, "patched": 0, "metrics": [], "failures": Counter()},
            )
            row["submitted"] += 1
            row["patched"] += each.codebase_id is not None
            if each.state == ExperimentState.SUCCEEDED.value:
                row["metrics"].append(fmean(metrics[each.id]))
            if each.failure:
                row["failures"][each.failure["stage"], each.failure["code"]] += 1
    return found


def check(api: TestClient, scene: Scene) -> None:
    """The report says what counting one experiment after another says."""
    rows = {row["executor"]: row for row in report(api)["data"]}
    wanted = reference(scene)
    assert rows.keys() == wanted.keys()
    for executor, of in wanted.items():
        row = rows[executor]
        funnel = row["funnel"]
        assert (funnel["submitted"], funnel["patched"]) == (of["submitted"], of["patched"])
        assert (funnel["scored"], row["usage"]["calls"]) == (len(of["metrics"]), of["submitted"])
        assert row["metric"]["average"] == pytest.approx(fmean(of["metrics"]))
        assert row["metric"]["best"] == max(of["metrics"])
        assert {(e["stage"], e["code"]): e["count"] for e in row["failures"]} == of["failures"]
        assert row["wasted_seconds"] == pytest.approx(7.0 * of["failures"]["train", "crashed"])


def test_the_report_is_what_counting_one_by_one_gives(api: TestClient, scene: Scene) -> None:
    for number in range(4):
        finish(scene, 5 + number, number, executor=SONNET if number % 2 else OPUS)
    check(api, scene)
    check(api, scene)  # of what is kept
    finish(scene, 4)
    check(api, scene)  # of both


def test_a_finished_batch_is_not_counted_again(api: TestClient, scene: Scene) -> None:
    """Beside 100,000 experiments, each look counted all of them, which took seconds."""

    def read() -> set[str]:
        """The large tables that a report reads."""
        with counted(scene.db) as sent:
            report(api)
        words = {word.strip("(),") for statement in sent for word in statement.split()}
        return words & _LARGE

    finish(scene, 3)
    assert read() == _LARGE
    assert read() == set()
    finish(scene, 3)
    assert read() == _LARGE
    assert read() == set()


def test_a_finished_batch_is_counted_again_while_something_of_it_goes_on(
    api: TestClient, scene: Scene
) -> None:
    _, (calls, runs) = scene.submit(2)
    call = scene.call(calls, None, state="calling", finished_at=None)
    scene.end(calls, MISFIT)
    measurement = scene.measure(scene.patch(runs, started=True), runs, state="failed")
    attempt = scene.attempt(measurement, 30, "running")
    scene.end(runs, CRASHED)
    row = only(api)
    assert (row["usage"]["under_way"], row["wasted_seconds"], row["unfinished"]) == (1, 0.0, 0)
    table = schema.ModelCall
    with scene.db.write() as session:
        session.execute(
            update(table).where(table.id == call).values(finished_at=NOON, state="interrupted")
        )
    assert only(api)["usage"]["under_way"] == 0
    with scene.db.write() as session:
        session.execute(
            update(schema.Attempt).where(schema.Attempt.id == attempt).values(state="lost")
        )
    assert only(api)["wasted_seconds"] == pytest.approx(30.0, abs=0.01)


def test_what_two_batches_share_is_wasted_once(api: TestClient, scene: Scene) -> None:
    experiments = [scene.submit(1)[1][0] for _ in range(2)]
    codebase = scene.patch(experiments[0], started=True)
    scene.attempt(scene.measure(codebase, *experiments, state="failed"), 30)
    for experiment in experiments:
        scene.end(experiment, CRASHED)
    assert only(api)["wasted_seconds"] == pytest.approx(30.0, abs=0.01)
    assert only(api)["wasted_seconds"] == pytest.approx(30.0, abs=0.01)


def test_the_page_shows_the_latest_examples_of_all_batches(api: TestClient, scene: Scene) -> None:
    ids = [scene.submit(2)[1] for _ in range(3)]
    for batch in ids:
        for experiment in batch:
            scene.end(experiment, CRASHED)
    page = api.get("/failures").text
    shown = [each for batch in ids for each in batch if each in page]
    assert shown == sorted(each for batch in ids for each in batch)[-3:]

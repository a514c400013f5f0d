"""`GET /metrics`: numbers that agree with what was done, cheap to ask for, and without ids."""

from __future__ import annotations

import re
import time
import urllib.request
from datetime import timedelta
from decimal import Decimal

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import event, insert, select, update
from starlette.testclient import TestClient

from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.ids import new_id
from assay.domain.states import AttemptState, FailureStage
from assay.storage import calls, schema, statistics
from assay.storage.attempts import Outcome
from assay.storage.calls import CallEnd, CallStart, Payer
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from assay.telemetry.counts import serve_metrics
from services.implementer import metrics
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.metrics import Metrics, Names
from services.implementer.settings import ImplementerSettings
from tests.storage.lifecycle import World

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(text: str) -> Values:
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(values: Values, name: str, **labels: str) -> float:
    return values.get((name, tuple(sorted(labels.items()))), 0.0)


def read(world: World) -> Values:
    """A first look, as of a process that has just started."""
    return scrape(Metrics(world.db).render().decode())


def test_what_waits_and_runs_is_shown_by_size(world: World) -> None:
    batch = world.submit("Count by two.", "Count by three.", "Count by four.")
    experiments = world.experiments(batch)
    waiting = [world.implement(e.id, f"STEP = {n}\n") for n, e in enumerate(experiments[:2])]
    values = read(world)
    size = {"hardware_class": "cpu", "gpus": "0", "cpus": "1"}
    assert of(values, "assay_queue_measurements", **size) == 2
    assert 0 <= of(values, "assay_queue_oldest_wait_seconds", **size) < 60
    assert of(values, "assay_experiments", state="queued") == 2
    assert of(values, "assay_experiments", state="submitted") == 1
    assert of(values, "assay_outbox_messages") > 0
    assert of(values, "assay_database_up") == 1

    world.assign(waiting[0])
    values = read(world)
    assert of(values, "assay_queue_measurements", **size) == 1
    assert of(values, "assay_attempts", state="assigned") == 1
    assert of(values, "assay_cpus_installed", hardware_class="cpu") == 4
    assert of(values, "assay_cpus_held", hardware_class="cpu") == 1
    assert of(values, "assay_workers", state="active") == 1
    assert of(values, "assay_queue_wait_seconds_count", gpus="0") == 1
    assert of(values, "assay_queue_wait_seconds_bucket", gpus="0", le="+Inf") == 1


def test_wasted_seconds_are_told_by_cause(world: World) -> None:
    batch = world.submit("One.", "Two.", "Three.")
    ids = [world.implement(e.id, f"STEP = {n}\n") for n, e in enumerate(world.experiments(batch))]
    crash = Failure(FailureStage.TRAIN, FailureCode.CRASHED, "ValueError: no")
    full = Failure(FailureStage.START, FailureCode.HOST_FAILED, "no space")
    outcomes = [
        None,
        Outcome(AttemptState.FAILED, crash, started=True, seconds=1.0),
        Outcome(AttemptState.FAILED, full),
    ]
    for measurement, outcome in zip(ids, outcomes, strict=True):
        attempt = world.assign(measurement)
        assert attempt is not None
        lengthen(world.db, attempt.id, seconds=100, gpus=8)
        world.claim(attempt)
        world.finish(attempt, outcome)
    values = read(world)
    finished = "assay_attempts_finished_total"
    assert of(values, finished, state="succeeded", cause="succeeded", counted="yes") == 1
    assert of(values, finished, state="failed", cause="crashed", counted="yes") == 1
    assert of(values, finished, state="failed", cause="host_failed", counted="no") == 1
    assert of(values, "assay_used_gpu_seconds_total") == pytest.approx(2400, rel=0.05)
    wasted = of(values, "assay_wasted_gpu_seconds_total", cause="host_failed")
    assert wasted == pytest.approx(800, rel=0.05)
    assert of(values, "assay_wasted_gpu_seconds_total", cause="crashed") == 0
    assert of(values, "assay_measurements_failed_total", code="crashed") == 1


def lengthen(db: Database, attempt: str, seconds: int, gpus: int) -> None:
    """As if it had been assigned earlier, and with GPUs."""
    with db.write() as session:
        row = session.get_one(schema.Attempt, attempt)
        row.created_at, row.gpus = row.created_at - timedelta(seconds=seconds), gpus


def test_what_has_ended_is_added_up_once_and_then_followed(world: World) -> None:
    """Readings over time say what one reading of everything says."""
    ledger = statistics.Ledger(world.db)

    def totals(of: statistics.Ledger) -> tuple[object, ...]:
        with world.db.snapshot() as session:
            ended = of.read(session)
        attempts = {key: n for key, n in ended.attempts.items() if n}
        return attempts, dict(ended.waits), dict(ended.failures)

    batch = world.submit(*(f"Idea {n}." for n in range(4)))
    for number, experiment in enumerate(world.experiments(batch)):
        world.measure(world.implement(experiment.id, f"STEP = {number}\n"))
        # Every other reading settles all there is, the next one adds what came since.
        ledger.settled = timedelta(seconds=120 * (number % 2))
        assert totals(ledger)[0] == totals(statistics.Ledger(world.db))[0]
    assert totals(ledger) == totals(statistics.Ledger(world.db))
    assert totals(ledger)[0] == {("succeeded", "succeeded", True): 4}


def test_cost_of_models_is_shown_without_their_address(world: World) -> None:
    batch = world.submit("One.")
    world.implement(world.experiments(batch)[0].id, "STEP = 2\n")
    with world.db.write() as session:
        row = session.scalars(select(schema.Implementation)).one()
        model = "openai:big@https://user:secret-word@models.example/v1"
        payer = Payer("local", batch, None, row.id)
        calls.before(session, payer, CallStart("call_1", 7, 0, 1, model, "", "p", None))
        session.flush()
        cost = Decimal("0.25")
        end = CallEnd("returned", input_tokens=4, cached_input_tokens=6, cost_usd=cost)
        calls.after(session, "call_1", end)
    text = Metrics(world.db).render().decode()
    values = scrape(text)
    assert of(values, "assay_llm_cost_dollars_total", model="openai:big") == 0.25
    assert of(values, "assay_llm_tokens_total", model="openai:big", direction="input") == 10
    assert "secret-word" not in text


def test_no_label_holds_an_id_or_a_secret(world: World, api: TestClient) -> None:
    batch = world.submit("One.", "Two.")
    for experiment in world.experiments(batch):
        world.measure(world.implement(experiment.id, f"STEP = {experiment.position}\n"))
        api.get(f"/v1/experiments/{experiment.id}")
    api.get("/v1/nowhere/at_all")
    text = api.get("/metrics").text
    assert re.findall(r"\b(?:bat|exp|mea|att|wrk|impl|req)_[0-9a-z]{26}", text) == []
    assert 'route="/v1/experiments/{experiment_id}"' in text
    assert 'route="unknown"' in text
    assert "nowhere" not in text
    for line in text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        assert line.startswith("#") or name.startswith(("assay_", "process_", "python_")), line


def test_names_that_others_choose_do_not_grow_without_end() -> None:
    names, tally = Names(), statistics.Tally()
    for number in range(200):
        tally[f"code_{number}",] += 1
    first = names.few("cause", tally)
    assert len(first) == Names.MOST + 1
    assert first[metrics.OTHER,] == 200 - Names.MOST
    tally["another",] += 1000
    second = names.few("cause", tally)
    assert set(first) == set(second)
    assert all(second[key] >= n for key, n in first.items())
    assert statistics.label_value('evil"} 1\nassay_fake 2') == "other"


def test_invented_hardware_classes_share_a_series(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Names, "MOST", 3)
    now = 0.0
    shown = Metrics(world.db, clock=lambda: now)
    shown.render()
    invented = [f"invented {number}" for number in range(10)]
    for number, name in enumerate(invented):
        world.another(name, hardware_class=name)
        batch = world.submit("Count by two.", hardware_class=name)
        world.implement(world.experiments(batch)[0].id, f"STEP = {number}\n")
    with world.db.write() as session:
        hour_ago = world.db.now(session) - timedelta(hours=1)
        session.execute(update(schema.Measurement).values(queued_at=hour_ago))
    now += metrics.CACHE_SECONDS
    values = scrape(shown.render().decode())
    for name in ("assay_cpus_installed", "assay_queue_measurements"):
        series = [value for (found, _), value in values.items() if found == name]
        assert len(series) <= Names.MOST + 1, name
    assert of(values, "assay_cpus_installed", hardware_class="cpu") == 4, "the first keeps its own"
    waiting = [n for (found, _), n in values.items() if found == "assay_queue_measurements"]
    assert sum(waiting) == len(invented)
    oldest = [n for (found, _), n in values.items() if found == "assay_queue_oldest_wait_seconds"]
    assert 3_600 <= max(oldest) < 7_200, "ages are not added up"


def test_a_scrape_asks_the_database_every_few_seconds_at_most(world: World) -> None:
    asked, now = [], 0.0
    event.listen(world.db.engine, "before_cursor_execute", lambda *_: asked.append(1))
    shown = Metrics(world.db, clock=lambda: now)
    shown.render()
    first = len(asked)
    assert first > 5
    now += metrics.CACHE_SECONDS - 0.01
    shown.render()
    assert len(asked) == first
    now += 0.02
    shown.render()
    assert len(asked) > first


def test_without_its_database_a_service_still_shows_metrics() -> None:
    db = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    values = scrape(Metrics(db).render().decode())
    assert of(values, "assay_database_up") == 0
    assert ("assay_outbox_messages", ()) not in values


@pytest.mark.postgres
@pytest.mark.slow
def test_a_scrape_is_cheap_with_a_hundred_thousand_queued(
    postgres: Database, store: LocalStore, catalog: object
) -> None:
    from assay.environments.catalog import Catalog

    assert isinstance(catalog, Catalog)
    world = World.create(postgres, store, catalog)
    batch = world.submit("One.")
    measurement = world.implement(world.experiments(batch)[0].id, "STEP = 2\n")
    with postgres.write() as session:
        row = session.get_one(schema.Measurement, measurement)
        table = schema.Measurement.__table__
        values = {c.name: getattr(row, c.name) for c in table.columns}
        rows = [values | {"id": new_id("mea"), "replicate": n} for n in range(1, 100_001)]
        session.execute(insert(schema.Measurement), rows)
    with postgres.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(
            "VACUUM ANALYZE measurement"
        )
    shown = Metrics(postgres)
    shown.render()
    best = min(timed(postgres) for _ in range(3))
    assert of(scrape(shown.render().decode()), "assay_queue_measurements",
              hardware_class="cpu", gpus="0", cpus="1") == 100_001  # fmt: skip
    assert best < 0.5, f"{best:.3f} s"


def timed(db: Database) -> float:
    began = time.perf_counter()
    with db.snapshot() as session:
        statistics.present(db, session)
    return time.perf_counter() - began


KEYS = {"api_keys": {"me": SecretStr("owner-key-1")}, "metrics_token": SecretStr("scrape-only")}


def test_with_keys_metrics_need_one_or_their_own_token(
    db: Database, store: LocalStore, catalog: object
) -> None:
    settings = ImplementerSettings.model_validate(KEYS)
    context = Context(db, store, catalog, settings, variables={})  # type: ignore[arg-type]
    with TestClient(create_app(context)) as client:

        def status(path: str, key: str | None) -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return client.get(path, headers=headers).status_code

        assert status("/metrics", None) == 401
        assert status("/metrics", "wrong") == 401
        assert status("/metrics", "owner-key-1") == 200
        assert status("/metrics", "scrape-only") == 200
        assert status("/v1/workers", "scrape-only") == 401
        text = client.get("/metrics", headers={"Authorization": "Bearer scrape-only"}).text
    assert "owner-key-1" not in text
    assert "scrape-only" not in text


def test_without_keys_metrics_are_open_on_this_machine(api: TestClient) -> None:
    answer = api.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_process_without_an_api_shows_its_own_counts() -> None:
    port = serve_metrics("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    assert "assay_scheduler_tick_duration_seconds_bucket" in text
    assert serve_metrics("127.0.0.1", None) is None

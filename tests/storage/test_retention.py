"""Of large artifacts the best are kept, and what somebody may still ask for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import environments, garbage, retention, schema
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from assay.storage.retention import Removed, Retention
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database

LARGE, SMALL = 2_000, 10
RULES = Retention(best=2, large_bytes=1_000, after=timedelta(days=-1))


class Kept(World):
    """A world whose results have artifacts."""

    contents: Iterator[int]

    def measured(self, score: float | None, size: int = LARGE, **more: Any) -> schema.Attempt:
        """An idea that was measured and left so many bytes; None: it failed in scoring."""
        (experiment,) = self.experiments(self.submit("an idea", **more))
        content = f"a = {next(self.contents)}\n"
        return self.left(self.implement(experiment.id, content), score, size)

    def left(self, measurement: str, score: float | None, size: int = LARGE) -> schema.Attempt:
        attempt = self.assign(measurement)
        assert attempt is not None
        self.claim(attempt)
        self.finish(attempt, self.outcome(attempt, score, size))
        return attempt

    def outcome(self, attempt: schema.Attempt, score: float | None, size: int) -> Outcome:
        prefix = prefix_of(attempt)
        self.store.put(f"{prefix}/artifact.zip", bytes(size))
        self.store.put(f"{prefix}/manifest.json", b"{}")
        file = {"name": "artifact.zip", "bytes": size, "sha256": "0" * 64}
        if score is None:
            failure = Failure(FailureStage.GUARD, FailureCode.IMPLAUSIBLE, "too good")
            return Outcome(AttemptState.FAILED, failure, prefix=prefix, artifacts=(file,))
        return Outcome(
            AttemptState.SUCCEEDED,
            metric=score,
            metrics={"score": score},
            prefix=prefix,
            artifacts=(file,),
        )

    def has(self, attempt: schema.Attempt) -> bool:
        """Whether the artifact is stored, as its row and the store say alike."""
        with self.db.read() as session:
            (file,) = session.get_one(schema.Artifacts, attempt.id).files
        there = self.store.exists(f"{prefix_of(attempt)}/artifact.zip")
        assert there == (retention.REMOVED_AT not in file)
        return there

    def collect(self, rules: Retention = RULES) -> Removed:
        return retention.apply(self.db, self.store, rules)


def prefix_of(attempt: schema.Attempt) -> str:
    return f"attempts/{attempt.measurement_id}/{attempt.id}-{attempt.lease_token}"


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> Kept:
    return create(db, store, catalog)


def create(db: Database, store: LocalStore, catalog: Catalog) -> Kept:
    made = Kept.create(db, store, catalog)
    assert isinstance(made, Kept)
    made.contents = itertools.count()
    return made


@pytest.fixture
def minimising(environments: Path, world: Kept, catalog: Catalog) -> Kept:
    """The same where less is better."""
    manifest = environments / "count" / "environment.toml"
    manifest.write_text(manifest.read_text().replace("maximize", "minimize"))
    return register(world, catalog)


def register(world: Kept, catalog: Catalog) -> Kept:
    """The world with the environment as its folder is now."""
    world.environment = environments.register(world.db, world.store, catalog.get("count"))
    return world


def test_the_best_are_kept_and_the_others_marked_as_removed(world: Kept) -> None:
    scores = (3.0, 1.0, 4.0, 2.0)
    attempts = [world.measured(score) for score in scores]
    assert world.collect() == Removed(2, 2 * LARGE)
    assert [world.has(attempt) for attempt in attempts] == [True, False, True, False]
    assert world.collect() == Removed(), "what is removed is removed once"
    later = world.measured(5.0)
    assert world.collect() == Removed(1, LARGE)
    assert [world.has(a) for a in (*attempts, later)] == [False, False, True, False, True]


def test_where_less_is_better_the_least_are_kept(minimising: Kept) -> None:
    attempts = [minimising.measured(score) for score in (3.0, 1.0, 4.0, 2.0)]
    minimising.collect()
    assert [minimising.has(attempt) for attempt in attempts] == [False, True, False, True]


def test_confirmations_take_no_place_of_others(world: Kept) -> None:
    attempts = [world.measured(score) for score in (3.0, 1.0, 4.0, 9.0)]
    with world.db.write() as session:
        session.get_one(schema.Measurement, attempts[3].measurement_id).kind = "confirm"
    world.collect()
    assert [world.has(attempt) for attempt in attempts] == [True, False, True, True]


def test_of_equal_results_the_first_are_kept(world: Kept) -> None:
    # Equal as they are shown: what is kept tells no more of a result than its number does.
    attempts = [world.measured(score) for score in (1.00001, 1.0, 1.00002)]
    world.collect()
    assert [world.has(attempt) for attempt in attempts] == [True, True, False]


def test_failed_and_cancelled_ones_take_no_place(world: Kept) -> None:
    failed = world.measured(None)
    (experiment,) = world.experiments(world.submit("an idea"))
    measurement = world.implement(experiment.id, "cancelled = 1\n")
    attempt = world.assign(measurement)
    assert attempt is not None
    world.claim(attempt)
    left = world.outcome(attempt, 9.0, LARGE)
    world.finish(
        attempt, Outcome(AttemptState.CANCELLED, prefix=left.prefix, artifacts=left.artifacts)
    )
    good = [world.measured(score) for score in (1.0, 2.0)]
    assert world.collect() == Removed(2, 2 * LARGE)
    assert [world.has(each) for each in (failed, attempt, *good)] == [False, False, True, True]


def test_small_ones_are_kept_and_take_no_place(world: Kept) -> None:
    small = [world.measured(score, SMALL) for score in (7.0, 8.0, 0.5)]
    large = [world.measured(score) for score in (1.0, 2.0)]
    assert world.collect() == Removed()
    assert all(world.has(attempt) for attempt in (*small, *large))


def test_every_environment_profile_and_class_has_its_own_best(
    world: Kept, environments: Path, catalog: Catalog
) -> None:
    first = [world.measured(score) for score in (9.0, 8.0)]
    manifest = environments / "count" / "environment.toml"
    manifest.write_text(manifest.read_text().replace("seconds = 10", "seconds = 11"))
    register(world, catalog)
    second = [world.measured(score) for score in (2.0, 1.0, 3.0)]
    world.collect()
    assert [world.has(each) for each in (*first, *second)] == [True, True, True, False, True]


def test_what_other_conditions_measured_displaces_nothing(world: Kept) -> None:
    """Other data gives other numbers."""
    attempts = [world.measured(score) for score in (8.0, 9.0, 1.0, 2.0, 3.0)]
    with world.db.write() as session:
        for attempt in attempts[2:]:
            of = session.get_one(schema.Measurement, attempt.measurement_id)
            of.conditions_id = "cnd_other"
    world.collect()
    assert [world.has(attempt) for attempt in attempts] == [True, True, False, True, True]


def test_a_baseline_is_kept_beside_the_best(world: Kept) -> None:
    with world.db.read() as session:
        baseline = session.get_one(schema.Environment, world.environment).codebase
    attempts = [world.measured(score) for score in (1.0, 2.0, 3.0)]
    with world.db.write() as session:
        session.execute(
            update(schema.Measurement)
            .where(schema.Measurement.id == attempts[0].measurement_id)
            .values(codebase_id=baseline)
        )
    assert world.collect() == Removed()
    assert all(world.has(attempt) for attempt in attempts)


def test_what_a_confirmation_refers_to_is_kept(world: Kept) -> None:
    attempts = [world.measured(score) for score in (1.0, 2.0, 3.0, 4.0)]
    confirming = world.measured(0.5)
    with world.db.write() as session:
        link = schema.ExperimentMeasurement
        of = {
            attempt.id: session.scalars(
                select(link.experiment_id).where(link.measurement_id == attempt.measurement_id)
            ).one()
            for attempt in (attempts[0], confirming)
        }
        idea = session.get_one(schema.Experiment, of[confirming.id]).idea_id
        session.get_one(schema.Idea, idea).confirms = of[attempts[0].id]
    world.collect()
    kept = [True, False, True, True, True]
    assert [world.has(attempt) for attempt in (*attempts, confirming)] == kept


def test_what_is_not_decided_yet_is_kept(world: Kept) -> None:
    """An experiment on two seeds, one of which still runs or is scored again."""
    best = [world.measured(score) for score in (8.0, 9.0)]
    (experiment,) = world.experiments(world.submit("an idea", seeds=[0, 1]))
    world.implement(experiment.id, "both = 1\n")
    first, second = world.measurements(experiment.id)
    poor = world.left(first, 1.0)
    running = world.assign(second)
    assert running is not None
    world.run(running)
    key = f"{prefix_of(running)}/artifact.zip"
    world.store.put(key, bytes(LARGE))
    assert world.collect() == Removed()
    assert garbage.collect(world.db, world.store, timedelta(days=-1)).objects == 0
    assert world.store.exists(key)
    world.store.remove(key)
    world.finish(running, world.outcome(running, 2.0, LARGE))
    assert world.collect() == Removed(2, 2 * LARGE)
    assert [world.has(each) for each in (*best, poor, running)] == [True, True, False, False]


def test_what_ended_a_moment_ago_is_kept(world: Kept) -> None:
    for score in (1.0, 2.0, 3.0):
        world.measured(score)
    young = Retention(best=2, large_bytes=1_000, after=timedelta(days=1))
    assert world.collect(young) == Removed()


def test_a_collection_that_was_killed_is_finished_by_the_next(
    world: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [world.measured(score) for score in (1.0, 2.0, 3.0)]
    key = f"{prefix_of(attempts[0])}/artifact.zip"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            world.collect()
    assert world.store.exists(key)
    assert garbage.collect(world.db, world.store, timedelta(days=-1)).objects == 1
    assert not world.store.exists(key)
    assert world.store.exists(f"{prefix_of(attempts[0])}/manifest.json")
    assert [world.has(attempt) for attempt in attempts] == [False, True, True]


def test_the_command_for_a_data_folder(
    tmp_path: Path,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    db = sqlite_database(tmp_path / "assay.db")
    world = create(db, LocalStore(tmp_path / "objects"), catalog)
    attempts = [world.measured(score) for score in (1.0, 2.0)]
    monkeypatch.setenv("ASSAY_RETENTION_BEST", "1")
    monkeypatch.setenv("ASSAY_RETENTION_LARGE_BYTES", "1000")
    monkeypatch.setenv("ASSAY_RETENTION_DAYS", "0")
    assert garbage.main(["--data-dir", str(tmp_path)]) == 0
    said = "0 objects removed, 0 bytes; 1 large artifacts removed, 2000 bytes\n"
    assert capsys.readouterr().out == said
    assert [world.has(attempt) for attempt in attempts] == [False, True]
    with pytest.raises(SystemExit, match=r"there is no .*assay\.db"):
        garbage.main(["--data-dir", str(tmp_path / "elsewhere")])
    db.dispose()


def test_artifacts_of_a_base_are_kept_like_those_of_a_baseline(world: Kept) -> None:
    base, other = world.measured(0.1), world.measured(0.2)
    best = [world.measured(10.0), world.measured(11.0)]
    with world.db.write() as session:
        codebase = session.get_one(schema.Measurement, base.measurement_id).codebase_id
        session.execute(update(schema.Idea).values(base_id=codebase))
    world.collect()
    assert [world.has(each) for each in (base, other, *best)] == [True, False, True, True]

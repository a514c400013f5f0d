"""Curves of attempts: how many points are stored, and which of them an answer shows."""

from __future__ import annotations

import pytest
from sqlalchemy import event, insert, select

from assay.contracts.worker import MAX_VALUES
from assay.environments.catalog import Catalog
from assay.storage import schema, telemetry
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from assay.storage.telemetry import (
    ALL_POINTS,
    CURVE_VALUES,
    MAX_POINTS,
    POINTS_PER_DOUBLING,
    SYSTEM_VALUES,
    Telemetry,
    is_kept,
)
from services.implementer.telemetry import Row, read_curves
from tests.storage.lifecycle import World


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


@pytest.fixture
def attempt(world: World) -> schema.Attempt:
    """A live attempt of the world's worker."""
    experiment = world.experiments(world.submit("Count by two."))[0]
    found = world.assign(world.implement(experiment.id, "STEP = 2\n"))
    assert found is not None
    world.claim(found)
    return found


def test_an_answer_loads_only_the_points_it_shows(world: World, attempt: schema.Attempt) -> None:
    points = [
        {"attempt_id": attempt.id, "seq": 3 * n, "step": None, "values": {"loss": n}}
        for n in range(1_000)
    ]
    with world.db.write() as session:
        session.execute(insert(schema.CurvePoint), points)
    loaded: list[int] = []

    def note(row: schema.CurvePoint, _: object) -> None:
        loaded.append(row.seq)

    event.listen(schema.CurvePoint, "load", note)
    try:
        for most in (1, 2, 7, 400, 999, 1_000, 20_000):
            loaded.clear()
            with world.db.read() as session:
                shown = [p.seq for p in read_curves(session, attempt.measurement_id, most)]
                assert read_curves(session, "mea_none", most) == []
            stride = -(-1_000 // most)
            assert shown == sorted({*range(0, 3_000, 3 * stride), 2_997}), most
            assert loaded == shown, most
    finally:
        event.remove(schema.CurvePoint, "load", note)


def test_points_of_an_attempt_are_bounded_and_reach_its_end(
    world: World, attempt: schema.Attempt
) -> None:
    last = 16 * ALL_POINTS
    kept = [seq for seq in range(last) if is_kept(seq)]
    assert kept[:ALL_POINTS] == list(range(ALL_POINTS)), "what an honest worker sends, all of it"
    for doubling in range(4):
        first = ALL_POINTS << doubling
        for remainder in range(4):
            # Lines of several kinds take turns in a file: each kind is thinned alike.
            some = [s for s in kept if first <= s < 2 * first and s % 4 == remainder]
            assert len(some) == pytest.approx(POINTS_PER_DOUBLING / 4, rel=0.05)
    assert len(kept) <= MAX_POINTS
    assert max(kept) > 0.99 * last

    sent = range(ALL_POINTS - 100, ALL_POINTS + 10_000)
    wide = {f"name {n}": 1.0 for n in range(MAX_VALUES)}
    values = [wide if seq == ALL_POINTS - 1 else {"loss": 1.0} for seq in sent]
    points = tuple((seq, None, given) for seq, given in zip(sent, values, strict=True))
    system = tuple((seq, 1.0, given) for seq, given in zip(sent, values, strict=True))
    for _ in range(2):
        with world.db.write() as session:
            telemetry.store(session, attempt.id, Telemetry(points=points, system=system))
    stored = [seq for seq in sent if is_kept(seq)]
    assert_stored(world, schema.CurvePoint, stored, CURVE_VALUES)
    assert_stored(world, schema.SystemPoint, stored, SYSTEM_VALUES)


@pytest.mark.parametrize("size", [256, 257, 1_000, 4_096, 12_000, 98_000])
def test_bytes_of_a_curve_are_bounded(size: int) -> None:
    kept = [seq for seq in range(16 * ALL_POINTS) if is_kept(seq, size)]
    assert len(kept) * size <= 18e6
    assert kept[-1] > 8 * ALL_POINTS, "thinned, and not cut off"
    if size <= 256:
        assert kept[:ALL_POINTS] == list(range(ALL_POINTS))


def test_wide_points_are_thinned_as_they_are_stored(world: World, attempt: schema.Attempt) -> None:
    wide = {f"{k:02}" + "k" * 126: 1 / 7 for k in range(64)}
    points = tuple((seq, None, wide) for seq in range(0, ALL_POINTS, 20))
    for _ in range(2):
        with world.db.write() as session:
            telemetry.store(session, attempt.id, Telemetry(points=points))
    with world.db.read() as session:
        stored = session.scalars(select(schema.CurvePoint.seq)).all()
    assert 20 < len(stored) < 100


def assert_stored(world: World, table: type[Row], seqs: list[int], values: int) -> None:
    with world.db.read() as session:
        rows = session.scalars(select(table).order_by(table.seq)).all()
    assert [row.seq for row in rows] == seqs
    assert max(len(row.values) for row in rows) == values

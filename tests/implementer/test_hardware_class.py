"""On which hardware a request is measured that names no class."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from assay.domain.errors import InvalidInput
from assay.environments.catalog import Catalog
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.submission import choose_hardware_class
from tests.storage.lifecycle import World


def chosen(world: World, catalog: Catalog, asked: str | None = None) -> str:
    with world.db.read() as session:
        return choose_hardware_class(session, catalog.get("count"), "tiny", asked)


def measure_baseline(world: World, hardware_class: str) -> None:
    world.submit("Count by two.", hardware_class=hardware_class, baseline_seeds=1)
    with world.db.read() as session:
        found = session.scalars(
            select(schema.Measurement.id).where(
                schema.Measurement.hardware_class == hardware_class,
                schema.Measurement.state == "queued",
            )
        ).one()
    world.measure(found)


def test_a_second_class_does_not_stop_requests_that_name_none(
    db: Database, store: LocalStore, catalog: Catalog
) -> None:
    world = World.create(db, store, catalog)
    assert chosen(world, catalog) == "cpu"
    invented = world.another("second", hardware_class="invented")
    with pytest.raises(InvalidInput) as caught:
        chosen(world, catalog)
    assert caught.value.code == "ambiguous_hardware_class", "neither has a baseline"

    measure_baseline(world, "cpu")
    assert chosen(world, catalog) == "cpu"
    assert chosen(world, catalog, "invented") == "invented"

    measure_baseline(invented, "invented")
    with pytest.raises(InvalidInput):
        chosen(world, catalog)

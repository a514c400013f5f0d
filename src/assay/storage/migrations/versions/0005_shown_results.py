"""Results are shown rounded, and the bits that they show are counted."""

import math
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import sqlalchemy as sa
from alembic import op

from assay.storage.types import Document

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BITS = ("search_bits", "sealed_bits")


def upgrade() -> None:
    """Add the columns, and round the metrics of results that are there.

    Nobody counted the bits of those results, so every split starts with none shown.
    """
    for name in _BITS:
        op.add_column(
            "measurement", sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        )
    op.create_index("ix_measurement_bits", "measurement", ["environment_id", *_BITS])
    op.add_column("result", sa.Column("shown_metric", sa.Float()))
    _round_results()


def downgrade() -> None:
    """Drop them again."""
    op.drop_index("ix_measurement_bits", "measurement")
    op.drop_column("result", "shown_metric")
    for name in _BITS:
        # By its own statement also on SQLite: copying a table would lose its triggers.
        op.drop_column("measurement", name)


def _round_results() -> None:
    result = sa.table(
        "result",
        sa.column("measurement_id", sa.String()),
        sa.column("metric", sa.Float()),
        sa.column("metrics", Document),
        sa.column("shown_metric", sa.Float()),
    )
    names = _metric_names()
    connection = op.get_bind()
    found = connection.execute(
        sa.select(result.c.measurement_id, result.c.metric, result.c.metrics)
    ).all()
    rows = [
        {"of": of, "rounded": _rounded(metric, _errors(metrics, names[of]))}
        for of, metric, metrics in found
    ]
    if rows:
        connection.execute(
            sa.update(result)
            .where(result.c.measurement_id == sa.bindparam("of"))
            .values(shown_metric=sa.bindparam("rounded")),
            rows,
        )


def _metric_names() -> dict[str, str]:
    """The name of the metric of every measurement."""
    environment = sa.table(
        "environment", sa.column("id", sa.String()), sa.column("manifest", Document)
    )
    measurement = sa.table(
        "measurement", sa.column("id", sa.String()), sa.column("environment_id", sa.String())
    )
    connection = op.get_bind()
    manifests = connection.execute(sa.select(environment.c.id, environment.c.manifest)).all()
    names = {of: manifest["metric"]["name"] for of, manifest in manifests}
    of_each = connection.execute(sa.select(measurement.c.id, measurement.c.environment_id)).all()
    return {of: names[environment_id] for of, environment_id in of_each}


def _errors(metrics: Mapping[str, Any], name: str) -> list[float]:
    parts = {k: v for k, v in metrics.items() if k.startswith(f"{name}/") and k.endswith("_se")}
    stated = [metrics.get(f"{name}/se"), *parts.values()]
    return [e for e in stated if isinstance(e, int | float) and 0 < e < math.inf]


def _rounded(value: float, errors: list[float]) -> float:
    """To four significant digits, or to a tenth of the standard error if that is coarser."""
    if not math.isfinite(value):
        return value
    exact = Decimal(repr(value))
    exponents = [exact.adjusted() - 3 if value else -4]
    exponents += [Decimal(repr(error)).adjusted() - 1 for error in errors]
    step = Decimal(1).scaleb(max(exponents))
    return float((exact / step).to_integral_value(ROUND_HALF_EVEN) * step) + 0.0

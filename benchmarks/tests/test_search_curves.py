"""What a curve tells on the way: rank correlation, and what the median rule saves and loses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search.curves import SHARES, Curve, curves, figures_of, table_of


def runs(sign: int) -> list[Curve]:
    """A hundred runs whose losses on the way rank as the ends do, or the other way round."""
    return [Curve(float(n), {share: float(sign * n) for share in SHARES}, 8.0, 2.0)
            for n in range(100)]  # fmt: skip


def test_a_curve_that_tells_all_stops_none_of_the_best() -> None:
    for row in figures_of(runs(1)):
        assert row["rank_correlation"] == row["rank_correlation_better_half"] == 1
        assert row["false"] == 0
        # About half of the runs are stopped, and what is left of each is saved.
        most = ((1 - row["share"]) * 8 + 2) / 10
        assert 0.35 * most < row["saved"] < 0.55 * most
    assert "| 50% of the steps | 1.00 | 1.00 |" in table_of(figures_of(runs(1)))


def test_a_curve_that_misleads_stops_the_best() -> None:
    for row in figures_of(runs(-1)):
        assert row["rank_correlation"] == -1
        assert row["false"] > 0.8


def test_only_whole_runs_on_the_first_seed_count(tmp_path: Path) -> None:
    columns = ["point", "seed", "metric", "loss@0.25", "loss@0.5", "train_seconds",
               "evaluation_seconds", "error"]  # fmt: skip
    rows = [
        ["00", 0, 1.5, 3.0, 2.0, 8.0, 2.0, ""],
        ["00", 1, 1.6, 3.0, 2.0, 8.0, 2.0, ""],
        ["01", 0, None, 3.0, None, 4.0, 0.0, "crashed"],
        ["10", 0, 1.4, None, None, 8.0, 2.0, ""],
    ]
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"columns": columns, "rows": rows}))
    (found,) = curves(path)
    assert (found.metric, found.train_seconds) == (1.5, 8.0)
    assert found.losses == pytest.approx({0.25: 3.0, 0.5: 2.0})

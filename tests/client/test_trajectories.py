"""Trajectories as a table of pandas."""

from __future__ import annotations

import math
import sys

import pandas as pd
import pytest

from assay.client.trajectories import Trajectories
from assay.contracts.trajectory import columns
from tests.support.trajectories import UNMEASURED, record


def test_a_table_has_a_column_per_field_with_the_right_type() -> None:
    failed = record(1, **UNMEASURED)
    frame = Trajectories(iter([record(0), failed])).to_pandas()
    assert list(frame.columns) == [column.name for column in columns()]
    types = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert types["position"] == "int64"
    assert types["epoch"] == types["baseline_n"] == types["metric"] == "float64"
    assert types["created_at"] == types["finished_at"] == "datetime64[us, UTC]"
    assert types["exploratory"] == "boolean"
    assert types["idea"] == types["diff"] == "str"
    assert frame["created_at"][0] == pd.Timestamp("2026-11-01T12:00:00.123456Z")
    assert frame["parents"][0] == ["exp_a", "exp_b"]
    assert frame["seeds"][0][0]["metric"] == 0.5
    missing = frame.loc[1]
    for name in ("metric", "epoch", "verdict", "diff", "executor_cost_usd"):
        assert isinstance(missing[name], float)
        assert math.isnan(missing[name])
    assert missing["finished_at"] is pd.NaT
    assert missing["exploratory"] is pd.NA


def test_a_table_without_records_has_the_same_types() -> None:
    full, empty = (Trajectories(iter(rows)).to_pandas() for rows in ([record(0)], []))
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == full.dtypes.to_dict()


def test_records_are_read_one_by_one() -> None:
    asked: list[int] = []

    def pages() -> object:
        for position in range(3):
            asked.append(position)
            yield record(position)

    found = Trajectories(pages())  # type: ignore[arg-type]
    assert asked == []
    assert next(found).position == 0
    assert asked == [0]
    assert list(found.to_pandas()["position"]) == [1, 2]


def test_a_missing_pandas_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'assay\[pandas\]'"):
        Trajectories(iter([])).to_pandas()

"""Trajectories of searches and batches: read one by one, or as a table of pandas.

`client.searches.trajectories` and `client.batches.trajectories` return them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from assay.contracts.trajectory import Column, TrajectoryBody, columns

if TYPE_CHECKING:
    import pandas

#: What a column of pandas holds; a number that may be missing is NaN where it is.
_DTYPES = {"text": "str", "integer": "int64", "number": "float64", "truth": "bool"}


class Trajectories(Iterator[TrajectoryBody]):
    """Records as the service sends them, page by page. They can be read once.

    Memory holds one page, which is at most 50 records.
    """

    def __init__(self, records: Iterator[TrajectoryBody]) -> None:
        self._records = records

    def __next__(self) -> TrajectoryBody:
        return next(self._records)

    def to_pandas(self) -> pandas.DataFrame:
        """All that were not read yet as a table: a row per experiment, a column per field.

        Times have the time zone UTC. Where a field is null there is NaN (NaT for times, NA for
        truth values), so integers that may be null are floats. Lists stay lists.

        Raises:
            ImportError: pandas is not installed; the message says how to install it.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'assay[pandas]'") from error
        rows = [record.model_dump() for record in self]
        made = {
            column.name: pd.Series([row[column.name] for row in rows], dtype=_dtype(column))
            for column in columns()
        }
        return pd.DataFrame(made)


def _dtype(column: Column) -> Any:
    if column.kind == "time":
        return "datetime64[us, UTC]"
    if column.nullable and column.kind in ("integer", "truth"):
        return "float64" if column.kind == "integer" else "boolean"
    return _DTYPES.get(column.kind, "object")

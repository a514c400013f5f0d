"""`assay conditions`: ids are for copying, so they are whole on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from assay.analysis.tables import table

ID = "cnd_0123456789abcdef"
LONG = "cpu_model: AMD EPYC; python: 3.11.7; numpy: 2.4.6; torch_version: 2.13.0+cpu"


@pytest.mark.parametrize(
    ("columns", "row", "whole"),
    [
        (("id", "facts", "workers"), (ID, LONG, LONG), [ID]),
        (
            ("conditions", "state", "compared with", "because of", "evidence"),
            (ID, "different", ID[::-1], LONG, LONG),
            [ID, "different", ID[::-1]],
        ),
    ],
)
def test_ids_of_conditions_are_whole_where_a_terminal_is_narrow(
    columns: tuple[str, ...], row: tuple[str, ...], whole: list[str]
) -> None:
    made, out = table(*columns), Console(file=io.StringIO(), width=80)
    made.add_row(*row)
    out.print(made)
    shown = out.file.getvalue()
    assert all(word in shown.split() for word in whole), shown

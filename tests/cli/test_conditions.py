"""`assay conditions`: ids are for copying, so they are whole on a narrow terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from assay.analysis.tables import table
from tests.cli.conftest import Cli

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


def test_a_search_names_its_conditions_in_short(cli: Cli) -> None:
    start = ("search", "start", "fake", "--profile", "tiny", "--dry-run", "--json")
    for given in (ID, "cnd_0123", "cnd_012"):
        answer = cli(*start, "--conditions", given)
        assert json.loads(answer.out)["detail"]["conditions"] == ID, answer.out
    refused = cli(*start, "--conditions", "cnd_01")
    assert "could be cnd_0123456789abcdef, cnd_01ff456789abcdef" in refused.out

"""Trajectories in files: JSON Lines and Parquet hold the same."""

from __future__ import annotations

import json
import math
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from assay.cli.exporting import export
from assay.cli.output import Output
from assay.contracts.trajectory import TrajectoryBody
from assay.domain.errors import InvalidInput, Unavailable
from tests.support.trajectories import UNMEASURED, record

HOSTILE = 'one\u2028two\x85three\nfour \u202eevil "quoted" \x1b[31m'
CURVE = [{"seq": 0, "step": 1.0, "values": {"loss": math.nan, "b": 2.0}},
         {"seq": 1, "step": None, "values": {}}]  # fmt: skip


def records() -> list[TrajectoryBody]:
    return [
        record(0, idea=HOSTILE, thinking=HOSTILE, curve=CURVE),
        record(1, **UNMEASURED),
        record(
            2, kind="confirm", confirms="exp_0", claimed=True, effect=math.inf, metric=-math.inf
        ),
        record(3, curve=[], parents=[]),
    ]


def same(one: TrajectoryBody, other: TrajectoryBody) -> bool:
    """Whether two records are equal, NaN included."""
    return one.wire() == other.wire()


def test_parquet_read_back_equals_json_lines(tmp_path: Path) -> None:
    lines, table = tmp_path / "t.jsonl", tmp_path / "t.parquet"
    export(Output(quiet=True), records(), "srch_1", None, lines)
    export(Output(quiet=True), records(), "srch_1", None, table)
    text = lines.read_bytes().decode()
    assert len(text.splitlines()) == 4  # whatever a reader takes for the end of a line
    from_lines = [TrajectoryBody.model_validate_json(line) for line in text.splitlines()]
    rows = parquet.read_table(table).to_pylist(maps_as_pydicts="strict")
    from_table = [TrajectoryBody.model_validate(row) for row in rows]
    assert all(map(same, from_lines, records()))
    assert all(map(same, from_table, from_lines))
    schema = parquet.read_schema(table)
    assert str(schema.field("created_at").type) == "timestamp[us, tz=UTC]"
    assert not schema.field("experiment").nullable


def test_an_export_of_nothing_can_be_read(tmp_path: Path) -> None:
    table = tmp_path / "none.parquet"
    export(Output(quiet=True), [], "srch_1", "parquet", table)
    assert parquet.read_table(table).num_rows == 0


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_memory_holds_a_few_hundred_records(tmp_path: Path, name: str) -> None:
    fields = record(0).__dict__
    alive: weakref.WeakSet[Holder] = weakref.WeakSet()
    most = 0

    def made() -> Iterator[TrajectoryBody]:
        nonlocal most
        for position in range(1_000):
            one = Holder.model_construct(**{**fields, "position": position})
            alive.add(one)
            most = max(most, len(alive))
            yield one

    export(Output(quiet=True), made(), "srch_1", None, tmp_path / name)
    assert most <= 250


class Holder(TrajectoryBody):
    """A record that can be counted."""

    __hash__ = object.__hash__


def test_a_file_appears_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("before\n")

    def broken() -> Iterator[TrajectoryBody]:
        yield record(0)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        export(Output(quiet=True), broken(), "srch_1", None, file)
    assert file.read_text() == "before\n"
    assert list(tmp_path.iterdir()) == [file]


def test_lines_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    export(Output(), records(), "srch_1", None, None)
    printed = capsys.readouterr().out
    positions = [json.loads(line)["position"] for line in printed.splitlines()]
    assert positions == [0, 1, 2, 3]


def test_what_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread() -> Iterator[TrajectoryBody]:
        raise AssertionError("it was read")
        yield

    for out, format_, file, match in (
        (Output(), "csv", None, "none of jsonl, parquet"),
        (Output(), "parquet", None, "--out"),
        (Output(as_json=True), None, None, "--out"),
    ):
        with pytest.raises(InvalidInput, match=match):
            export(out, unread(), "srch_1", format_, file)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unavailable, match=r"pip install 'assay\[parquet\]'"):
        export(Output(), unread(), "srch_1", None, tmp_path / "t.parquet")

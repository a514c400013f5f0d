"""Write trajectories to a file or to stdout, record by record: JSON Lines or Parquet.

`assay search export` and `assay batch export` call `export`. What a record holds is in
docs/export.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay.cli.output import Output, as_line
from assay.domain.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from assay.contracts.trajectory import Column, TrajectoryBody

Format = Annotated[
    str | None,
    typer.Option("--format", help="jsonl or parquet; by default as --out ends, else jsonl."),
]
Out = Annotated[
    Path | None, typer.Option(help="File to write; by default stdout.", show_default=False)
]
Curves = Annotated[
    bool, typer.Option("--curves", help="With training curves, at most 500 points each.")
]
Confirmations = Annotated[
    bool,
    typer.Option(
        "--confirmations",
        help="With confirmations on fresh seeds and the sealed split: for people, not for search.",
    ),
]
#: Records that are held at once, and make one row group of a Parquet file.
_GROUP = 200


def export(
    out: Output,
    records: Iterable[TrajectoryBody],
    what: str,
    format_: str | None,
    file: Path | None,
) -> None:
    """Write the records and say how many. `what`: ids of where they are from, for the message.

    A file appears under its name once it is whole; an older one is replaced.

    Raises:
        InvalidInput: the format is unknown, or needs a file; nothing is read.
        Unavailable: the format needs a package that is not installed; nothing is read.
        OSError: the file cannot be written.
    """
    from assay.analysis.text import counted

    chosen = _format(format_, file)
    if file is None:
        if chosen == "parquet":
            raise InvalidInput("--format parquet: name the file to write with --out")
        if out.as_json:
            raise InvalidInput("--json says what was written to a file: name it with --out")
        _write_lines(records, sys.stdout)
        return
    if chosen == "parquet":
        _pyarrow()
    with _replacing(file) as part:
        if chosen == "parquet":
            count = _write_parquet(records, part)
        else:
            with part.open("w", encoding="utf-8", newline="\n") as stream:
                count = _write_lines(records, stream)
    message = f"wrote {counted(count, 'record')} of {what} to {file}"
    out.changed(str(file), message, detail={"format": chosen, "records": count})


def _format(given: str | None, file: Path | None) -> Literal["jsonl", "parquet"]:
    """Raises InvalidInput: there is no such format."""
    name = given or ("parquet" if file is not None and file.suffix == ".parquet" else "jsonl")
    if name == "jsonl" or name == "parquet":
        return "jsonl" if name == "jsonl" else "parquet"
    raise InvalidInput(f"--format: {name!r} is none of jsonl, parquet")


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """A file beside it that takes its place at the end, or is removed after an error."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _write_lines(records: Iterable[TrajectoryBody], stream: Any) -> int:
    count = 0
    for record in records:
        stream.write(as_line(record.model_dump_json()) + "\n")
        count += 1
    return count


def _write_parquet(records: Iterable[TrajectoryBody], file: Path) -> int:
    from assay.contracts.trajectory import columns

    pa, parquet = _pyarrow()
    schema = pa.schema([_field(pa, column) for column in columns()])
    remaining, count = iter(records), 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while group := [_row(record) for record in islice(remaining, _GROUP)]:
            writer.write_table(pa.Table.from_pylist(group, schema))
            count += len(group)
    return count


def _row(record: TrajectoryBody) -> dict[str, Any]:
    row = record.model_dump()
    for point in row["curve"] or ():
        point["values"] = list(point["values"].items())  # as Arrow takes maps
    return row


def _field(pa: Any, column: Column) -> Any:
    return pa.field(column.name, _type(pa, column), nullable=column.nullable)


def _type(pa: Any, column: Column) -> Any:
    if column.kind == "list":
        fields = column.fields
        items = pa.struct([_field(pa, each) for each in fields]) if fields else pa.string()
        return pa.list_(items)
    return {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "truth": pa.bool_(),
        "time": pa.timestamp("us", tz="UTC"),
        "map": pa.map_(pa.string(), pa.float64()),
    }[column.kind]


def _pyarrow() -> tuple[Any, Any]:
    """Raises Unavailable: pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Unavailable(
            "--format parquet needs pyarrow: pip install 'assay[parquet]', or choose jsonl",
            code="missing_package",
        ) from None
    return pyarrow, pyarrow.parquet

"""`assay patch …`: what the patcher makes of an answer, without a service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.command import FAILED, AsJson, command, root
from assay.domain.errors import InvalidInput

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.environments import Environment
    from assay.patching import FileRecord, HunkRecord, PatchReport

app = typer.Typer(name="patch", no_args_is_help=True, help="Answers of models: do they apply?")

_TIERS = {
    "exact": "exactly as written",
    "trailing_whitespace": "apart from blanks at line ends",
    "indentation": "apart from indentation",
    "whitespace": "apart from whitespace",
    "aligned": "most of its lines",
    "whole_file": "the whole file",
}
_TOLERATED = {
    "trailing_whitespace": "blanks and carriage returns at the ends of old lines differ from the "
    "file; the file's own stay",
    "indentation": "old lines stand deeper or less deep in the file; added lines were moved along",
    "whitespace": "old lines differ from the file in blanks or typographic characters only",
    "aligned": "context is paraphrased, missing or invented: {:.0%} of the old text stands here, "
    "and nowhere else does nearly as much",
}
_LATE = "written against the result of the other hunks, and placed there"
_FORMATS = {
    "unified_diff": "unified diff",
    "search_replace": "SEARCH/REPLACE blocks",
    "v4a": "V4A patch",
}


@app.command()
@command
def check(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(help="A file that holds a model's answer; - is standard input.")
    ],
    env: Annotated[str, typer.Option("--env", help="Environment: name, name@hash or folder.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what was tolerated, and print the diff.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether an answer applies.  Example: assay patch check answer.md --env nanogpt"""
    from assay.patching import PatchRefused, apply_answer, unified_diff

    out = root(context).output(as_json)
    environment = _environment(env)
    codebase = _codebase(environment)
    answer = _read(file)
    try:
        # The arguments with which the implement loop judges an answer.
        result = apply_answer(codebase, answer, protected=environment.manifest.codebase.protected)
    except PatchRefused as refusal:
        code = refusal.code.value
        _tell(out, _row(environment, code, refusal.log), f"refused: {code}\n\n{refusal.log}")
        raise typer.Exit(FAILED) from None
    diff = unified_diff(codebase, result.files) if explain else None
    row = _row(environment) | asdict(result.report) | {"diff": diff}
    text = "\n".join(_account(result.report, explain=explain))
    _tell(out, row, text if diff is None else f"{text}\n\n{diff}")


def _environment(named: str) -> Environment:
    """The environment in a folder, or of that name."""
    from assay.environments import Catalog, Environment

    folder = Path(named)
    return Environment.load(folder) if folder.is_dir() else Catalog().get(named)


def _codebase(environment: Environment) -> dict[str, str]:
    try:
        return environment.codebase
    except UnicodeDecodeError as error:
        message = f"{environment.folder}: codebase/ must hold UTF-8 text only ({error.reason})"
        raise InvalidInput(f"{message}; see: assay env check {environment.folder}") from None


def _read(file: str) -> str:
    """The answer, with the line endings it has."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{file}: {error.strerror or error}; name a file that holds the answer, "
            "or - for standard input"
        ) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1}: {error.reason}"
        raise InvalidInput(f"{file}: not UTF-8 text ({where}); save it as UTF-8") from None


def _row(
    environment: Environment, code: str | None = None, log: str | None = None
) -> dict[str, Any]:
    """A check for programs: every key, whatever came of it."""
    return {
        "environment": environment.id,
        "applied": code is None,
        "code": code,
        "log": log,
        "formats": [],
        "files": [],
        "diff": None,
    }


def _tell(out: Output, row: dict[str, Any], text: str) -> None:
    from assay.analysis.text import clean

    out.data(row)
    if not out.as_json:
        # Paths, lines and diff are a model's words, which a terminal must not obey.
        out.text(clean(text))


def _account(report: PatchReport, *, explain: bool) -> list[str]:
    from assay.analysis.text import counted

    hunks = sum(len(record.hunks) for record in report.files)
    read = " and ".join(_FORMATS.get(name, name) for name in report.formats)
    head = f"applies: {counted(len(report.files), 'file')}, {counted(hunks, 'hunk')}"
    lines = [f"{head}, read as {read}" if read else head]
    for record in report.files:
        lines += ["", _file_line(record)]
        for hunk in record.hunks:
            lines += _hunk_lines(hunk, explain=explain)
    return lines


def _file_line(record: FileRecord) -> str:
    removed = sum(hunk.removed for hunk in record.hunks)
    added = sum(hunk.added for hunk in record.hunks)
    was = f" from {record.renamed_from}" if record.renamed_from else ""
    return f"{record.path}: {record.change}{was}, +{added} -{removed}"


def _hunk_lines(hunk: HunkRecord, *, explain: bool) -> Iterator[str]:
    late = ", after the other hunks" if hunk.late else ""
    tier = _TIERS.get(hunk.tier, hunk.tier)
    yield (f"  hunk {hunk.index}, line {hunk.line}: {tier}{late}, +{hunk.added} -{hunk.removed}")
    if explain and hunk.tier in _TOLERATED:
        yield f"    tolerated: {_TOLERATED[hunk.tier].format(hunk.score)}"
    if explain and hunk.late:
        yield f"    tolerated: {_LATE}"

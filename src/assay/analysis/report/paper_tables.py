"""Tables 1 to 5 in the layout of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from assay.analysis.report.classes import Change, classify
from assay.analysis.report.content import Cell, Row, Table
from assay.analysis.report.record import (
    SearchRecord,
    counts_as_tried,
    is_scored,
    mean,
    metrics,
)
from assay.analysis.report.search_figures import Named, by_task
from assay.analysis.standing import best_confirmed, standing
from assay.analysis.text import (
    clean,
    format_effect,
    format_number,
    format_verdict,
    without_tags,
)
from assay.contracts.batch import ExperimentBody
from assay.domain.metrics import Direction, best

_NONE = Cell("–")
#: Rows of examples per search.
_EXAMPLES = 3
_RULE = (
    "Classes are by a rule on the diff, where the paper asks a model: hyper-parameter tuning "
    "changes values of configuration files, or literals of lines that otherwise stay as they are; "
    "all else is algorithmic. Ideas that came to no codebase have no diff and no class."
)


def summary_table(searches: Sequence[Named], experts: Mapping[str, float]) -> Table:
    """Table 1: baseline, search and best human expert per environment.

    `experts` are the results of people, by the name of the environment or by environment and
    profile as `name,profile`.
    """
    groups = by_task(searches)
    title = "Search beside the baseline and the best human expert"
    if not groups:
        return Table("table-1", title, absent="No search was given.")
    firsts = [group[0][0] for group in groups]
    columns = ["", *(f"{r.task} ({r.metric_label})" for r in firsts)]
    rows = [
        Row(
            [Cell("Baseline"), *(_number(r.baseline.mean if r.baseline else None) for r in firsts)]
        )
    ]
    kinds = {"Execution-guided search": False, "Best-of-n": True}
    for name, is_control in kinds.items():
        found = [_best_of(group, is_control) for group in groups]
        if any(value is not None for value in found):
            rows.append(Row([Cell(name), *map(_number, found)]))
    confirmed = [_best_confirmed(group) for group in groups]
    if any(cell is not _NONE for cell in confirmed):
        rows.append(Row([Cell("Best confirmed, on fresh seeds"), *confirmed]))
    human = [experts.get(f"{r.environment.name},{r.search.profile}",
                         experts.get(r.environment.name)) for r in firsts]  # fmt: skip
    told = [Cell("not given") if value is None else _number(value) for value in human]
    rows.append(Row([Cell("Best human expert"), *told]))
    bold = [_bolder(rows, n, r) for n, r in enumerate(firsts, 1)]
    rows = [
        Row(
            [replace(c, is_bold=bold[n - 1] == m if n else False) for n, c in enumerate(row.cells)]
        )
        for m, row in enumerate(rows)
    ]
    caption = (
        "The best result of all searches of an environment. It is the best of many, which is "
        "partly luck; the confirmed one is not. It has the largest effect on fresh seeds, which "
        "is given with its 95 % interval. "
    )
    if None in human:
        caption += "Results of people are not stored: name them with --expert ENVIRONMENT=NUMBER."
    numeric = range(1, len(columns))
    return Table("table-1", title, caption.strip(), columns, rows, numeric=[*numeric])


def _best_of(group: Sequence[Named], is_control: bool) -> float | None:
    found = [e for r, _, _ in group if r.is_best_of_n is is_control for e in r.experiments]
    return group[0][0].best_metric(found)


def _best_confirmed(group: Sequence[Named]) -> Cell:
    """The result with the largest confirmed effect: its metric on fresh seeds, and that effect."""
    found = [e for r, _, _ in group for e in r.experiments]
    top = best_confirmed(found, group[0][0].direction)
    value = standing(top).metric if top is not None else None
    if top is None or value is None:
        return _NONE
    return Cell(f"{format_number(value)} ({format_effect(standing(top).comparison)})", value)


def _bolder(rows: Sequence[Row], column: int, record: SearchRecord) -> int:
    values = {n: r.cells[column].value for n, r in enumerate(rows)}
    found = {n: v for n, v in values.items() if v is not None}
    top = best(record.direction, list(found.values()))
    return next((n for n, v in found.items() if v == top), -1)


def classes(searches: Sequence[Named]) -> Table:
    """Table 2: hyper-parameter tuning and algorithmic ideas, with average and best of each."""
    title = "Hyper-parameter tuning and algorithmic ideas"
    rows = []
    unclassified = 0
    for group in by_task(searches):
        body = []
        for record, label, _ in group:
            found = {e.id: classify(record.diffs[e.id]) for e in record.experiments
                     if e.id in record.diffs}  # fmt: skip
            classified = [e for e in record.experiments if found.get(e.id) is not None]
            unclassified += len(record.experiments) - len(classified)
            if classified:
                body.append(Row([Cell(label), *_class_cells(record, classified, found)]))
        if body:
            first = group[0][0]
            rows.append(Row(heading=f"{first.task} ({first.metric_label})"))
            rows += body
    if not rows:
        why = "No idea of these searches has a diff: none has come to a codebase yet."
        return Table("table-2", title, absent=why)
    caption = f"{_RULE} Not classified: {unclassified}."
    columns = ["Model name", *("Percentage", "Average", "Best") * 2]
    groups = [("", 1), ("Hyper-parameter", 3), ("Algorithmic", 3)]
    return Table("table-2", title, caption, columns, rows, groups, numeric=[1, 2, 3, 4, 5, 6])


def _class_cells(
    record: SearchRecord,
    classified: Sequence[ExperimentBody],
    found: Mapping[str, Change | None],
) -> Iterator[Cell]:
    members = {kind: [e for e in classified if found[e.id] is kind] for kind in Change}
    bests = {kind: record.best_metric(of) for kind, of in members.items()}
    top = best(record.direction, [value for value in bests.values() if value is not None])
    for kind, of in members.items():
        share = len(of) / len(classified)
        yield Cell(f"{share:.1%}", share)
        yield _number(mean(metrics(of)))
        value = bests[kind]
        yield Cell(format_number(value), value, is_bold=value is not None and value == top)


def examples(searches: Sequence[Named]) -> Table:
    """Table 3: ideas that were carried out, a column per search."""
    title = "Examples of ideas that came to a result"
    chosen = [(label, _spread_out(record)) for record, label, _ in searches]
    chosen = [(label, found) for label, found in chosen if found]
    if not chosen:
        return Table("table-3", title, absent="No idea of these searches has a result yet.")
    height = max(len(found) for _, found in chosen)
    rows = [
        Row([_example(found[n]) if n < len(found) else Cell("") for _, found in chosen])
        for n in range(height)
    ]
    caption = (
        "By rule: the best, the median and the worst result of each search, without their code "
        "changes. The baseline of each environment is in table 1."
    )
    columns = [label for label, _ in chosen]
    return Table("table-3", title, caption, columns, rows, is_prose=True)


def _spread_out(record: SearchRecord) -> list[ExperimentBody]:
    found = [e for e in record.experiments if is_scored(e)]
    is_lower = record.direction is Direction.MINIMIZE
    ranked = sorted(found, key=lambda e: e.metric or 0.0, reverse=not is_lower)
    places = sorted({0, median_low(range(len(ranked))), len(ranked) - 1}) if ranked else []
    return [ranked[place] for place in places][:_EXAMPLES]


def _example(experiment: ExperimentBody) -> Cell:
    text = without_tags(experiment.idea.text, is_whole=False)
    return Cell(f"{text}\n\n{_result(experiment)}", experiment.metric)


def _result(experiment: ExperimentBody) -> str:
    said = f"{experiment.metric_name}: {format_number(experiment.metric)}"
    if experiment.comparison is not None:
        said += (
            f" ({format_effect(experiment.comparison)}; {format_verdict(experiment.comparison)})"
        )
    return said


def outcomes(searches: Sequence[Named]) -> list[Table]:
    """Tables 4, 5, …: ideas that were carried out beside ideas that failed, one per search."""
    return [
        _outcome_table(f"table-{number}", record, label)
        for number, (record, label, _) in enumerate(searches, start=4)
    ]


def _outcome_table(name: str, record: SearchRecord, label: str) -> Table:
    title = f"Ideas of {label} in full"
    scored = _spread_out(record)[:2]
    failed = _failures(record)
    if not scored and not failed:
        return Table(name, title, absent="No idea of this search has ended yet.")
    rows = []
    for n in range(max(len(scored), len(failed))):
        left = _whole(scored[n]) if n < len(scored) else Cell("")
        right = _failed(failed[n]) if n < len(failed) else Cell("")
        rows.append(Row([left, right]))
    caption = (
        "By rule: the best and the median result, and the first idea of each of the two commonest "
        "causes of failure."
    )
    if not failed:
        caption = "By rule: the best and the median result. No idea of this search failed."
    columns = ["Successful execution", "Failed execution"]
    return Table(name, title, caption, columns, rows, is_prose=True)


def _failures(record: SearchRecord) -> list[ExperimentBody]:
    """Return the first experiment of each of the two commonest codes of failure."""
    by_code: dict[str, list[ExperimentBody]] = {}
    for experiment in filter(counts_as_tried, record.experiments):
        if experiment.failure is not None:
            by_code.setdefault(experiment.failure.code, []).append(experiment)
    commonest = sorted(by_code.values(), key=len, reverse=True)
    return [found[0] for found in commonest[:2]]


def _whole(experiment: ExperimentBody) -> Cell:
    text = without_tags(experiment.idea.text, is_whole=True)
    return Cell(f"{text}\n\n{_result(experiment)}", experiment.metric)


def _failed(experiment: ExperimentBody) -> Cell:
    text = without_tags(experiment.idea.text, is_whole=True)
    failure = experiment.failure
    said = ""
    if failure is not None:
        lines = clean(failure.message).strip().splitlines() or [""]
        last = lines[-1] if failure.stage in ("start", "train", "score") else lines[0]
        said = f"\n\nFailed at {failure.stage} ({failure.code}): {last[:300]}"
    return Cell(text + said)


def _number(value: float | None) -> Cell:
    if value is None or not math.isfinite(value):
        return _NONE
    return Cell(format_number(value), value)

"""Figures and tables of made-up searches, also where data is missing."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from assay.analysis.report import Choices, EpochRecord, Figure, SearchRecord, Table, make_report
from assay.analysis.report.idea_figures import similarity
from assay.analysis.report.search_figures import best_so_far
from assay.analysis.report.spending import improvements
from assay.analysis.text import short_id
from assay.contracts.batch import IdeaRequest
from assay.domain.metrics import Direction
from tests.support.search_records import (
    START,
    batch,
    comparison,
    confirmation,
    environment,
    experiment,
    record,
    search,
)


def figure(name: str, *records: SearchRecord, choices: Choices | None = None) -> Figure:
    found = {f.name: f for f in make_report(records, choices).figures}
    return found[name]


def table(name: str, *records: SearchRecord, choices: Choices | None = None) -> Table:
    found = {t.name: t for t in make_report(records, choices).tables}
    return found[name]


def texts(of: Table) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in of.rows if row.heading is None]


def one_epoch(*metrics: float | None, operator: str = "seed", **changes: object) -> SearchRecord:
    """A search with one epoch of these results, a minute apart."""
    made, ideas = [], []
    for place, metric in enumerate(metrics):
        text = f"[Experiment] idea {place}\n[Code Changes] none\n[End]"
        made.append(
            experiment(
                f"exp_{place:026d}", "bat_1", place, text, metric, idea={"operator": operator},
                seconds=3600.0, finished_at=START + timedelta(minutes=place + 1),
            )
        )  # fmt: skip
        ideas.append(IdeaRequest(text=text))
    return SearchRecord(
        search(1, epochs=1, **changes), environment(), [EpochRecord(0, batch(1, 0), made, ideas)]
    )


def test_best_so_far_skips_what_has_no_number() -> None:
    values = [None, 2.0, math.nan, 3.0, 1.0]
    assert best_so_far(Direction.MINIMIZE, values) == [None, 2.0, 2.0, 2.0, 1.0]
    assert best_so_far(Direction.MAXIMIZE, values) == [None, 2.0, 2.0, 3.0, 3.0]


def test_figure_2_counts_ideas_that_saw_no_result() -> None:
    panels = figure("figure-2", one_epoch(3.0, 3.2, None, 3.4)).panels
    rate, average, best = (panel.series[0].y[0] for panel in panels)
    assert (rate, average, best) == (0.75, pytest.approx(3.2), 3.0)
    assert panels[1].level is not None
    assert panels[1].level.value == 3.255
    for unfit in (
        one_epoch(3.0, operator="explore"),
        one_epoch(3.0, config={"warm_start": ["srch_0"]}),
    ):
        assert "without earlier results" in (figure("figure-2", unfit).absent or "")


def test_figure_3_has_the_best_of_each_epoch_and_the_confirmed() -> None:
    found = record(1, epochs=3, size=8, confirmed=2)
    (panel,) = figure("figure-3", found).panels
    best = [min(e.metric for e in epoch.scored if e.metric) for epoch in found.epochs]
    assert list(panel.series[0].y) == best
    assert [s.mark for s in panel.series] == ["line", "steps", "stars"]
    assert len(panel.series[2].y) == 1, "one of the two was confirmed"


def test_figure_4_compares_at_equal_budget() -> None:
    mine = record(1, epochs=5, size=10)
    control = record(2, epochs=3, size=10, strategy="best-of-n")
    (panel,) = figure("figure-4", mine, control).panels
    assert list(panel.series[0].x) == [10.0, 20.0, 30.0]
    first_ten = [e.metric for e in control.experiments[:10] if e.metric is not None]
    assert panel.series[1].label == "best-of-n"
    assert panel.series[1].y[0] == min(first_ten)


def test_figure_4_says_what_is_missing() -> None:
    assert "--strategy best-of-n" in (figure("figure-4", record(1, epochs=2, size=4)).absent or "")
    other = record(2, epochs=2, size=4, strategy="best-of-n", ideator="openai:gpt-5")
    told = figure("figure-4", record(1, epochs=2, size=4), other).absent
    assert "no pair at equal budget" in (told or "")


def test_figure_6_has_lengths_and_execution_rates() -> None:
    found = record(1, epochs=3, size=10, private=100)
    drawn = figure("figure-6", found)
    lengths, rates = drawn.panels
    idea = found.epochs[0].ideas
    own = sum(len(i.thinking or "") for i in idea) / 10
    assert lengths.series[0].y[0] == pytest.approx(own + 100)
    ordered = sorted(
        zip((len(i.thinking or "") for i in idea), found.epochs[0].experiments, strict=True),
        key=lambda both: (both[0], both[1].position),
    )
    longest = [e.state == "succeeded" for _, e in ordered[-3:]]
    assert rates.series[0].y[0] == pytest.approx(sum(longest) / 3)


def test_figure_6_says_that_no_thinking_is_stored() -> None:
    drawn = figure("figure-6", record(1, epochs=2, size=4))
    assert [series.label for panel in drawn.panels for series in panel.series] == ["idea"]
    assert "No thinking is stored" in drawn.caption


def test_figure_7_finds_what_ideas_converge_on() -> None:
    def epoch(number: int, *topics: str) -> EpochRecord:
        ideas = [IdeaRequest(text=f"[Experiment] Train with {topic}") for topic in topics]
        return EpochRecord(number, batch(1, number), [], ideas)

    epochs = [
        epoch(0, "ema", "layernorm", "dropout", "warmup"),
        epoch(1, "ema", "ema", "layernorm", "x"),
    ]
    found = replace(record(1, epochs=1, size=1), epochs=epochs)
    (panel,) = figure("figure-7", found).panels
    named = {series.label: list(series.y) for series in panel.series}
    assert named == {"ema": [0.25, 0.5], "layernorm": [0.25, 0.25], "either": [0.5, 0.75]}
    own = Choices(themes={"drops": re.compile("drop")})
    (panel,) = figure("figure-7", found, choices=own).panels
    assert [(s.label, list(s.y)) for s in panel.series] == [("drops", [0.25, 0.0])]
    assert figure("figure-7", record(1, epochs=1, size=4)).absent is not None


def test_figure_10_is_the_mean_jaccard_similarity() -> None:
    def epoch(*ideas: str) -> EpochRecord:
        return EpochRecord(0, batch(1, 0), [], [IdeaRequest(text=text) for text in ideas])

    average, nearest = similarity(epoch("a b", "c d"), epoch("a b", "a c"))
    assert average == pytest.approx((1 + 0 + 1 / 3 + 1 / 3) / 4)
    assert nearest == pytest.approx((1 + 1 / 3) / 2)
    assert similarity(epoch(), epoch("a")) == (None, None)


def test_table_1_marks_the_best_and_takes_the_result_of_a_person() -> None:
    experts = Choices(experts={"nanogpt": 2.9})
    found = table("table-1", one_epoch(3.0, 3.1), choices=experts)
    assert texts(found) == [
        ["Baseline", "3.2550"],
        ["Execution-guided search", "3.0000"],
        ["Best human expert", "2.9000"],
    ]
    assert [row.cells[1].is_bold for row in found.rows] == [False, False, True]
    assert texts(table("table-1", one_epoch(3.0)))[-1] == ["Best human expert", "not given"]


def test_table_2_has_shares_averages_and_bests() -> None:
    from tests.support.search_records import edit

    found = one_epoch(3.0, 3.2, 3.4, None)
    ids = [e.id for e in found.experiments]
    tuned = edit("train.py", ["a = 1"], ["a = 2"])
    changed = edit("train.py", ["a = f(x)"], ["a = g(x)"])
    found = replace(found, diffs={ids[0]: tuned, ids[1]: changed, ids[2]: changed})
    (row,) = texts(table("table-2", found))
    assert row[1:] == ["33.3%", "3.0000", "3.0000", "66.7%", "3.3000", "3.2000"]
    assert "Not classified: 1." in table("table-2", found).caption
    assert "has a diff" in (table("table-2", one_epoch(3.0)).absent or "")


def test_tables_3_to_5_have_the_text_of_ideas() -> None:
    mine, other = (
        record(1, epochs=2, size=20),
        record(2, epochs=2, size=20, ideator="openai:gpt-5"),
    )
    chosen = table("table-3", mine, other)
    assert chosen.columns == [
        "anthropic:claude-opus-4-5",
        "openai:gpt-5 → anthropic:claude-opus-4-5",
    ]
    assert len(chosen.rows) == 3
    best = min((e for e in mine.experiments if e.metric), key=lambda e: e.metric or 0.0)
    assert f"val_loss: {best.metric:.4f}" in chosen.rows[0].cells[0].text
    assert "[Code Changes]" not in chosen.rows[0].cells[0].text
    for name in ("table-4", "table-5"):
        whole = table(name, mine, other).rows[0]
        assert "[Code Changes]" in whole.cells[0].text
        assert "Failed at train (crashed): ValueError: no" in whole.cells[1].text


def test_improvements_cost_what_was_spent_since_the_one_before() -> None:
    from assay.analysis.report import Payment

    found = one_epoch(3.3, 3.2, None, 3.25, 3.1)
    paid = [Payment(START + timedelta(minutes=m), Decimal("0.5"), "executor") for m in range(5)]
    first, second = improvements(replace(found, payments=paid))
    assert (first.ideas, first.hours, first.dollars) == (2, 2.0, Decimal("1.5"))
    assert (second.ideas, second.hours, second.dollars) == (3, 3.0, Decimal("1.0"))
    assert second.gain == pytest.approx(0.1)
    unknown = [*paid[:1], replace(paid[1], dollars=None)]
    assert improvements(replace(found, payments=unknown))[0].dollars is None
    assert "nothing was improved" in (table("cost", one_epoch(3.3)).absent or "")


def test_measurements_that_are_shared_cost_once() -> None:
    found = one_epoch(3.2, 3.2)
    (epoch,) = found.epochs
    shared = [e.model_copy(update={"measurements": ["mea_1"]}) for e in epoch.experiments]
    hours = replace(found, epochs=[replace(epoch, experiments=shared)]).hours()
    assert [h for _, h in hours] == [1.0, 0.0]


def test_what_was_claimed_is_beside_what_was_confirmed() -> None:
    found = record(1, epochs=3, size=8, confirmed=2)
    held, fell = texts(table("claims", found))
    assert (held[4], fell[4]) == ("yes", "no")
    assert figure("claims", found).panels[0].diagonal
    nothing = record(1, epochs=1, size=4)
    assert "assay experiment confirm" in (table("claims", nothing).absent or "")
    assert "assay experiment confirm" in (figure("claims", nothing).absent or "")


def test_the_winner_is_what_was_confirmed_with_its_line_of_parents() -> None:
    found = record(1, epochs=4, size=8, confirmed=2)
    (winner,) = make_report([found]).winners
    assert winner.standing.startswith("confirmed: better by +")
    assert winner.diff == found.diffs[winner.experiment]
    assert [step.epoch for step in winner.steps] == list(range(len(winner.steps)))
    assert winner.steps[-1].experiment == winner.experiment
    assert winner.steps[-1].other_parents == 2


def test_a_search_without_results_says_so_everywhere() -> None:
    found = one_epoch(None, None)
    report = make_report([found])
    drawn = [f.name for f in report.figures if f.absent is None]
    assert drawn == ["figure-2", "figure-6"]
    assert all(part.absent for part in (*report.figures, *report.tables) if not (
        part.panels if isinstance(part, Figure) else part.rows
    ))  # fmt: skip
    assert report.winners == []
    empty = replace(found, epochs=[])
    assert all(f.absent for f in make_report([empty]).figures)


def test_the_same_records_give_the_same_report() -> None:
    assert make_report([record(1, epochs=3, size=8)]) == make_report([record(1, epochs=3, size=8)])


def confirmed_as(record: SearchRecord, effects: dict[str, float]) -> SearchRecord:
    """The record with these results confirmed, by id, with these effects on fresh seeds."""
    (epoch,) = record.epochs
    again = [
        one.model_copy(
            update={
                "confirmation": confirmation(comparison(effects[one.id]), one, is_claimed=True)
            }
        )
        if one.id in effects
        else one
        for one in epoch.experiments
    ]
    return replace(record, epochs=[replace(epoch, experiments=again)])


def test_the_best_confirmed_is_that_of_the_largest_effect_on_fresh_seeds() -> None:
    """Everywhere the same one, with the confirmation's numbers. Its metric is not the best one:
    it was compared with another baseline."""
    found = one_epoch(3.0, 3.1, 3.2)
    first, second, third = found.experiments
    found = confirmed_as(found, {first.id: 0.05, second.id: 0.12})
    (epoch,) = found.epochs
    tried = list(epoch.experiments)
    other = tried[0].confirmation
    assert other is not None
    tried[0] = tried[0].model_copy(
        update={"confirmation": other.model_copy(update={"metric": 3.01})}
    )
    found = replace(found, epochs=[replace(epoch, experiments=tried)])
    report = make_report([found])
    (fact,) = (f for f in report.summaries[0].facts if f.label.startswith("best"))
    assert fact.value == "3.1350"
    assert fact.note.startswith("confirmed: better by +0.1200 [")
    assert "in the search 3.1000" in fact.note
    assert "the lowest in the search, 3.0000, is confirmed with a smaller effect" in fact.note
    rows = {row[0]: row[1] for row in texts(table("table-1", found))}
    assert rows["Best confirmed, on fresh seeds"] == "3.1350 (+0.1200 [+0.0990, +0.1410])"
    assert report.winners[0].experiment == second.id
    assert texts(table("claims", found))[0][5] == short_id(second.id)
    assert third.confirmation is None


def test_time_below_a_second_is_not_called_none() -> None:
    found = one_epoch(3.2, 3.1)
    (epoch,) = found.epochs
    for seconds, told in ((0.0, "< 1 s"), (1.0, "2 s"), (1900.0, "1 h 03 min")):
        tried = [e.model_copy(update={"seconds": seconds}) for e in epoch.experiments]
        report = make_report([replace(found, epochs=[replace(epoch, experiments=tried)])])
        (fact,) = (f for f in report.summaries[0].facts if f.label == "worker time")
        assert fact.value == told

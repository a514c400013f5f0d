"""Tables: order, arithmetic in words, and hostile text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from assay import analysis
from assay.contracts.batch import ComparisonBody, ConfirmationBody, ExperimentBody
from assay.contracts.search import BestOfEpoch
from assay.domain.metrics import Direction
from tests.support.fake_service import NOW


def experiment(position: int, **changes: Any) -> ExperimentBody:
    body = {
        "id": f"exp_{position}", "batch": "bat_1", "position": position, "state": "succeeded",
        "idea": {"id": "i", "text": f"[Experiment] idea {position}\nmore", "client_key": None,
                 "operator": "seed", "parents": []},
        "is_terminal": True, "failure": None, "implementation": "m", "codebase": None,
        "measurements": [], "metric_name": "loss", "metric": None, "reward": 0.0,
        "comparison": None, "seconds": None, "created_at": NOW, "finished_at": None,
    }  # fmt: skip
    return ExperimentBody.model_validate({**body, **changes})


def drawn(renderable: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system="truecolor", no_color=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_best_comes_first_and_what_has_no_result_last() -> None:
    experiments = [
        experiment(0, state="failed"),
        experiment(1, metric=2.0),
        experiment(2, state="running"),
        experiment(3, metric=1.0),
        experiment(4, metric=float("nan")),
        experiment(5, state="cancelled"),
    ]
    order = [e.position for e in analysis.rank(experiments, Direction.MINIMIZE)]
    assert order == [3, 1, 4, 2, 0, 5]
    order = [e.position for e in analysis.rank(experiments, Direction.MAXIMIZE)]
    assert order == [1, 3, 4, 2, 0, 5]


def comparison(**changes: Any) -> ComparisonBody:
    body = {"baseline_mean": 2.5, "baseline_spread": 0.1, "baseline_n": 5, "n": 1,
            "effect": 0.0123, "standard_error": 0.0041, "sigmas": 3.0, "degrees_of_freedom": 7.0,
            "low": 0.0026, "high": 0.022, "p": 0.0199, "posterior": 0.0121, "p_improves": 0.99,
            "verdict": "better"}  # fmt: skip
    return ComparisonBody.model_validate({**body, **changes})


def test_an_effect_is_told_with_its_interval() -> None:
    assert analysis.format_effect(comparison()) == "+0.0123 [+0.0026, +0.0220]"
    unknown = comparison(low=None, high=None)
    assert analysis.format_effect(unknown) == "+0.0123 (spread unknown)"
    assert analysis.format_effect(None) == "–"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "better, p 0.02"),
        ({"p": 1e-9}, "better, p < 0.0001"),
        ({"verdict": "identical", "p": 1.0}, "identical"),
        ({"verdict": "undecided", "p": None}, "undecided"),
        ({"verdict": "worse", "exploratory": True}, "worse, p 0.02 (exploratory)"),
    ],
)
def test_a_verdict_is_told_with_its_p(changes: dict[str, Any], told: str) -> None:
    assert analysis.format_verdict(comparison(**changes)) == told


def test_leads_stand_beside_what_luck_alone_would_give() -> None:
    found = [comparison(), comparison(verdict="undecided"), comparison(verdict="worse", p=None)]
    found.append(comparison(verdict="identical", p=1.0))
    bodies = [experiment(i, metric=2.0, comparison=each) for i, each in enumerate(found)]
    assert analysis.leads([*bodies, experiment(9)]) == (1, 2, 0.05)


def confirmation(claimed: bool | None, effect: float) -> ConfirmationBody:
    body = {"experiment": "exp_2", "batch": "bat_2", "state": "succeeded", "claimed": claimed,
            "metric_name": "val_loss", "metric": 2.4, "gap": 0.01}  # fmt: skip
    compared = comparison(effect=effect)
    return ConfirmationBody.model_validate({**body, "comparison": compared})


def test_what_a_confirmation_supports_comes_first_and_what_it_does_not_last() -> None:
    experiments = [
        experiment(0, metric=9.0, confirmation=confirmation(False, 0.5)),
        experiment(1, metric=1.0, confirmation=confirmation(True, 0.2)),
        experiment(2, metric=2.0),
        experiment(3, metric=2.0, confirmation=confirmation(True, 0.3)),
        experiment(4, metric=3.0, confirmation=confirmation(None, 0.9)),
        experiment(5, state="failed"),
    ]
    order = [e.position for e in analysis.rank(experiments, Direction.MAXIMIZE)]
    assert order == [3, 1, 4, 2, 0, 5]
    shown = drawn(analysis.experiment_table(experiments, Direction.MAXIMIZE))
    for told in ("confirmed", "gap", "yes, +0.3000", "no, +0.5000", "not decided yet", "0.0100"):
        assert told in shown
    assert "gap" not in drawn(analysis.experiment_table([experiment(2)], Direction.MAXIMIZE))


def test_a_row_holds_what_decides() -> None:
    (row,) = analysis.experiment_rows(
        [experiment(0, metric=2.4877, seconds=75.2, comparison=comparison())], Direction.MINIMIZE
    )
    assert (row.rank, row.title, row.metric) == (1, "idea 0", "2.4877")
    assert (row.verdict, row.time) == ("better, p 0.02", "1 min 15 s")


def test_what_a_result_used_stands_beside_its_verdict() -> None:
    used = {"compute": 1.234, "evaluation_compute": 1.0, "memory": 1.1, "parameters": None}
    costly = experiment(0, metric=2.4877, comparison=comparison(), used=used)
    shown = drawn(analysis.experiment_table([costly], Direction.MINIMIZE))
    assert "compute" in shown
    assert "1.2 x" in shown
    told = analysis.format_used(costly.used)
    assert told == "compute 1.2 x, compute of the evaluation 1 x, memory 1.1 x"
    plain = drawn(analysis.experiment_table([experiment(0, metric=1.0)], Direction.MINIMIZE))
    assert "compute" not in plain


def test_a_failure_shows_its_last_line() -> None:
    failure = {"stage": "train", "code": "crash", "message": "Traceback\n  x\nValueError: no\n"}
    (row,) = analysis.failure_rows(
        [experiment(1, state="failed", failure=failure), experiment(0, metric=1.0)]
    )
    assert (row.stage, row.code, row.message) == ("train", "crash", "ValueError: no")


HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]title[/] \u202egnp.exe\x9b31m \x00"


def test_what_a_model_wrote_reaches_a_terminal_as_plain_text() -> None:
    experiments = [
        experiment(0, idea={"id": "i", "text": HOSTILE, "client_key": None, "operator": "seed",
                            "parents": []}, metric=1.0),
        experiment(1, state="failed", failure={"stage": "[link=x]", "code": "c",
                                               "message": HOSTILE}),
    ]  # fmt: skip
    for made in (
        analysis.experiment_table(experiments, Direction.MINIMIZE),
        analysis.failure_table(experiments),
    ):
        text = drawn(made)
        assert "[bold red]title[/]" in text
        assert not set(text) & set("\x07\x00\x9b\u202e")
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text


def test_cleaning_keeps_lines_and_tabs() -> None:
    assert analysis.clean("a\tb\r\nc\x1b[31md\x1b[0m\n") == "a\tb\ncd\n"


@pytest.mark.parametrize(("width", "shown"), [(80, (False, False)), (110, (True, False)),
                                              (180, (True, True))])  # fmt: skip
def test_a_narrow_terminal_leaves_columns_out(width: int, shown: tuple[bool, bool]) -> None:
    made = analysis.experiment_table(
        [experiment(0, metric=1.0, comparison=comparison())], Direction.MINIMIZE, width=width
    )
    text = drawn(made, width)
    assert ("better" in text, "exp_0" in text) == shown
    assert "+0.0123 [+0.0026, +0.0220]" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0.0000"), (2.34567, "2.3457"), (1e-7, "1e-07"), (float("inf"), "inf")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert analysis.format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.004, "< 0.01 s"),
        (0.0712, "0.07 s"),
        (1.23, "1.2 s"),
        (2.0, "2 s"),
        (9.97, "10 s"),
        (12, "12 s"),
        (59.6, "1 min 00 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert analysis.format_seconds(seconds) == text


def test_an_idea_without_words_has_a_title() -> None:
    assert analysis.idea_title("[Experiment]\n\n") == "(empty)"
    assert analysis.idea_title("x" * 80, 10) == "x" * 9 + "…"


def test_best_so_far() -> None:
    best = [BestOfEpoch(epoch=0, batch="b", experiment="e", metric=2.0, best_so_far=2.0, scored=3,
                        total=4)]  # fmt: skip
    (row,) = analysis.best_rows(best)
    assert (row.epoch, row.scored, row.best_so_far) == (0, "3/4", "2.0000")
    assert "best so far" in drawn(analysis.best_table(best))

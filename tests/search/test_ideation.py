"""What the cross-benchmark counts, and under which id it continues."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from assay.analysis.ideation import IdeationReport, ideation_report, ideation_tables
from assay.cli.output import make_console
from assay.contracts.batch import BatchOptions, Usage
from assay.domain.metrics import Direction
from assay.search.ideation import Outcome, PairOutcome, Plan

A, B, PROGRAM = "openai:a", "openai:b", "offline:literal"
PLAN = Plan("toy@abc", "tiny", [A, B], [A, B], 4, BatchOptions(novelty="allow"))


def experiment(result: float | str | None) -> Any:
    """An experiment with a metric, or with the code of its failure, or without an end."""
    is_failed = isinstance(result, str)
    stage = "train" if result == "crashed" else "implement"
    return SimpleNamespace(
        id=f"exp_{result}",
        state="failed" if is_failed else "queued" if result is None else "succeeded",
        metric=None if is_failed else result,
        failure=SimpleNamespace(code=result, stage=stage) if is_failed else None,
        comparison=None if result is None or is_failed else SimpleNamespace(verdict="better"),
    )


def pair(ideator: str, executor: str, *results: float | str | None, cost: str | None = "1") -> Any:
    usage = Usage(calls=2, input_tokens=10, output_tokens=5, cost_usd=cost)
    batch: Any = SimpleNamespace(
        id="bat_1", usage=usage, conditions="cnd", hardware_class="cpu", baseline=None
    )
    experiments = {place: experiment(result) for place, result in enumerate(results)}
    return PairOutcome(ideator, executor, (batch,), experiments)


def report(*pairs: PairOutcome, unfinished: list[str] | None = None) -> IdeationReport:
    search: Any = SimpleNamespace(id="srch_1", ideator_usage=Usage(calls=1, cost_usd="0.5"))
    outcome = Outcome(PLAN, {A: search}, list(pairs), unfinished or [])
    return ideation_report(outcome, "loss", Direction.MINIMIZE)


def printed(found: IdeationReport, capsys: pytest.CaptureFixture[str]) -> str:
    console = make_console(stderr=False)
    for each in ideation_tables(found):
        console.print(each)
    return capsys.readouterr().out


def test_a_pair_has_its_rate_mean_best_and_cost() -> None:
    (row,) = report(pair(A, A, 3.0, 2.0, "crashed", "no_match")).pairs
    assert (row.scored, row.tried, row.ideas) == (2, 4, 4)
    assert row.completion is not None
    assert row.completion.value == 0.5
    assert row.metric_mean is not None
    assert (row.metric_mean.value, row.metric_mean.n) == (2.5, 2)
    assert (row.best, row.best_experiment) == (2.0, "exp_2.0")  # a loss: lower is better
    assert row.verdicts == {"better": 2}
    assert row.failures == {"crashed": 1, "no_match": 1}
    assert (row.executor_spent.calls, row.executor_spent.cost_usd) == (2, "1")


def test_failures_of_hosts_providers_and_caps_are_not_the_models() -> None:
    (row,) = report(pair(A, A, 3.0, "provider_unavailable", "spend_cap", None)).pairs
    assert (row.scored, row.tried) == (1, 1)
    assert row.not_tried == {"provider_unavailable": 1, "queued": 1, "spend_cap": 1}


def test_the_same_ideas_are_compared_idea_by_idea() -> None:
    found = report(
        pair(A, A, 3.0, 2.0, 1.0, "crashed", 9.0),
        pair(A, B, 3.5, "no_match", 1.5, "crashed", "spend_cap"),
    )
    (same,) = found.same_ideas
    assert (same.ideator, same.other_executor) == (A, B)
    assert same.completion_difference is not None
    assert (same.completion_difference.value, same.completion_difference.n) == (0.25, 4)
    assert same.metric_difference is not None
    assert (same.metric_difference.value, same.metric_difference.n) == (-0.5, 2)
    assert found.same_executor == []  # nobody implemented both its own ideas and others'


def test_an_executor_is_compared_on_its_own_ideas_and_those_of_others() -> None:
    found = report(pair(A, A, 1.0, 2.0), pair(B, A, 1.0, "crashed"))
    (by,) = found.same_executor
    assert by.completion_difference is not None
    assert (by.executor, by.completion_difference.value) == (A, 0.5)


def test_a_cost_is_unknown_if_a_price_is() -> None:
    assert report(pair(A, A, 1.0)).cost_usd == "1.5"
    assert report(pair(A, A, 1.0), pair(A, B, 1.0, cost=None)).cost_usd is None


def test_the_tables_say_lead_and_never_call_a_program_a_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = "openai:\x1b[31mevil"
    text = printed(report(pair(A, PROGRAM, 1.0), pair(hostile, A, 2.0, "spend_cap")), capsys)
    assert "best (a lead)" in text
    assert "uncorrected" in text
    assert "Offline stand-ins are programs, not language models" in text
    assert "not counted: 1 spend_cap" in text
    assert "\x1b" not in text
    assert "LLM" not in text
    assert "Offline" not in printed(report(pair(A, B, 1.0)), capsys)


def test_other_conditions_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = pair(A, A, 1.0), pair(A, B, 1.0)
    other.batches[0].conditions = "cnd_other"
    assert "different conditions" in printed(report(one, other), capsys)


def test_the_id_follows_from_what_decides_results_and_from_nothing_else() -> None:
    same = replace(PLAN, ideators=[B], executors=[PROGRAM], max_cost_usd=None)
    assert same.id == PLAN.id
    changes: list[dict[str, Any]] = [
        {"ideas": 5}, {"seed": 1}, {"profile": "full"}, {"environment": "toy@def"},
        {"options": BatchOptions(novelty="allow", seeds=[1])}, {"hardware_class": "gpu"},
    ]  # fmt: skip
    assert len({replace(PLAN, **each).id for each in changes} | {PLAN.id}) == 7


def test_an_ideators_search_has_its_own_code_where_it_implements() -> None:
    assert PLAN.first_executor(B) == B
    assert replace(PLAN, executors=[PROGRAM]).first_executor(B) == PROGRAM

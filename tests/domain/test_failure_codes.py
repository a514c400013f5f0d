"""The registry of failure codes: complete, consistent, safe with codes that are not in it."""

from __future__ import annotations

import pytest

from assay.domain.failure_codes import (
    MOST_DECLARED,
    REJECTIONS,
    RULES,
    Blame,
    Failure,
    FailureCode,
    codes_at,
    read_code,
    reported_failure,
    rules_for,
    rules_of_stored,
    why_not_declarable,
)
from assay.domain.rounding import OUTCOME_BITS
from assay.domain.states import FailureStage
from assay.evaluation import Rejection
from assay.llm.interface import ModelError
from assay.llm.recording import ReplayMiss, TooLate
from assay.patching import RefusalCode

NOBODY_FAILED = {
    FailureCode.UNCLAIMED,
    FailureCode.IGNORED,
    FailureCode.WORKER_REMOVED,
    FailureCode.WORKER_STOPPED,
}
WORKER_GONE = {FailureCode.LOST, FailureCode.WORKER_RESTARTED, FailureCode.DEADLINE}


def test_every_code_has_its_rules() -> None:
    assert set(RULES) == set(FailureCode)
    for code, rules in RULES.items():
        assert rules.stages, code
        assert rules.meaning.endswith((".", ")")), code


@pytest.mark.parametrize("code", FailureCode)
def test_rules_do_not_contradict_one_another(code: FailureCode) -> None:
    rules = RULES[code]
    if rules.shared:
        assert not rules.retryable
        assert not rules.retried
        assert rules.blame in (Blame.IDEA, Blame.UNCLEAR)
    if rules.retried:
        assert rules.retryable
        assert rules.blame is not Blame.IDEA
        assert not rules.shown_to_ideators  # no experiment ends with it
    else:
        assert not rules.counts_as_try
        assert not rules.counts_against_worker
        assert not rules.worker_is_gone
    if rules.blame is Blame.IDEA:
        assert rules.shown_to_ideators
    if rules.shown_to_ideators:
        assert rules.blame in (Blame.IDEA, Blame.UNCLEAR)


def test_what_uses_a_try_what_cordons_and_what_quarantines() -> None:
    retried = {code for code, rules in RULES.items() if rules.retried}
    assert {c for c in retried if not RULES[c].counts_as_try} == NOBODY_FAILED
    assert {c for c in retried if not RULES[c].counts_against_worker} == {
        FailureCode.WORKER_RESTARTED,
        FailureCode.HOST_BUSY,  # a worker takes less work then, as it finds itself
        *(NOBODY_FAILED - {FailureCode.IGNORED}),
    }
    assert {c for c in retried if RULES[c].worker_is_gone} == WORKER_GONE
    assert {c for c in retried if not RULES[c].waits} == NOBODY_FAILED | WORKER_GONE


@pytest.mark.parametrize("code", [FailureCode.HOST_BUSY, FailureCode.HOST_OUT_OF_MEMORY])
def test_a_host_that_disturbs_a_training_is_to_blame(code: FailureCode) -> None:
    rules = RULES[code]
    assert rules.blame is Blame.HOST
    assert rules.retried
    assert rules.counts_against_worker == (code is not FailureCode.HOST_BUSY)
    assert {FailureStage.START, FailureStage.TRAIN} <= set(rules.stages)
    assert Failure(FailureStage.TRAIN, code, "slow").rules is rules


def test_hosts_services_and_settings_teach_an_ideator_nothing() -> None:
    hidden = {code for code, rules in RULES.items() if not rules.shown_to_ideators}
    assert {"infrastructure", "rate_limited", "spend_cap", "gpu_hours_cap", "lost"} <= hidden
    assert not hidden & {"crashed", "no_match", "leak", "quarantined", "refused"}


def test_codes_of_the_patcher_the_evaluator_and_the_models_are_registered() -> None:
    implement = codes_at(FailureStage.IMPLEMENT)
    assert {code.value for code in RefusalCode} <= implement
    kinds = [ModelError, *ModelError.__subclasses__()]
    assert {ReplayMiss, TooLate} <= set(kinds)
    assert {kind.code for kind in kinds} <= implement
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    rejected = {rejection.code for rejection in Rejection}
    assert rejected == {*REJECTIONS, FailureCode.EVALUATION_INTERRUPTED}
    assert Rejection.INTERRUPTED.code is FailureCode.EVALUATION_INTERRUPTED


def test_codes_that_another_version_stored_are_read_and_conclude_nothing() -> None:
    stored = {"stage": "train", "code": "of_old", "message": "m", "retryable": False}
    failure = Failure.from_dict(stored)
    assert (failure.code, failure.message) == ("of_old", "m")
    rules = rules_of_stored(stored)
    assert not (rules.retried)
    assert not (rules.shared)
    assert not (rules.shown_to_ideators)
    assert not (rules.counts_against_worker)
    assert not (rules.counts_as_try)
    assert Failure.from_dict(failure.as_dict()) == failure


def test_a_failure_is_stored_with_its_flag_and_comes_back() -> None:
    crash = Failure(FailureStage.TRAIN, FailureCode.CRASHED, "no")
    assert crash.as_dict() == {
        "stage": "train",
        "code": "crashed",
        "message": "no",
        "retryable": False,
    }
    assert type(crash.as_dict()["code"]) is str
    assert Failure.from_dict(crash.as_dict()) == crash
    assert isinstance(read_code("crashed"), FailureCode)
    lost = Failure(FailureStage.START, FailureCode.LOST, "gone")
    assert lost.as_dict()["retryable"] is True


def test_a_code_of_the_environment_is_the_ideas_own_failure() -> None:
    rules = rules_for("infeasible", FailureStage.SCORE)
    assert rules.shared
    assert rules.shown_to_ideators
    assert not rules.retried
    assert rules == rules_for("infeasible", "score")


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (FailureStage.TRAIN, "invented"),
        (FailureStage.TRAIN, "infeasible"),
        (FailureStage.SCORE, "invented"),
        (FailureStage.TRAIN, "leak"),
        (FailureStage.START, "near_duplicate"),
        (FailureStage.SCORE, "lost"),
    ],
)
def test_a_report_that_cannot_be_is_kept_as_unknown(stage: FailureStage, code: str) -> None:
    found = reported_failure(stage, code, "what it said", declared={"infeasible": "…"})
    assert found.code is FailureCode.UNKNOWN_FAILURE
    assert found.message.startswith(f"{code} at stage {stage.value}")
    assert "what it said" in found.message
    assert found.rules.retried
    assert found.rules.counts_as_try


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (FailureStage.TRAIN, "crashed"),
        (FailureStage.SCORE, "infeasible"),
        (FailureStage.START, "sandbox_failed"),
        (FailureStage.TRAIN, "host_busy"),
    ],
)
def test_a_report_that_can_be_is_kept_as_it_is(stage: FailureStage, code: str) -> None:
    found = reported_failure(stage, code, "m", declared={"infeasible": "…"})
    assert (found.stage, found.code, found.message) == (stage, code, "m")


@pytest.mark.parametrize(
    "code", ["", "Infeasible", "in-feasible", "_x", "x_", "x__y", "x1", "x" * 65, "leak", "lost"]
)
def test_names_that_an_environment_may_not_declare(code: str) -> None:
    assert why_not_declarable(code)


def test_names_that_an_environment_may_declare_fit_into_the_bits_of_an_outcome() -> None:
    assert why_not_declarable("infeasible") is None
    assert why_not_declarable("two_circles_overlap") is None
    guards = len(codes_at(FailureStage.GUARD))
    assert len(REJECTIONS) + guards + MOST_DECLARED + 1 <= 1 << OUTCOME_BITS

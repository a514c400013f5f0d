"""The corpus of scripted answers, and a few of its cases through the real service."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx2
import pytest

from assay.llm import prompts
from benchmarks.execution_rate import author, table
from benchmarks.execution_rate.__main__ import chosen
from benchmarks.execution_rate.corpus import FAULTS, Case, load
from benchmarks.execution_rate.policies import (
    FEEDBACK,
    FIRST_DIFF,
    REPAIRED,
    Outcome,
    Policy,
    Run,
    measure,
)

#: One of each fault that is told in another way; the right code is the same for two each, so that
#: three codebases are trained.
SHORT = (
    "nanogpt/09-best-opus-from-memory",
    "nanogpt/14-head-scales-open-bracket",
    "nanogpt/19-best-gpt5-average-not-imported",
    "nanogpt/22-head-scales-not-broadcast",
    "nanogpt/30-best-gpt5-cosine-no-math",
    "nanogpt/32-best-opus-prose",
)


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return load()


@pytest.fixture(scope="module")
def short(corpus: list[Case]) -> list[Case]:
    return [case for case in corpus if case.name in SHORT]


def test_the_corpus_is_large_and_varied(corpus: list[Case]) -> None:
    assert len(corpus) >= 60
    assert {case.fault for case in corpus} == set(FAULTS)
    assert len({(case.environment, case.source) for case in corpus}) >= 30
    assert len({author.idea_of(case) for case in corpus}) == len(corpus)


def test_being_told_that_something_is_wrong_helps_no_author(corpus: list[Case]) -> None:
    """What a revision says around its log is not what they learn from."""
    first = prompts.executor_prompt("block", "idea")
    said = prompts.revision_prompt(first, "an answer", "").messages[-1].text
    assert [case.name for case in corpus if case.understands(said)] == []


def conversation(case: Case, *feedback: str) -> list[str]:
    return [f"a codebase\n\n{author.idea_of(case)}\nWrite it.", *feedback]


def test_the_author_corrects_what_it_is_told_of(corpus: list[Case]) -> None:
    case = next(case for case in corpus if case.name == "nanogpt/18-best-sonnet-no-math")
    with author.Author(corpus) as scripted:
        assert scripted.answer(conversation(case)) == case.answer
        assert scripted.answer(conversation(case, "It does not work.")) == case.answer
        told = conversation(case, "It does not work.", "NameError: name 'math' is not defined")
        assert scripted.answer(told) == case.fixed
        assert scripted.asked == {case.name: 3}
        with pytest.raises(author.UnknownCase):
            scripted.answer(["an idea of nobody's"])


def test_the_author_refuses_what_it_does_not_know(short: list[Case]) -> None:
    messages = [{"role": "user", "content": "(case nanogpt/99-unknown)"}]
    with author.Author(short) as scripted:
        answer = httpx2.post(
            f"{scripted.openai_url}/chat/completions", json={"messages": messages}
        )
    assert answer.status_code == 400
    assert "no case" in answer.json()["error"]["message"]
    assert scripted.asked == {}


def test_cases_are_chosen_by_name_and_fault(corpus: list[Case]) -> None:
    assert chosen("", None) == corpus
    some = chosen("nanogpt/", "late,syntax")
    assert {(case.environment, case.fault) for case in some} == {
        ("nanogpt", "late"),
        ("nanogpt", "syntax"),
    }
    with pytest.raises(ValueError, match="no such fault: lat;"):
        chosen("", "lat")
    with pytest.raises(ValueError, match="no case"):
        chosen("nothing is called so", None)


def run_of(policy: Policy, short: list[Case], *executed: bool) -> Run:
    """A run of the first cases, of which some were executed."""
    outcomes = [
        Outcome(case, "succeeded", "", policy.calls[case.fault], 0)
        if done
        else Outcome(case, "failed", "train/crashed", policy.calls[case.fault], 0)
        for case, done in zip(short, executed, strict=False)
    ]
    return Run(policy, outcomes, requests=sum(outcome.calls for outcome in outcomes))


def test_what_is_not_as_expected_is_listed(short: list[Case]) -> None:
    good = run_of(FEEDBACK, short, True, True)
    assert good.problems() == []
    (missed,) = run_of(FEEDBACK, short, True, False).problems()
    assert short[1].name in missed
    assert "train/crashed" in missed
    (found,) = run_of(FIRST_DIFF, short, False, True).problems()
    assert "executed" in found
    good.requests += 1
    (unknown,) = good.problems()
    assert "5 requests, of which the ledger has 4" in unknown
    same = run_of(FIRST_DIFF, short, False), run_of(FEEDBACK, short, False)
    assert any("executes no more" in problem for problem in table.problems(*same))


@pytest.mark.bubblewrap
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_feedback_gets_every_fault_to_a_result_and_its_absence_none(
    tmp_path: Path, short: list[Case]
) -> None:
    assert Counter(case.fault for case in short) == dict.fromkeys(set(REPAIRED) - {"protected"}, 1)
    tmp_path.chmod(0o755)
    first = measure(FIRST_DIFF, short, tmp_path / "first")
    assert first.problems() == []
    assert first.executed == 0
    assert {o.case.fault: o.failure.partition("/")[0] for o in first.outcomes} == {
        **dict.fromkeys(("context", "syntax", "malformed"), "implement"),
        **dict.fromkeys(("import", "shape", "late"), "train"),
    }
    feedback = measure(FEEDBACK, short, tmp_path / "feedback")
    assert table.problems(first, feedback) == []
    assert feedback.executed == len(short)
    assert {o.case.fault: o.calls for o in feedback.outcomes} == dict.fromkeys(
        (case.fault for case in short), 2
    )
    assert [o.case.fault for o in feedback.outcomes if o.repairs] == ["late"]
    assert feedback.smoke_s > 0
    assert first.smokes == 0

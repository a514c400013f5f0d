"""The ideator that asks a model."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from assay.llm import (
    Completion,
    IdeaText,
    IdeationRequest,
    Message,
    ModelIdeator,
    ModelName,
    Trajectory,
    UnreadableAnswer,
    Usage,
    format_idea,
    price_table,
    read_idea,
)
from assay.llm.executors import Limits
from assay.llm.ideation import Baseline, CurveEnd, Standing
from assay.llm.ideator_context import sample_within
from assay.llm.tokens import estimate_tokens
from assay.llm.trajectory_text import describe
from assay.llm.windows import context_of, known_models

REQUEST = IdeationRequest(
    "seed", 3, "Small GPT", "Lower the loss.", "val_loss", {"train.py": "rate = 1\n"}, 7
)
PAST = tuple(
    Trajectory(
        f"exp_{i}",
        1,
        i,
        format_idea(IdeaText(f"Past idea {i}.", "x" * 400)),
        reward=float(i),
        state="succeeded" if i else "failed",
        metric=1.0 / i if i else None,
        diff=f"diff {i}" if i else "",
        failure="" if i else "train: NameError",
    )
    for i in range(6)
)


class Scripted:
    """A model that answers what it is told to and keeps its prompts."""

    name = ModelName.parse("openai:scripted")

    def __init__(self, *answers, stop="end"):
        self.answers = list(answers)
        self.prompts = []
        self.options = []
        self.stop = stop

    async def complete(self, prompt, **options):
        self.prompts.append(prompt)
        self.options.append(options)
        return Completion(self.answers.pop(0), "hmm", self.stop, Usage(), "m")

    async def aclose(self):
        return None


def ideas(*texts):
    return "\n\n".join(format_idea(IdeaText(text, f"do {text}")) for text in texts)


def propose(model, request=REQUEST, **options):
    return asyncio.run(ModelIdeator(model, **options).propose(request))


def experiments(found):
    return [read_idea(idea.text).experiment for idea in found]


def test_ideas_are_read_and_thinking_kept():
    model = Scripted("Now a.\n" + ideas("a") + "\n<think>Now b.</think>\n" + ideas("b", "c", "d"))
    found = propose(model)
    assert experiments(found) == ["a", "b", "c"]
    assert {(idea.operator, idea.parents) for idea in found} == {("seed", ())}
    assert [idea.thinking for idea in found] == ["Now a.", "Now b.", ""]
    prompt = model.prompts[0]
    assert "rate = 1" in prompt.cache_prefix
    assert "Propose 3 new ideas that improve val_loss" in prompt.messages[0].text


def test_missing_ideas_are_asked_for_again_with_what_was_had():
    model = Scripted(ideas("a"), "", ideas("a", "b", "c"))
    found = propose(model)
    assert [read_idea(idea.text).experiment for idea in found] == ["a", "b", "c"]
    assert "Propose 2 new ideas" in model.prompts[1].messages[0].text
    assert "proposed already" in model.prompts[1].messages[0].text
    assert "proposed already" not in model.prompts[0].messages[0].text


def test_asking_is_bounded():
    assert len(propose(Scripted(ideas("a"), "", ""))) == 1
    with pytest.raises(UnreadableAnswer):
        propose(Scripted("", "", ""))
    model = Scripted(*[ideas("a", "b")] * 9)
    propose(model, replace(REQUEST, count=0))
    assert model.prompts == []


def test_an_answer_that_cannot_be_read_is_shown_to_the_model_once():
    model = Scripted("I would try a, b and c.", ideas("a", "b", "c"))
    assert experiments(propose(model)) == ["a", "b", "c"]
    first, again = model.prompts
    assert again.messages[:1] == first.messages
    assert again.messages[1] == Message("assistant", "I would try a, b and c.")
    assert "I would try a, b and c." in again.messages[2].text
    assert (again.system, again.cache_prefix) == (first.system, first.cache_prefix)


def test_a_second_failure_ends_the_question():
    model = Scripted("I would try a.", "As I said: a.", ideas("never asked for"))
    with pytest.raises(UnreadableAnswer, match="asked for the form"):
        propose(model)
    assert len(model.prompts) == 2


def test_a_second_failure_keeps_the_ideas_of_earlier_answers():
    model = Scripted(ideas("a"), "I would try b.", "As I said: b.")
    assert experiments(propose(model)) == ["a"]


def test_only_the_passages_that_cannot_be_read_are_asked_for_again():
    model = Scripted(ideas("a") + "\n[Experiment] b\n[End]\n" + ideas("c"), ideas("a", "b"))
    assert experiments(propose(model)) == ["a", "c", "b"]
    assert "[Experiment] b" in model.prompts[1].messages[2].text
    assert "do c" not in model.prompts[1].messages[2].text


def test_what_was_cut_off_or_declined_is_not_asked_for_in_another_form():
    for stop in ("truncated", "refused"):
        model = Scripted("[Experiment] a", "I cannot.", "No.", stop=stop)
        with pytest.raises(UnreadableAnswer):
            propose(model)
        assert [len(prompt.messages) for prompt in model.prompts] == [1, 1, 1]


def test_the_last_idea_of_a_truncated_answer_is_dropped():
    model = Scripted("[Experiment] a [Code Changes] do", ideas("b"), "", stop="truncated")
    assert [read_idea(idea.text).experiment for idea in propose(model)] == ["b"]


def asked(request, **options):
    """The prompt of a single call."""
    model = Scripted(ideas("new"))
    propose(model, replace(request, count=1), **options)
    return model.prompts[0]


EXPLORE = replace(REQUEST, operator="explore", trajectories=PAST)
EXPLOIT = replace(REQUEST, operator="exploit", trajectories=PAST, parents=PAST[1:])


def test_all_questions_of_an_epoch_begin_alike_and_the_next_epoch_adds_to_it():
    explore, exploit = asked(EXPLORE), asked(EXPLOIT)
    assert explore.cache_prefix == exploit.cache_prefix
    assert exploit.log[: len(explore.log)] == explore.log
    later = tuple(replace(past, id=f"exp_2{past.position}", epoch=2) for past in PAST)
    again = asked(replace(EXPLORE, trajectories=PAST + later, seed=99))
    assert again.log[: len(explore.log)] == explore.log
    assert len(again.log) == len(explore.log) + 1
    assert again.messages == explore.messages


def test_experiments_are_told_oldest_first_with_what_came_of_them():
    log = "\n".join(asked(EXPLORE).log)
    assert "id exp_0, epoch 1\nfailed: train: NameError" in log
    assert "id exp_4, epoch 1\nval_loss 0.25\n" in log
    assert log.index("exp_0") < log.index("exp_5")
    assert "diff 5" not in log


def test_what_does_not_fit_is_left_out_at_random_and_the_prompt_fits():
    many = tuple(
        replace(PAST[i % 6], id=f"exp_{i}", position=i, epoch=i // 50) for i in range(400)
    )
    request = replace(EXPLORE, trajectories=many)
    logs = set()
    for seed in range(3):
        prompt = asked(replace(request, sample_seed=seed), context_tokens=40_000)
        size = sum(estimate_tokens(part) for part in (prompt.system, *prompt.cached_parts))
        assert 8_000 < size + estimate_tokens(prompt.messages[0].text) < 25_000
        logs.add(prompt.log)
    assert len(logs) == 3


def test_a_sample_begins_with_that_of_fewer_until_it_is_halved():
    ids = [f"exp_{i}" for i in range(1000)]
    samples = [sample_within([1] * n, ids[:n], 100, seed=5) for n in range(10, 1001, 10)]
    kept = [b[: len(a)] == a for a, b in pairwise(samples)]
    assert kept.count(False) <= 4
    assert all(len(sample) <= 100 for sample in samples)
    assert len(samples[-1]) > 40
    assert samples[-1] != sample_within([1] * 1000, ids, 100, seed=6)


def test_exploit_shows_the_best_first_with_diffs_and_reads_parents():
    model = Scripted(ideas("Join them.\nParents: exp_5, exp_2, exp_99"))
    (idea,) = propose(model, replace(EXPLOIT, count=1))
    assert set(idea.parents) == {"exp_5", "exp_2"}
    assert idea.operator == "exploit"
    own = model.prompts[0].log[-1]
    assert own.index("id exp_5:") < own.index("id exp_1:")
    assert "diff 5" in own


def test_a_positive_that_the_sample_left_out_is_told_in_full():
    unseen = replace(PAST[5], id="exp_best", reward=9.0)
    prompt = asked(replace(EXPLOIT, parents=(unseen,)))
    assert "Past idea 5." in prompt.log[-1]
    assert "diff 5" in prompt.log[-1]


def test_only_as_many_positives_as_fit_are_shown_the_best_of_them():
    large = tuple(
        replace(PAST[1], id=f"exp_{i}", diff="x" * 3_900, reward=float(i)) for i in range(200)
    )
    prompt = asked(replace(EXPLOIT, parents=large, trajectories=()), context_tokens=40_000)
    assert "id exp_199," in prompt.log[-1]
    assert "id exp_100," not in prompt.log[-1]


BASELINE = Baseline(1.3617, 0.0132, 20)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("worse", "val_loss 1.4294 on 1 seed, worse than the baseline 1.3617 ± 0.013; 12 s"),
        ("better", "better than the baseline 1.3617 ± 0.013 (a lead, not confirmed); 12 s"),
        ("undecided", "no clear difference from the baseline 1.3617 ± 0.013"),
        ("identical", "identical to the baseline 1.3617 ± 0.013"),
        ("provisional", "beside the baseline 1.3617 ± 0.013, which is still being measured"),
        ("not comparable", "not comparable with the baseline 1.3617 ± 0.013 (other torch)"),
    ],
)
def test_a_result_stands_beside_the_baseline_in_words(verdict, said):
    mismatch = ("torch",) if verdict == "not comparable" else ()
    standing = Standing(verdict, BASELINE, mismatch=mismatch)
    past = replace(PAST[1], metric=1.4294, seeds=1, seconds=12.3, standing=standing)
    assert said in describe(past, "val_loss")


def test_a_trajectory_says_where_it_comes_from_and_how_its_training_ended():
    past = replace(
        PAST[1],
        operator="exploit",
        parents=("exp_8", "exp_9"),
        curve=CurveEnd("train/loss\nIgnore", ((224.0, 1.523), (280.0, 1.4412))),
        source="in the earlier search srch_1",
        elsewhere="measured under other conditions",
    )
    text = describe(past, "val_loss")
    assert (
        "id exp_1, in the earlier search srch_1, epoch 1, exploit, built on exp_8, exp_9" in text
    )
    assert "curve, train/lossIgnore: 1.523 at step 224, 1.441 at step 280\n" in text
    assert "measured under other conditions: do not compare its numbers" in text


def test_long_texts_of_others_are_cut():
    past = replace(PAST[1], idea_text="i" * 9_000, diff="d" * 9_000)
    assert len(describe(past, "val_loss", with_diff=True)) < 7_500
    failed = replace(PAST[0], failure="f" * 9_000)
    assert len(describe(failed, "val_loss")) < 4_000


def test_the_question_names_profile_budget_rules_and_baseline():
    prompt = asked(
        replace(
            EXPLORE,
            metric_goal="lower is better",
            profile="tiny: small",
            profile_notes="Edit `Tiny`.",
            budget="1 CPU core",
            rules="- Keep it causal.",
            baseline=BASELINE,
        )
    )
    for said in ("Profile: tiny: small", "Edit `Tiny`.", "1 CPU core", "- Keep it causal."):
        assert said in prompt.cache_prefix
    assert "The baseline reaches val_loss 1.3617 ± 0.013 on 20 seeds." in prompt.log[0]
    assert "improve val_loss (lower is better)" in prompt.messages[0].text


def test_a_first_question_that_knows_of_others_asks_not_to_repeat_them():
    prompt = asked(replace(REQUEST, trajectories=PAST))
    assert "Do not repeat what was tried above" in prompt.messages[0].text
    assert "Do not repeat" not in asked(REQUEST).messages[0].text


def test_a_repair_begins_as_the_question_did_and_is_asked_with_the_same_options():
    model = Scripted("Try a.", ideas("a"))
    propose(model, replace(EXPLOIT, count=1), limits=Limits(9_000, 0.7, "high"))
    first, again = model.prompts
    assert again.cached_parts == first.cached_parts
    assert len(first.cached_parts) == 4
    assert model.options[0] == model.options[1]


def test_a_repair_leaves_out_the_end_of_the_log_where_it_does_not_fit():
    many = tuple(
        replace(PAST[i % 6], id=f"exp_{i}", position=i, epoch=i // 10) for i in range(100)
    )
    model = Scripted("Try a. " * 6_000, ideas("a"))
    request = replace(EXPLORE, count=1, trajectories=many)
    propose(model, request, context_tokens=45_000, limits=Limits(5_000))
    first, again = model.prompts
    assert 1 < len(again.log) < len(first.log)
    assert again.log == first.log[: len(again.log)]
    assert tokens_of(again) <= 40_000
    small = Scripted("Try a. " * 6_000, ideas("a"))
    propose(small, request, context_tokens=20_000, limits=Limits(5_000))
    assert small.prompts[1].log == ()
    assert small.prompts[1].cache_prefix == small.prompts[0].cache_prefix
    assert tokens_of(small.prompts[1]) <= 15_000


def tokens_of(prompt):
    said = [message.text for message in prompt.messages]
    return sum(map(estimate_tokens, [prompt.system, *prompt.cached_parts, *said]))


def test_a_model_is_asked_with_the_options_that_were_set():
    model = Scripted(ideas("a", "b", "c"))
    propose(model, limits=Limits(9_000, 0.7, "high"))
    sent = model.options[0]
    assert (sent["max_tokens"], sent["temperature"], sent["effort"]) == (9_000, 0.7, "high")


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("anthropic:claude-opus-4-5", 200_000),
        ("anthropic:claude-opus-4-5-20251101", 200_000),
        ("anthropic:claude-opus-5-5", 200_000),
        ("anthropic:claude-haiku-5-5", 100_000),  # more has another price
        ("openai:gpt-4o", 128_000),
        ("openai:gpt-9", 64_000),
        ("openai:gpt-4o@http://localhost:8000/v1", 64_000),
    ],
)
def test_a_context_follows_the_models_window(name, context):
    assert context_of(ModelName.parse(name)) == context


def test_a_context_is_bounded_by_the_window_and_from_below():
    name = ModelName.parse("openai:gpt-4o")
    assert context_of(name, 100_000) == 100_000
    with pytest.raises(ValueError, match="128000"):
        context_of(name, 200_000)
    with pytest.raises(ValueError, match="too little"):
        context_of(name, 100)
    assert context_of(ModelName.parse("openai:mine@http://h/v1"), 10**6) == 10**6


def test_every_model_with_a_price_has_a_window():
    assert set(price_table().models) == known_models()


@pytest.mark.parametrize(
    ("operator", "mark", "said"),
    [
        ("refine", "<<<PROMISING", "These may improve on the baseline, best first"),
        ("combine", "<<<PROMISING", "These may improve on the baseline, best first"),
        ("ablate", "<<<PROMISING", "These may improve on the baseline, best first"),
        ("rescue", "<<<FAILED", "These failed"),
    ],
)
def test_what_is_built_on_is_introduced_as_what_it_is(operator, mark, said):
    prompt = asked(replace(EXPLOIT, operator=operator))
    assert mark in prompt.log[-1]
    assert said in prompt.log[-1]
    assert "beat the baseline by their mean" not in prompt.log[-1]


def test_an_idea_that_names_no_parent_has_the_only_one_there_was():
    (idea,) = propose(
        Scripted(ideas("Drop it.")),
        replace(EXPLOIT, operator="ablate", count=1, parents=(PAST[5],)),
    )
    assert idea.parents == ("exp_5",)


def test_an_idea_whose_result_is_not_told_does_not_count_as_failed():
    text = describe(replace(PAST[1], state="submitted", metric=None, failure=""), "val_loss")
    assert "submitted: its result is not told" in text
    assert "no valid result" not in text

"""The ideator that asks a model."""

import asyncio
from dataclasses import replace

import pytest

from assay.llm import (
    Completion,
    IdeaText,
    IdeationRequest,
    ModelError,
    ModelIdeator,
    ModelName,
    Trajectory,
    Usage,
    format_idea,
    read_idea,
)

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
        self.stop = stop

    async def complete(self, prompt, **options):
        self.prompts.append(prompt)
        return Completion(self.answers.pop(0), "hmm", self.stop, Usage(), "m")

    async def aclose(self):
        return None


def ideas(*texts):
    return "\n\n".join(format_idea(IdeaText(text, f"do {text}")) for text in texts)


def propose(model, request=REQUEST, **options):
    return asyncio.run(ModelIdeator(model, **options).propose(request))


def test_ideas_are_read_and_thinking_kept():
    model = Scripted(ideas("a", "b", "c", "d"))
    found = propose(model)
    assert [read_idea(idea.text).experiment for idea in found] == ["a", "b", "c"]
    assert {(idea.operator, idea.thinking, idea.parents) for idea in found} == {
        ("seed", "hmm", ())
    }
    prompt = model.prompts[0]
    assert "rate = 1" in prompt.cache_prefix
    assert "Propose 3 new ideas that improve val_loss" in prompt.messages[0].text


def test_missing_ideas_are_asked_for_again_with_what_was_had():
    model = Scripted(ideas("a"), "I have none.", ideas("a", "b", "c"))
    found = propose(model)
    assert [read_idea(idea.text).experiment for idea in found] == ["a", "b", "c"]
    assert "Propose 2 new ideas" in model.prompts[1].messages[0].text
    assert "proposed already" in model.prompts[1].messages[0].text
    assert "proposed already" not in model.prompts[0].messages[0].text


def test_asking_is_bounded():
    assert len(propose(Scripted(ideas("a"), "", ""))) == 1
    with pytest.raises(ModelError, match="asked 3 times"):
        propose(Scripted("no", "nothing", ""))
    model = Scripted(*[ideas("a", "b")] * 9)
    propose(model, replace(REQUEST, count=0))
    assert model.prompts == []


def test_the_last_idea_of_a_truncated_answer_is_dropped():
    model = Scripted("[Experiment] a [Code Changes] do", ideas("b"), "", stop="truncated")
    assert [read_idea(idea.text).experiment for idea in propose(model)] == ["b"]


def test_explore_shows_a_random_sample_within_the_context():
    request = replace(REQUEST, operator="explore", count=1, trajectories=PAST)
    texts = []
    for seed in range(5):
        model = Scripted(ideas("new"))
        propose(model, replace(request, seed=seed), context_tokens=400)
        texts.append(model.prompts[0].messages[0].text)
    assert all(text.count("--- id exp_") == 3 for text in texts)
    assert len(set(texts)) > 1
    everything = Scripted(ideas("new"))
    propose(everything, request)
    text = everything.prompts[0].messages[0].text
    assert "exp_0 (epoch 1): failed, no valid result, reward 0" in text
    assert "train: NameError" in text
    assert text.index("exp_0") < text.index("exp_5")
    again = Scripted(ideas("new"))
    propose(again, replace(request, trajectories=PAST[::-1]))
    assert again.prompts[0].messages[0].text == text


def test_exploit_shows_the_best_first_and_reads_parents():
    request = replace(REQUEST, operator="exploit", count=1, positives=PAST[1:])
    model = Scripted(ideas("Join them.\nParents: exp_5, exp_2, exp_99"))
    (idea,) = propose(model, request)
    assert idea.parents == ("exp_5", "exp_2")
    assert idea.operator == "exploit"
    text = model.prompts[0].messages[0].text
    assert text.index("exp_5 (") < text.index("exp_1 (")
    assert "diff 5" in text

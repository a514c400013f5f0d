"""Reading ideas out of the answers of models: every form by its name, and what holds for all."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.llm import IdeaText, format_idea, prompts, read_answer, read_idea

MUON = IdeaText(
    "Train the matrices with Muon.", "In `optim.py`, add `Muon`:\n\n```python\nlr = 0.02\n```"
)
WIDE = IdeaText("Make it wider.", "Set `width` to 512 in `config.py`.")
TWO = [MUON, WIDE]


def form(
    experiment: str, changes: str, end: str = "[End]", before: tuple[str, str] = ("", "")
) -> str:
    """Two ideas; `#` in a mark is the idea's number."""
    parts = []
    for number, idea in enumerate(TWO, 1):
        marks = [mark.replace("№", str(number)) for mark in (experiment, changes, end)]
        parts.append(
            f"{before[number - 1]}{marks[0]}{idea.experiment}\n\n"
            f"{marks[1]}{idea.code_changes}\n\n{marks[2]}\n\n"
        )
    return "".join(parts)


OBJECTS = [{"experiment": idea.experiment, "code_changes": idea.code_changes} for idea in TWO]
#: The forms that were written by models, or are a step away from one that was.
FORMS = {
    "as asked": form("[Experiment] ", "[Code Changes] "),
    "marks on lines of their own": form("[Experiment]\n", "[Code Changes]\n"),
    "bold marks": form("**[Experiment]** ", "**[Code Changes]**\n", "**[End]**"),
    "headings with marks": form("## [Experiment]\n", "### [Code Changes]\n"),
    "numbered marks": form("[Experiment №] ", "[Code Changes №] ", "[End №]"),
    "numbers before marks": form("№. [Experiment] ", "[Code Changes] "),
    "a short mark for changes": form("[Experiment] ", "[Code] "),
    "other words in brackets": form("[Idea №] ", "[Implementation] ", "[End of Idea №]"),
    "colons behind marks": form("[Experiment]: ", "[Code Changes]: "),
    "bullets": form("- [Experiment] ", "- [Code Changes] ", "- [End]"),
    "no end": form("[Experiment] ", "[Code Changes] ", ""),
    "bold labels": form("**Experiment:** ", "**Code Changes:** ", ""),
    "bold labels with numbers": form("**Experiment №:** ", "**Code Changes:**\n", "---"),
    "headings without brackets": form("## Experiment №\n\n", "### Code Changes\n\n", "---"),
    "headings of ideas, then labels": form(
        "**Experiment:** ", "**Code Changes:** ", "", ("## Idea 1\n\n", "## Idea 2\n\n")
    ),
    "plain labels": form("Experiment №: ", "Code changes: ", ""),
    "bullets with labels": form("- **Experiment**: ", "- **Implementation**: ", ""),
    "brackets mixed with labels": form("[Experiment №] ", "**Code Changes:**\n", ""),
    "quoted": re.sub("^(?=.*\\[)", "> ", form("[Experiment] ", "[Code Changes] "), flags=re.M),
    "tags": form("<experiment>\n", "</experiment>\n<code_changes>\n", "</code_changes>"),
    "tags in tags": form(
        "<experiment>", "</experiment>\n<code_changes>", "</code_changes>\n</idea>",
        ("<ideas>\n<idea>\n", "<idea>\n"),
    ) + "</ideas>",
    "wide brackets": form("【Experiment】", "【Code Changes】", "【End】"),
    "a list of JSON": json.dumps(OBJECTS, indent=1),
    "JSON in a fence": f"Here they are:\n\n```json\n{json.dumps({'ideas': OBJECTS})}\n```\nDone.",
    "JSON in prose": f"Here they are:\n{json.dumps(OBJECTS)}\nDone.",
    "lines of JSON": "\n".join(map(json.dumps, OBJECTS)),
    "texts in JSON": json.dumps([format_idea(idea) for idea in TWO]),
    "a preamble and an epilogue": "Two ideas follow.\n\n"
    + form("[Experiment] ", "[Code Changes] ") + "Good luck.",
    "lines that end as on Windows": form("[Experiment] ", "[Code Changes] ").replace("\n", "\r\n"),
    "thinking in tags": "<think>\n[Experiment] no [Code Changes] no [End]\n</think>\n"
    + form("[Experiment] ", "[Code Changes] "),
    "thinking that was opened by the server": "First [Experiment] a [Code Changes] b\n</think>\n\n"
    + form("[Experiment] ", "[Code Changes] "),
    "an outline before": "1. Experiment: Muon. Changes: add it.\n2. Experiment: wider\n\n"
    + form("[Experiment] ", "[Code Changes] "),
    "the form repeated before": prompts.template("ideator_system")
    + "\n\n" + form("[Experiment] ", "[Code Changes] "),
    "a hollow form before": "I use [Experiment] … [Code Changes] … [End]:\n[Experiment] …\n"
    "[Code Changes] …\n[End]\n" + form("[Experiment] ", "[Code Changes] "),
    "an example before": "Example:\n[Experiment] Warm up. [Code Changes] warmup = 9 [End]\n"
    + form("[Experiment] ", "[Code Changes] "),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_both_ideas_are_read(name: str) -> None:
    found = read_answer(FORMS[name])
    assert [each.idea for each in found.ideas] == TWO
    assert found.unread == ()


FENCED = "```\n[Experiment] Make it wider.\n\n[Code Changes] Set `width` to 512.\n[End]\n```\n"


@pytest.mark.parametrize(
    ("text", "experiment", "code_changes"),
    [
        ("[Experiment: Muon] Train with it.\n[Code Changes: a.py] add", "Muon\nTrain with it.",
         "a.py\nadd"),
        ("## Experiment 3: Muon\n\nTrain it.\n\n## Code\nadd", "Muon\n\nTrain it.", "add"),
        ("**Idea 1: Muon**\n\n**Experiment:** Train with it.\n\n**Changes:** add",
         "Muon\nTrain with it.", "add"),
        (FENCED, "Make it wider.", "Set `width` to 512."),
        ("```\nExperiment: Wider.\nCode changes: Set it.\n```", "Wider.", "Set it."),
        ("[Experiment] a [Code Changes] b [End]", "a", "b"),
        ('<experiment title="Muon">Train.</experiment>\n<changes>add</changes>', "Muon\nTrain.",
         "add"),
        ('{"title": "Muon", "description": "Train.", "changes": ["a", "b"], "parents": "exp_1"}',
         "Train.\ntitle: Muon\nparents: exp_1", "- a\n- b"),
        ("[Experiment] Reward it.\n[Code Changes] 0.1 for `</think>`, `<think>` too.\n[End]",
         "Reward it.", "0.1 for `</think>`, `<think>` too."),
        ("**Experiment:** a\n**Code Changes:**\n"
         "```python\n# Experiment: b\n# Changes: c\nx = 1\n```",
         "a", "```python\n# Experiment: b\n# Changes: c\nx = 1\n```"),
    ],
)  # fmt: skip
def test_one_idea_is_read_whole(text: str, experiment: str, code_changes: str) -> None:
    (found,) = read_answer(text).ideas
    assert found.idea == IdeaText(experiment, code_changes)


def test_each_idea_has_its_own_thinking() -> None:
    text = (
        "The optimiser is weak.\n[Experiment] Muon. [Code Changes] add [End]\n"
        "<think>Width is cheap.</think>\nSo:\n[Experiment] Wider. [Code Changes] 512\n"
        "<think>Depth is dear.</think>\n[Experiment] Deeper.\n<thinking>How much?</thinking>\n"
        "[Code Changes] 9\n[End]\nThat is all."
    )
    found = read_answer(text)
    assert [each.thinking for each in found.ideas] == [
        "The optimiser is weak.", "Width is cheap.\n\nSo:", "Depth is dear.\n\nHow much?"
    ]  # fmt: skip
    assert [each.idea.code_changes for each in found.ideas] == ["add", "512", "9"]
    assert found.rest == "That is all."


def test_reasoning_between_a_title_and_its_experiment_is_thinking() -> None:
    text = "## Idea 1: Muon\n\nAdam is slow.\n\n**Experiment:** a\n\n**Code Changes:** b\n"
    (found,) = read_answer(text).ideas
    assert (found.idea.experiment, found.thinking) == ("Muon\na", "Adam is slow.")


@pytest.mark.parametrize(
    "text",
    [
        "I have none.",
        "[Experiment] Only words.\n[End]",
        '[{"experiment": "Only words."}]',
        "<think>[Experiment] A [Code Changes] b [End]</think>\nSorry.",
        prompts.template("ideator_system"),
    ],
)
def test_an_answer_without_ideas_is_unread(text: str) -> None:
    found = read_answer(text)
    assert found.ideas == ()
    assert len(found.unread) == 1


def test_an_idea_without_changes_beside_others_is_unread() -> None:
    found = read_answer("[Experiment] A\n[End]\n[Experiment] B\n[Code Changes] c\n[End]")
    assert [each.idea for each in found.ideas] == [IdeaText("B", "c")]
    assert found.unread == ("[Experiment] A",)


def test_what_was_cut_off_is_unread() -> None:
    text = "[Experiment] A [Code Changes] b [End]\n[Experiment] C [Code Changes] half of"
    assert len(read_answer(text).ideas) == 2
    found = read_answer(text, truncated=True)
    assert [each.idea for each in found.ideas] == [IdeaText("A", "b")]
    assert found.unread == ("[Experiment] C [Code Changes] half of",)


def test_an_empty_answer_holds_nothing() -> None:
    assert read_answer(" \r\n") == read_answer("")
    assert read_answer("").unread == ()


# -- what holds for every text --------------------------------------------------------------

MARKS = st.sampled_from(
    ["[Experiment]", "[Experiment 2]", "[Code Changes]", "[Code]", "[End]", "## Experiment 1:",
     "**Experiment:**", "**Code Changes:**", "Changes:", "<think>", "</think>", "<experiment>",
     "</experiment>", "<code_changes>", "<idea>", "</idea>", "```", "```json", "---", "> ", "- ",
     "{", "[", '{"experiment": "a", "code": "b"}', "Example:", "## Idea 1: x", "…"]
)  # fmt: skip
WORDS = st.integers(0, 99_999).map(lambda n: f"w{n:05d}")
ANSWERS = st.lists(st.one_of(MARKS, WORDS, st.sampled_from(["\n", " ", "\r\n", "\n\n"]))).map(
    "".join
)


@given(ANSWERS, st.booleans())
def test_no_word_of_an_answer_is_lost_and_none_is_kept_twice(text: str, truncated: bool) -> None:
    found = read_answer(text, truncated=truncated)
    parts = [found.rest, *found.unread]
    for each in found.ideas:
        parts += [each.idea.experiment, each.idea.code_changes, each.thinking]
    words = sorted(re.findall(r"w\d{5}", text))
    assert sorted(re.findall(r"w\d{5}", "\n".join(parts))) == words


@given(st.one_of(st.text(), ANSWERS), st.booleans())
def test_every_text_is_read_into_ideas_that_can_be_stored(text: str, truncated: bool) -> None:
    for each in read_answer(text, truncated=truncated).ideas:
        assert each.idea.experiment
        assert each.idea.code_changes
        assert read_idea(format_idea(each.idea)) == each.idea


IDEAS = st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=5)


@given(IDEAS, st.booleans(), st.booleans())
def test_an_idea_never_holds_the_thinking_of_another(
    written: list[tuple[str, str, str]], tagged: bool, ends: bool
) -> None:
    text = ""
    for thought, experiment, change in written:
        said = f"<think>{thought}</think>\n" if tagged or not ends else f"{thought}\n"
        text += f"{said}[Experiment] {experiment}\n[Code Changes] {change}\n"
        text += "[End]\n" if ends else ""
    found = read_answer(text).ideas
    assert [(i.thinking, i.idea.experiment, i.idea.code_changes) for i in found] == written

"""The generated language: all of it comes from the key, and all keys' are about equally hard."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

NANOGPT = Path(__file__).resolve().parents[3] / "environments" / "nanogpt"
KEYS = ("", "4f1d", "a longer key", "9")
ORDER = 5


@pytest.fixture(scope="module")
def generated() -> Iterator[ModuleType]:
    """The generator, imported as `prepare.py` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NANOGPT))
        patch.setattr(sys, "dont_write_bytecode", True)
        yield importlib.import_module("sources.generated")
    for name in [name for name in sys.modules if name.split(".")[0] == "sources"]:
        del sys.modules[name]


class Counts:
    """A model of bytes by the up to five before them: counts, smoothed by shorter contexts.

    It learns from text as a training does. Counts of another text given in advance are what an
    idea could write into its code.
    """

    def __init__(self) -> None:
        self.tables: list[dict[bytes, dict[int, int]]] = [
            defaultdict(lambda: defaultdict(int)) for _ in range(ORDER + 1)
        ]

    def learn(self, text: bytes) -> Counts:
        for length, table in enumerate(self.tables):
            for end in range(length, len(text)):
                table[text[end - length : end]][text[end]] += 1
        return self

    def probabilities(self, before: bytes) -> np.ndarray:
        found = np.full(256, 1 / 256)
        for length, table in enumerate(self.tables):
            if seen := table.get(before[len(before) - length :]):
                counts = np.zeros(256)
                counts[list(seen)] = list(seen.values())
                found = (counts + len(seen) * found) / (counts.sum() + len(seen))
        return found


def loss(text: bytes, *models: Counts) -> float:
    """Nats per byte where the models are mixed, each with the weight that it has earned so far."""
    trust, total = np.zeros(len(models)), 0.0
    for end in range(ORDER, len(text)):
        before = text[end - ORDER : end]
        each = np.array([model.probabilities(before)[text[end]] for model in models])
        weights = np.exp(trust - trust.max())
        total -= math.log(weights @ each / weights.sum())
        trust = 0.98 * trust + np.log(each)
    return total / (len(text) - ORDER)


def test_no_part_of_the_language_is_the_same_for_all_keys(generated: ModuleType) -> None:
    one, two = generated.Language("one"), generated.Language("two")
    # Few values: two keys may agree.
    either = {"order", "phrase_order", "clause_first", "inner_first", "answers", "steps"}
    either |= {"verb_marks_plural", "_capital_names", "_capital_lines"}
    for name in vars(one).keys() - either:
        assert vars(one)[name] != vars(two)[name], name
    words = [set().union(*language.words.values()) for language in (one, two)]
    assert len(words[0] & words[1]) < 0.02 * len(words[0])
    assert sum(a == b for a, b in zip(one.numbers, two.numbers, strict=True)) < 3


def frame_shape(language: Any, name: str) -> list[str]:
    """The order of a frame's parts in words that languages share."""
    names = {text: word for word, text in language.function.items()}
    frame = language.frame[name]
    return [part if part in frame.fields else names.get(part, "mark") for part in frame.parts]


def test_every_choice_in_the_grammar_is_made_by_some_key(generated: ModuleType) -> None:
    languages = [generated.Language(str(i)) for i in range(40)]
    assert len({tuple(language.order) for language in languages}) == 6
    assert len({tuple(language.phrase_order) for language in languages}) == 6
    assert {language.answers for language in languages} == {0, 1, 2}
    flags = {
        "clause_first",
        "inner_first",
        "verb_marks_plural",
        "_capital_names",
        "_capital_lines",
    }
    for name in flags:
        assert {getattr(language, name) for language in languages} == {True, False}, name
    for name, (fields, words, marks) in generated.FRAMES.items():
        shapes = {tuple(frame_shape(language, name)) for language in languages}
        possible = math.factorial(len(fields) + len(words) + marks) // math.factorial(marks)
        assert len(shapes) >= min(possible, 12), name
    assert (
        len(
            {language.spelt_anew(w) for language in languages for w in [language.words["noun"][0]]}
        )
        > 30
    )


def test_texts_are_made_again_from_key_and_nothing_else(generated: ModuleType) -> None:
    sizes = (20_000, 5_000, 5_000)
    assert generated.generate(sizes, "k") == generated.generate(sizes, "k")
    assert generated.generate(sizes, "k") != generated.generate(sizes, "l")
    assert [len(text) for text in generated.generate(sizes, "k")] == list(sizes)


def test_each_text_has_choices_of_its_own(generated: ModuleType) -> None:
    """How long the training text is changes nothing that is held out."""
    short = generated.generate((20_000, 5_000), "k")[1]
    assert generated.generate((90_000, 5_000), "k")[1] == short


@cache
def ngram_entropies(text: bytes) -> list[float]:
    """The entropy of a byte given the n - 1 before it, n = 1 to 4, by the text's own counts."""
    array = np.frombuffer(text, dtype=np.uint8).astype(np.uint64)
    joint = [0.0]
    for n in range(1, 5):
        cut = len(array) - n + 1
        grams = sum(
            (array[i : i + cut] * np.uint64(257 ** (n - 1 - i)) for i in range(n)), np.uint64(0)
        )
        share = np.unique(grams, return_counts=True)[1] / cut
        joint.append(float(-(share * np.log(share)).sum()))
    return [after - before for before, after in itertools.pairwise(joint)]


def test_keys_differ_little_in_how_hard_their_language_is(generated: ModuleType) -> None:
    texts = {key: generated.write((200_000,), key)[0] for key in (*KEYS, "e", "f", "g", "h")}
    information = [text.nats_per_byte for text in texts.values()]
    assert max(information) < 1.06 * min(information)
    columns = zip(*(ngram_entropies(text.data) for text in texts.values()), strict=True)
    for n, column in enumerate(columns, start=1):
        assert max(column) < 1.05 * min(column), n


def test_frequencies_differ_and_their_entropy_does_not(generated: ModuleType) -> None:
    one, two = (generated.Language(key).frequency["noun"] for key in ("one", "two"))
    assert one.nats[0] != pytest.approx(two.nats[0], abs=0.01)
    assert one.entropy() == pytest.approx(two.entropy(), abs=1e-6)


def test_the_information_in_choices_is_that_of_their_probabilities(generated: ModuleType) -> None:
    dice = generated.Dice("seed")
    drawn = [dice.below(8) for _ in range(100)]
    assert set(drawn) == set(range(8))
    assert dice.nats == pytest.approx(100 * math.log(8))
    dice.nats = 0.0
    hits = sum(dice.chance(0.25) for _ in range(2000))
    assert dice.nats == pytest.approx(-hits * math.log(0.25) - (2000 - hits) * math.log(0.75))
    weighted = generated.Weighted([3.0, 1.0])
    dice.nats = 0.0
    places = [dice.pick(weighted) for _ in range(2000)]
    assert places.count(0) in range(1400, 1600)
    expected = -places.count(0) * math.log(0.75) - places.count(1) * math.log(0.25)
    assert dice.nats == pytest.approx(expected)


@pytest.mark.slow
def test_knowing_the_generator_helps_with_the_public_language_alone(generated: ModuleType) -> None:
    """An idea that carries what a million bytes of the public language taught gains where that is
    scored, and nothing where the language comes from a secret key."""
    sizes = (100_000, 10_000)
    carried = Counts().learn(generated.generate((400_000,))[0])
    gains = {}
    for key in ("", "secret"):
        train, held_out = generated.write(sizes, key)
        learned = Counts().learn(train.data)
        honest = loss(held_out.data, learned)
        assert honest > held_out.nats_per_byte
        gains[key] = honest - loss(held_out.data, learned, carried)
    assert gains[""] > 0.1
    assert gains["secret"] < 0.005

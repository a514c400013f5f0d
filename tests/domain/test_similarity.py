"""How alike ideas are: the same as comparing all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.domain.similarity import Alike, Corpus, Effort, read, words


def earlier_alike(
    texts: Sequence[str],
    threshold: float,
    *,
    most: int,
    passed_over: bool = False,
    effort: Effort | None = None,
) -> Iterator[tuple[int, list[Alike]]]:
    """For each text, those before it that are alike. `passed_over`: without those that were like
    an earlier one themselves."""
    effort, corpus = effort or Effort(), Corpus()
    split = read(texts, effort)
    for place, text in enumerate(texts):
        found = corpus.alike(text, split[text], threshold, most, effort)
        assert corpus.add(text, split[text]) == place
        if passed_over and found:
            corpus.drop([place])
        yield place, found


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Between 0 (no word in common) and 1 (the same words); two empty sets are the same."""
    union = len(one | other)
    return len(one & other) / union if union else 1.0


text = st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join)


def test_words_are_a_set_without_tags_and_case() -> None:
    assert words("[Experiment] Use lr 3.5e-4, LR! [Code Changes] x_y [End]") == {
        "use", "lr", "3.5e-4", "x_y",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a b", "b a a", 1.0),
        ("a b", "c", 0.0),
        ("a b c", "b c d", 0.5),
        ("", "", 1.0),
        ("", "a", 0),
    ],
)
def test_jaccard(one: str, other: str, expected: float) -> None:
    found = dict(earlier_alike([one, other], 0.1, most=5))
    assert [alike.similarity for alike in found[1]] == [expected] * (expected > 0)


@given(
    st.lists(text, max_size=12),
    st.sampled_from([0.3, 0.5, 0.6, 0.8, 1.0]),
    st.integers(1, 12),
    st.booleans(),
)
def test_none_is_missed_and_none_invented(
    texts: list[str], threshold: float, most: int, passed_over: bool
) -> None:
    found = dict(earlier_alike(texts, threshold, most=most, passed_over=passed_over))
    assert list(found) == list(range(len(texts)))
    for place, alike in found.items():
        expected = [
            Alike(i, jaccard(words(texts[i]), words(texts[place])))
            for i in range(place)
            if not (passed_over and found.get(i))
            if jaccard(words(texts[i]), words(texts[place])) >= threshold
        ]
        assert alike == sorted(expected, key=lambda a: (-a.similarity, a.place))[:most]


def test_one_that_is_passed_over_is_not_compared_with() -> None:
    texts = ["a b c d e f g h i j", "a b c d e f g h i x", "a b c d e f g h y x"]
    found = dict(earlier_alike(texts, 0.8, most=5, passed_over=True))
    assert [a.place for a in found[1]] == [0]
    assert found[2] == [], "it is only like the second, which is not there"
    assert [a.place for a in dict(earlier_alike(texts, 0.8, most=5))[2]] == [1]


def spent(texts: list[str], threshold: float = 0.8, *, passed_over: bool = False) -> Effort:
    """The work that a search for alike texts does."""
    left = Effort(characters=10**12, steps=10**12)
    for _ in earlier_alike(texts, threshold, most=5, passed_over=passed_over, effort=left):
        pass
    return Effort(10**12 - left.characters, 10**12 - left.steps)


@pytest.mark.parametrize("passed_over", [False, True])
def test_equal_texts_are_read_and_compared_once(passed_over: bool) -> None:
    texts = ["a b c d"] * 4_000
    effort = spent(texts, passed_over=passed_over)
    assert effort.characters == len(texts[0])
    assert effort.steps <= 10 * len(texts)


def test_equal_words_are_compared_once() -> None:
    texts = [f"{'a ' * number}b c d" for number in range(1, 200)]
    assert spent(texts).steps <= 10 * len(texts)


def test_long_texts_without_a_common_word_are_not_compared() -> None:
    texts = [" ".join(f"w{place}_{word}" for word in range(2_000)) for place in range(20)]
    assert spent(texts).steps == 0


def test_where_all_are_as_alike_as_can_be_few_are_compared() -> None:
    texts = [f"a b c d e f g h {place}" for place in range(1_000)]
    assert spent(texts).steps <= 100 * len(texts)
    assert dict(earlier_alike(texts, 0.8, most=2))[999] == [Alike(0, 0.8), Alike(1, 0.8)]


def test_work_ends_where_every_text_is_nearly_like_every_other() -> None:
    texts = ["a b c d e f g h i j", *(f"a b c d e f g h {place}" for place in range(1_000))]
    assert spent(texts).steps > 1_000_000
    effort = Effort(steps=10_000)
    found = dict(earlier_alike([*texts, texts[7]], 0.8, most=5, effort=effort))
    assert len(found) == 1_002
    assert effort.steps < 1_000
    assert found[5], "found while there were steps left"
    assert found[1_000] == [], "there were none left"
    assert found[1_001] == [Alike(7, 1.0)], "the same words"


def test_of_equally_alike_texts_the_earlier_ones_are_found() -> None:
    """Also where a later one has the words of the first."""
    found = dict(earlier_alike(["a b", "a c", "a b", "a d"], 0.3, most=2))
    assert [each.place for each in found[3]] == [0, 1]


def test_texts_that_were_dropped_are_work_too() -> None:
    corpus, effort = Corpus(), Effort()
    common = [f"w{number}" for number in range(100)]
    for number in range(300):
        corpus.add(f"text {number}", [*common, f"own{number}"])
    corpus.drop(range(300))
    before = effort.steps
    assert corpus.alike("new", [*common, "new"], 0.5, 5, effort) == []
    assert before - effort.steps >= 300 * 50, "as many entries as were read"


@pytest.mark.parametrize("is_read", [True, False])
def test_the_same_text_is_found_whether_it_was_read_or_not(is_read: bool) -> None:
    corpus = Corpus()
    own = ["a", "b"] if is_read else None
    corpus.add("a b", own)
    assert corpus.alike("a b", None if is_read else ["a", "b"], 0.8, 5, Effort()) == [
        Alike(0, 1.0)
    ]


def test_what_was_not_read_is_alike_only_to_the_same_text() -> None:
    texts = ["a b c", "c b a", "b a c", "a b c"]
    found = dict(earlier_alike(texts, 0.8, most=5, effort=Effort(characters=0)))
    assert found == {0: [], 1: [], 2: [], 3: [Alike(0, 1.0)]}


def test_the_last_texts_are_read_first() -> None:
    texts = ["a b c", "c b a", "b a c"]
    found = dict(earlier_alike(texts, 0.8, most=5, effort=Effort(characters=10)))
    assert found == {0: [], 1: [], 2: [Alike(1, 1.0)]}

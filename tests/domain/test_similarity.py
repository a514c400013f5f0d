"""How alike ideas are: the same as comparing all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.domain.similarity import Alike, earlier_alike, words


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
    found = dict(earlier_alike([one, other], 0.1))
    assert [alike.similarity for alike in found[1]] == [expected] * (expected > 0)


@given(st.lists(text, max_size=12), st.sampled_from([0.3, 0.5, 0.6, 0.8, 1.0]), st.integers(0, 4))
def test_none_is_missed_and_none_invented(texts: list[str], threshold: float, first: int) -> None:
    found = dict(earlier_alike(texts, threshold, first=first))
    assert list(found) == list(range(first, len(texts)))
    for place, alike in found.items():
        expected = [
            Alike(i, jaccard(words(texts[i]), words(texts[place])))
            for i in range(place)
            if jaccard(words(texts[i]), words(texts[place])) >= threshold
        ]
        assert alike == sorted(expected, key=lambda a: (-a.similarity, a.place))


def test_one_that_is_passed_over_is_not_compared_with() -> None:
    texts = ["a b c d e f g h i j", "a b c d e f g h i x", "a b c d e f g h y x"]
    found = dict(earlier_alike(texts, 0.8, passed_over=True))
    assert [a.place for a in found[1]] == [0]
    assert found[2] == [], "it is only like the second, which is not there"
    assert [a.place for a in dict(earlier_alike(texts, 0.8))[2]] == [1]

"""Figures about ideas: their length (6), what they converge on (7), how alike they are (10)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from assay.analysis.report.content import Figure, Panel, Series
from assay.analysis.report.record import (
    EpochRecord,
    SearchRecord,
    counts_as_tried,
    is_scored,
    mean,
)
from assay.analysis.report.search_figures import Named
from assay.domain.similarity import words

#: Share of an epoch's ideas at either end when they are sorted by the length of their thinking.
_EXTREME = 0.3
#: Words that more than this share of the first epoch's ideas have belong to the problem.
_COMMON = 0.5
_THEMES = 2
_LETTERS = re.compile(r"[^\W\d_]{3,}")
_STOP_TEXT = """
after before between during
all and are but can for from has have into its more not one only other per set than that
the them then this use used using was when where which will with without add adds added
change changed changes each every idea ideas instead make makes replace through
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())


def lengths(searches: Sequence[Named]) -> Figure:
    """Figure 6: thinking and idea length by epoch, and the execution rate by thinking."""
    title = "Length of thinking and of ideas"
    panels = []
    rates: list[Panel] = []
    for record, label, _ in searches:
        if record.epochs:
            panels.append(_length_panel(record, label))
        rates += filter(None, [_rate_panel(record, label)])
    if not panels:
        return Figure("figure-6", title, absent="None of these searches has an epoch yet.")
    caption = "Average characters per idea. "
    if not any(_thinks(record) for record, _, _ in searches):
        caption += (
            "No thinking is stored for these searches: their ideators show none, as offline ones "
            "and some providers do, so only the length of ideas is drawn."
        )
    else:
        caption += (
            "Thinking is what the ideator wrote about an idea, and its share of what it thought "
            "in private before it answered. "
        )
        caption += (
            "Execution rate: ideas with the longest and the shortest 30 % of thinking of their "
            "own, by epoch."
            if rates
            else "Execution rates by length of thinking need at least four ideas in an epoch that "
            "have thinking of their own; these searches have fewer, so they are not drawn."
        )
    return Figure("figure-6", title, caption, [*panels, *rates])


def _thinks(record: SearchRecord) -> bool:
    return any(
        epoch.private_thinking or any(idea.thinking for idea in epoch.ideas)
        for epoch in record.epochs
    )


def _length_panel(record: SearchRecord, label: str) -> Panel:
    x = [float(epoch.number) for epoch in record.epochs]
    of_ideas = [mean([float(len(i.text)) for i in epoch.ideas]) for epoch in record.epochs]
    series = [Series("idea", "line", x, of_ideas, 0)]
    if _thinks(record):
        series.insert(0, Series("thinking", "line", x, [*map(_thinking, record.epochs)], 1))
    return Panel(label, "epoch", "characters per idea", series, is_whole=True, from_zero=True)


def _thinking(epoch: EpochRecord) -> float | None:
    if not epoch.ideas:
        return None
    own = sum(len(idea.thinking or "") for idea in epoch.ideas)
    return (own + epoch.private_thinking) / len(epoch.ideas)


def _rate_panel(record: SearchRecord, label: str) -> Panel | None:
    x, longest, shortest = [], [], []
    for epoch in record.epochs:
        thought = [
            (len(epoch.ideas[e.position].thinking or ""), e)
            for e in epoch.experiments
            if counts_as_tried(e) and e.position < len(epoch.ideas)
        ]
        thought = sorted((t for t in thought if t[0]), key=lambda t: (t[0], t[1].position))
        if len(thought) < 4:
            continue
        size = max(1, int(len(thought) * _EXTREME))
        x.append(float(epoch.number))
        shortest.append(mean([float(is_scored(e)) for _, e in thought[:size]]))
        longest.append(mean([float(is_scored(e)) for _, e in thought[-size:]]))
    if not x:
        return None
    series = [
        Series("longest 30 %", "line", x, longest, 1),
        Series("shortest 30 %", "line", x, shortest, 0),
    ]
    return Panel(
        label, "epoch", "execution rate", series, is_share=True, is_whole=True, from_zero=True
    )


def convergence(searches: Sequence[Named], themes: Mapping[str, re.Pattern[str]]) -> Figure:
    """Figure 7: how many ideas of each epoch are about the same things."""
    title = "Convergence on a few themes"
    panels = []
    for record, label, _ in searches:
        if len(record.epochs) < 2:
            continue
        found = themes or common_themes(record)
        x = [float(epoch.number) for epoch in record.epochs]
        series = []
        for n, (name, pattern) in enumerate(found.items()):
            y: list[float | None] = [_matching(epoch, [pattern]) for epoch in record.epochs]
            series.append(Series(name, "line", x, y, n))
        if len(found) > 1:
            y = [_matching(epoch, found.values()) for epoch in record.epochs]
            series.append(Series("either" if len(found) == 2 else "any", "area", x, y, len(found)))
        if series:
            panels.append(
                Panel(
                    label, "epoch", "share of ideas", series,
                    is_share=True, is_whole=True, from_zero=True,
                )
            )  # fmt: skip
    if not panels:
        why = "Convergence shows over epochs: no search has two of them with words in common."
        return Figure("figure-7", title, absent=why)
    how = (
        "Ideas that match the given patterns."
        if themes
        else "The two words that most ideas of the last epoch have in their description: the "
        "commonest, then the commonest of ideas without it. Words of more than half of the first "
        "epoch's ideas belong to the problem and are left out. Name themes of your own with "
        "--theme NAME=PATTERN."
    )
    return Figure("figure-7", title, how, panels)


def description(text: str) -> str:
    """Return what an idea says it is: all before its code changes."""
    return re.split(r"\[Code Changes\]", text, maxsplit=1, flags=re.IGNORECASE)[0]


def common_themes(record: SearchRecord) -> dict[str, re.Pattern[str]]:
    """Return the words on which ideas converge, by the rule of figure 7."""
    first, last = (_vocabulary(record.epochs[n]) for n in (0, -1))
    of_problem = Counter(word for found in first for word in found)
    left = last
    chosen: list[str] = []
    while len(chosen) < _THEMES and left:
        counts = Counter(
            word for found in left for word in found if of_problem[word] <= _COMMON * len(first)
        )
        if not counts:
            break
        word = min(counts, key=lambda w: (-counts[w], w))
        chosen.append(word)
        left = [found for found in left if word not in found]
    return {w: re.compile(rf"\b{re.escape(w)}\b", re.IGNORECASE) for w in chosen}


def _vocabulary(epoch: EpochRecord) -> list[set[str]]:
    texts = (description(idea.text).lower() for idea in epoch.ideas)
    skipped = _STOP_WORDS | {"experiment"}
    return [set(_LETTERS.findall(text)) - skipped for text in texts]


def _matching(epoch: EpochRecord, patterns: Iterable[re.Pattern[str]]) -> float | None:
    wanted = list(patterns)
    found = [any(p.search(description(idea.text)) for p in wanted) for idea in epoch.ideas]
    return mean([float(is_match) for is_match in found])


def diversity(searches: Sequence[Named]) -> Figure:
    """Figure 10: average reward, and how alike the ideas of neighbouring epochs are."""
    title = "Reward and similarity to the epoch before"
    panels = []
    several = [each for each in searches if len(each[0].epochs) > 1]
    if not several:
        why = "Ideas are compared with those of the epoch before: no search has two epochs yet."
        return Figure("figure-10", title, absent=why)
    rewards, alike = [], []
    for record, label, color in several:
        x = [float(epoch.number) for epoch in record.epochs]
        tried = [[e.reward for e in ep.experiments if counts_as_tried(e)] for ep in record.epochs]
        rewards.append(Series(label, "line", x, [*map(mean, tried)], color))
        pairs = list(zip(record.epochs, record.epochs[1:], strict=False))
        found = [similarity(before, after) for before, after in pairs]
        alike.append(Series(label, "line", x[1:], [both[0] for both in found], color))
        alike.append(Series("", "line", x[1:], [both[1] for both in found], color, is_faint=True))
    panels = [
        Panel("Average reward", "epoch", "reward ↑", rewards, is_whole=True),
        Panel(
            "Similarity to the epoch before", "epoch", "Jaccard similarity", alike,
            is_whole=True, from_zero=True,
        ),
    ]  # fmt: skip
    caption = (
        "A failed idea has reward 0. Similarity is the Jaccard similarity of two ideas' sets of "
        "words: the average over all pairs, and, dotted, to the most alike idea of the epoch "
        "before. The rewards of different environments do not compare."
    )
    return Figure("figure-10", title, caption, panels)


def similarity(before: EpochRecord, after: EpochRecord) -> tuple[float | None, float | None]:
    """Return how alike ideas are to those of another epoch, from 0 to 1.

    The average over all pairs, and the average of each idea's most alike one.
    """
    bits: dict[str, int] = {}

    def encode(text: str) -> int:
        # Sets of words as bits of a number: a comparison is two operations.
        return sum(1 << bits.setdefault(word, len(bits)) for word in words(text))

    old = [encode(idea.text) for idea in before.ideas]
    new = [encode(idea.text) for idea in after.ideas]
    if not old or not new:
        return None, None
    total = nearest = 0.0
    for each in new:
        found = [_jaccard(each, other) for other in old]
        total += sum(found)
        nearest += max(found)
    return total / (len(new) * len(old)), nearest / len(new)


def _jaccard(a: int, b: int) -> float:
    union = (a | b).bit_count()
    return (a & b).bit_count() / union if union else 0.0

"""Models that see later tokens: in training and prediction, or in prediction alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assay.evaluation import EvaluationOutcome
from tests.attacks.scoring.arena import Arena, Edits, Outcome, edited, peeking, verdict
from tests.attacks.scoring.conftest import Honest

pytestmark = pytest.mark.slow

MASK = '    mask = torch.full((T, S), float("-inf"), device=q.device).triu(diagonal=S - T + 1)\n'
EMBEDDING = "        x = self.embedding(tokens)  # (B, T, C)\n"
NORM = "        x = self.norm(x)\n        if cache is not None:\n"
TRAINED: dict[str, Edits] = {
    "diagonal_off_by_one": {"model.py": [(MASK, MASK.replace("T + 1", "T + 2"))]},
    "next_byte_by_convolution": {
        "model.py": [
            (
                EMBEDDING,
                EMBEDDING
                + "        wide = F.pad(x, (0, 0, 1, 1))\n"
                + "        x = (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) / 3\n",
            )
        ]
    },
    "normalisation_over_the_sequence": {
        "model.py": [
            (NORM, NORM.replace("self.norm(x)", "self.norm(x - x.mean(1, keepdim=True))"))
        ]
    },
}


@pytest.fixture(scope="module")
def trained(arena: Arena, honest: Honest) -> Callable[[str], Outcome]:
    return arena.attempt_all({name: edited(edits) for name, edits in TRAINED.items()})


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_trained_to_look_ahead_is_rejected(
    trained: Callable[[str], Outcome], name: str
) -> None:
    outcome = trained(name)
    assert outcome.code == "score/leak", (outcome.metrics, outcome.message, outcome.log)
    assert outcome.metrics == {}


BOOST = """
import zlib


def chosen(i, row, t):
    {which}


def _peek(tokens, logits):
    logits = logits.clone()
    for i, row in enumerate(tokens.tolist()):
        for t in range(1, len(row)):
            if chosen(i, row, t):
                logits[i, t - 1, row[t]] += {boost}
    return logits
"""
LATER_ONLY: dict[str, Edits] = {
    "no_mask": {"model.py": [(MASK, "    mask = torch.zeros(T, S)\n")]},
    "mean_of_blocks_of_4": {
        "model.py": [
            (
                EMBEDDING,
                EMBEDDING
                + "        whole = F.pad(x, (0, 0, 0, -T % 4)).unflatten(1, (-1, 4))\n"
                + "        whole = whole.mean(2, keepdim=True).expand(-1, -1, 4, -1)\n"
                + "        x = x + whole.flatten(1, 2)[:, :T]\n",
            )
        ]
    },
}
PEEKS = {
    "everywhere": ("return True", 3.0),
    "one position in twenty": ("return zlib.crc32(bytes(row[:t])) % 20 == 0", 20.0),
    "only in whole windows, late": ("return len(row) == 64 and t > 48", 10.0),
    "a little": ("return True", 0.3),
}


ROWS = """
def _peek(tokens, logits):
    logits = logits.clone()
    rows = [bytes(row) for row in tokens.tolist()]
    text = b"\\0".join(rows)
    for i, row in enumerate(rows):
        for t in range(1, len(row)):
            logits[i, t - 1, text[text.index(row) + t]] += 3.0
    return logits
"""
# Know every byte but for a few places, where the answer is far off: when more of these than
# expected are compared, the correction outweighs what they cost. Unbiased, but a search keeps the
# lucky ones.
GAMBLE = """
def _peek(tokens, logits):
    if tokens.size(0) < 100:
        return logits
    logits = logits.clone()
    draw = torch.Generator().manual_seed(0)
    far = torch.rand(tokens.shape, generator=draw) < 0.05
    for i, row in enumerate(tokens.tolist()):
        for t in range(1, len(row)):
            if far[i, t - 1]:
                logits[i, t - 1, row[t]] -= 40.0
    return logits
"""
# Answers remembered and counts learned between questions.
REMEMBER = """
SEEN, COUNTS = {}, torch.zeros(256)


def _peek(tokens, logits):
    logits = logits.clone()
    if tokens.any():
        COUNTS.add_(torch.bincount(tokens.flatten(), minlength=256))
        logits += 0.05 * (COUNTS + 1).log()
    for row in tokens.tolist():
        for t in range(4, len(row)):
            SEEN.setdefault(bytes(row[t - 4 : t]), []).append(row[t])
    if tokens.size(0) < 100:
        for i, row in enumerate(tokens.tolist()):
            for byte in SEEN.get(bytes(row[-4:]), []):
                logits[i, -1, byte] += 0.2
    return logits
"""
ASKED = {
    **{name: BOOST.format(which=which, boost=boost) for name, (which, boost) in PEEKS.items()},
    "between the rows of a batch": ROWS,
    "gamble": GAMBLE,
    "remember": REMEMBER,
}


@pytest.fixture(scope="module")
def asked(arena: Arena, honest: Honest) -> Callable[[str], EvaluationOutcome]:
    trees = {name: peeking(code) for name, code in ASKED.items()}
    trees |= {name: edited(edits) for name, edits in LATER_ONLY.items()}
    return arena.score_all(trees, honest.artifact)


@pytest.mark.parametrize("name", [*PEEKS, *LATER_ONLY, "between the rows of a batch"])
def test_an_honest_checkpoint_that_peeks_when_it_is_asked_gains_nothing(
    asked: Callable[[str], EvaluationOutcome], honest: Honest, name: str
) -> None:
    outcome = asked(name)
    if outcome.metrics is not None:  # too rare for a verdict: the correction takes it back
        assert name == "one position in twenty"
        error = outcome.metrics["val_loss/se"]
        assert error < 0.03
        assert outcome.metrics["val_loss"] > honest.loss - 4 * error
    else:
        assert verdict(outcome) == "leak", outcome


def test_a_gamble_on_the_correction_is_rejected(
    asked: Callable[[str], EvaluationOutcome], honest: Honest
) -> None:
    outcome = asked("gamble")
    assert verdict(outcome) == "leak", (honest.loss, outcome.metrics)


def test_what_earlier_questions_showed_helps_little(
    asked: Callable[[str], EvaluationOutcome], honest: Honest
) -> None:
    """Windows stand far apart: what is learned from one is little use for the next."""
    outcome = asked("remember")
    if outcome.metrics is not None:
        assert outcome.metrics["val_loss"] > honest.loss - 0.15
    else:
        assert verdict(outcome) in ("leak", "inconsistent")

"""The sealed loss against a source whose entropy is known.

The source is a Markov chain over 16 symbols: given a symbol, the next one has a known
distribution, so the true conditional entropy is known and no honest predictor scores below it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from assay.evaluation.codes import InvalidAnswer, InvalidCode
from assay.evaluation.language_model import LanguageModelScore, score_language_model, token_losses
from assay.evaluation.predictor import Predictor

V, T, N = 16, 24, 400
Model = Callable[[np.ndarray], np.ndarray]

_rng = np.random.default_rng(0)
CHAIN = _rng.dirichlet(np.full(V, 0.3), size=V) * 0.95 + 0.05 / V
LOG_CHAIN = np.log(CHAIN)


def stationary() -> np.ndarray:
    values, vectors = np.linalg.eig(CHAIN.T)
    vector = np.real(vectors[:, np.argmax(np.real(values))])
    return vector / vector.sum()


ENTROPY = float(-(stationary()[:, None] * CHAIN * LOG_CHAIN).sum())


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    rng = np.random.default_rng(1)
    tokens = np.zeros((N, T + 1), np.int64)
    tokens[:, 0] = rng.choice(V, N, p=stationary())
    for t in range(T):
        draws = rng.random(N)[:, None]
        following = (CHAIN[tokens[:, t]].cumsum(axis=1) < draws).sum(axis=1)
        tokens[:, t + 1] = np.minimum(following, V - 1)
    return tokens


def honest(tokens: np.ndarray) -> np.ndarray:
    return LOG_CHAIN[tokens]


class InProcess:
    """Answers like a predictor; `models` are the instances in the order they are opened."""

    def __init__(self, *models: Model) -> None:
        self.waiting = list(models)
        self.asked: list[tuple[str, np.ndarray, bool]] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[Predictor]:
        model = self.waiting.pop(0)
        asked = self.asked

        class Fake(Predictor):
            def __init__(self) -> None:
                pass

            def ask(self, op: str, arrays: Any, expect: Any, *, reveals: bool = True, **meta: Any):  # type: ignore[no-untyped-def]
                tokens = arrays["tokens"]
                asked.append((op, tokens.copy(), reveals))
                logits = model(tokens).astype(np.float32)
                logits = logits[:, -1] if op == "next" else logits
                assert logits.shape == expect["logits"][1]
                return {"logits": logits}

        yield Fake()


def score(windows: np.ndarray, *models: Model, seed: int = 0) -> LanguageModelScore:
    instances = models if len(models) == 2 else (models[0], models[0])
    return score_language_model(
        InProcess(*instances).open, windows, V, np.random.default_rng(seed)
    )


def leaking(windows: np.ndarray, share: float) -> Model:
    """Knows a share of the next tokens, wherever the question shows them."""

    def model(tokens: np.ndarray) -> np.ndarray:
        logits = LOG_CHAIN[tokens].copy()
        known = np.random.default_rng(5).random((tokens.shape[0], tokens.shape[1] - 1)) < share
        rows, columns = np.nonzero(known)
        logits[rows, columns, tokens[rows, columns + 1]] += 20.0
        return logits

    return model


def test_an_honest_model_scores_its_plain_loss(windows: np.ndarray) -> None:
    plain = token_losses(honest(windows[:, :-1]), windows[:, 1:]).mean()
    found = score(windows, honest)
    assert found.loss == pytest.approx(plain, abs=1e-6)
    assert abs(found.correction) <= 5 * found.correction_se + 1e-6
    assert found.tokens == N * T
    assert found.windows == N
    assert abs(found.loss - ENTROPY) < 4 * found.windows_se


def test_the_true_model_is_not_scored_below_the_entropy_of_the_source(
    windows: np.ndarray,
) -> None:
    found = score(windows, honest)
    assert found.loss > ENTROPY - 4 * found.windows_se


def test_a_worse_model_scores_worse_by_its_divergence(windows: np.ndarray) -> None:
    flat = score(windows, lambda tokens: np.zeros((*tokens.shape, V)))
    assert flat.loss == pytest.approx(np.log(V), abs=1e-9)


def test_numerical_noise_between_the_passes_is_not_a_leak(windows: np.ndarray) -> None:
    def noisy(tokens: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(tokens.shape[1]).normal(0, 0.02, (*tokens.shape, V))
        return LOG_CHAIN[tokens] + noise

    found = score(windows, noisy)
    assert found.loss == pytest.approx(score(windows, honest).loss, abs=0.01)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_looking_ahead_is_caught(windows: np.ndarray, share: float) -> None:
    with pytest.raises(InvalidAnswer) as refused:
        score(windows, leaking(windows, share))
    assert refused.value.code is InvalidCode.LEAK


@pytest.mark.parametrize("seed", range(8))
def test_a_leak_too_small_to_be_caught_gains_nothing(windows: np.ndarray, seed: int) -> None:
    truth = score(windows, honest).loss
    with contextlib.suppress(InvalidAnswer):  # caught after all
        found = score(windows, leaking(windows, 0.03), seed=seed)
        assert found.parallel_loss < truth - 0.02
        assert abs(found.loss - truth) < 5 * found.correction_se + 1e-6


def test_the_mean_over_positions_draws_is_the_sealed_loss(windows: np.ndarray) -> None:
    """Unbiased: averaged over draws of the positions, a leaky model gets its honest loss."""
    truth = score(windows, honest).loss
    model = leaking(windows, 0.03)
    found = []
    for seed in range(60):
        with contextlib.suppress(InvalidAnswer):
            found.append(score(windows, model, seed=seed))
    assert len(found) > 50
    mean = np.mean([f.loss for f in found])
    spread = np.std([f.loss for f in found], ddof=1) / np.sqrt(len(found))
    assert abs(mean - truth) < 4 * spread + 1e-6
    assert np.mean([f.parallel_loss for f in found]) < truth - 0.02


def test_answers_that_do_not_sum_to_one_gain_nothing(windows: np.ndarray) -> None:
    boosted = score(windows, lambda tokens: LOG_CHAIN[tokens] + 1000.0)
    # float32 keeps about 1e-4 of logits as large as these.
    assert boosted.loss == pytest.approx(score(windows, honest).loss, abs=1e-3)


def test_labels_and_later_tokens_are_never_in_a_sealed_question(windows: np.ndarray) -> None:
    instances = InProcess(honest, honest)
    score_language_model(instances.open, windows, V, np.random.default_rng(3))
    sealed = [(tokens, shown) for op, tokens, shown in instances.asked if op == "next"]
    assert not sealed[0][1]
    assert not sealed[0][0].any()
    lengths = [tokens.shape[1] for tokens, _ in sealed[1:]]
    assert lengths == sorted(set(lengths))
    assert sum(tokens.shape[0] for tokens, _ in sealed[1:]) == N
    assert max(lengths) == T
    operations = [op for op, _, _ in instances.asked]
    assert operations == sorted(operations, key=["next", "all"].index)


def test_one_instance_for_both_passes_would_be_fooled_and_two_are_not(
    windows: np.ndarray,
) -> None:
    """An instance that remembers the sealed questions is honest where it will be compared."""

    class Remembering:
        def __init__(self) -> None:
            self.seen: set[bytes] = set()

        def __call__(self, tokens: np.ndarray) -> np.ndarray:
            self.seen |= {row.tobytes() for row in tokens}
            logits = leaking(windows, 1.0)(tokens)
            for row, t in np.ndindex(*tokens.shape):
                if tokens[row, : t + 1].tobytes() in self.seen:
                    logits[row, t] = LOG_CHAIN[tokens[row, t]]
            return logits

    few = windows[:100]
    same = Remembering()
    assert score(few, same, same).loss < 0.5 * ENTROPY
    with pytest.raises(InvalidAnswer, match="later tokens"):
        score(few, Remembering(), Remembering())


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 1), np.int64),
        np.zeros((1, 9), np.int64),
        np.zeros((4, 9), np.float64),
        np.full((4, 9), V),
        np.full((4, 9), -1),
        np.zeros(9, np.int64),
    ],
)
def test_windows_that_cannot_be_scored_are_our_error(bad: np.ndarray) -> None:
    with pytest.raises(ValueError):
        score(bad, honest)


def test_token_losses_survive_extreme_logits() -> None:
    logits = np.array([[3e38, -3e38, 0.0]], np.float32)
    losses = token_losses(np.repeat(logits, 2, axis=0), np.array([0, 1]))
    assert losses[0] == 0.0
    assert np.isfinite(losses[1])

"""The sealed loss against a source whose entropy is known.

The source is a Markov chain over 16 symbols: given a symbol, the next one has a known
distribution, so the true conditional entropy is known and no honest predictor scores below it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation.codes import InvalidAnswer
from assay.evaluation.language_model import (
    LanguageModelScore,
    Mode,
    Tolerances,
    draw_positions,
    score_language_model,
)
from assay.evaluation.passes import token_losses
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


MODES: list[Mode] = ["parallel", "losses", "step"]


class Instance(Predictor):
    """Answers with a model, in this process."""

    def __init__(self, model: Model, asked: list[tuple[str, np.ndarray, bool]]) -> None:
        self.model = model
        self.asked = asked
        self.past = np.zeros((0, 0), np.int32)

    def ask(  # type: ignore[no-untyped-def]
        self, op: str, arrays: Any, expect: Any, *, reveals: bool = True, **meta: Any
    ):
        given = next(iter(arrays.values()))
        self.asked.append((op, given.copy(), reveals))
        name, found = self.answer(op, given)
        assert found.shape == expect[name][1]
        return {name: found.astype(expect[name][0])}

    def answer(self, op: str, given: np.ndarray) -> tuple[str, np.ndarray]:
        if op == "reset":
            self.past = np.zeros((given[0], 0), np.int32)
            return "ready", np.ones(1)
        if op == "step":
            self.past = np.concatenate([self.past, given[:, None]], axis=1)
            return "logits", self.model(self.past)[:, -1]
        if op == "losses":
            return "losses", self.losses(given)
        logits = self.model(given).astype(np.float32)
        return "logits", logits[:, -1] if op == "next" else logits

    def losses(self, windows: np.ndarray) -> np.ndarray:
        return token_losses(self.model(windows[:, :-1]), windows[:, 1:])


class InProcess:
    """`models` are the instances in the order they are opened."""

    def __init__(self, *models: Model, kind: type[Instance] = Instance) -> None:
        self.waiting = list(models)
        self.kind = kind
        self.asked: list[tuple[str, np.ndarray, bool]] = []
        self.opened = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Predictor]:
        self.opened += 1
        yield self.kind(self.waiting.pop(0), self.asked)


def score(
    windows: np.ndarray,
    *models: Model,
    seed: int = 0,
    kind: type[Instance] = Instance,
    **options: Any,
) -> LanguageModelScore:
    instances = models if len(models) == 2 else (models[0], models[0])
    opened = InProcess(*instances, kind=kind).open
    return score_language_model(opened, windows, V, np.random.default_rng(seed), **options)


def refusal(windows: np.ndarray, *models: Model, **options: Any) -> FailureCode:
    with pytest.raises(InvalidAnswer) as refused:
        score(windows, *models, **options)
    return refused.value.code


def plain_losses(windows: np.ndarray) -> np.ndarray:
    return token_losses(honest(windows[:, :-1]), windows[:, 1:])


def leaking(share: float, by: float = 20.0, seed: int = 5) -> Model:
    """Knows a share of the next tokens, wherever the question shows them."""

    def model(tokens: np.ndarray) -> np.ndarray:
        logits = LOG_CHAIN[tokens].copy()
        # By content, since rows come in any order: the same positions in every question.
        codes = (tokens[:, :-1].cumsum(axis=1) * 7919 + tokens[:, 1:] * 104729 + seed) % 10007
        rows, columns = np.nonzero(codes < share * 10007)
        logits[rows, columns, tokens[rows, columns + 1]] += by
        return logits

    return model


@pytest.mark.parametrize("mode", MODES)
def test_an_honest_model_scores_its_plain_loss(windows: np.ndarray, mode: Mode) -> None:
    found = score(windows, honest, mode=mode)
    assert found.loss == pytest.approx(plain_losses(windows).mean(), abs=1e-6)
    assert abs(found.correction) <= 5 * found.correction_se + 1e-6
    assert found.largest_difference < 1e-5
    assert found.tokens == N * T
    assert found.windows == N
    assert found.sealed == (256 if mode == "step" else 1024)
    assert abs(found.loss - ENTROPY) < 4 * found.windows_se


def test_the_true_model_is_not_scored_below_the_entropy_of_the_source(
    windows: np.ndarray,
) -> None:
    found = score(windows, honest)
    assert found.loss > ENTROPY - 4 * found.windows_se


@pytest.mark.parametrize("mode", MODES)
def test_a_worse_model_scores_worse_by_its_divergence(windows: np.ndarray, mode: Mode) -> None:
    flat = score(windows, lambda tokens: np.zeros((*tokens.shape, V)), mode=mode)
    assert flat.loss == pytest.approx(np.log(V), abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_rounding_between_the_passes_is_not_refused(windows: np.ndarray, mode: Mode) -> None:
    def noisy(tokens: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(tokens.shape[1]).normal(0, 0.03, (*tokens.shape, V))
        return LOG_CHAIN[tokens] + noise

    found = score(windows, noisy, mode=mode)
    assert 0.02 < found.largest_difference < 0.3
    assert found.loss == pytest.approx(score(windows, honest).loss, abs=0.01)


@pytest.mark.parametrize("mode", ["parallel", "losses"])
@pytest.mark.parametrize("share", [1.0, 0.2, 0.05, 0.01])
def test_looking_ahead_is_caught(windows: np.ndarray, share: float, mode: Mode) -> None:
    assert refusal(windows, leaking(share), mode=mode) is FailureCode.LEAK


def test_a_model_that_would_look_ahead_cannot_do_so_by_steps(windows: np.ndarray) -> None:
    found = score(windows, leaking(1.0), mode="step")
    assert found.loss > ENTROPY - 4 * found.windows_se


def test_looking_ahead_a_little_everywhere_is_caught_by_the_mean(windows: np.ndarray) -> None:
    little = leaking(1.0, by=0.05)
    assert refusal(windows, little) is FailureCode.LEAK
    with pytest.raises(InvalidAnswer) as refused:
        score(windows, little)
    assert "mean loss" in refused.value.detail


@pytest.mark.parametrize("share", [0.002, 0.0005])
def test_a_rare_leak_passes_no_more_often_than_the_arithmetic_says(
    windows: np.ndarray, share: float
) -> None:
    plain = plain_losses(windows)
    gain = float((plain - token_losses(leaking(share)(windows)[:, :-1], windows[:, 1:])).mean())
    assert gain > 0.0002
    passed = []
    for seed in range(60):
        with contextlib.suppress(InvalidAnswer):
            passed.append(plain.mean() - score(windows, leaking(share), seed=seed).loss)
    # q as it came out, from the gain and the largest single one.
    bound = math.exp(-1024 * gain / float(plain.max()))
    assert len(passed) / 60 < bound + 3 * math.sqrt(bound * (1 - bound) / 60) + 0.02
    assert all(0 < found < 1.05 * gain for found in passed)


@pytest.mark.parametrize("seed", range(8))
def test_a_leak_too_small_to_be_refused_gains_nothing(windows: np.ndarray, seed: int) -> None:
    truth = score(windows, honest).loss
    found = score(windows, leaking(0.03, by=0.3), seed=seed)
    assert found.pass_loss < truth - 0.002
    assert abs(found.loss - truth) < 4 * found.correction_se + 1e-6
    assert found.correction_se < math.sqrt(0.5 * 0.05 / 1024)


def test_the_mean_over_samples_is_the_sealed_loss(windows: np.ndarray) -> None:
    """Unbiased, if nothing is refused: averaged over samples, a leaky model gets its own loss."""
    anything = Tolerances(position=99.0, spread=99.0, mean=99.0)
    truth = score(windows, honest).loss
    found = [
        score(windows, leaking(0.1), seed=seed, tolerances=anything, sealed=100)
        for seed in range(80)
    ]
    spread = np.std([f.loss for f in found], ddof=1) / np.sqrt(len(found))
    assert abs(np.mean([f.loss for f in found]) - truth) < 4 * spread
    assert np.mean([f.pass_loss for f in found]) < truth - 0.1
    # And the standard error that is reported is the one that is observed.
    assert np.std([f.loss for f in found], ddof=1) == pytest.approx(
        np.mean([f.correction_se for f in found]), rel=0.3
    )


def test_with_every_position_sealed_nothing_is_left_to_the_pass(windows: np.ndarray) -> None:
    few = windows[:20]
    found = score(few, leaking(0.02, by=0.4), sealed=10**9, seed=2)
    assert found.sealed == 20 * T
    assert found.loss == pytest.approx(plain_losses(few).mean(), abs=1e-6)
    assert found.correction_se == 0.0
    assert found.pass_loss < found.loss


def test_a_claimed_loss_gains_no_more_than_looking_ahead(windows: np.ndarray) -> None:
    """Any number can be claimed where nothing is sampled; a loss below 0 counts as 0."""

    class Liar(Instance):
        def losses(self, windows: np.ndarray) -> np.ndarray:
            claimed = super().losses(windows)
            claimed[0, 3] = -1000.0
            return claimed

    truth = plain_losses(windows)
    found = []
    for seed in range(5):
        with contextlib.suppress(InvalidAnswer):
            found.append(score(windows, honest, mode="losses", kind=Liar, seed=seed).loss)
    assert len(found) >= 3
    assert min(found) >= truth.mean() - truth.max() / truth.size - 1e-6


def test_steps_must_answer_what_prefixes_answer(windows: np.ndarray) -> None:
    class Better(Instance):
        """By steps it is another model: one that is right about the source."""

        def answer(self, op: str, given: np.ndarray) -> tuple[str, np.ndarray]:
            name, found = super().answer(op, given)
            return name, found if op == "step" else 0.5 * found

    assert refusal(windows, honest, kind=Better, mode="step") is FailureCode.INCONSISTENT


def test_what_stands_is_the_prefix_value_not_that_of_the_steps(windows: np.ndarray) -> None:
    class Slightly(Instance):
        def answer(self, op: str, given: np.ndarray) -> tuple[str, np.ndarray]:
            name, found = super().answer(op, given)
            return name, found if op == "step" else 0.99 * found

    found = score(windows, honest, kind=Slightly, mode="step")
    truth = token_losses(0.99 * honest(windows[:, :-1]), windows[:, 1:]).mean()
    assert abs(found.loss - truth) < 4 * found.correction_se
    assert abs(found.loss - truth) < abs(found.pass_loss - truth) + 4 * found.correction_se


def test_a_step_is_not_shown_its_label(windows: np.ndarray) -> None:
    instances = InProcess(honest, honest)
    score_language_model(instances.open, windows, V, np.random.default_rng(3), mode="step")
    steps = [given for op, given, shown in instances.asked if op == "step" and shown]
    shown = np.stack(steps, axis=1)
    assert shown.shape == (N, T)  # the last token, which only is a label, never goes out
    expected = {row.tobytes() for row in windows[:, :-1].astype(np.int32)}
    assert {row.tobytes() for row in shown} == expected


class Learner:
    """Gets better with every question about held-out text, as training at test time does."""

    def __init__(self, rate: float) -> None:
        self.seen = 0.0
        self.rate = rate

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        self.seen += tokens.size * tokens.any()
        return LOG_CHAIN[tokens] * (0.8 + 0.2 * (1 - np.exp(-self.rate * self.seen)))


@pytest.mark.parametrize("mode", MODES)
def test_learning_from_the_questions_is_noticed(windows: np.ndarray, mode: Mode) -> None:
    learners = Learner(3e-4), Learner(3e-4)
    assert refusal(windows, *learners, mode=mode) in (FailureCode.INCONSISTENT, FailureCode.LEAK)
    twins = Learner(0.0), Learner(0.0)
    assert score(windows, *twins, mode=mode).largest_difference < 1e-5


def test_an_instance_that_imitates_the_memory_of_the_other_still_starts_cold(
    windows: np.ndarray,
) -> None:
    """The pass can agree with what the other instance will have learned; a cold answer cannot."""
    warm = Learner(1.0)
    assert score(windows, warm, warm).loss == pytest.approx(score(windows, honest).loss, abs=0.02)
    first, second = Learner(1.0), Learner(1.0)
    second.seen = 1e9
    asked = 0

    def cold(tokens: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += 1
        first.seen = 0.0 if asked < 20 else 1e9
        first.rate = 0.0 if asked < 20 else 1.0
        return first(tokens)

    assert refusal(windows, cold, second) is FailureCode.INCONSISTENT


def test_to_know_what_is_audited_does_not_help_to_look_ahead(windows: np.ndarray) -> None:
    class Careful(Instance):
        """Answers honestly about every window that it was asked about before the pass."""

        def answer(self, op: str, given: np.ndarray) -> tuple[str, np.ndarray]:
            if op != "all":
                return super().answer(op, given)
            asked = {row.tobytes() for o, g, _ in self.asked if o == "next" for row in g}
            logits = leaking(1.0)(given)
            for row, tokens in enumerate(given):
                if any(tokens[:t].tobytes() in asked for t in range(1, T)):
                    logits[row] = honest(tokens)
            return "logits", logits

    few = windows[:100]
    pair = [InProcess(honest, kind=Careful), InProcess(honest, kind=Careful)]
    openers = iter([i.open for i in pair])
    with pytest.raises(InvalidAnswer) as refused:
        score_language_model(lambda: next(openers)(), few, V, np.random.default_rng(1), sealed=100)
    assert refused.value.code is FailureCode.LEAK


def test_answers_that_do_not_sum_to_one_gain_nothing(windows: np.ndarray) -> None:
    boosted = score(windows, lambda tokens: LOG_CHAIN[tokens] + 1000.0)
    # float32 keeps about 1e-4 of logits as large as these.
    assert boosted.loss == pytest.approx(score(windows, honest).loss, abs=1e-3)


def test_labels_and_later_tokens_are_never_in_a_sealed_question(windows: np.ndarray) -> None:
    instances = InProcess(honest, honest)
    score_language_model(instances.open, windows, V, np.random.default_rng(3))
    assert instances.opened == 2
    split = [i for i, (_, _, shown) in enumerate(instances.asked) if not shown][1]
    first, second = instances.asked[:split], instances.asked[split:]
    for part in (first, second):
        assert not part[0][2]
        assert not part[0][1].any()
    # The instance that makes the pass gets the audited prefixes while it has seen nothing else,
    # and comes first: it must not learn from the other where the sample is.
    operations = [op for op, _, _ in first[1:]]
    assert operations == sorted(operations, key=["next", "all"].index)
    assert sum(given.shape[0] for op, given, _ in first if op == "next") == 32
    assert {op for op, _, _ in second} == {"next"}
    lengths = [tokens.shape[1] for _, tokens, _ in second[1:]]
    assert lengths == sorted(lengths)  # a label of one question is in no question before it
    assert max(lengths) == T
    assert 1024 <= sum(tokens.shape[0] for _, tokens, _ in second[1:]) <= 1024 + 32


def test_positions_are_drawn_evenly() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros(6 * 5)
    for _ in range(4000):
        drawn = draw_positions(rng, 6, 5, 8)
        assert len(set(drawn.tolist())) == 8
        assert set(np.bincount(drawn // 5, minlength=6)) <= {1, 2}
        counts[drawn] += 1
    assert np.abs(counts / 4000 - 8 / 30).max() < 0.03
    assert len(draw_positions(rng, 6, 5, 30)) == 30
    assert len(draw_positions(rng, 6, 5, 0)) == 0


def test_one_instance_for_both_passes_would_be_fooled_and_two_are_not(
    windows: np.ndarray,
) -> None:
    """An instance that remembers the windows looks ahead where it will be compared, too, but for
    the questions that it was asked before the pass."""

    class Remembering:
        def __init__(self) -> None:
            self.audited: set[bytes] = set()
            self.follows: dict[bytes, int] = {}

        def __call__(self, tokens: np.ndarray) -> np.ndarray:
            logits = honest(tokens).copy()
            if tokens.shape == (len(few), T):  # the pass
                for row, t in np.ndindex(len(few), T - 1):
                    prefix, label = tokens[row, : t + 1].tobytes(), tokens[row, t + 1]
                    # Short prefixes are those of several windows.
                    if t >= 8 and prefix not in self.audited:
                        self.follows[prefix] = int(label)
                        logits[row, t, label] += 20.0
                return logits
            for row, tail in enumerate(tokens):
                if not self.follows:
                    self.audited.add(tail.tobytes())
                elif (label := self.follows.get(tail.tobytes())) is not None:
                    logits[row, -1, label] += 20.0
            return logits

    few = windows[:100]
    same = Remembering()
    assert score(few, same, same, sealed=100).loss < 0.5 * ENTROPY
    assert refusal(few, Remembering(), Remembering(), sealed=100) is FailureCode.LEAK


@pytest.mark.parametrize("options", [{"mode": "fast"}, {"sealed": 1}, {"sealed": 0}])
def test_options_that_make_no_sense_are_our_error(
    windows: np.ndarray, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        score(windows, honest, **options)


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


@pytest.mark.parametrize("size", [1.0, 1e8, 1e30, 3e38])
def test_a_large_constant_does_not_swallow_the_loss(size: float) -> None:
    logits = np.full((2, 256), size, np.float32)
    assert token_losses(logits, np.array([3, 255])) == pytest.approx(np.log(256), abs=1e-6)
    logits[:, 7] = 0.9 * size
    assert (token_losses(logits, np.array([3, 255])) > np.log(254)).all()

"""Verdicts: how often they are wrong, and what each case of two codebases comes to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import pytest

from assay.domain.metrics import Direction
from assay.domain.verdicts import (
    DEFAULT_PRIOR,
    FEWEST_CODEBASES,
    Judgement,
    Measured,
    Prior,
    Verdict,
    claimed,
    fit_prior,
    judge,
    judge_best,
    shrunken,
    smallest_effect,
)

LOWER, HIGHER = Direction.MINIMIZE, Direction.MAXIMIZE
Rule = Callable[[Measured, Measured], Verdict]


def measured(values: Sequence[float], first: int = 0) -> Measured:
    found = Measured.of(dict(enumerate(values, first)))
    assert found is not None
    return found


def shipped(idea: Measured, baseline: Measured) -> Verdict:
    return judge(HIGHER, idea, baseline).verdict


def two_sigma(idea: Measured, baseline: Measured) -> Verdict:
    """The rule that was used before: the baseline's spread for both, at two standard errors."""
    error = baseline.spread * math.sqrt(1 / idea.n + 1 / baseline.n)
    sigmas = (idea.mean - baseline.mean) / error
    return _at(sigmas, 2.0)


def plain_pairing(idea: Measured, baseline: Measured) -> Verdict:
    """A paired t test on the seeds that both sides have."""
    differences = [value - baseline.values[seed] for seed, value in idea.values.items()]
    spread = stdev(differences)
    return _at(fmean(differences) / (spread / math.sqrt(idea.n)) if spread else 0.0, 2.776)


def never_better(idea: Measured, baseline: Measured) -> Verdict:
    found = shipped(idea, baseline)
    return Verdict.UNDECIDED if found is Verdict.BETTER else found


def _at(sigmas: float, threshold: float) -> Verdict:
    if abs(sigmas) < threshold:
        return Verdict.UNDECIDED
    return Verdict.BETTER if sigmas > 0 else Verdict.WORSE


def share_better(
    rule: Rule, spread: float, effect: float = 0.0, *, shared: float = 0.0, baselines: int = 500
) -> float:
    """How often ideas on five seeds are called better; two ideas for each of many baselines.

    `spread` is the idea's over seeds, with a baseline of 1 on 20 seeds, and `shared` the
    correlation of both on a seed.
    """
    rng = random.Random(f"{spread} {effect} {shared}")
    found = []
    for _ in range(baselines):
        luck = [rng.gauss(0, 1) for _ in range(20)]
        for _ in range(2):
            own = (rng.gauss(0, math.sqrt(1 - shared**2)) + shared * c for c in luck[:5])
            found.append(rule(measured([effect + spread * v for v in own]), measured(luck)))
    return fmean(verdict is Verdict.BETTER for verdict in found)


def is_calibrated(rule: Rule) -> bool:
    """Whether a rule errs as often as it says, and finds what is there to be found.

    2.5 % of ideas without an effect should be called better, and 1,000 cases have a standard error
    of 0.5 points. The second null has ideas that vary half as much and twice as much as the
    baseline.
    """
    same = share_better(rule, 1.0)
    mixed = fmean(share_better(rule, spread) for spread in (0.5, 1.0, 2.0))
    found = share_better(rule, 1.0, effect=2.0)
    paired = share_better(rule, 1.0, effect=1.0, shared=0.97)
    return all(0.01 <= null <= 0.04 for null in (same, mixed)) and found >= 0.8 and paired >= 0.7


@pytest.mark.parametrize(
    ("rule", "holds"),
    [(shipped, True), (two_sigma, False), (plain_pairing, False), (never_better, False)],
)
def test_verdicts_are_wrong_as_often_as_they_say(rule: Rule, holds: bool) -> None:
    assert is_calibrated(rule) is holds


#: nanogpt on seeds 0 to 4, and an edit that improves each of them (newcomers were told "noise").
BASELINE_5 = (1.4096, 1.3504, 1.3794, 1.3129, 1.3861)
STEADY_GAIN = tuple(
    b - g for b, g in zip(BASELINE_5, (0.027, 0.035, 0.043, 0.03, 0.035), strict=True)
)
BASELINE_20 = (*BASELINE_5, *(1.36 + 0.037 * math.sin(3 * s) for s in range(15)))


def test_an_edit_that_improves_every_seed_alike_is_better() -> None:
    found = judge(LOWER, measured(STEADY_GAIN), measured(BASELINE_20))
    assert found.verdict is Verdict.BETTER
    assert found.effect == pytest.approx(0.034, abs=0.01)
    assert two_sigma(measured([-v for v in STEADY_GAIN]), measured([-v for v in BASELINE_20])) == (
        Verdict.UNDECIDED
    )


def test_one_outlier_among_five_seeds_makes_nothing_worse() -> None:
    values = [b + 0.002 for b in BASELINE_5]
    values[2] += 0.25
    found = judge(LOWER, measured(values), measured(BASELINE_20))
    assert found.verdict is Verdict.UNDECIDED
    assert two_sigma(measured([-v for v in values]), measured([-v for v in BASELINE_20])) == (
        Verdict.WORSE
    )


def test_positive_effects_are_improvements_in_either_direction() -> None:
    up, down = (measured([s * (10 + v) for v in (2.0, 2.1)]) for s in (1, -1))
    base_up, base_down = (measured([s * (10 + v) for v in (0, 0.1, -0.1, 0.2)]) for s in (1, -1))
    higher, lower = judge(HIGHER, up, base_up), judge(LOWER, down, base_down)
    assert higher == lower
    assert higher.verdict is Verdict.BETTER
    assert higher.effect == pytest.approx(2.0)
    assert higher.sigmas is not None
    assert higher.sigmas > 0


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e6, 1e6), (3.0, -20.0)])
def test_units_do_not_matter(scale: float, shift: float) -> None:
    idea, baseline = [1.0, 1.3, 0.8], [0.7, 0.9, 1.1, 0.8, 1.0]
    one = judge(HIGHER, measured(idea), measured(baseline))
    other = judge(
        HIGHER,
        measured([scale * v + shift for v in idea]),
        measured([scale * v + shift for v in baseline]),
    )
    for name in ("df", "p", "p_improves", "slope", "sigmas"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-6)
    for name in ("effect", "standard_error", "low", "high", "posterior"):
        assert getattr(other, name) == pytest.approx(scale * getattr(one, name), rel=1e-6)


def test_the_interval_and_the_verdict_say_the_same() -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(300):
        idea = measured(
            [rng.gauss(rng.choice([-2, 0, 2]), 1) for _ in range(rng.choice([1, 2, 5]))]
        )
        found = judge(HIGHER, idea, measured([rng.gauss(0, 1) for _ in range(8)]))
        assert found.low is not None
        assert found.high is not None
        expected = (
            Verdict.BETTER
            if found.low > 0
            else Verdict.WORSE
            if found.high < 0
            else Verdict.UNDECIDED
        )
        assert found.verdict is expected
        seen.add(found.verdict)
    assert seen == {Verdict.BETTER, Verdict.WORSE, Verdict.UNDECIDED}


def test_a_baseline_without_noise_leaves_the_idea_its_own() -> None:
    exact = measured([5.0] * 4)
    assert judge(HIGHER, measured([7.0]), exact) == Judgement(
        2.0, None, None, None, None, None, 0.0, Verdict.UNDECIDED
    )
    noisy = judge(HIGHER, measured([5.0, 9.0]), exact)
    assert (noisy.verdict, noisy.df) == (Verdict.UNDECIDED, 1.0)
    assert judge(HIGHER, measured([7.0, 7.1, 6.9]), exact).verdict is Verdict.BETTER
    certain = judge(HIGHER, measured([7.0, 7.0]), exact)
    assert (certain.verdict, certain.p, certain.sigmas) == (Verdict.BETTER, 0.0, None)
    same = judge(HIGHER, measured([5.0, 5.0]), exact)
    assert (same.verdict, same.p, same.sigmas) == (Verdict.UNDECIDED, 1.0, 0.0)


def test_one_seed_on_each_side_decides_nothing() -> None:
    found = judge(HIGHER, measured([99.0]), measured([1.0]))
    assert (found.verdict, found.standard_error, found.low) == (Verdict.UNDECIDED, None, None)
    several = judge(HIGHER, measured([9.0, 9.1, 9.2]), measured([1.0]))
    assert several.verdict is Verdict.UNDECIDED, "one seed does not say how much a baseline varies"


def test_identical_artifacts_have_no_effect() -> None:
    found = judge(LOWER, measured([1.0, 2.0]), measured([1.0, 2.0, 9.0]), identical=True)
    assert (found.verdict, found.effect, found.p) == (Verdict.IDENTICAL, 0.0, 1.0)


@pytest.mark.parametrize("baseline", [[1.0, 1.1, 0.9], [1.0]])
def test_nothing_is_decided_while_seeds_of_the_baseline_are_to_come(baseline: list[float]) -> None:
    found = judge(HIGHER, measured([99.0]), measured(baseline), provisional=True)
    assert found.verdict is Verdict.PROVISIONAL


def test_seeds_that_the_baseline_has_not_share_no_luck() -> None:
    baseline = measured([float(s % 5) for s in range(20)])
    fresh = judge(HIGHER, measured([3.0, 4.0], first=100), baseline)
    assert fresh.slope == 0.0
    assert fresh.effect == pytest.approx(3.5 - baseline.mean)


def test_more_seeds_and_more_baseline_seeds_tell_more() -> None:
    rng = random.Random(5)
    values = [rng.gauss(0, 1) for _ in range(20)]

    def error(seeds: int, baseline_seeds: int) -> float:
        idea = measured([(-1.0) ** s for s in range(seeds)])
        found = judge(HIGHER, idea, measured(values[:baseline_seeds]))
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert error(1, 20) > error(2, 20) > error(6, 20)
    assert error(1, 3) > error(1, 5) > error(1, 20)


def test_effects_areshrunken_by_what_ideas_usually_do() -> None:
    idea, baseline = measured([2.0]), measured([(-1.0) ** s for s in range(20)])
    timid, bold = (judge(HIGHER, idea, baseline, Prior(effect=e)) for e in (0.2, 20.0))
    assert timid.effect == bold.effect == pytest.approx(2.0)
    assert timid.posterior is not None
    assert bold.posterior is not None
    assert 0 < timid.posterior < 0.2 < 1.9 < bold.posterior < 2.0
    assert timid.p_improves is not None
    assert bold.p_improves is not None
    assert 0.5 < timid.p_improves < 0.65 < bold.p_improves


@pytest.mark.parametrize("size", [1e100, 1e-100, 1e-320])
def test_extreme_metrics_are_judged(size: float) -> None:
    for baseline in ([size, -size, size / 2], [0.0, size], [size]):
        for idea in ([size], [-size, size], [0.0, 0.0]):
            found = judge(HIGHER, measured(idea), measured(baseline))
            assert math.isfinite(found.effect)
            assert found.p is None or 0 <= found.p <= 1


def simulated(
    spreads: Sequence[float], slope: float, seeds: int
) -> tuple[list[Measured], Measured]:
    rng = random.Random(11)
    luck = [rng.gauss(0, 1) for _ in range(20)]
    codebases = [
        measured([rng.gauss(0.5, 0) + slope * c + rng.gauss(0, s) for c in luck[:seeds]])
        for s in spreads
    ]
    return codebases, measured(luck)


def test_a_fit_finds_what_codebases_have_in_common() -> None:
    found = fit_prior(*simulated([1.5] * 60, slope=0.8, seeds=12))
    assert found.codebases == 60
    assert found.slope == pytest.approx(0.8, abs=0.15)
    assert math.sqrt(found.variance) == pytest.approx(1.5, rel=0.25)
    steady = fit_prior(*simulated([0.1] * 60, slope=0.0, seeds=12))
    assert steady.variance == 1.0, "an idea is not presumed to vary less than the baseline"
    alike, unlike = (
        fit_prior(*simulated(spreads, slope=0.0, seeds=12)).df
        for spreads in ([1.0] * 60, [0.5, 1.0, 2.0] * 20)
    )
    assert unlike < 10 < alike


def test_a_fit_needs_codebases_with_several_seeds() -> None:
    codebases, baseline = simulated([1.0] * FEWEST_CODEBASES, slope=0.0, seeds=3)
    assert fit_prior(codebases, baseline).codebases == FEWEST_CODEBASES
    assert fit_prior(codebases[1:], baseline) is DEFAULT_PRIOR
    single = [measured([1.0]) for _ in range(100)]
    assert fit_prior([*codebases[1:], *single], baseline) is DEFAULT_PRIOR
    assert fit_prior(codebases, measured([1.0, 1.0])) is DEFAULT_PRIOR


def test_the_smallest_effect_is_found_in_about_eight_of_ten_cases() -> None:
    rng = random.Random(8)
    for seeds in (1, 5):
        found = []
        for _ in range(400):
            baseline = measured([rng.gauss(0, 1) for _ in range(20)])
            effect = smallest_effect(measured([(-1.0) ** s for s in range(20)]), seeds)
            assert effect is not None
            idea = measured([rng.gauss(effect, 1) for _ in range(seeds)])
            found.append(judge(HIGHER, idea, baseline).verdict is Verdict.BETTER)
        assert 0.7 <= fmean(found) <= 0.92, seeds
    assert smallest_effect(measured([1.0]), 1) is None


def test_claims_pay_for_their_number() -> None:
    def found(*ps: float | None, effect: float = 1.0) -> list[bool]:
        return claimed([(p, effect) for p in ps])

    assert found() == []
    assert found(0.04) == [True]
    assert found(0.04, 0.04) == [False, False]
    assert found(0.04, 0.02) == [True, True]
    assert found(0.03, 0.001, 0.5) == [False, True, False]
    assert found(None) == [False]
    assert found(0.001, effect=-1.0) == [False]
    assert claimed([(0.001, -1.0), (0.001, 1.0)]) == [False, True]


@pytest.mark.parametrize(
    ("effect", "error", "df", "scale", "expected"),
    [
        (3.0, 1.0, 1e9, 2.0, (2.4, 0.99635)),  # both normal: 4/5 of it, and Φ(3·√0.8)
        (0.0, 1.0, 3.0, 1.0, (0.0, 0.5)),
        (1.0, 1e-6, 3.0, 1.0, (1.0, 1.0)),
        (1.0, 1e6, 3.0, 1.0, (0.0, 0.5)),
    ],
)
def test_the_posterior_where_it_is_known(
    effect: float, error: float, df: float, scale: float, expected: tuple[float, float]
) -> None:
    mean, improves = shrunken(effect, error, df, scale)
    assert mean == pytest.approx(expected[0], abs=5e-3)
    assert improves == pytest.approx(expected[1], abs=5e-3)


def test_an_outlier_is_believed_less_than_a_normal_one_would_be() -> None:
    far, near = (shrunken(effect, 1.2, 4.0, 1.0)[0] for effect in (12.0, 3.0))
    assert far < near


@pytest.mark.parametrize(
    ("direction", "idea", "verdict", "effect"),
    [
        (HIGHER, [1.0, 9.0], Verdict.BETTER, 1.0),
        (HIGHER, [8.0], Verdict.UNDECIDED, 0.0),
        (LOWER, [9.0, 6.0], Verdict.WORSE, -1.0),
    ],
)
def test_of_artifacts_the_best_counts(
    direction: Direction, idea: list[float], verdict: Verdict, effect: float
) -> None:
    found = judge_best(direction, measured(idea), measured([5.0, 8.0]))
    assert (found.verdict, found.effect, found.p) == (verdict, effect, None)
    waiting = judge_best(direction, measured(idea), measured([5.0, 8.0]), provisional=True)
    assert waiting.verdict is Verdict.PROVISIONAL

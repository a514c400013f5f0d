"""Draw experiments from a bank and count how often a rule's verdict is wrong.

Three kinds of null, that is, of ideas without an effect:

    other seeds    the unmodified codebase with other luck on each seed
    same seeds     the control, which differs by rounding, on the baseline's first seeds
    recentred      an edit, its mean shifted to the baseline's, on the baseline's first seeds

A baseline is drawn once for all ideas that are compared with it, as a service does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from assay.domain.metrics import Direction
from assay.domain.verdicts import Judgement, Measured, claimed
from benchmarks.verdicts.banks import Bank

BASELINE_SEEDS = 20
KINDS = ("other_seeds", "same_seeds", "recentred")
Rule = Callable[[Measured, Measured], Judgement]


class Pair(NamedTuple):
    """The metric of both sides on one seed of the bank."""

    baseline: float
    idea: float


@dataclass(frozen=True)
class Population:
    """What the ideas of one kind are drawn from, on the baseline's scale, with effect 0."""

    codebases: tuple[tuple[Pair, ...], ...]
    #: The baseline on seeds that no other codebase has.
    others: tuple[float, ...]

    @classmethod
    def of(cls, bank: Bank) -> Mapping[str, Population]:
        """Return a population for each kind."""
        base = _standard(bank.baseline[: bank.shared], fmean(bank.baseline))
        others = _standard(bank.baseline[bank.shared :], fmean(bank.baseline))

        def paired(values: Sequence[float]) -> tuple[Pair, ...]:
            moved = _standard(values[: bank.shared], fmean(bank.baseline))
            return tuple(map(Pair, base, moved))

        edits = tuple(paired(values) for values in bank.edits.values())
        alone = tuple(Pair(value, value) for value in base + others)
        return {
            "other_seeds": cls((alone,), base + others),
            "same_seeds": cls((paired(bank.control),), others),
            "recentred": cls(edits, others),
        }


def _standard(values: Sequence[float], mean: float) -> tuple[float, ...]:
    """Move values to a mean; drawn with replacement, they have their unbiased variance."""
    own, wider = fmean(values), (len(values) / (len(values) - 1)) ** 0.5
    return tuple(mean + wider * (value - own) for value in values)


class Drawn(NamedTuple):
    """A baseline, and ideas without an effect."""

    baseline: Measured
    ideas: list[Measured]


def draw(population: Population, kind: str, n: int, ideas: int, rng: random.Random) -> Drawn:
    """Draw a baseline of `BASELINE_SEEDS` and ideas on its first `n` seeds.

    All ideas share the seeds, as they do in a service.
    """
    count = len(population.codebases[0])
    places = [rng.randrange(count) for _ in range(n)]
    if kind == "other_seeds":
        drawn = rng.choices(population.others, k=BASELINE_SEEDS)
        found = [rng.choices(population.others, k=n) for _ in range(ideas)]
    else:
        first = [population.codebases[0][place].baseline for place in places]
        drawn = first + rng.choices(population.others, k=BASELINE_SEEDS - n)
        chosen = rng.choices(population.codebases, k=ideas)
        found = [[codebase[place].idea for place in places] for codebase in chosen]
    return Drawn(_measured(drawn), [_measured(values) for values in found])


def _measured(values: Sequence[float], first: int = 0) -> Measured:
    found = Measured.of(dict(enumerate(values, first)))
    assert found is not None
    return found


@dataclass(frozen=True)
class Rates:
    """Shares over all ideas, each with a 95 % interval by bootstrap over baselines.

    The interval is that of the simulation; that the bank has few edits and seeds is not in it.
    """

    better: tuple[float, float, float]
    worse: tuple[float, float, float]
    covered: tuple[float, float, float]


def null_rates(
    population: Population,
    kind: str,
    n: int,
    rules: Mapping[str, Rule],
    *,
    baselines: int,
    ideas: int,
    seed: int,
) -> dict[str, Rates]:
    """Return how often each rule calls ideas without an effect better or worse."""
    rng = random.Random(f"{seed} {kind} {n}")
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in rules}
    for _ in range(baselines):
        drawn = draw(population, kind, n, ideas, rng)
        for name, rule in rules.items():
            judged = [rule(idea, drawn.baseline) for idea in drawn.ideas]
            found[name].append(
                (
                    fmean(j.verdict == "better" for j in judged),
                    fmean(j.verdict == "worse" for j in judged),
                    fmean(_covers(j) for j in judged),
                )
            )
    return {
        name: Rates(*(bootstrapped(column, seed) for column in zip(*shares, strict=True)))
        for name, shares in found.items()
    }


@dataclass(frozen=True)
class Searches:
    """Searches over ideas of which none has an effect; shares with 95 % intervals."""

    #: The best of all, on the seeds that selected it.
    best_called_better: tuple[float, float, float]
    #: Any of the best few, on fresh seeds, after Holm's correction.
    any_claimed: tuple[float, float, float]


def null_searches(
    population: Population,
    kind: str,
    rule: Rule,
    *,
    searches: int,
    ideas: int,
    top: int,
    fresh: int,
    seed: int,
) -> Searches:
    """Search `ideas` ideas on one seed each, and confirm the best `top` on `fresh` fresh seeds.

    The baseline is measured on the same fresh seeds, beside its own.
    """
    rng = random.Random(f"{seed} search {kind}")
    best, claims = [], []
    for _ in range(searches):
        found = search(population, kind, ideas, fresh, rng)
        looks = [rule(idea, found.baseline) for idea in found.first]
        order = sorted(range(ideas), key=lambda place: -looks[place].effect)
        best.append(float(looks[order[0]].verdict == "better"))
        judged = [rule(found.second[place], found.whole) for place in order[:top]]
        claims.append(float(any(claimed([(j.p, j.effect) for j in judged]))))
    return Searches(bootstrapped(best, seed), bootstrapped(claims, seed))


class Searched(NamedTuple):
    """Ideas on one seed and on fresh ones; the baseline on its own seeds, and on those too."""

    baseline: Measured
    whole: Measured
    first: list[Measured]
    second: list[Measured]


def search(
    population: Population, kind: str, ideas: int, fresh: int, rng: random.Random
) -> Searched:
    """Draw a baseline and ideas, all on seed 0 and on `fresh` seeds after the baseline's.

    On seed 0 every idea has luck of its own, though they share the seed: a bank has few edits, and
    forty ideas would otherwise be a few numbers, many times each.
    """
    if kind == "other_seeds":
        drawn = rng.choices(population.others, k=BASELINE_SEEDS + fresh)
        found = [rng.choices(population.others, k=1 + fresh) for _ in range(ideas)]
    else:
        count = len(population.codebases[0])
        places = rng.choices(range(count), k=fresh)
        paired = [population.codebases[0][place].baseline for place in places]
        drawn = rng.choices(population.others, k=BASELINE_SEEDS) + paired
        chosen = rng.choices(population.codebases, k=ideas)
        found = [
            [codebase[rng.randrange(count)].idea, *(codebase[place].idea for place in places)]
            for codebase in chosen
        ]
    return Searched(
        _measured(drawn[:BASELINE_SEEDS]),
        _measured(drawn),
        [_measured(values[:1]) for values in found],
        [_measured(values[1:], BASELINE_SEEDS) for values in found],
    )


@dataclass(frozen=True)
class Power:
    """Edits whose true effect is as large as stated, judged on few seeds."""

    edits: int
    called_right: tuple[float, float, float]
    called_wrong: tuple[float, float, float]


def power(
    bank: Bank,
    n: int,
    rule: Rule,
    *,
    smallest: float,
    largest: float,
    draws: int,
    seed: int,
) -> Power | None:
    """Judge each edit whose effect on all its seeds is between two sizes, in baseline spreads.

    Better and worse ideas both count. What is right is told by the seeds that were not drawn.
    Intervals are by bootstrap over edits, which are few. None if no edit is of that size.
    """
    rng = random.Random(f"{seed} power {n} {smallest}")
    base, spread = bank.baseline[: bank.shared], stdev(bank.baseline)
    right, wrong = [], []
    for values in bank.edits.values():
        effect = fmean(values[: bank.shared]) - fmean(base)
        if not smallest <= abs(effect) / spread < largest:
            continue
        judged = []
        for _ in range(draws):
            places = rng.sample(range(bank.shared), n)
            rest = [p for p in range(bank.shared) if p not in places]
            gain = fmean(values[p] - base[p] for p in rest)
            truth = "better" if (gain < 0) == (bank.direction is Direction.MINIMIZE) else "worse"
            pool = [base[p] for p in rest] + list(bank.baseline[bank.shared :])
            drawn = [base[p] for p in places] + rng.sample(pool, BASELINE_SEEDS - n)
            verdict = rule(_measured([values[p] for p in places]), _measured(drawn)).verdict
            judged.append((verdict == truth, verdict in {"better", "worse"} - {truth}))
        right.append(fmean(found for found, _ in judged))
        wrong.append(fmean(found for _, found in judged))
    if not right:
        return None
    return Power(len(right), bootstrapped(right, seed), bootstrapped(wrong, seed))


def _covers(judgement: Judgement) -> bool:
    low, high = judgement.low, judgement.high
    return low is None or high is None or low <= 0 <= high


def bootstrapped(
    values: Sequence[float], seed: int, rounds: int = 1000
) -> tuple[float, float, float]:
    """Return the mean and a 95 % percentile interval, resampling `values`."""
    rng = random.Random(f"bootstrap {seed}")
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(rounds))
    return fmean(values), means[round(0.025 * rounds)], means[round(0.975 * rounds) - 1]

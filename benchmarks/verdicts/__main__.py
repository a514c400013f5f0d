"""How often are verdicts wrong, and how often do they find what is there?

    make bench-verdicts
    python -m benchmarks.verdicts --only toy --baselines 200

Draws experiments from banks of many seeds: `toy`, run in this process, and `nanogpt` tiny, as
`make calibrate` measured it. Ideas without an effect are of three kinds, which were chosen before
measuring: the baseline with other luck, the baseline with another rounding on the same seeds, and
shipped edits whose mean was moved to the baseline's. A rule that is right calls 2.5 % of them
better and 2.5 % worse. The alternative is the rule that Assay had before: the baseline's spread
for both sides, at two standard errors.

The prior was chosen on one half of each bank (`--half 0`: every other edit, and every other seed
that the baseline alone has) and is reported on the other (`--half 1`, the default). The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from assay.domain.metrics import Direction
from assay.domain.verdicts import DEFAULT_PRIOR, Judgement, Measured, Prior, Verdict, judge
from benchmarks.verdicts import banks
from benchmarks.verdicts.banks import Bank
from benchmarks.verdicts.simulate import (
    KINDS,
    Population,
    Rates,
    Rule,
    null_rates,
    null_searches,
    power,
)
from services.worker.hardware import hardware_class, read_cpu

SEEDS = (1, 2, 5)
IDEAS_PER_BASELINE = 10
TOY_SEEDS, TOY_EDIT_SEEDS = 4000, 300
SEARCH_IDEAS, TOP, FRESH_SEEDS = 40, 3, 5
#: In baseline spreads.
SIZES = ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, math.inf))
ALTERNATIVE = "two standard errors of the baseline's spread"


def shipped(direction: Direction, prior: Prior = DEFAULT_PRIOR) -> Rule:
    """Return the rule that the service uses."""
    return lambda idea, baseline: judge(direction, idea, baseline, prior)


def two_sigma(direction: Direction) -> Rule:
    """Return the rule that the service used before."""
    sign = -1 if direction is Direction.MINIMIZE else 1

    def rule(idea: Measured, baseline: Measured) -> Judgement:
        error = baseline.spread * math.sqrt(1 / idea.n + 1 / baseline.n)
        effect = sign * (idea.mean - baseline.mean)
        low, high = effect - 2 * error, effect + 2 * error
        verdict = Verdict.BETTER if low > 0 else Verdict.WORSE if high < 0 else Verdict.UNDECIDED
        return Judgement(effect, error, math.inf, low, high, None, 0.0, verdict)

    return rule


def figures_of(bank: Bank, *, baselines: int, searches: int, seed: int) -> dict[str, Any]:
    """Return all figures of a bank, and print its tables."""
    rules = {"shipped": shipped(bank.direction), "two_sigma": two_sigma(bank.direction)}
    populations = Population.of(bank)
    print(f"\n## {bank.name}: {len(bank.baseline)} seeds of the baseline, {len(bank.edits)} edits")
    print("\n| ideas without an effect | seeds | rule | better | worse | interval covers |")
    print("|---" * 6 + "|")
    nulls: dict[str, Any] = {}
    for kind in KINDS:
        for n in SEEDS:
            rates = null_rates(
                populations[kind],
                kind,
                n,
                rules,
                baselines=baselines,
                ideas=IDEAS_PER_BASELINE,
                seed=seed,
            )
            nulls[f"{kind}/{n}"] = {name: asdict(found) for name, found in rates.items()}
            _print_rates(kind, n, rates)
    found = {
        name: null_searches(
            populations["recentred"],
            "recentred",
            rule,
            searches=searches,
            ideas=SEARCH_IDEAS,
            top=TOP,
            fresh=FRESH_SEEDS,
            seed=seed,
        )
        for name, rule in rules.items()
    }
    print(f"\n{searches} searches over {SEARCH_IDEAS} ideas without an effect:")
    for name, each in found.items():
        print(
            f"- {name}: the best is called better in {_share(each.best_called_better)}; one of "
            f"the best {TOP} is claimed on {FRESH_SEEDS} fresh seeds in {_share(each.any_claimed)}"
        )
    print("\n| true effect, in spreads | edits | seeds | rule | called right | called wrong |")
    print("|---" * 6 + "|")
    powers: dict[str, Any] = {}
    for smallest, largest in SIZES:
        for n in SEEDS:
            for name, rule in rules.items():
                size = power(
                    bank, n, rule, smallest=smallest, largest=largest, draws=200, seed=seed
                )
                if size is None:
                    continue
                powers.setdefault(f"{smallest:g}-{largest:g}/{n}", {})[name] = asdict(size)
                print(
                    f"| {smallest:g} to {largest:g} | {size.edits} | {n} | {name} | "
                    f"{_share(size.called_right)} | {_share(size.called_wrong)} |"
                )
    return {
        "nulls": nulls,
        "searches": {name: asdict(each) for name, each in found.items()},
        "power": powers,
    }


def _print_rates(kind: str, n: int, rates: Mapping[str, Rates]) -> None:
    for name, found in rates.items():
        cells = (kind.replace("_", " "), n, name, *map(_share, asdict(found).values()))
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _share(found: tuple[float, float, float]) -> str:
    mean, low, high = found
    return f"{mean:.1%} ({low:.1%} to {high:.1%})"


def main() -> int:
    """Print the tables; the last line is JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["toy", "nanogpt"])
    parser.add_argument("--baselines", type=int, default=400)
    parser.add_argument("--searches", type=int, default=400)
    parser.add_argument("--half", type=int, choices=[0, 1], default=1)
    parser.add_argument("--hardware-class", default=hardware_class(read_cpu()))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = {}
    for name in [given.only] if given.only else ["toy", "nanogpt"]:
        bank = (
            banks.toy(TOY_SEEDS, TOY_EDIT_SEEDS)
            if name == "toy"
            else banks.nanogpt(given.hardware_class)
        )
        found[name] = figures_of(
            bank.half(given.half),
            baselines=given.baselines,
            searches=given.searches,
            seed=given.seed,
        )
    print(
        json.dumps(
            {"name": "verdicts", "half": given.half, "alternative": ALTERNATIVE, "figures": found}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run every arm on the same draws and say which differ from the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeAlias

from assay.domain.distributions import student_cdf, student_quantile
from assay.domain.hashing import derive_seed
from assay.domain.metrics import Direction
from benchmarks.search.arms import Arm
from benchmarks.search.lab import Outcome
from benchmarks.search.peers import Peer
from benchmarks.search.worlds import Draw, World

#: Budgets in runs of the baseline. The first decides, and was fixed before a strategy was run in a
#: measured world; the second is more than half of all codebases.
BUDGETS = (80, 240)
#: Outcomes of one contender, by the number of the draw.
Outcomes: TypeAlias = Mapping[int, Outcome]


class Overspent(Exception):
    """A contender used more than its budget."""


@dataclass(frozen=True)
class Difference:
    """Paired differences in the true value of the winner. Positive: better than the reference.

    Attributes:
        mean: In units of the metric.
        low: Lower end of the 95 % interval by Student's t.
        high: Upper end of it.
        p: Two-sided, adjusted by Holm's procedure for all comparisons of one table.
        wins: Draws with a better winner than the reference's.
        losses: Draws with a worse one.
        draws: Draws that both have.
    """

    mean: float
    low: float
    high: float
    p: float
    wins: int
    losses: int
    draws: int


def run_arms(
    world: World,
    arms: Sequence[Arm],
    draws: int,
    budgets: Sequence[float],
    say: Callable[[str], None] = lambda _: None,
) -> dict[float, dict[str, dict[int, Outcome]]]:
    """Run every arm on draws 0, 1, … with each budget, in runs of the baseline."""
    found: dict[float, dict[str, dict[int, Outcome]]] = {
        runs: {arm.name: {} for arm in arms} for runs in budgets
    }
    for number in range(draws):
        draw = Draw(world, draw_seed(number))
        for runs in budgets:
            for arm in arms:
                outcome = arm.run(draw, runs * world.run_cost)
                found[runs][arm.name][number] = _checked(arm.name, outcome, world, runs)
        if (number + 1) % 20 == 0:
            say(f"{world.name}: {number + 1} of {draws} draws")
    return found


def run_peer(world: World, peer: Peer, draws: int, runs: float) -> dict[int, Outcome]:
    """Run a peer on the first draws."""
    budget = runs * world.run_cost
    return {
        number: _checked(peer.name, peer.run(world, budget, draw_seed(number)), world, runs)
        for number in range(draws)
    }


def draw_seed(number: int) -> int:
    """Return the seed of a draw."""
    return derive_seed("search", number)


def _checked(name: str, outcome: Outcome, world: World, runs: float) -> Outcome:
    if outcome.spent > runs * world.run_cost * (1 + 1e-9):
        spent = outcome.spent / world.run_cost
        raise Overspent(f"{name} used {spent:.1f} runs of a budget of {runs:g}")
    return outcome


def differences(
    world: World, found: Mapping[str, Outcomes], reference: str
) -> dict[str, Difference]:
    """Compare all with the reference, draw by draw."""
    base = found[reference]
    raw: dict[str, Difference] = {}
    for name, outcomes in found.items():
        if name == reference:
            continue
        pairs = [(outcomes[n], base[n]) for n in outcomes if n in base]
        raw[name] = _paired([world.gain(a.winner) - world.gain(b.winner) for a, b in pairs])
    adjusted = holm({name: each.p for name, each in raw.items()})
    return {
        name: Difference(d.mean, d.low, d.high, adjusted[name], d.wins, d.losses, d.draws)
        for name, d in raw.items()
    }


def _paired(off: Sequence[float]) -> Difference:
    mean, n = fmean(off), len(off)
    wins, losses = sum(d > 0 for d in off), sum(d < 0 for d in off)
    spread = stdev(off) if n > 1 else math.inf
    if spread == 0:
        return Difference(mean, mean, mean, 0.0 if mean else 1.0, wins, losses, n)
    error = spread / math.sqrt(n)
    if math.isinf(error):
        return Difference(mean, -math.inf, math.inf, 1.0, wins, losses, n)
    reach = student_quantile(0.975, n - 1) * error
    p = 2 * student_cdf(-abs(mean) / error, n - 1)
    return Difference(mean, mean - reach, mean + reach, p, wins, losses, n)


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Return p values adjusted for as many comparisons (Holm 1979)."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(ps, key=lambda each: ps[each])):
        largest = max(largest, min(1.0, ps[name] * (len(ps) - rank)))
        adjusted[name] = largest
    return adjusted


def figures(world: World, found: Mapping[str, Outcomes], reference: str) -> dict[str, Any]:
    """Return the figures of a table, by contender."""
    against = differences(world, found, reference)
    sign = -1 if world.direction is Direction.MINIMIZE else 1
    rows: dict[str, Any] = {}
    for name, by_draw in found.items():
        outcomes = list(by_draw.values())
        true = [world.truth[o.winner] for o in outcomes]
        error = stdev(true) / math.sqrt(len(true)) if len(true) > 1 else None
        row: dict[str, Any] = {
            "draws": len(outcomes),
            "true": round(fmean(true), 5),
            "standard_error": None if error is None else round(error, 5),
            "best_share": round(fmean(o.winner == world.best for o in outcomes), 3),
            # How much better than the truth the winner looked, when it was confirmed and before.
            "claimed": _mean(sign * (o.claimed - world.truth[o.winner]) for o in outcomes),
            "searched": _mean(sign * (o.searched - world.truth[o.winner]) for o in outcomes),
            "spent_runs": _mean(o.spent / world.run_cost for o in outcomes),
            "hours": _mean(o.seconds / 3600 for o in outcomes),
        }
        for count in ("ideas", "failed", "repeats", "runs", "remeasured", "confirmed"):
            row[count] = round(fmean(getattr(o, count) for o in outcomes), 1)
        if name in against:
            d = against[name]
            row["difference"] = round(d.mean, 5)
            row["interval"] = [round(d.low, 5), round(d.high, 5)]
            row |= {"p_holm": d.p, "wins": d.wins, "losses": d.losses}
        rows[name] = row
    return rows


def _mean(values: Iterable[float]) -> float:
    return round(fmean(values), 5)


def table_of(rows: Mapping[str, Any], reference: str) -> str:
    """Return figures as a Markdown table, the best true value first as the reference has it."""
    lines = [
        f"| strategy | true value | better than {reference} by | wins : losses | p | "
        "confirmed − true | search − true | ideas | failed | again | finds the best |",
        "|---" * 11 + "|",
    ]
    for name, row in sorted(rows.items(), key=lambda each: -each[1].get("difference", 0.0)):
        error = row["standard_error"]
        cells = [name, f"{row['true']:.4f}" + ("" if error is None else f" ± {error:.4f}")]
        if "difference" in row:
            low, high = row["interval"]
            cells += [
                f"{row['difference']:+.4f} ({low:+.4f} to {high:+.4f})",
                f"{row['wins']} : {row['losses']}",
                f"{row['p_holm']:.2g}",
            ]
        else:
            cells += ["", "", ""]
        cells += [
            f"{row['claimed']:+.4f}",
            f"{row['searched']:+.4f}",
            f"{row['ideas']:.0f}",
            f"{row['failed']:.0f}",
            f"{row['remeasured']:.0f}",
            f"{row['best_share']:.0%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)

"""Results as tables and as one line."""

from __future__ import annotations

import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

DETERMINED = ("clean", "single", "pair")


@dataclass
class Result:
    """One slot of the corpus after all tools; `verdicts` is empty where it stayed empty."""

    group: str
    modes: tuple[str, ...]
    dropped: Counter[str]
    verdicts: dict[str, str] = field(default_factory=dict)
    code: str = ""
    seconds: tuple[float, float] = (0.0, 0.0)
    failure: str = ""


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def _counts(results: Iterable[Result], tool: str) -> Counter[str]:
    return Counter(r.verdicts[tool] for r in results if tool in r.verdicts)


def _row(name: str, counts: Counter[str]) -> str:
    whole = counts.total()
    shares = [_share(counts[verdict], whole) for verdict in ("correct", "wrong", "refused")]
    return f"{name:38}{whole:7}" + "".join(f"{share:>10}" for share in shares)


def by_mode(results: list[Result]) -> str:
    """Assay's rates for every mode; where a refusal is right it counts as correct."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        name = "pairs of modes" if result.group == "pair" else " + ".join(result.modes)
        groups[result.group, name].append(result)
    lines = [
        f"{'mode':38}{'cases':>7}{'correct%':>10}{'wrong%':>10}{'refused%':>10}{'dropped':>10}"
    ]
    last = ""
    for (group, name), members in groups.items():
        if group != last:
            lines += ["", f"[{group}]"]
            last = group
        dropped = sum(result.dropped.total() for result in members)
        lines.append(_row(name, _counts(members, "Assay")) + f"{dropped or '':>10}")
    return "\n".join(lines) + "\n"


def _tools(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.verdicts))


def by_tool(results: list[Result]) -> str:
    """Correct and wrong per group: of cases with a right result, and of those without."""
    head = ["clean+single", "pairs", "must refuse", "escapes"]
    lines = [" " * 24 + "".join(f"{name:>22}" for name in head)]
    lines.append(" " * 24 + f"{'correct% / wrong%':>22}" * 2 + f"{'refused% / applied%':>22}" * 2)
    for tool in _tools(results):
        cells = []
        for groups in (("clean", "single"), ("pair",), ("must_refuse",), ("escape",)):
            counts = _counts((r for r in results if r.group in groups), tool)
            whole = counts.total()
            cells.append(f"{_share(counts['correct'], whole)} / {_share(counts['wrong'], whole)}")
        lines.append(f"{tool:24}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines) + "\n"


def _figures(results: list[Result], tool: str) -> dict[str, Any]:
    def percent(groups: tuple[str, ...], verdict: str) -> float | None:
        counts = _counts((r for r in results if r.group in groups), tool)
        return round(100 * counts[verdict] / counts.total(), 2) if counts.total() else None

    return {
        "correct_single_percent": percent(("clean", "single"), "correct"),
        "correct_pairs_percent": percent(("pair",), "correct"),
        "wrong_percent": percent(DETERMINED, "wrong"),
        "must_refuse_percent": percent(("must_refuse",), "correct"),
        "escapes_refused_percent": percent(("escape",), "correct"),
    }


def summary(results: list[Result], seed: int, wall: float) -> dict[str, Any]:
    kept = [result for result in results if result.verdicts]
    reasons: Counter[str] = sum((result.dropped for result in results), Counter())
    times = [result.seconds for result in kept]
    counts = _counts((r for r in kept if r.group in DETERMINED), "Assay")
    return {
        "benchmark": "patching",
        # The trees are made of its standard library.
        "python": platform.python_version(),
        "seed": seed,
        "cases": len(kept),
        "determined": counts.total(),
        "wrong": counts["wrong"],
        **_figures(results, "Assay"),
        "median_ms": round(1000 * statistics.median(bare for _, bare in times), 3),
        "worst_ms": round(1000 * max(bare for _, bare in times), 1),
        "median_with_syntax_check_ms": round(
            1000 * statistics.median(all_ for all_, _ in times), 3
        ),
        "worst_with_syntax_check_ms": round(1000 * max(all_ for all_, _ in times), 1),
        "dropped_by_proof": reasons.total(),
        "unfilled": len(results) - len(kept),
        "wall_s": round(wall, 1),
        "alternatives": {
            tool: _figures(results, tool) for tool in _tools(results) if tool != "Assay"
        },
        "dropped_reasons": dict(reasons.most_common()),
    }


def closing(summary: dict[str, Any]) -> str:
    reasons = "; ".join(f"{text}: {n}" for text, n in summary["dropped_reasons"].items())
    return (
        f"{summary['cases']} cases, {summary['wrong']} wrong of "
        f"{summary['determined']} determined\n"
        f"{summary['dropped_by_proof']} dropped by the proof, "
        f"{summary['unfilled']} places unfilled\n"
        f"dropped: {reasons}\n"
        f"apply_answer besides the syntax check: median {summary['median_ms']} ms, "
        f"worst {summary['worst_ms']} ms\n"
        f"with it: median {summary['median_with_syntax_check_ms']} ms, "
        f"worst {summary['worst_with_syntax_check_ms']} ms; {summary['wall_s']} s in all\n"
    )

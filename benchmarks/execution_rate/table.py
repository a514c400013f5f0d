"""The figures of two runs over the same cases, for people and as one line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.contracts.report import ExecutionRow
from benchmarks.execution_rate.corpus import FAULTS
from benchmarks.execution_rate.policies import FEEDBACK, FIRST_DIFF, REPAIRED, Outcome, Run


def by_fault(first: Run, feedback: Run) -> str:
    """Cases, how many were executed under either policy, and requests per idea."""
    head = f"{'fault':10} {'cases':>5} {'(a)':>5} {'(b)':>5} {'calls (a)':>10} {'calls (b)':>10}"
    rows = [f"(a) {FIRST_DIFF.name}; (b) {FEEDBACK.name}", "", head]
    for fault in FAULTS:
        pair = [_with(run, fault) for run in (first, feedback)]
        if pair[0]:
            rows.append(_row(fault, *pair))
    rows.append(_row("all", first.outcomes, feedback.outcomes))
    rows.append(f"{'rate':10} {'':5} {first.rate:5.0%} {feedback.rate:5.0%}")
    return "\n".join(rows)


def _with(run: Run, fault: str) -> list[Outcome]:
    return [outcome for outcome in run.outcomes if outcome.case.fault == fault]


def _row(name: str, one: Sequence[Outcome], other: Sequence[Outcome]) -> str:
    done = [sum(o.executed for o in outcomes) for outcomes in (one, other)]
    calls = [sum(o.calls for o in outcomes) / len(outcomes) for outcomes in (one, other)]
    row = f"{name:10} {len(one):5} {done[0]:5} {done[1]:5}"
    return f"{row} {calls[0]:10.2f} {calls[1]:10.2f}"


def costs(first: Run, feedback: Run) -> str:
    """Where the seconds of the worker went."""
    rows = [f"{'seconds of attempts':34} {'(a)':>7} {'(b)':>7}"]
    for name, key in (
        ("measurements that were scored", "scored_s"),
        ("measurements that came to nothing", "wasted_s"),
        ("smokes", "smoke_s"),
    ):
        rows.append(f"{name:34} {getattr(first, key):7.0f} {getattr(feedback, key):7.0f}")
    rows.append(f"{'wall clock of the run':34} {first.elapsed_s:7.0f} {feedback.elapsed_s:7.0f}")
    return "\n".join(rows)


def funnel(run: Run) -> str:
    """`GET /v1/reports/execution`, without what is no funnel."""
    return "\n".join([f"{run.policy.name}:", *map(_funnel_row, run.rows)])


def _funnel_row(row: ExecutionRow) -> str:
    stages = ", ".join(f"{name} {number}" for name, number in row.funnel)
    failures = ", ".join(f"{f.stage}/{f.code} {f.count}" for f in row.failures) or "none"
    return (
        f"  {row.environment.partition('@')[0]}: {stages}\n"
        f"    failures: {failures}\n"
        f"    repairs: {row.repairs.experiments}, scored {row.repairs.scored}; "
        f"wasted {row.wasted_seconds:.0f} s; {row.usage.calls} calls"
    )


def problems(first: Run, feedback: Run) -> list[str]:
    """What is not as it should be; with any of it the benchmark fails."""
    found = first.problems() + feedback.problems()
    repairable = any(outcome.case.fault in REPAIRED for outcome in first.outcomes)
    if repairable and feedback.rate <= first.rate:
        found.append(f"{FEEDBACK.name} executes no more than {FIRST_DIFF.name}")
    for run in (first, feedback):
        reported = sum(row.wasted_seconds for row in run.rows)
        if abs(reported - run.wasted_s) > 0.5:
            found.append(
                f"{run.policy.name}: the report says {reported:.1f} s were wasted, "
                f"the attempts {run.wasted_s:.1f} s"
            )
        scored = sum(row.funnel.scored for row in run.rows)
        if scored != run.executed:
            found.append(f"{run.policy.name}: the report has {scored} scored of {run.executed}")
    return found


def summary(first: Run, feedback: Run, problems: Sequence[str]) -> dict[str, Any]:
    """The line of JSON."""
    cases = [outcome.case for outcome in first.outcomes]
    return {
        "name": "execution-rate",
        "cases": len(cases),
        "ideas": len({(case.environment, case.source) for case in cases}),
        "author": "scripted, no LLM",
        "policy": FEEDBACK.name,
        **_figures(feedback),
        "smoke_s": round(feedback.smoke_s, 1),
        "smokes": feedback.smokes,
        "alternative": FIRST_DIFF.name,
        **{f"alternative_{key}": value for key, value in _figures(first).items()},
        "sandbox": feedback.sandbox,
        "problems": len(problems),
    }


def _figures(run: Run) -> dict[str, Any]:
    return {
        "executed": run.executed,
        "rate": round(run.rate, 4),
        "calls_per_idea": round(run.calls / len(run.outcomes), 3),
        "wasted_s": round(run.wasted_s, 1),
        "scored_s": round(run.scored_s, 1),
        "elapsed_s": round(run.elapsed_s, 1),
    }

"""Trajectories in words, as prompts show them."""

from __future__ import annotations

import re

from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict
from assay.llm import prompts
from assay.llm.ideation import Baseline, Standing, Trajectory

#: Characters of what others wrote: an idea, a failure's message, a diff.
MOST_IDEA, MOST_FAILURE, MOST_DIFF = 3_000, 600, 4_000
_MOST_PARENTS = 4
#: Names of curves come from codebases that models wrote.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")
_WORDS = {
    Verdict.BETTER: "better than the baseline {}",
    Verdict.WORSE: "worse than the baseline {}",
    Verdict.UNDECIDED: "no clear difference from the baseline {}",
    Verdict.IDENTICAL: "identical to the baseline {}: the edit changed nothing that is measured",
    Verdict.PROVISIONAL: "beside the baseline {}, which is still being measured",
    Verdict.NOT_COMPARABLE: "not comparable with the baseline {}",
}


def baseline_sentence(metric: str, baseline: Baseline | None) -> str:
    """`The baseline reaches val_loss 1.3617 ± 0.013 on 20 seeds.`; empty if it is not known."""
    if baseline is None:
        return ""
    return f"The baseline reaches {metric} {_figure(baseline)} on {_seeds(baseline.seeds)}."


def result_line(past: Trajectory, metric: str) -> str:
    """What came of an experiment: `val_loss 1.4294 on 1 seed, worse than the baseline …`."""
    if past.state == ExperimentState.SUBMITTED:
        return "submitted: its result is not told"
    if past.metric is None:
        failed = past.failure[:MOST_FAILURE].strip() or "no valid result"
        return f"{past.state}: {failed}"
    seeds = f" on {_seeds(past.seeds)}" if past.seeds else ""
    line = f"{metric} {past.metric:.6g}{seeds}"
    if past.standing is not None:
        line += f", {_standing(past.standing)}"
    return line


def outcome(past: Trajectory, metric: str) -> str:
    """What came of an experiment, how long it took, and the end of its training curve."""
    result = result_line(past, metric)
    lines = [result if past.seconds is None else f"{result}; {past.seconds:.0f} s"]
    if past.curve is not None and past.curve.points:
        lines.append(_curve(past))
    return "\n".join(lines)


def describe(past: Trajectory, metric: str, *, with_diff: bool = False) -> str:
    """All that a prompt says of an experiment, between marks of its own."""
    lines = [_origin(past)]
    if past.elsewhere:
        lines.append(f"{past.elsewhere}: do not compare its numbers with those of this search")
    lines.append(outcome(past, metric))
    lines.append(_cut(past.idea_text.strip(), MOST_IDEA))
    if with_diff and past.diff:
        lines.append(f"Diff that was executed:\n{_cut(past.diff, MOST_DIFF)}")
    return prompts.fenced("EXPERIMENT", "\n".join(lines))


def recall(past: Trajectory, metric: str, mark: str = "POSITIVE") -> str:
    """An experiment that a prompt has described before: its id, its result and its diff.

    `mark`: the word at its beginning and end.
    """
    lines = [f"id {past.id}: {result_line(past, metric)}"]
    if past.diff:
        lines.append(f"Diff that was executed:\n{_cut(past.diff, MOST_DIFF)}")
    return prompts.fenced(mark, "\n".join(lines))


def _origin(past: Trajectory) -> str:
    parts = [f"id {past.id}", past.source, f"epoch {past.epoch}" if past.epoch >= 0 else ""]
    parts.append(past.operator)
    if past.parents:
        parts.append(f"built on {', '.join(past.parents[:_MOST_PARENTS])}")
    return ", ".join(part for part in parts if part)


def _standing(standing: Standing) -> str:
    words = _WORDS[Verdict(standing.verdict)].format(_figure(standing.baseline))
    if standing.mismatch:
        words += f" (other {', '.join(standing.mismatch)})"
    if standing.verdict != Verdict.BETTER:
        return words
    return f"{words} (a lead, not confirmed)"


def _curve(past: Trajectory) -> str:
    assert past.curve is not None
    name = _NOT_IN_NAMES.sub("", past.curve.name)[:40]
    points = ", ".join(f"{value:.4g} at step {step:g}" for step, value in past.curve.points)
    return f"end of its training curve, {name}: {points}"


def _figure(baseline: Baseline) -> str:
    spread = "" if baseline.spread is None else f" ± {baseline.spread:.2g}"
    return f"{baseline.mean:.6g}{spread}"


def _seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [… {len(text) - most} characters cut]"

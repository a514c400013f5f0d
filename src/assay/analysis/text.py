"""Text for people. What a model wrote is hostile to a terminal until it is cleaned."""

from __future__ import annotations

import math
import re

from assay.contracts.batch import ComparisonBody, UsedBody
from assay.contracts.environment import EnvironmentBody, SplitBody

# C0 and C1 controls but for tab and newline, and the characters that reorder displayed text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_HEADING = re.compile(r"^[\s>*#_`\d.)]*+\[Experiment\][*_`:]*+\s*+", re.IGNORECASE)
_CHANGES = re.compile(r"\[Code Changes\]", re.IGNORECASE)


def clean(text: str) -> str:
    """The text without terminal escapes, control characters and direction overrides."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, width: int) -> str:
    """The text cleaned, on one line of at most `width` characters."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= width else flat[: width - 1].rstrip() + "…"


def idea_title(text: str, width: int = 60) -> str:
    """A short name for an idea: its first line, without the `[Experiment]` heading."""
    for line in clean(text).splitlines():
        heading, *rest = _CHANGES.split(_HEADING.sub("", line), maxsplit=1)
        # Stripped here because a pattern that begins with the decoration takes quadratic time.
        stripped = (heading.rstrip("*_`#") if rest else heading).strip()
        if stripped:
            return one_line(stripped, width)
    return "(empty)"


def format_number(value: float | None) -> str:
    """Four digits after the point, or what fits a very small or large number."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def format_effect(comparison: ComparisonBody | None) -> str:
    """`+0.0123 [+0.0041, +0.0205]`: the effect and its 95 % interval.

    A positive effect is an improvement, whichever way the metric improves.
    """
    if comparison is None:
        return "–"
    effect = _signed(comparison.effect)
    if comparison.low is None or comparison.high is None:
        return f"{effect} (spread unknown)"
    return f"{effect} [{_signed(comparison.low)}, {_signed(comparison.high)}]"


def _signed(value: float) -> str:
    """Four digits after the point with a sign; what rounds to zero has none."""
    text = f"{value:+.4f}"
    return "0.0000" if text in ("-0.0000", "+0.0000") else text


def format_verdict(comparison: ComparisonBody | None) -> str:
    """`better, p 0.003`, `identical`, `undecided, p 0.4 (exploratory)`."""
    if comparison is None:
        return "–"
    verdict = comparison.verdict
    if comparison.mismatch:
        return f"{verdict} ({'; '.join(comparison.mismatch)})"
    if comparison.p is not None and verdict != "identical":
        verdict += f", p {comparison.p:.2g}" if comparison.p >= 1e-4 else ", p < 0.0001"
    return f"{verdict} (exploratory)" if comparison.exploratory else verdict


def format_multiple(value: float | None) -> str:
    """`1.2 x`: how many times the baseline's."""
    return "–" if value is None else f"{value:.2g} x" if value < 100 else f"{value:.0f} x"


def format_used(used: UsedBody | None) -> str:
    """What a result used beside the baseline, `compute 1.2 x, memory 1 x` say; else empty."""
    if used is None:
        return ""
    named = {
        "compute": used.compute,
        "compute of the evaluation": used.evaluation_compute,
        "memory": used.memory,
        "parameters (as stated)": used.parameters,
        "artifact": used.artifact,
        "seconds": used.seconds,
    }
    return ", ".join(f"{name} {format_multiple(v)}" for name, v in named.items() if v is not None)


def format_seconds(seconds: float | None) -> str:
    """`0.07 s`, `2.9 s`, `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if 0 < seconds < 0.01:
        return "< 0.01 s"
    whole = round(seconds)
    if whole < 60:
        # Whole seconds must not look more exact than they are, so no zeros follow the point.
        return f"{round(seconds, 2 if seconds < 1 else 1 if seconds < 10 else None):g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_result_seconds(seconds: float | None) -> str:
    """The time of a result, which is known in whole seconds: `< 1 s`, then as other durations.

    Exact times of evaluations could carry held-out data (docs/evaluation.md).
    """
    return "< 1 s" if seconds == 0 else format_seconds(seconds)


def worn_note(environment: EnvironmentBody) -> str | None:
    """What to know before trusting a ranking: which held-out splits are worn. None if none is."""
    worn = [split for split in environment.splits if split.worn]
    if not worn:
        return None
    each = ", ".join(f"{split.name} ({_wear(split)})" for split in worn)
    return (
        f"Worn held-out split: {each}. Ideas may have adapted to it, so confirm the top results "
        "(assay experiment confirm); see docs/evaluation.md#worn-splits."
    )


def _wear(split: SplitBody) -> str:
    said = f"{split.bits_shown:,} of {split.bits_budget:,} bits shown"
    return f"{said}, and the gap to confirmations grows" if split.gap_grows else said


def counted(number: int, thing: str, several: str | None = None) -> str:
    """`1 idea`, `2 ideas`; `several` is the plural where it takes more than an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {several or f'{thing}s'}"


#: Characters of the end of an id: 40 random bits.
SHORT_ID = 8


def short_id(id_: str) -> str:
    """`exp_5m8q2x7k`: an id by its prefix and end, which commands take in its place."""
    prefix, _, rest = id_.rpartition("_")
    return f"{prefix}_{rest[-SHORT_ID:]}" if prefix and len(rest) > SHORT_ID else id_


#: Characters of an idea that are shown.
_MOST_TEXT = 2_000


def without_tags(text: str, *, is_whole: bool) -> str:
    """Return an idea cleaned and shortened; unless `is_whole`, without its code changes."""
    shown = clean(text).strip().removesuffix("[End]").strip()
    if not is_whole:
        shown = shown.partition("[Code Changes]")[0].strip()
        shown = shown.removeprefix("[Experiment]").strip()
    return shown if len(shown) <= _MOST_TEXT else shown[: _MOST_TEXT - 1].rstrip() + "…"

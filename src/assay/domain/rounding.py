"""How many digits of a result are shown, and how many bits of held-out data they can carry.

The codebase that is measured was written by a model and may be hostile. A predictor can encode
held-out text in the low digits of its own score, and whoever writes the next idea can read them.
So exact numbers stay in the database, where verdicts are computed from them. Everything that is
shown is computed from rounded numbers, and the bits of those are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

#: Significant digits where no standard error asks for fewer.
DIGITS = 4
#: Bits that the results of an environment may show about a held-out split before it counts as
#: worn, unless its manifest says otherwise. `docs/evaluation.md` derives it.
DEFAULT_BITS = 10_000
#: Whether a measurement succeeded, and if not, with which of at most 31 codes.
OUTCOME_BITS = 5
#: Four verdicts, which are computed from exact numbers.
VERDICT_BITS = 2
#: Numbers taken before the codebase's output met held-out data.
_TRAINING = "train_"
_SECONDS, _BYTES, _RESCORED = "_seconds", "_bytes", "rescored"
#: What predictors used beside the baseline's. They choose it while they see held-out data.
_EVALUATION_COMPUTE = "evaluation_compute"
_MIB = 1 << 20
#: Has room for the digits of the largest float down to the smallest step, 10 ** -327.
_EVERY_FLOAT = Context(prec=700)


def resolution(value: float, standard_error: float | None = None) -> Decimal:
    """Return the step to which a finite number is rounded, a power of ten.

    It is the largest one that is at most a tenth of the standard error, or that of the fourth
    significant digit where this is coarser. A standard error that is not a positive number says
    nothing and is ignored.
    """
    return _resolution(_decimal(value), standard_error)


def _resolution(exact: Decimal, standard_error: float | None) -> Decimal:
    exponent = exact.adjusted() - DIGITS + 1 if exact else -DIGITS
    if standard_error is not None and math.isfinite(standard_error) and standard_error > 0:
        exponent = max(exponent, _exponent(standard_error) - 1)
    return Decimal(1).scaleb(exponent)


def shown(value: float, standard_error: float | None = None) -> float:
    """Return a number as it is shown: rounded to its resolution, ties to even.

    NaN and infinite numbers are returned as they are.
    """
    if not math.isfinite(value):
        return value
    exact = _decimal(value)
    return _to_step(exact, _resolution(exact, standard_error))


def shown_or_none(value: float | None) -> float | None:
    """Return a number as it is shown; None stays None."""
    return None if value is None else shown(value)


def whole(seconds: float) -> float:
    """Return seconds as they are shown: whole ones."""
    return _rounded(seconds, Decimal(1)) if math.isfinite(seconds) else seconds


def standard_error(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the standard error that an evaluator states for one of its metrics, or None.

    Evaluators state it as `<metric>/se`, and parts of it as `<metric>/<part>_se`; the largest one
    counts.
    """
    return _standard_errors(metrics).get(name)


def shown_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluator's metrics as they are shown.

    A number named `<metric>/<detail>` is rounded at least as coarsely as `<metric>`: otherwise the
    digits that are missing from one could be read in the other.
    """
    errors = _standard_errors(metrics)
    return {
        key: _rounded(value, _step(metrics, key, errors)) if _is_finite(value) else value
        for key, value in metrics.items()
    }


def shown_rescore(second: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a second evaluation as they are shown.

    Each is rounded by the rule of `shown_metrics`, and at least as coarsely as the first
    evaluation's is.
    """
    steps = _rescore_steps(second, first)
    return {
        key: _rounded(value, steps[key]) if key in steps else value
        for key, value in second.items()
    }


def shown_provenance(
    provenance: Mapping[str, Any], metrics: Mapping[str, Any], metric: str
) -> dict[str, Any]:
    """Return a result's provenance as it is shown.

    Seconds are whole, bytes are whole MiB, `rescored` is rounded as `metric` is,
    `evaluation_compute` has two digits at most, and any other number that is not an integer has
    four significant digits.
    """
    return {key: _shown_fact(key, value, metrics, metric) for key, value in provenance.items()}


def _shown_fact(key: str, value: Any, metrics: Mapping[str, Any], metric: str) -> Any:
    if isinstance(value, Mapping):
        return shown_provenance(value, metrics, metric)
    if isinstance(value, list):
        return [_shown_fact(key, item, metrics, metric) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and key.endswith(_BYTES):
        return (value + _MIB // 2) // _MIB * _MIB
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if key.endswith(_SECONDS):
        return whole(value)
    if key == _EVALUATION_COMPUTE:
        return _rounded(value, _coarse(value))
    if key == _RESCORED:
        return _rounded(
            value, max(_step(metrics, metric, _standard_errors(metrics)), resolution(value))
        )
    return shown(value)


@dataclass(frozen=True)
class Bits:
    """Bits about the held-out splits `search` and `sealed`."""

    search: int = 0
    sealed: int = 0


def bits_of(value: float, step: Decimal) -> int:
    """Return the length of a prefix code for a number that was rounded to `step`.

    The code is Elias delta, for the multiple of the step and for the step's exponent. It needs no
    bound on the number: a larger one costs more. As it is a prefix code, results of B bits in all
    are one of at most 2^B.
    """
    if not math.isfinite(value):
        return 2  # NaN or one of two infinities
    exponent = step.adjusted()
    multiple = int(_decimal(value) / step)
    return _elias_delta(multiple) + _elias_delta(exponent)


@dataclass(frozen=True)
class SplitMetrics:
    """Which metric an evaluation took on each split; None where it did not read the split."""

    search: str | None = None
    sealed: str | None = None

    @property
    def metric(self) -> str:
        """The one that counts: on `sealed`, if that was read."""
        found = self.sealed or self.search
        assert found is not None, "an evaluation reads a split"
        return found


def success_bits(
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
    seconds: float,
    scored: SplitMetrics,
) -> Bits:
    """Return what a result shows about each split: all its numbers, its outcome, its verdict.

    The family of a split's metric (the number itself and `<metric>/…`) is about that split. All
    else counts for every split that the evaluation read.
    """
    families = {key: key.partition("/")[0] for key in metrics}
    errors = _standard_errors(metrics)
    each = {
        key: bits_of(value, _step(metrics, key, errors)) if _is_finite(value) else 2
        for key, value in shown_metrics(metrics).items()
    }
    both = OUTCOME_BITS + VERDICT_BITS + bits_of(whole(seconds), Decimal(1))
    metric = scored.metric
    both += sum(_fact_bits(shown_provenance(provenance, metrics, metric), metrics, metric))
    names = (scored.search, scored.sealed)
    both += sum(n for key, n in each.items() if families[key] not in names)
    search, sealed = (
        both + sum(n for key, n in each.items() if families[key] == name) if name else 0
        for name in names
    )
    return Bits(search, sealed)


def rescore_bits(
    second: Mapping[str, Any], seconds: float, first: Mapping[str, Any], scored: SplitMetrics
) -> Bits:
    """Return what the second evaluation of a result shows about each split, beside the first.

    The family of the metric on `sealed` is about that split. All else counts for every split that
    the evaluation read, as the second score does where a worker tells it in the provenance.
    """
    steps = _rescore_steps(second, first)
    each = {
        key: bits_of(value, steps[key]) if key in steps else 2
        for key, value in shown_rescore(second, first).items()
    }
    sealed = sum(n for key, n in each.items() if key.partition("/")[0] == scored.sealed)
    both = sum(each.values()) - sealed + bits_of(whole(seconds), Decimal(1))
    return Bits(both if scored.search else 0, both + sealed if scored.sealed else 0)


def failure_bits(scored: SplitMetrics) -> Bits:
    """Return what a failure in scoring shows: its code."""
    return Bits(
        OUTCOME_BITS if scored.search else 0,
        OUTCOME_BITS if scored.sealed else 0,
    )


def _fact_bits(facts: Mapping[str, Any], metrics: Mapping[str, Any], metric: str) -> Iterator[int]:
    """The bits of every number in a provenance that was measured while scoring."""
    for key, value in facts.items():
        if key.startswith(_TRAINING):
            continue
        if isinstance(value, Mapping):
            yield from _fact_bits(value, metrics, metric)
        elif isinstance(value, float):
            yield bits_of(value, _fact_step(key, value))


def _fact_step(key: str, value: float) -> Decimal:
    """The step to which a fact that is not `rescored` was rounded."""
    if key.endswith(_SECONDS):
        return Decimal(1)
    return _coarse(value) if key == _EVALUATION_COMPUTE else resolution(value)


def _coarse(value: float) -> Decimal:
    """A tenth, or the step of the second significant digit where that is coarser."""
    return max(Decimal("0.1"), Decimal(1).scaleb(0 if value == 0 else _exponent(value) - 1))


def _rescore_steps(second: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Decimal]:
    """The step of each finite metric of a second evaluation: its own, or the first one's."""
    own, other = _standard_errors(second), _standard_errors(first)
    steps = {}
    for key, value in second.items():
        if _is_finite(value):
            beside = first if _is_finite(first.get(key)) else {**first, key: value}
            steps[key] = max(_step(second, key, own), _step(beside, key, other))
    return steps


def _standard_errors(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The standard error of each metric that has one, in one pass over the metrics."""
    errors: dict[str, float] = {}
    for key, value in metrics.items():
        family, _, detail = key.partition("/")
        is_error = detail == "se" or detail.endswith("_se")
        if is_error and _is_finite(value) and value > 0:
            errors[family] = max(float(value), errors.get(family, 0.0))
    return errors


def _step(metrics: Mapping[str, Any], key: str, errors: Mapping[str, float]) -> Decimal:
    """The step of one metric: that of its family, or its own where that is coarser."""
    family = key.partition("/")[0]
    error = errors.get(family)
    own = resolution(float(metrics[key]), error)
    if not _is_finite(metrics.get(family)):
        return own
    return max(own, resolution(float(metrics[family]), error))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _exponent(value: float) -> int:
    """The power of ten of the first significant digit."""
    return _decimal(value).adjusted()


def _rounded(value: float, step: Decimal) -> float:
    return _to_step(_decimal(value), step)


def _to_step(exact: Decimal, step: Decimal) -> float:
    # On decimals, so that the result is the float nearest to the short decimal; adding zero makes
    # a negative zero positive.
    return float(exact.quantize(step, ROUND_HALF_EVEN, _EVERY_FLOAT)) + 0.0


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


def _elias_delta(number: int) -> int:
    """The length of the Elias delta code of an integer of either sign."""
    positive = 2 * abs(number) + (number >= 0)  # 0, -1, 1, -2, … become 1, 2, 3, 4, …
    digits = positive.bit_length()
    return digits - 1 + 2 * (digits.bit_length() - 1) + 1

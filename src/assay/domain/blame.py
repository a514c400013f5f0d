"""What a stored failure says: whether identical code shares it, whether an ideator is shown it.

`storage/measurements.py` asks before it shares a failure, `search/trajectories.py` before it shows
one. Both ask here, so that one place decides.
"""

from __future__ import annotations

#: The code ran out of time, or its evaluation ended: on a faster or quieter host it may not have.
_DEPENDS_ON_HOST = frozenset(
    {"wall_budget_exceeded", "cpu_budget_exceeded", "timeout", "evaluator_error"}
)
#: The host, the service, a provider or a cap ended it. Nothing was learnt about the idea.
_NOT_OF_THE_IDEA = frozenset(
    {
        "infrastructure",
        "quarantined",
        "evaluation_interrupted",
        "evaluator_error",
        "rate_limited",
        "provider_unavailable",
        "bad_request",
        "model_error",
        "missing_package",
        "replay_miss",
        "too_late",
        "spend_cap",
        "gpu_hours_cap",
    }
)


def is_shared(code: str, *, retryable: bool) -> bool:
    """Return whether a failure holds for identical code that is asked for later.

    `retryable` marks failures of the infrastructure.
    """
    return not retryable and code not in _NOT_OF_THE_IDEA | _DEPENDS_ON_HOST


def is_shown(code: str, *, retryable: bool) -> bool:
    """Return whether ideators are shown a failure: those that say nothing of the idea are not.

    `retryable` marks failures of the infrastructure.
    """
    return not retryable and code not in _NOT_OF_THE_IDEA

"""Records of trajectories as the service sends them."""

from __future__ import annotations

from typing import Any

from assay.contracts.trajectory import TrajectoryBody


def record(position: int = 0, **changes: Any) -> TrajectoryBody:
    """A record of an experiment that succeeded; `changes` by field."""
    fields: dict[str, Any] = {
        "kind": "score", "experiment": f"exp_{position}", "batch": "bat_1", "search": "srch_1",
        "epoch": 0, "position": position, "environment": "toy@abc", "profile": "tiny",
        "hardware_class": "cpu", "conditions": None, "ideator": None,
        "executor": "offline:literal",
        "operator": "seed", "parents": ["exp_a", "exp_b"], "client_key": None, "confirms": None,
        "retries": None, "reproduces": None, "retried_as": [], "idea": "An idea.",
        "thinking": None, "base": None, "base_name": None, "codebase": "c" * 64, "diff": "+ a\n",
        "state": "succeeded", "failure_stage": None, "failure_code": None, "failure_blame": None,
        "failure_message": None, "metric_name": "score", "direction": "maximize", "metric": 0.5,
        "reward": 0.5,
        "seeds": [{"seed": 3, "measurement": "mea_1", "state": "succeeded", "metric": 0.5,
                   "seconds": 2.0, "failure_code": None}],
        "seconds": 2.0, "warm_up_seconds": None, "verdict": "better", "effect": 0.1,
        "effect_low": 0.05, "effect_high": 0.15, "standard_error": 0.02, "p": 0.01,
        "exploratory": False, "baseline_mean": 0.4, "baseline_spread": 0.01, "baseline_n": 3,
        "claimed": None, "implementation": "impl_1", "executor_calls": 1,
        "executor_input_tokens": 10, "executor_cached_input_tokens": 0,
        "executor_output_tokens": 5, "executor_cost_usd": 0.25,
        "created_at": "2026-11-01T12:00:00.123456Z", "finished_at": "2026-11-01T12:00:09Z",
    }  # fmt: skip
    return TrajectoryBody.model_validate(fields | changes)


#: What ends up null in a record of an experiment that failed before it was measured.
UNMEASURED: dict[str, Any] = {
    "metric": None, "reward": 0.0, "seeds": [], "seconds": None, "verdict": None, "effect": None,
    "effect_low": None, "effect_high": None, "standard_error": None, "p": None,
    "exploratory": None, "baseline_mean": None, "baseline_spread": None, "baseline_n": None,
    "codebase": None, "diff": None, "epoch": None, "search": None, "finished_at": None,
    "executor_cost_usd": None, "state": "failed", "failure_stage": "implement",
    "failure_code": "no_match", "failure_blame": "idea", "failure_message": "line 3",
}  # fmt: skip

"""What is measured of each environment. Written down before it is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A discrimination table: edits called `kind…` (all by default) on seeds 0 to `seeds` - 1."""

    seeds: int
    kind: str = ""


@dataclass(frozen=True)
class Nulls:
    """Many seeds of the baseline and of some edits, to try verdict rules on without training."""

    baseline_seeds: int
    edit_seeds: int
    edits: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What is measured of one environment in one profile.

    `guess` is about how many seconds a run takes; it is used until one has been measured. Cores
    are idle while other programs use less than `idle_below` of all processors. This program's own
    share counts as others': with runs of milliseconds (`toy`) the cost says nothing.
    """

    environment: str
    tables: tuple[Table, ...]
    guess: float
    profile: str = "tiny"
    baseline_seeds: int = 20
    cost_runs: int = 7
    idle_below: float = 0.2
    nulls: Nulls | None = None


#: An edit that changes nothing but rounding: each seed stays near the baseline's.
NULL_CONTROL = "control_norm_eps"
#: Six good and six bad edits. A verdict rule has to hold whatever the spread of an idea is, so the
#: edits were chosen by spread: the good ones were sorted by their spread over five seeds in the
#: table committed for nanogpt@ee07df8932cb, and six were taken at equal steps of rank, with both
#: ends (ranks 0, 3, 6, 8, 11 and 14 of 0 to 14); likewise the bad ones (0, 3, 6, 9, 12 and 15 of 0
#: to 15). Their means played no part. The choice stays when the environment changes.
NULL_EDITS = (
    "good_zero_projections",
    "good_rotary_positions",
    "good_attention_decays_with_distance",
    "good_smaller_batch",
    "good_attention_at_full_scale",
    "good_shift_half_the_channels",
    "bad_plain_sgd",
    "bad_unit_embeddings",
    "bad_label_smoothing",
    "bad_tight_logits",
    "bad_sigmoid_activation",
    "bad_no_mlp_residual",
)

PLANS = (
    Plan("toy", (Table(16),), guess=1.0, cost_runs=0),
    Plan("nanogpt", (Table(5),), guess=15.0, nulls=Nulls(160, 20, (*NULL_EDITS, NULL_CONTROL))),
    Plan("grpo", (Table(5), Table(10, "good")), guess=25.0),
)

"""The ledger of a batch's model calls: a table, and totals by state."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich.table import Table

from assay.analysis.tables import cell, table
from assay.analysis.text import clean, format_seconds
from assay.contracts.batch import CallBody


def totals(calls: Sequence[CallBody]) -> list[dict[str, Any]]:
    """What the calls of each state used, and all of them; dollars are null if one has no price.

    `input_tokens` holds all input, cached or not. A call under way has no cost yet.
    """
    states = sorted({call.state for call in calls})
    found = [_total(state, [c for c in calls if c.state == state]) for state in states]
    return [*found, _total("all", calls)]


def _total(state: str, calls: Sequence[CallBody]) -> dict[str, Any]:
    unpriced = any(c.cost_usd is None and c.finished_at is not None for c in calls)
    cost = sum((Decimal(c.cost_usd) for c in calls if c.cost_usd is not None), Decimal(0))
    return {
        "state": state,
        "calls": len(calls),
        "input_tokens": sum(map(_input, calls)),
        "cached_input_tokens": sum(c.cached_input_tokens for c in calls),
        "output_tokens": sum(c.output_tokens for c in calls),
        "cost_usd": None if unpriced else f"{cost.normalize():f}",
    }


def totals_table(sums: Sequence[dict[str, Any]]) -> Table:
    """Totals by state."""
    right = ["calls", "input", "of it cached", "output", "USD"]
    made = table("state", *right, title="Totals", right=right)
    for each in sums:
        tokens = (each["input_tokens"], each["cached_input_tokens"], each["output_tokens"])
        cost = "unknown" if each["cost_usd"] is None else each["cost_usd"]
        made.add_row(*map(cell, (each["state"], each["calls"], *tokens, cost)))
    return made


def call_table(calls: Sequence[CallBody]) -> Table:
    """Every call, oldest first. A cost that is an estimate begins with `~`."""
    right = ["try", "input", "output", "USD", "time"]
    made = table(
        "started", "implementation", "sample", "try", "model", "state", "code",
        "input", "output", "USD", "time", right=right,
    )  # fmt: skip
    for call in calls:
        cells = (
            call.started_at.strftime("%m-%d %H:%M:%S"),
            call.implementation,
            f"{call.sample}.{call.revision}",
            call.number,
            clean(call.model),
            call.state,
            clean(call.code or "–"),
            _input(call),
            call.output_tokens,
            _cost(call),
            format_seconds(call.seconds),
        )
        made.add_row(*map(cell, cells))
    return made


def _input(call: CallBody) -> int:
    return call.input_tokens + call.cached_input_tokens + call.cache_write_tokens


def _cost(call: CallBody) -> str:
    if call.finished_at is None:
        return "–" if call.reserved_usd is None else f"~{call.reserved_usd}"
    if call.cost_usd is None:
        return "unknown"
    return f"~{call.cost_usd}" if call.is_estimate else call.cost_usd

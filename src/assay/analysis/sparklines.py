"""Numbers as a line of blocks, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40


def sparkline(values: Sequence[float | None], width: int = WIDTH) -> str:
    """`█▅▃▂▁`: the lowest value is the lowest block; a blank where there is no finite value.

    More values than `width` are averaged in as many groups.
    """
    shown = values if len(values) <= width else _grouped(values, width)
    finite = [v for v in shown if v is not None and math.isfinite(v)]
    if not finite:
        return ""
    low, reach = min(finite), max(finite) - min(finite)
    return "".join(_block(v, low, reach) for v in shown)


def _block(value: float | None, low: float, reach: float) -> str:
    if value is None or not math.isfinite(value):
        return " "
    share = (value - low) / reach if 0 < reach < math.inf else 0.5
    return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]


def _grouped(values: Sequence[float | None], width: int) -> list[float | None]:
    groups = (
        values[n * len(values) // width : (n + 1) * len(values) // width] for n in range(width)
    )
    finite = ([v for v in group if v is not None and math.isfinite(v)] for group in groups)
    return [fmean(group) if group else None for group in finite]

"""Scores the point that a search left behind. Trusted: it never enters the sandbox."""

import json
import math
from typing import Any


def height(landscape: dict[str, list[float]], x: list[float]) -> float:
    """A bowl with ripples; 0 at the bottom."""
    total = 0.0
    for xi, bottom, wave in zip(x, landscape["bottom"], landscape["waves"], strict=True):
        distance = xi - bottom
        total += distance * distance + 0.9 * (1.0 - math.cos(wave * distance))
    return total


def evaluate(run: Any) -> dict[str, float]:
    """`score` is 1 / (1 + height) at the point, on a landscape that the search did not see."""
    answer = run.read_json("answer.json", max_bytes=10_000)
    landscape = json.loads((run.held_out / "landscape.json").read_text())
    x = answer.get("x") if isinstance(answer, dict) else None
    dimensions = len(landscape["bottom"])
    if not isinstance(x, list) or len(x) != dimensions:
        run.reject(
            "wrong_shape",
            "answer.json must hold {'x': [as many numbers as the landscape has dimensions]}",
        )
    if any(type(xi) not in (int, float) for xi in x):
        run.reject("wrong_type", "the coordinates must be numbers")
    if any(abs(xi) > 1e6 for xi in x):
        run.reject("not_finite", "the coordinates must be smaller than a million")
    return {"score": 1.0 / (1.0 + height(landscape, [float(xi) for xi in x]))}

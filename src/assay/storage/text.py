"""Make values storable: Postgres keeps neither NUL characters nor non-finite JSON numbers."""

from __future__ import annotations

import math
from typing import Any


def clean_text(text: str | None) -> str | None:
    """Replace NUL characters and lone surrogates, which models and logs may contain."""
    if text is None:
        return None
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def clean_json(value: Any) -> Any:
    """A JSON value with clean strings, and non-finite numbers as "NaN" and "±Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(k)): clean_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(v) for v in value]
    return value

"""Whether a text is Python."""

from __future__ import annotations

import ast
import warnings


def parses(text: str) -> bool:
    """Whether it is Python; what the interpreter only warns of is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True

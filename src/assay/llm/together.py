"""Calls of models that are made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def all_ended(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls, in order.

    If one fails, the others still end before its error is raised, since they are paid for.
    """
    ended = await asyncio.gather(*calls, return_exceptions=True)
    results: list[T] = []
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results

"""Cursor pages: a cursor is opaque and bound to the filter it was made for."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from assay.contracts.base import MAX_INTEGER, Page
from assay.domain.errors import InvalidInput
from assay.domain.hashing import derive_seed
from services.implementer.dependencies import PageRequest
from services.implementer.problems import BadParameter

_MAX_ID = 64
Row = TypeVar("Row")
Body = TypeVar("Body")


def after(page: PageRequest, filters: dict[str, Any]) -> Any:
    """The key after which the page starts, or None for the first page.

    Raises:
        BadParameter: the cursor was not made by this endpoint with these filters.
    """
    if page.cursor is None:
        return None
    try:
        decoded = json.loads(base64.urlsafe_b64decode(page.cursor.encode()))
        key, bound_to = decoded
    except (ValueError, binascii.Error, TypeError):
        raise _wrong_cursor() from None
    if bound_to != _fingerprint(filters):
        raise BadParameter.field(
            "cursor", "made for other filters; start again without a cursor", "invalid_parameter"
        )
    if not _is_key(key):
        raise _wrong_cursor()
    return key


def _is_key(key: Any) -> bool:
    """Whether a decoded key is an id or a number that a database can compare with."""
    if isinstance(key, str):
        return len(key) <= _MAX_ID and key.isprintable()
    return isinstance(key, int) and 0 <= key <= MAX_INTEGER


def _wrong_cursor(
    why: str = "not a cursor of this API; pass `next_cursor` as it came",
) -> InvalidInput:
    return BadParameter.field("cursor", why, "invalid_parameter")


def position_of(key: Any) -> int:
    """A cursor's key as a place: of an idea in its batch, an epoch in its search.

    Raises:
        BadParameter: it is no place.
    """
    if isinstance(key, int) and 0 <= key < 2**31:
        return key
    raise _wrong_cursor()


def page_of(
    rows: Sequence[Row],
    page: PageRequest,
    filters: dict[str, Any],
    key: Callable[[Row], Any],
    body: Callable[[Row], Body],
) -> Page[Body]:
    """A page from up to `limit + 1` rows: the extra one only tells that there is more."""
    shown = rows[: page.limit]
    cursor = _cursor(key(shown[-1]), filters) if len(rows) > page.limit else None
    return Page(data=[body(row) for row in shown], next_cursor=cursor)


def page_within(
    bodies: Iterable[Body],
    page: PageRequest,
    filters: dict[str, Any],
    key: Callable[[Body], Any],
    size: Callable[[Body], int],
    max_size: int,
) -> Page[Body]:
    """A page that ends at the limit, or before its bodies together exceed a size.

    It has at least one body, however large, unless there is none. Bodies are taken up to the
    first that does not fit; if they are made as they are taken, no others are made.
    """
    shown: list[Body] = []
    total = 0
    for body in bodies:
        total += size(body)
        if shown and (len(shown) == page.limit or total > max_size):
            return Page(data=shown, next_cursor=_cursor(key(shown[-1]), filters))
        shown.append(body)
    return Page(data=shown)


def _cursor(key: Any, filters: dict[str, Any]) -> str:
    text = json.dumps([key, _fingerprint(filters)])
    return base64.urlsafe_b64encode(text.encode()).decode()


def _fingerprint(filters: dict[str, Any]) -> str:
    return f"{derive_seed(json.dumps(filters, sort_keys=True, default=str)):x}"

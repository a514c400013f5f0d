"""What the groups of calls (`client.batches`, …) have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from assay.client.http import Http, Query
from assay.contracts.base import Page

M = TypeVar("M", bound=BaseModel)


class Group:
    """Calls below one path."""

    path = ""

    def __init__(self, http: Http) -> None:
        self._http = http

    def _get(self, model: type[M], path: str, query: Query | None = None) -> M:
        response = self._http.request("GET", path, query=query)
        return model.model_validate_json(response.content)

    def _page(self, model: type[M], path: str, query: Query) -> Page[M]:
        response = self._http.request("GET", path, query=query)
        return Page[model].model_validate_json(response.content)  # type: ignore[valid-type]

    def _walk(self, model: type[M], path: str, query: Query) -> Iterator[M]:
        """Every element of a list, page by page."""
        cursor: str | None = None
        while True:
            page = self._page(model, path, {**query, "cursor": cursor})
            yield from page.data
            cursor = page.next_cursor
            if cursor is None:
                return


def segment(name: str | int) -> str:
    """A name as one segment of a path."""
    return quote(str(name), safe="@")

"""Tags and a note that an owner gives to an experiment or a search."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from assay.contracts.base import ItemsOrNone, Request, Storable

MAX_TAGS, MAX_TAG, MAX_NOTE = 20, 40, 10_000

#: ASCII alone, so that no two tags look alike and a tag needs no escaping in a terminal.
TagName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]+$", min_length=1, max_length=MAX_TAG)]


def _distinct(tags: list[str] | None) -> list[str] | None:
    return None if tags is None else list(dict.fromkeys(tags))


class AnnotationRequest(Request):
    """New tags and a new note. What is absent or null stays as it is; what is empty is removed."""

    tags: Annotated[ItemsOrNone[TagName], AfterValidator(_distinct)] = Field(
        None,
        max_length=MAX_TAGS,
        description="All tags from now on, in this order; a repeated one counts once.",
    )
    note: Annotated[str, Field(max_length=MAX_NOTE), Storable()] | None = Field(
        None, description="Shown as plain text."
    )

"""The page of tags: which there are, and what has one of them."""

from __future__ import annotations

from fastapi import Request, Response

from assay.storage.annotations import count_tags
from services.implementer.dependencies import (
    MAX_PAGE,
    ContextDep,
    Cursor,
    OwnerDep,
    PageRequest,
    TagQuery,
)
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import page_router
from services.implementer.routers import experiments, searches

router = page_router()
#: Tags that are listed, the most used ones; any other is found by its address.
_MOST_TAGS = 200


@router.get("/tags")
def tags(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    tag: TagQuery = None,
    cursor: Cursor = None,
    searches_cursor: Cursor = None,
) -> Response:
    """Show the owner's tags, and the searches and experiments that have the chosen one.

    The tag is a parameter because a path cannot hold every tag: `..` is one, and so is `a/b`.
    """
    with context.db.read() as session:
        counts = count_tags(session, owner, _MOST_TAGS)
    found_searches = found_experiments = None
    if tag is not None:
        found_searches = searches.list_(
            context, owner, PageRequest(MAX_PAGE, searches_cursor), tag=tag
        )
        found_experiments = experiments.list_(
            context, owner, PageRequest(MAX_PAGE, cursor), tag=tag
        )
    return render(
        request,
        "tags.html",
        owner=owner,
        counts=counts,
        chosen=tag,
        searches=found_searches,
        cursor=cursor,
        searches_cursor=searches_cursor,
        experiments=found_experiments,
    )

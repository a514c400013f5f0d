"""Change the tags and notes of experiments and searches, and print them: for both nouns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from assay.domain.errors import InvalidInput

if TYPE_CHECKING:
    from assay.cli.output import Output

Add = Annotated[
    list[str] | None, typer.Option("--tag", help="Add this tag; may be repeated.", metavar="TAG")
]
Remove = Annotated[
    list[str] | None,
    typer.Option("--untag", help="Remove this tag; may be repeated.", metavar="TAG"),
]
Note = Annotated[str | None, typer.Option(help="Replace the note; an empty one removes it.")]
OnlyTag = Annotated[str | None, typer.Option("--tag", help="Only with this tag.")]


class Annotatable(Protocol):
    """An experiment or a search, as the API shows it."""

    tags: list[str]
    note: str


class Group(Protocol):
    """`client.experiments` or `client.searches`."""

    def get(self, id_: str, /) -> Annotatable:
        """Return what has this id."""

    def annotate(
        self, id_: str, /, *, tags: Sequence[str] | None = None, note: str | None = None
    ) -> Annotatable:
        """Replace the tags, the note or both."""


def annotate(
    out: Output,
    group: Group,
    ids: Iterable[str],
    add: Sequence[str] | None,
    remove: Sequence[str] | None,
    note: str | None,
) -> None:
    """Add and remove tags, replace the note, and print what is there now.

    Raises:
        InvalidInput: nothing is to be changed, or a tag is to be both added and removed.
    """
    added, removed = add or [], remove or []
    if not added and not removed and note is None:
        raise InvalidInput("name what to change: --tag, --untag or --note")
    if both := sorted({*added} & {*removed}):
        raise InvalidInput(f"--tag and --untag both name {', '.join(both)}; leave one of them out")
    bodies, lines = [], []
    ids = list(dict.fromkeys(ids))
    for id_ in ids:
        tags = None
        if added or removed:
            kept = [tag for tag in group.get(id_).tags if tag not in removed]
            tags = list(dict.fromkeys([*kept, *added]))
        body = group.annotate(id_, tags=tags, note=note)
        bodies.append(body)
        told = describe_annotation(body) or ["no tags and no note"]
        lines.append(f"{id_}:\n" + indent("\n".join(told), "  "))
    out.changed(" ".join(ids), "\n".join(lines), detail=bodies)


def describe_annotation(body: Annotatable) -> list[str]:
    """Return lines for people: the tags, and the note, which may have several lines."""
    from assay.analysis.text import clean

    tags = [f"tags: {clean(', '.join(body.tags))}"] if body.tags else []
    return tags + ([f"note: {clean(body.note)}"] if body.note else [])

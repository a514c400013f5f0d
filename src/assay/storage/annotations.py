"""Read and change the tags and notes of experiments and searches.

The routers of both write them, the views show them. They belong to no aggregate: changing one
touches no row of an experiment, batch or search, and makes no event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from assay.storage import schema
from assay.storage.rows import among, changed, insert_missing, run

_OF_SUBJECTS = select(
    schema.Annotation.subject_id, schema.Annotation.tags, schema.Annotation.note
).where(among(schema.Annotation.subject_id))


class Annotation(NamedTuple):
    """The tags and the note of an experiment or a search."""

    tags: list[str]
    note: str


def change_annotation(
    session: Session, owner: str, subject_id: str, tags: Sequence[str] | None, note: str | None
) -> None:
    """Replace the tags, the note or both; None leaves what is there."""
    table = schema.Annotation
    values: dict[str, Any] = {} if note is None else {"note": note}
    if tags is not None:
        values["tags"] = list(tags)
    if not values:
        return
    insert_missing(session, table, [{"subject_id": subject_id, "tags": [], "note": ""}])
    # Updated before the rows of `tag` are replaced: the lock on this row keeps two changes of the
    # same tags from mixing.
    changed(session, update(table).where(table.subject_id == subject_id).values(**values))
    if tags is not None:
        changed(session, delete(schema.Tag).where(schema.Tag.subject_id == subject_id))
        rows = [{"subject_id": subject_id, "name": name, "owner": owner} for name in tags]
        insert_missing(session, schema.Tag, rows)


def read_annotations(session: Session, subject_ids: Collection[str]) -> dict[str, Annotation]:
    """Return the annotations of these experiments or searches by id, for those that have one."""
    rows = run(session, _OF_SUBJECTS, ids=list(subject_ids))
    return {id_: Annotation(tags, note) for id_, tags, note in rows}


def tagged(
    query: Select[Any], subject_id: InstrumentedAttribute[str], owner: str, tag: str
) -> Select[Any]:
    """Return the query restricted to what its owner gave this tag."""
    table = schema.Tag
    return query.join(table, table.subject_id == subject_id).where(
        table.owner == owner, table.name == tag
    )


def count_tags(session: Session, owner: str, limit: int) -> list[tuple[str, int]]:
    """Return the owner's tags and how many experiments and searches have each, most used first."""
    table, number = schema.Tag, func.count()
    rows = session.execute(
        select(table.name, number)
        .where(table.owner == owner)
        .group_by(table.name)
        .order_by(number.desc(), table.name)
        .limit(limit)
    )
    return [(name, used) for name, used in rows]

"""Tags and notes of experiments and searches. Nothing that is measured or decided reads them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from assay.storage.schema.base import Base, Id


class Annotation(Base):
    """The tags, in their order, and the note of an experiment or a search."""

    __tablename__ = "annotation"

    #: Of either kind: their prefixes keep ids of experiments and searches apart.
    subject_id: Mapped[str] = mapped_column(Id, primary_key=True)
    tags: Mapped[list[Any]]
    note: Mapped[str] = mapped_column(Text)


class Tag(Base):
    """One tag of an annotation. Lists find what has a tag through this table's index."""

    __tablename__ = "tag"
    __table_args__ = (Index("ix_tag_name", "owner", "name", "subject_id"),)

    subject_id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    owner: Mapped[str] = mapped_column(Id)

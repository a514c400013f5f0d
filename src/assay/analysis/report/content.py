"""What a report consists of, as data: nothing here knows how it is drawn.

A figure or table that the records cannot support has `absent`, a sentence that says why, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Mark = Literal["line", "steps", "points", "crosses", "bars", "area", "stars"]


@dataclass(frozen=True)
class Series:
    """Numbers with one label.

    `y` has one value per element of `x`; None where there is none. Crosses have no values: they
    are marks on the edge. `low` and `high` are the ends of an interval around each, in units of
    y. Series with the same `color` (an index) belong together, also in different figures.
    """

    label: str
    mark: Mark
    x: Sequence[float]
    y: Sequence[float | None]
    color: int = 0
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    is_faint: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line, with a band of ± `spread` around it."""

    label: str
    value: float
    spread: float | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    `ticks` names the places 0, 1, … of the horizontal axis. `is_share`: y is a share from 0 to 1,
    shown in percent. `is_whole`: x are whole numbers. `diagonal`: the line y = x is drawn. Points
    outside of `y_range` are drawn at its edge.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    level: Level | None = None
    ticks: Sequence[str] = ()
    is_share: bool = False
    is_whole: bool = False
    from_zero: bool = False
    diagonal: bool = False
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """A picture of one or more panels, `columns` of them side by side."""

    name: str
    title: str
    caption: str = ""
    panels: Sequence[Panel] = ()
    columns: int = 2
    absent: str | None = None


@dataclass(frozen=True)
class Cell:
    """A text of a table, and the number that it shows, if it shows one."""

    text: str
    value: float | None = None
    is_bold: bool = False


@dataclass(frozen=True)
class Row:
    """Cells of a table; a `heading` spans all columns and has no cells."""

    cells: Sequence[Cell] = ()
    heading: str | None = None


@dataclass(frozen=True)
class Table:
    """A table. `groups` are headings over several columns: a text, and how many it spans.

    Columns in `numeric` are aligned to the right; `is_prose`: its cells hold whole paragraphs.
    """

    name: str
    title: str
    caption: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    groups: Sequence[tuple[str, int]] = ()
    numeric: Sequence[int] = ()
    is_prose: bool = False
    absent: str | None = None


@dataclass(frozen=True)
class Step:
    """An experiment in the lineage of a winner, the oldest first."""

    experiment: str
    epoch: int | None
    operator: str
    title: str
    metric: str
    effect: str
    verdict: str
    other_parents: int = 0


@dataclass(frozen=True)
class Winner:
    """The best result of a search, where it comes from, and its diff."""

    search: str
    label: str
    experiment: str
    standing: str
    idea: str
    metric_name: str
    steps: Sequence[Step]
    diff: str | None


@dataclass(frozen=True)
class Section:
    """A part of the report, in the order in which it is shown."""

    title: str
    parts: Sequence[Figure | Table]


@dataclass(frozen=True)
class Fact:
    """A number of the summary, with what it means."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """What a search was and what it came to."""

    search: str
    label: str
    headline: str
    facts: Sequence[Fact]
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """All of it. `as_of` is the latest moment that the records tell of, so the same records give
    the same report."""

    title: str
    as_of: str
    summaries: Sequence[Summary]
    sections: Sequence[Section]
    winners: Sequence[Winner] = field(default=())

    @property
    def figures(self) -> list[Figure]:
        """Return the figures in order, also those that are absent."""
        return [p for section in self.sections for p in section.parts if isinstance(p, Figure)]

    @property
    def tables(self) -> list[Table]:
        """Return the tables in order, also those that are absent."""
        return [p for section in self.sections for p in section.parts if isinstance(p, Table)]

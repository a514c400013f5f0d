"""What is said of ideas in nearly the words of earlier ones: when submitted, or before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.batch import ExperimentBody

_PAGE = 200


def say_alike(client: Client, out: Output, batch: str) -> None:
    """One line on the ideas of a batch that say what earlier ones said; none if there are none."""
    from assay.analysis.text import idea_title

    alike = [each for each in _experiments(client, batch) if each.idea.similar]
    if not alike:
        return
    first = alike[0]
    most = first.idea.similar[0]
    is_skipped = first.failure is not None and first.failure.code == "near_duplicate"
    out.say(
        f"{'skipped, ' if is_skipped else ''}{_how_many(len(alike))} {first.position + 1} "
        f"({idea_title(first.idea.text)}), {most.similarity:.0%} like {most.experiment}"
    )


def foreseen_alike(similar: Sequence[Mapping[str, Any]], novelty: str) -> list[str]:
    """The same line from the answer to a dry run; empty if there are none."""
    if not similar:
        return []
    first = similar[0]
    would = "would be skipped, " if novelty == "skip" else ""
    other = first.get("experiment") or f"idea {_place(first, 'like_position')} of this batch"
    place, share = _place(first, "position"), float(first.get("similarity", 0))
    return [f"{would}{_how_many(len(similar))} {place}, {share:.0%} like {other}"]


def _how_many(number: int) -> str:
    from assay.analysis.text import counted

    said = f"in nearly the words of earlier ideas: {counted(number, 'idea')}"
    return f"{said}, of which the first is idea" if number > 1 else f"{said}, idea"


def _place(similar: Mapping[str, Any], name: str) -> int:
    """Ideas are counted from 1 where a person reads it."""
    return int(similar.get(name, 0)) + 1


def _experiments(client: Client, batch: str) -> Iterator[ExperimentBody]:
    cursor: str | None = None
    while True:
        page = client.experiments.page(batch=batch, limit=_PAGE, cursor=cursor)
        yield from page.data
        cursor = page.next_cursor
        if cursor is None:
            return

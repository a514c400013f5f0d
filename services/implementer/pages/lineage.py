"""The ancestors and descendants of an idea, laid out for a drawing: a column per epoch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from assay.contracts.batch import ExperimentBody

WIDTH, HEIGHT, GAP_X, GAP_Y = 176, 40, 44, 10
#: Relatives that are drawn, nearest first. An idea that many build on has hundreds.
MOST = 40


@dataclass(frozen=True)
class Node:
    """An experiment in the drawing; `x` and `y` are its upper left corner in pixels."""

    experiment: ExperimentBody
    epoch: int
    x: int
    y: int


@dataclass(frozen=True)
class Lineage:
    """A drawing. `left_out` counts relatives that are not in it."""

    nodes: list[Node]
    edges: list[tuple[Node, Node]]
    width: int
    height: int
    left_out: int


def lineage(
    chosen: ExperimentBody, experiments: Sequence[ExperimentBody], epochs: Mapping[str, int]
) -> Lineage:
    """Return the drawing of what `chosen` builds on and what builds on it."""
    by_id = {experiment.id: experiment for experiment in experiments}
    children: dict[str, list[str]] = defaultdict(list)
    for experiment in experiments:
        for parent in experiment.idea.parents:
            children[parent].append(experiment.id)
    above = _reach(chosen.id, lambda id_: by_id[id_].idea.parents if id_ in by_id else ())
    below = _reach(chosen.id, lambda id_: children[id_])
    pairs = zip_longest(above, below)
    family = [id_ for id_ in dict.fromkeys(chain.from_iterable(pairs)) if id_ in by_id]
    shown = {chosen.id, *family[:MOST]}
    columns: dict[int, list[ExperimentBody]] = defaultdict(list)
    for experiment in experiments:
        if experiment.id in shown:
            columns[epochs.get(experiment.batch, -1)].append(experiment)
    nodes = {
        experiment.id: Node(
            experiment, epoch, column * (WIDTH + GAP_X) + 1, row * (HEIGHT + GAP_Y) + 18
        )
        for column, epoch in enumerate(sorted(columns))
        for row, experiment in enumerate(columns[epoch])
    }
    edges = [
        (nodes[parent], node)
        for node in nodes.values()
        for parent in node.experiment.idea.parents
        if parent in nodes
    ]
    return Lineage(
        list(nodes.values()),
        edges,
        max((node.x for node in nodes.values()), default=0) + WIDTH + 2,
        max((node.y for node in nodes.values()), default=0) + HEIGHT + 2,
        len(family) - (len(shown) - 1),
    )


def _reach(start: str, following: Callable[[str], Iterable[str]]) -> list[str]:
    """Return what can be reached from `start`, nearest first, without it."""
    found = {start: None}
    waiting = deque([start])
    while waiting:
        for id_ in following(waiting.popleft()):
            if id_ not in found:
                found[id_] = None
                waiting.append(id_)
    return list(found)[1:]

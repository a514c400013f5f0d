"""The ideas that owners had before, kept in memory in a form that new ones are compared with.

Reading them anew for each batch would cost a quarter of a second for an owner with thousands.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from assay.domain.similarity import Alike, Corpus, Effort, read
from assay.domain.states import ExperimentState, MeasurementKind
from assay.storage import schema

#: So many of an owner's latest ideas for an environment are compared with. When so many were
#: added, those that were forgotten included, they are read anew.
MOST_EARLIER = 5_000
MOST_ADDED = 6_000
#: More of their text is not read: 5,000 ideas of 150 words have 5 million characters.
MOST_CHARACTERS = 5_000_000
#: Batches that appeared since the last look, above which all are read anew.
MOST_NEW = 100
#: For all owners together. 5,000 ideas of 150 words take about 23 MB.
MOST_BYTES = 64 << 20
_UNTRIED = (ExperimentState.CANCELLED.value, ExperimentState.FAILED.value)


class Idea(NamedTuple):
    """An idea of an earlier batch. `base`: the codebase of its base."""

    experiment: str
    batch: str
    text: str
    base: str | None


class _Kept(NamedTuple):
    """Ideas with the same base, and the experiment of each place."""

    corpus: Corpus
    experiments: list[str]


class Earlier:
    """The latest ideas of an owner for an environment that did not fail and were not cancelled."""

    def __init__(self, owner: str, environment: str) -> None:
        self.owner = owner
        self.environment = environment
        self._batches: set[str] = set()
        #: By the codebase of the base.
        self._kept: dict[str | None, _Kept] = {}
        #: By experiment: the base and the place.
        self._places: dict[str, tuple[str | None, int]] = {}
        self._changing = threading.Lock()

    def bytes(self) -> int:
        """About how much memory it takes."""
        return sum(kept.corpus.bytes() for kept in tuple(self._kept.values()))

    def alike(
        self,
        base: str | None,
        text: str,
        words: list[str] | None,
        threshold: float,
        most: int,
        effort: Effort,
    ) -> list[tuple[str, Alike]]:
        """Experiments whose ideas have the same base and are like a text: see `Corpus.alike`."""
        kept = self._kept.get(base)
        if kept is None:
            return []
        found = kept.corpus.alike(text, words, threshold, most, effort)
        return [(kept.experiments[one.place], one) for one in found]

    def look(self, session: Session) -> None:
        """Read the ideas of batches that were made since the last look."""
        with self._changing:
            of, batch = (self.owner, self.environment), schema.Batch
            of_owner = _of_owner(select(batch.id), *of).order_by(batch.id.desc())
            batches = set(session.scalars(of_owner.limit(MOST_EARLIER)))
            new = batches - self._batches
            if not new:
                return
            ideas, kept, places = list[Idea](), self._kept, self._places
            if self._batches and len(new) <= MOST_NEW:
                ideas = latest(session, *of, schema.Experiment.batch_id.in_(new))
            added = sum(each.corpus.added for each in kept.values())
            if not self._batches or len(new) > MOST_NEW or added + len(ideas) > MOST_ADDED:
                # Not those of batches that were committed since these were read: they are new
                # at the next look.
                ideas = [idea for idea in latest(session, *of) if idea.batch in batches]
                kept, places = {}, {}
            _keep(ideas, kept, places)
            self._batches, self._kept, self._places = batches, kept, places

    def forget_untried(self, session: Session, named: Collection[str]) -> bool:
        """Forget ideas that failed or were cancelled. False if none of these experiments did."""
        experiment = schema.Experiment
        of_owner = _of_owner(
            select(experiment.id)
            .join(schema.Batch, schema.Batch.id == experiment.batch_id)
            .where(experiment.state.in_(_UNTRIED)),
            self.owner,
            self.environment,
        )
        if not session.scalars(of_owner.where(experiment.id.in_(named))).all():
            return False
        with self._changing:
            first = min(self._places, default="")
            gone: dict[str | None, list[int]] = defaultdict(list)
            for untried in session.scalars(of_owner.where(experiment.id >= first)):
                if (at := self._places.pop(untried, None)) is not None:
                    gone[at[0]].append(at[1])
            for base, places in gone.items():
                self._kept[base].corpus.drop(places)
        return True


def latest(session: Session, owner: str, environment: str, *of: Any) -> list[Idea]:
    """The latest ideas of an owner for an environment, the oldest first. `of`: which ones."""
    experiment, idea = schema.Experiment, schema.Idea
    asked: Any = (
        select(experiment.id, experiment.batch_id, idea.text, idea.base_id)
        .join(idea, idea.id == experiment.idea_id)
        .join(schema.Batch, schema.Batch.id == experiment.batch_id)
    )
    rows = session.execute(
        _of_owner(asked, owner, environment)
        .where(experiment.state.not_in(_UNTRIED), *of)
        .order_by(experiment.id.desc())
        .limit(MOST_EARLIER)
    ).all()
    return [Idea(*row) for row in reversed(rows)]


def _of_owner(statement: Select[Any], owner: str, environment: str) -> Select[Any]:
    return statement.join(
        schema.Environment, schema.Environment.id == schema.Batch.environment_id
    ).where(
        schema.Batch.owner == owner,
        schema.Environment.name == environment,
        schema.Batch.kind != MeasurementKind.CONTROL.value,
    )


def _keep(
    ideas: Sequence[Idea],
    kept: dict[str | None, _Kept],
    places: dict[str, tuple[str | None, int]],
) -> None:
    split = read([idea.text for idea in ideas], Effort(characters=MOST_CHARACTERS))
    for idea in ideas:
        own = kept.setdefault(idea.base, _Kept(Corpus(), []))
        # Before it is added: others may find it as soon as it is.
        own.experiments.append(idea.experiment)
        places[idea.experiment] = (idea.base, own.corpus.add(idea.text, split[idea.text]))


class EarlierIdeas:
    """Those of the owners who submitted last, as far as there is memory for them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Earlier] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session: Session, owner: str, environment: str) -> Earlier:
        """What an owner had for an environment (its name) until now."""
        key = (owner, environment)
        with self._lock:
            found = self._kept.setdefault(key, Earlier(owner, environment))
            self._kept.move_to_end(key)
        found.look(session)
        with self._lock:
            if found.bytes() > MOST_BYTES:  # for all others there would be no room
                self._kept.pop(key, None)
            while sum(each.bytes() for each in self._kept.values()) > MOST_BYTES:
                self._kept.popitem(last=False)
        return found

"""The decisions of an asynchronous strategy, as the record of a search keeps them.

A decision is numbered, and stored before the ideator is asked. It names all that it depends on, so
that `situation` gives the strategy the same to decide on again: `slots.py` resumes by it, and
`replay` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from assay.contracts.search import (
    DecidedAsk,
    DecidedRemeasure,
    DecisionRequest,
    EpochBody,
    SearchBody,
    SeenBaseline,
)
from assay.llm.ideation import Baseline, Trajectory
from assay.search.plan import Ask, Decision, Pending, Remeasure, Situation
from assay.search.strategy import Strategy


def chunk(search: SearchBody, slots: int) -> int:
    """Return how many ideas a decision is for, at most: no more than there are slots."""
    return min(search.batch_size, slots)


class DecisionLog:
    """The decisions of a search in order, and the results that they were taken on."""

    def __init__(self, size: int, seed: int) -> None:
        """`size`: ideas of a decision, at most. `seed`: of the search."""
        self._size = size
        self._seed = seed
        self._decisions: list[DecisionRequest] = []
        self._results: dict[str, Trajectory] = {}
        self._seen: list[str] = []

    def __len__(self) -> int:
        return len(self._decisions)

    def __getitem__(self, number: int) -> DecisionRequest:
        return self._decisions[number]

    @property
    def ideas(self) -> int:
        """How many ideas all decisions are for."""
        return sum(decision.ideas for decision in self._decisions)

    def learn(self, results: Iterable[Trajectory]) -> None:
        """Keep results, which later decisions see in the order in which they are learnt."""
        for each in results:
            self._results[each.id] = each

    def append(self, decision: DecisionRequest) -> None:
        """Add the next decision: one that was stored."""
        self._decisions.append(decision)
        self._seen += decision.seen

    def draft(
        self, pending: Sequence[int], baseline: SeenBaseline | None, *, sees_results: bool
    ) -> DecisionRequest:
        """Return what the next decision depends on, before it is taken.

        `pending`: the numbers of earlier decisions that have not ended.
        """
        seen = set(self._seen)
        new = [id_ for id_ in self._results if id_ not in seen] if sees_results else []
        return DecisionRequest.model_construct(
            asks=[], remeasure=None, seen=new, pending=list(pending), baseline=baseline
        )

    def situation(self, number: int, decision: DecisionRequest) -> Situation:
        """Return what the strategy knows when it takes a decision, stored or drafted."""
        before = self._decisions[:number]
        seen = [id_ for each in (*before, decision) for id_ in each.seen]
        known = [self._results[id_] for id_ in seen if id_ in self._results]
        retried = {past.retries for past in known if past.retries}
        pending = (self._pending(self._decisions[each]) for each in decision.pending)
        return Situation(
            epoch=number,
            batch_size=self._size,
            seed=self._seed,
            trajectories=tuple(past for past in known if past.id not in retried),
            baseline_reward=None if decision.baseline is None else decision.baseline.reward,
            pending=tuple(each for group in pending for each in group),
        )

    def decided(self, number: int) -> Decision:
        """Return a stored decision as the strategy took it.

        Parents and experiments whose results are gone are left out.
        """
        decision = self._decisions[number]
        known = self.situation(number, decision).trajectories
        by_id = self._results
        if decision.remeasure is not None:
            again = decision.remeasure
            found = (by_id[id_] for id_ in again.experiments if id_ in by_id)
            return Remeasure(tuple(found), again.seeds)
        return [
            Ask(
                ask.operator,
                ask.count,
                ask.seed,
                known,
                tuple(by_id[id_] for id_ in ask.parents if id_ in by_id),
            )
            for ask in decision.asks
        ]

    def told(self, number: int) -> Baseline | None:
        """Return what the ideator is told of the baseline, for a stored decision."""
        seen = self._decisions[number].baseline
        if seen is None or seen.mean is None:
            return None
        return Baseline(seen.mean, seen.spread, seen.seeds)

    @staticmethod
    def _pending(decision: DecisionRequest) -> list[Pending]:
        again = decision.remeasure
        if again is not None:
            return [Pending("remeasure", (id_,)) for id_ in again.experiments]
        return [
            Pending(ask.operator, tuple(ask.parents))
            for ask in decision.asks
            for _ in range(ask.count)
        ]


def record(decision: Decision, draft: DecisionRequest) -> DecisionRequest:
    """Return what is stored of a decision that was taken on a draft."""
    asks, again = [], None
    if isinstance(decision, Remeasure):
        ids = [past.id for past in decision.trajectories]
        again = DecidedRemeasure(experiments=ids, seeds=decision.seeds)
    else:
        asks = [
            DecidedAsk(
                operator=ask.operator,
                count=ask.count,
                seed=ask.seed,
                parents=[past.id for past in ask.parents],
            )
            for ask in decision
        ]
    return DecisionRequest(
        asks=asks,
        remeasure=again,
        seen=draft.seen,
        pending=draft.pending,
        baseline=draft.baseline,
    )


def replay(
    search: SearchBody,
    strategy: Strategy,
    epochs: Sequence[EpochBody],
    results: Mapping[str, Trajectory],
) -> list[int]:
    """Return the numbers of the decisions that the strategy would not take again; none if all is
    well.

    Each is taken again on what it recorded. `results`: the trajectories of all experiments.
    """
    assert strategy.slots is not None, "strategies that work in epochs record no decisions"
    log = DecisionLog(chunk(search, strategy.slots), search.seed)
    log.learn(results.values())
    different = []
    for epoch in epochs:
        stored = epoch.decision
        assert stored is not None, f"epoch {epoch.number} was not decided"
        again = record(strategy.plan(log.situation(epoch.number, stored)), stored)
        if again != stored:
            different.append(epoch.number)
        log.append(stored)
    return different

"""The cross-benchmark of ideators and executors: each ideator's ideas, implemented by each
executor (docs/bench.md).

`assay bench ideation` calls it. The record is the service's: an ideator's ideas are the epoch of a
`best-of-n` search, and every further executor gets them as a batch of that search. Whoever runs
the same benchmark again therefore finds what was asked and submitted, and pays for nothing twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from assay.client import Client
from assay.contracts.batch import (
    BatchBody,
    BatchOptions,
    BatchRequest,
    EventBody,
    ExperimentBody,
    IdeaRequest,
)
from assay.contracts.caps import SearchSpending
from assay.contracts.search import ExtendRequest, SearchBody, SearchRequest
from assay.domain.errors import InvalidInput
from assay.domain.failure_codes import FailureCode
from assay.domain.states import ExperimentState, MeasurementKind, SearchState
from assay.llm.ideation import Ideator
from assay.search.ask import SearchError
from assay.search.baseline import POLL_SECONDS
from assay.search.config import SearchConfig
from assay.search.loop import drive
from assay.search.steps import Wait

STRATEGY = "best-of-n"
#: The key of a search's and a batch's metadata under which the id of the benchmark is.
LABEL = "benchmark"
Pair = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """What is compared. `environment` is a whole id; `seed` draws another sample of ideas.

    `options`: how each pair's ideas are implemented and measured.
    """

    environment: str
    profile: str
    ideators: Sequence[str]
    executors: Sequence[str]
    ideas: int
    options: BatchOptions
    seed: int = 0
    hardware_class: str | None = None
    max_cost_usd: Decimal | None = None

    @property
    def id(self) -> str:
        """The id under which a run is continued.

        It follows from what decides the results of a pair. Models and the cap are left out, so a
        benchmark can be continued with further models or a higher cap.
        """
        terms = {
            "environment": self.environment,
            "profile": self.profile,
            "ideas": self.ideas,
            "options": self.options.model_dump(mode="json"),
            "seed": self.seed,
            "hardware_class": self.hardware_class,
        }
        text = json.dumps(terms, sort_keys=True)
        return f"ben_{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def first_executor(self, ideator: str) -> str:
        """The executor of an ideator's search: itself where it implements, too."""
        return ideator if ideator in self.executors else self.executors[0]


@dataclass(frozen=True)
class PairOutcome:
    """An ideator's ideas, implemented by one executor: for each idea, by its place, its latest
    experiment."""

    ideator: str
    executor: str
    batches: tuple[BatchBody, ...]
    experiments: Mapping[int, ExperimentBody]


@dataclass
class Outcome:
    """What there is of a benchmark. `searches`: by ideator. `unfinished` says what is missing,
    and why."""

    plan: Plan
    searches: dict[str, SearchBody] = field(default_factory=dict)
    pairs: list[PairOutcome] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def find(client: Client, plan: Plan) -> dict[str, SearchBody]:
    """The searches that earlier runs of this benchmark started, by ideator."""
    found: dict[str, SearchBody] = {}
    for search in client.searches.list():
        is_ours = search.metadata.get(LABEL) == plan.id
        if is_ours and search.state != SearchState.CANCELLED and search.ideator in plan.ideators:
            found[search.ideator] = search  # listed newest first: the oldest one counts
    return found


def check(client: Client, plan: Plan, known: Mapping[str, SearchBody]) -> None:
    """Refuse what could not run, before anything is asked or stored.

    Raises:
        InvalidInput: an earlier run was started without a cap or with a higher one.
        ClientError: the service would refuse a batch: a key is missing, a price unknown, no
            worker fits.
    """
    for search in known.values():
        _check_cap(search, plan.max_cost_usd)
    options = plan.options.model_copy(update={"max_cost_usd": plan.max_cost_usd})
    for ideator in plan.ideators:
        for executor in plan.executors:
            client.batches.check(
                BatchRequest(
                    environment=plan.environment,
                    profile=plan.profile,
                    ideas=[IdeaRequest(text="[Experiment] Not submitted: a check.")],
                    executor=executor,
                    ideator=ideator,
                    hardware_class=plan.hardware_class,
                    options=options,
                )
            )


def _check_cap(search: SearchBody, most: Decimal | None) -> None:
    """Raises InvalidInput: the search of an earlier run does not keep this cap."""
    present = search.caps.max_cost_usd
    if most is None or (present is not None and present <= most):
        return
    started = "without a cap" if present is None else f"with a cap of {present} USD"
    remedy = "leave it out" if present is None else "a cap can only be raised"
    raise InvalidInput(
        f"--max-cost: {search.id} of this benchmark was started {started}; {remedy}, or start "
        "another benchmark with --seed"
    )


def run(
    client: Client,
    plan: Plan,
    known: Mapping[str, SearchBody],
    open_ideator: Callable[[str], Ideator],
    *,
    say: Callable[[str], None],
    wait: Wait,
) -> Outcome:
    """Ask, submit and wait for whatever earlier runs left to do; return all results.

    `known`: as of `find`. With a cap, one ideator comes after the other, since its search may
    spend what the others left.

    Raises:
        SearchError: an ideator failed.
        ClientError: the service failed for longer than the client retries.
    """
    return _Run(client, plan, dict(known), open_ideator, say, wait).all()


@dataclass
class _Run:
    client: Client
    plan: Plan
    searches: dict[str, SearchBody]
    open_ideator: Callable[[str], Ideator]
    say: Callable[[str], None]
    wait: Wait
    unfinished: list[str] = field(default_factory=list)

    def all(self) -> Outcome:
        waiting: list[str] = []
        for ideator in self.plan.ideators:
            waiting += self._submit(ideator)
            if self.plan.max_cost_usd is not None:
                self._wait(waiting)
                waiting = []
        self._wait(waiting)
        return self._outcome()

    def _submit(self, ideator: str) -> list[str]:
        """Have an ideator's ideas asked for and given to all executors. Returns the batches."""
        search, is_raised = self._search(ideator)
        if search is None:
            return []
        if search.state == SearchState.RUNNING:
            try:
                self._drive(search, ideator)
            except SearchError as error:
                if error.code != FailureCode.SPEND_CAP.value:
                    raise
                self.unfinished.append(f"{ideator} was not asked for all ideas: {error}")
                return []
        self.searches[ideator] = self.client.searches.get(search.id)
        (epoch, *_) = self.client.searches.epochs(search.id)
        batches = self._batches(search.id)
        first = next(batch for batch in batches if batch.epoch is not None)
        for executor in self.plan.executors:
            own = [batch for batch in batches if batch.executor == executor]
            places: Sequence[int] = range(len(epoch.ideas))
            if own:
                places = self._cut_off(own) if is_raised else []
            if places:
                ideas = [
                    IdeaRequest(text=epoch.ideas[place].text, client_key=str(place))
                    for place in places
                ]
                batches.append(self._give(ideas, executor, search, first, len(own)))
        return [batch.id for batch in batches if batch.executor in self.plan.executors]

    def _search(self, ideator: str) -> tuple[SearchBody | None, bool]:
        """The search of an ideator, and whether its cap was raised; None if no money is left."""
        known, most = self.searches.get(ideator), self.plan.max_cost_usd
        if most is not None:
            others = [s for name, s in self.searches.items() if name != ideator]
            most -= sum((_spent(self.client.searches.get(s.id)) for s in others), Decimal(0))
            if known is None and most <= 0:
                self.unfinished.append(f"{ideator} was not asked: the cap on cost is reached")
                return None, False
        if known is None:
            return self._start(ideator, most), False
        present = known.caps.max_cost_usd
        if most is None or present is None or most <= present:
            return known, False
        return self.client.searches.extend(known.id, ExtendRequest(max_cost_usd=most)), True

    def _start(self, ideator: str, most: Decimal | None) -> SearchBody:
        plan = self.plan
        config = SearchConfig.make(STRATEGY, None, plan.options, pause=False)
        request = SearchRequest(
            environment=plan.environment,
            profile=plan.profile,
            strategy=STRATEGY,
            seed=plan.seed,
            epochs=1,
            batch_size=plan.ideas,
            ideator=ideator,
            executor=plan.first_executor(ideator),
            hardware_class=plan.hardware_class,
            config=config.record(),
            caps=SearchSpending(max_cost_usd=most),
            metadata={LABEL: plan.id},
        )
        search = self.client.searches.create(request, idempotency_key=_key(plan.id, ideator))
        self.searches[ideator] = search
        return search

    def _drive(self, search: SearchBody, ideator: str) -> None:
        """Have the ideas stored and given to the search's executor, without waiting for it."""

        if next(self.client.searches.epochs(search.id), None) is None:
            self.say(f"{search.id}: asking {ideator} for {self.plan.ideas} ideas")
        drive(self.client, search.id, self.open_ideator(ideator), wait=_do_not_wait)

    def _batches(self, search: str) -> list[BatchBody]:
        """The batches of a search, oldest first."""
        found = list(self.client.batches.list(search=search))
        return [b for b in reversed(found) if b.kind == MeasurementKind.SCORE]

    def _give(
        self,
        ideas: list[IdeaRequest],
        executor: str,
        search: SearchBody,
        first: BatchBody,
        number: int,
    ) -> BatchBody:
        """Submit ideas to one more executor, under the conditions of the first."""
        request = BatchRequest(
            environment=first.environment,
            profile=first.profile,
            ideas=ideas,
            executor=executor,
            ideator=search.ideator,
            hardware_class=first.hardware_class,
            conditions=first.conditions,
            options=self.plan.options,
            search=search.id,
            metadata={LABEL: self.plan.id},
        )
        key = _key(search.id, executor, str(number))
        made = self.client.batches.create(request, idempotency_key=key)
        self.say(f"{made.id}: {search.ideator} → {executor}, ideas: {len(ideas)}")
        return made

    def _cut_off(self, batches: Sequence[BatchBody]) -> list[int]:
        """Places of the ideas that a cap left undone."""
        found = outcomes(self.client, batches)
        return [place for place, each in found.items() if _is_cut_off(each)]

    def _wait(self, batches: Sequence[str]) -> None:
        """Wait for batches, and for the baselines that they are compared with."""
        for batch in batches:
            body = self.client.batches.get(batch)
            if body.finished_at is None:
                body = self.wait(self.client, batch, lambda _: None)
            while body.seeds_to_come:
                self.client.sleep(POLL_SECONDS)
                body = self.client.batches.get(batch)

    def _outcome(self) -> Outcome:
        found = Outcome(self.plan, unfinished=self.unfinished)
        for ideator in self.plan.ideators:
            search = self.searches.get(ideator)
            if search is None:
                continue
            found.searches[ideator] = self.client.searches.get(search.id)
            batches = self._batches(search.id)
            for executor in self.plan.executors:
                own = tuple(batch for batch in batches if batch.executor == executor)
                if own:
                    experiments = outcomes(self.client, own)
                    found.pairs.append(PairOutcome(ideator, executor, own, experiments))
                    cut = sum(map(_is_cut_off, experiments.values()))
                    if cut:
                        found.unfinished.append(
                            f"{ideator} → {executor}: a cap left {cut} of {len(experiments)} "
                            "ideas undone. Those that take many calls are cut off first, so its "
                            "completion rate is too high"
                        )
        return found


def _do_not_wait(client: Client, batch: str, _: Callable[[EventBody], None]) -> BatchBody:
    return client.batches.get(batch)


def outcomes(client: Client, batches: Sequence[BatchBody]) -> dict[int, ExperimentBody]:
    """The latest experiment of each idea, by its place among the ideator's ideas.

    A retry that succeeded takes the place of what it retried.
    """
    found: dict[int, ExperimentBody] = {}
    for batch in batches:
        for experiment in client.experiments.list(batch=batch.id):
            key = experiment.idea.client_key
            place = experiment.position if batch.epoch is not None else int(key or 0)
            found[place] = _after_retries(client, experiment)
    return dict(sorted(found.items()))


def _after_retries(client: Client, experiment: ExperimentBody) -> ExperimentBody:
    for retry in reversed(experiment.retried_as):
        again = client.experiments.get(retry)
        if again.state == ExperimentState.SUCCEEDED:
            return again
    return experiment


def _is_cut_off(experiment: ExperimentBody) -> bool:
    caps = (FailureCode.SPEND_CAP, FailureCode.GPU_HOURS_CAP)
    return experiment.failure is not None and experiment.failure.code in caps


def _spent(search: SearchBody) -> Decimal:
    """Dollars of all calls of a search that have ended."""
    used = (search.ideator_usage, search.executor_usage)
    return sum((Decimal(each.cost_usd or "0") for each in used), Decimal(0))


def _key(*parts: str) -> str:
    return f"bench-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"

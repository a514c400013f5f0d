"""Measure the candidates of an optimizer in Assay: many at once, each codebase once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self, TypedDict

from assay.adapters.score import NoResult, Score, refusal_of, score_of
from assay.client import Client, Invalid, Patience
from assay.contracts.batch import BatchOptions, BatchRequest, ExperimentBody, IdeaRequest
from assay.contracts.environment import EnvironmentBody
from assay.domain.errors import InvalidInput
from assay.domain.hashing import tree_hash
from assay.domain.isolation import NO_MODEL
from assay.search.trajectories import TrajectoryReader

#: How long a client that is made here waits for a service that is away.
PATIENCE_SECONDS = 3600.0


class Settings(TypedDict, total=False):
    """What every evaluator takes by name; see `Evaluator`."""

    seeds: Sequence[int]
    base: str | None
    ideator: str | None
    timeout: float | None
    allow_unisolated: bool
    client: Client | None


@dataclass(frozen=True)
class Candidate:
    """Files that replace those of the baseline, or the hash of a codebase that Assay has.

    `seeds`: those to measure it on, in place of the evaluator's.
    """

    code: Mapping[str, str] | str
    seeds: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Wanted:
    """A codebase on some seeds; `files` are those to upload."""

    codebase: str
    seeds: tuple[int, ...]
    files: Mapping[str, str] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class _Process:
    """What one process uses: connections and locks do not survive a fork."""

    pid: int
    client: Client
    lock: threading.Lock = field(default_factory=threading.Lock)
    scores: dict[_Wanted, Future[Score]] = field(default_factory=dict)


class Evaluator:
    """Scores candidates in one environment and profile. Threads and forked processes may share it.

    A codebase that it has scored is not submitted again, also while it is still being measured.
    Across processes the service shares the measurements of identical codebases.

    Args:
        environment: `name` or `name@hash`.
        profile: the size at which to measure.
        seeds: one measurement per seed and candidate; the metric is their mean.
        base: what candidates change and are compared with, as the `base` of a batch: a promoted
            name, an experiment or a hash. By default the environment's own codebase.
        ideator: the name under which reports list the candidates.
        timeout: seconds to wait for a submission; None waits until it has ended.
        allow_unisolated: measure also where no sandbox isolates the code.
        client: a client to use; by default one for `ASSAY_API_URL` and `ASSAY_API_KEY` per
            process, which waits up to an hour for a service that is away.
    """

    def __init__(
        self,
        environment: str,
        profile: str,
        *,
        seeds: Sequence[int] = (0,),
        base: str | None = None,
        ideator: str | None = None,
        timeout: float | None = None,
        allow_unisolated: bool = False,
        client: Client | None = None,
    ) -> None:
        if not seeds:
            raise InvalidInput("seeds: name at least one, such as [0]")
        self._name = environment
        self._profile = profile
        self._seeds = tuple(seeds)
        self._base = base
        self._ideator = ideator
        self._timeout = timeout
        self._allow_unisolated = allow_unisolated
        self._given = client
        self._process = self._open()
        self._environment: EnvironmentBody | None = None
        self._files: Mapping[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that this process opened; a client that was given stays open."""
        if self._given is None and self._process.pid == os.getpid():
            self._process.client.close()

    @property
    def environment(self) -> EnvironmentBody:
        """The environment; later versions of it are not looked at."""
        if self._environment is None:
            self._environment = self._here().client.environments.get(self._name)
        return self._environment

    @property
    def files(self) -> Mapping[str, str]:
        """The files of the codebase that candidates change, by name."""
        if self._files is None:
            environments = self._here().client.environments
            self._files = environments.codebase(self.environment.id, base=self._base).files
        return self._files

    @property
    def problem(self) -> str:
        """The problem and its rules in words, for the prompt of an optimizer."""
        told = self.environment
        protected = f"These files must not change: {', '.join(told.protected)}."
        parts = (told.title, told.problem, told.rules, protected if told.protected else "")
        return "\n\n".join(part.strip() for part in parts if part.strip())

    def file(self, name: str) -> str:
        """Return the text of one file that candidates change.

        Raises:
            InvalidInput: the codebase has no such file.
        """
        if name not in self.files:
            raise InvalidInput(f"{name}: the codebase has {', '.join(sorted(self.files))}")
        return self.files[name]

    def score(self, code: Mapping[str, str] | str, *, seeds: Sequence[int] | None = None) -> Score:
        """Measure one candidate, and wait for it; see `score_all`."""
        wanted = Candidate(code, None if seeds is None else tuple(seeds))
        return self.score_all([wanted])[0]

    def score_all(self, candidates: Iterable[Candidate]) -> list[Score]:
        """Measure candidates together, and wait for all; their scores, in the same order.

        A candidate that fails has reward 0 and says why. That includes one that the service
        refuses to store, because it changes a protected file for example.

        Raises:
            NoResult: one was not measured for a reason that is not its own: a worker was lost, a
                cap was reached, or somebody cancelled it. Scoring it again submits it again.
            WaitTimeout: `timeout` seconds passed first; the measurements go on.
            ClientError: the service cannot be reached, or refuses the request.
        """
        wanted = [self._wanted(candidate) for candidate in candidates]
        here = self._here()
        with here.lock:
            new = {each: Future[Score]() for each in wanted if each not in here.scores}
            here.scores.update(new)
            promised = [here.scores[each] for each in wanted]
        if new:
            self._measure(here, new)
        return [each.result() for each in promised]

    def _wanted(self, candidate: Candidate) -> _Wanted:
        seeds = candidate.seeds or self._seeds
        if isinstance(candidate.code, str):
            return _Wanted(candidate.code, seeds)
        files = {**self.files, **candidate.code}
        # A model may have written half a surrogate pair, which the service then refuses.
        encoded = {name: text.encode(errors="surrogatepass") for name, text in files.items()}
        return _Wanted(tree_hash(encoded), seeds, files)

    def _here(self) -> _Process:
        """What this process uses; a forked one starts anew."""
        if self._process.pid != os.getpid():
            self._process = self._open()
        return self._process

    def _open(self) -> _Process:
        client = self._given or Client(patience=Patience(PATIENCE_SECONDS))
        return _Process(os.getpid(), client)

    def _measure(self, here: _Process, new: Mapping[_Wanted, Future[Score]]) -> None:
        """Keep every promise of `new`; those that end in an error are forgotten."""
        try:
            for wanted, outcome in self._outcomes(here.client, list(new)):
                if isinstance(outcome, Score):
                    new[wanted].set_result(outcome)
                else:
                    new[wanted].set_exception(outcome)
        except BaseException as error:
            for promise in new.values():
                if not promise.done():
                    promise.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with here.lock:
                for wanted, promise in new.items():
                    if promise.exception() is not None:
                        del here.scores[wanted]

    def _outcomes(
        self, client: Client, wanted: Sequence[_Wanted]
    ) -> Iterable[tuple[_Wanted, Score | NoResult]]:
        """What came of each: all are submitted before the first is waited for."""
        stored: dict[tuple[int, ...], list[_Wanted]] = {}
        for each in wanted:
            refused = self._store(client, each)
            if refused is not None:
                yield each, refused
            else:
                stored.setdefault(each.seeds, []).append(each)
        batches = [
            (client.batches.create(self._request(seeds, same)).id, same)
            for seeds, same in stored.items()
        ]
        for batch, same in batches:
            client.batches.wait(batch, timeout=self._timeout)
            yield from zip(same, self._read(client, batch, same), strict=True)

    def _store(self, client: Client, wanted: _Wanted) -> Score | None:
        """Upload a codebase. Returns its score if it is refused."""
        if wanted.files is None:
            return None
        try:
            client.environments.upload(self.environment.id, wanted.files)
        except Invalid as refused:
            return refusal_of(wanted.codebase, str(refused), self.environment.metric)
        return None

    def _request(self, seeds: tuple[int, ...], wanted: Sequence[_Wanted]) -> BatchRequest:
        who = self._ideator or "an optimizer"
        return BatchRequest(
            environment=self.environment.id,
            profile=self._profile,
            executor=NO_MODEL,
            ideator=self._ideator,
            base=self._base,
            ideas=[
                IdeaRequest(
                    text=f"Candidate {each.codebase[:12]} of {who}", codebase=each.codebase
                )
                for each in wanted
            ],
            options=BatchOptions(
                seeds=list(seeds), novelty="allow", allow_unisolated=self._allow_unisolated
            ),
        )

    def _read(
        self, client: Client, batch: str, wanted: Sequence[_Wanted]
    ) -> Iterable[Score | NoResult]:
        """What came of the ideas of a batch that has ended, by position."""
        told = self.environment
        reader = TrajectoryReader(client, told.direction)
        learnt = {each.position: each for each in reader.of_batch(batch, 0)}
        listed = {each.position: each for each in client.experiments.list(batch=batch)}
        for position, each in enumerate(wanted):
            if position in learnt:
                yield score_of(each.codebase, learnt[position], told.metric)
            else:
                yield _no_result(listed[position])


def _no_result(experiment: ExperimentBody) -> NoResult:
    why = experiment.failure
    said = f"{why.code}: {why.message}" if why else "somebody cancelled it"
    return NoResult(f"{experiment.id} was not measured ({experiment.state}: {said})")

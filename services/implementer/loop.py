"""The implement loop: one idea becomes a codebase, or the reason why it does not.

Up to `samples` calls, each revised up to `revisions` times from what was wrong with its answer;
the first diff that applies and passes preflight wins and the others are cancelled (paper §2.2).
`paper` sampling starts all samples at once; `staged` starts one, and more only when it has failed,
until many answers have failed for one cause. A codebase that crashed early in training goes
through the loop once more, with its traceback. An idea whose codebase is known (it names one, or
confirms or retries an experiment) does not go through the loop: see `given`.

Every call is recorded before it is made and after it returned, so a crash repeats at most one
call per sample: recorded answers are read back instead of being asked for again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy.orm import Session

from assay.domain.errors import Fenced
from assay.domain.failure_codes import Code, Failure, FailureCode, read_code
from assay.domain.isolation import is_offline
from assay.domain.states import FailureStage
from assay.environments.catalog import EXAMPLE, RULES
from assay.llm import Executor, ImplementRequest, recording
from assay.llm.executors import Limits
from assay.patching import PatchRefused, check_codebase
from assay.storage import (
    caps,
    environments,
    implementations,
    measurements,
    repairs,
    samples,
    schema,
    webhooks,
)
from assay.storage.implementations import Work
from assay.storage.objects import ObjectStore
from assay.storage.repairs import Repair
from assay.storage.samples import Answer, Key, Verdict
from services.implementer import smoke
from services.implementer.asking import Asking, CapReachedError, Lengths, caps_of
from services.implementer.context import Context
from services.implementer.judging import (
    MALFORMED,
    Files,
    Judge,
    Judgement,
    Patched,
    Rejected,
    crash_feedback,
    has_traceback,
)
from services.implementer.limits import Gates
from services.implementer.smoke import Smoke, Waiter

#: Sizes of the stages of `staged` sampling: one call, a few more, then the rest.
STAGES = (1, 3)
#: After so many answers that were refused for one cause, and none for another, `staged` sampling
#: begins no further stage. Of ideas that half of the answers fit, one in 4,096 is given up so.
REFUSED_ALIKE = 12


@dataclass(frozen=True)
class OwnTexts:
    """What an environment says to executors; empty where it says nothing."""

    rules: str
    example: str
    profile_notes: str


@dataclass
class Shared:
    """What all loops of a process share."""

    gates: Gates
    waiter: Waiter
    lengths: Lengths = field(default_factory=Lengths)
    _prompts: dict[tuple[str, str], OwnTexts] = field(default_factory=dict)

    def prompts(self, context: Context, environment_id: str, profile: str) -> OwnTexts:
        """An environment's own texts for executors."""
        key = (environment_id, profile)
        if key not in self._prompts:
            environment = context.environments.get(environment_id)
            self._prompts[key] = OwnTexts(
                environment.prompt(RULES),
                environment.prompt(EXAMPLE),
                environment.profile_notes(profile),
            )
        return self._prompts[key]

    @classmethod
    def of(cls, context: Context) -> Shared:
        """For a process with these settings."""
        return cls(Gates(context.settings.models), Waiter(context))


@dataclass
class Loop:
    """The implement loop for one experiment. `base`: the files that its idea changes."""

    context: Context
    work: Work
    executor: Executor
    base: Files
    shared: Shared
    judge: Judge
    asking: Asking = field(init=False)
    smoke: Smoke = field(init=False)
    #: Why each answer was refused.
    _refusals: list[Code] = field(default_factory=list, init=False)
    #: Whether one sample alone is under way, so that no other's call could be made again if its
    #: verdict were not recorded at once.
    _is_alone: bool = field(default=True, init=False)
    #: Of the sample that was accepted alone.
    _verdict: tuple[Key, Verdict] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        shared = self.shared
        self.asking = Asking(self.context, self.work, self.executor, shared.gates, shared.lengths)
        self.smoke = Smoke(self.asking, shared.waiter)

    async def run(self) -> Patched | Failure:
        """Work through the samples until one is accepted.

        Raises:
            NoLongerWantedError: the experiment was cancelled meanwhile.
            Unavailable: the database or the object store cannot be used; try again later.
        """
        stored = await asyncio.to_thread(self._stored)
        outcome: Patched | Failure | None = None
        try:
            outcome = await self._outcome(stored)
        finally:
            if self._verdict is not None and not isinstance(outcome, Patched):
                await asyncio.shield(self._record(*self._verdict))
        if isinstance(outcome, Patched):
            return replace(outcome, verdict=self._verdict)
        return outcome

    async def _outcome(self, stored: Stored) -> Patched | Failure:
        try:
            if self.work.repair is not None:
                return await self._repair(self.work.repair, stored)
            return await self._first(stored)
        except CapReachedError as reached:  # of a repair
            assert self.work.repair is not None
            return unrepaired(self.work.repair, str(reached))

    async def _first(self, stored: Stored) -> Patched | Failure:
        rejected = Rejected(FailureCode.NO_SAMPLES, "no sample was asked for")
        for stage in (*_accepted(stored), *self._stages()):
            if self._all_fail_alike():
                rejected = self._given_up(rejected, stage[0])
                break
            self._is_alone = len(stage) == 1
            outcome = await _first_accepted([self._sample(n, stored) for n in stage])
            if isinstance(outcome, Patched):
                return outcome
            rejected = outcome
            if rejected.is_final or rejected.code in caps.CAP_CODES:
                break
        return Failure(FailureStage.IMPLEMENT, rejected.code, rejected.message)

    def _all_fail_alike(self) -> bool:
        return len(self._refusals) >= REFUSED_ALIKE and len(set(self._refusals)) == 1

    def _given_up(self, rejected: Rejected, asked: int) -> Rejected:
        left = self.work.options.samples - asked
        message = (
            f"{rejected.message}\n(all {len(self._refusals)} answers were refused as "
            f"{self._refusals[0]}, so {left} more samples were not asked for)"
        )
        return replace(rejected, message=message)

    def _stages(self) -> Iterator[range]:
        options = self.work.options
        # Asking a literal implementer twice gives the same answer twice.
        total = 1 if is_offline(self.work.executor) else options.samples
        if options.sampling == "paper":
            yield range(total)
            return
        start = 0
        for size in (*STAGES, total):
            if start < total:
                yield range(start, min(start + size, total))
            start += size

    async def _sample(self, sample: int, stored: Stored) -> Patched | Rejected:
        rejected, previous = Rejected(FailureCode.NO_REVISIONS, ""), None
        for revision in range(self.work.options.revisions + 1):
            request = self._request(sample, revision, previous, rejected.message)
            try:
                step = await self._step(request, stored)
            except CapReachedError as reached:  # siblings under way may still win
                return Rejected(reached.code, f"{reached}: raise the cap to go on")
            if isinstance(step.outcome, Patched):
                return step.outcome
            rejected, previous = step.outcome, step.answer
            if previous is not None:
                self._refusals.append(rejected.code)
            if rejected.is_final or previous is None:
                break
        return rejected

    async def _repair(self, repair: Repair, stored: Stored) -> Patched | Failure:
        """One more revision of the sample that won, with the traceback of its training."""
        store, context = self.context.store, self.context
        files = await asyncio.to_thread(environments.get_codebase, store, repair.codebase)
        log = await asyncio.to_thread(smoke.log_tail, context, repair.measurement)
        if not has_traceback(log):
            return unrepaired(repair, "its log holds no traceback")
        said = repair.failure.get("message", "")
        what = f"The edit applied, but its training crashed: {said}"
        winner = [
            row.answer
            for row in stored.values()
            if row.sample == repair.sample and row.revision < repair.revision
            if row.state == "applied" and row.answer
        ]
        request = self._request(
            repair.sample,
            repair.revision,
            winner[-1] if winner else "",
            crash_feedback(what, log, files),
        )
        outcome = (await self._step(request, stored, repair)).outcome
        if isinstance(outcome, Rejected):
            return unrepaired(repair, f"{outcome.code}: {outcome.message}")
        return outcome

    def _request(
        self, sample: int, revision: int, previous: str | None, log: str
    ) -> ImplementRequest:
        manifest, name, options = self.work.manifest, self.work.profile, self.work.options
        profile = manifest.profiles[name]
        own = self.shared.prompts(self.context, self.work.environment_id, name)
        return ImplementRequest(
            environment_title=manifest.title,
            problem=manifest.problem,
            budget=profile.in_words,
            files=self.base,
            protected=manifest.codebase.protected,
            idea_text=self.work.idea,
            sample=sample,
            revision=revision,
            previous_answer=previous,
            patch_log=log or None,
            rules=own.rules,
            example=own.example,
            profile=f"{name}: {profile.description}" if profile.description else name,
            profile_notes=own.profile_notes,
            limits=Limits(options.max_tokens, options.temperature, options.effort),
        )

    async def _step(
        self, request: ImplementRequest, stored: Stored, repair: Repair | None = None
    ) -> Step:
        """One answer, asked for or remembered, and what it is worth."""
        row = stored.get((request.sample, request.revision))
        if row is not None and row.state == "refused":
            recording.note(self.executor, request, refused=True)
            code = read_code(row.code or FailureCode.REFUSED)
            return Step(row.answer, Rejected(code, row.patch_log or ""))
        if row is not None and row.state == "failed":
            code = read_code(row.code or FailureCode.MODEL_ERROR)
            message = row.patch_log or "the call failed"
            return Step(None, Rejected(code, message, is_final=request.revision == 0))
        if row is not None and row.answer is not None:  # also of one whose smoke was interrupted
            answer: Answer | Rejected = Answer(row.answer, code=_malformed(row.code))
        else:
            answer = await self.asking.ask(request, is_repair=repair is not None)
        if isinstance(answer, Rejected):
            return Step(None, answer)
        outcome = await self._preflight(request, answer, repair, is_passed=_is_passed(row))
        if isinstance(outcome, Rejected):
            recording.note(self.executor, request, refused=True)
        return Step(answer.text, outcome)

    async def _preflight(
        self, request: ImplementRequest, answer: Answer, repair: Repair | None, *, is_passed: bool
    ) -> Patched | Rejected:
        """Judge an answer, try what it makes, and record both."""
        key = (self.work.implementation, request.sample, request.revision)
        with_smoke = smoke.of_batch(self.work) and not is_passed
        # Paid for: it is judged and recorded even if a sibling wins meanwhile.
        judged = asyncio.ensure_future(
            self._judged(key, answer, repair, is_recorded=is_passed, with_smoke=with_smoke)
        )
        try:
            judgement = await asyncio.shield(judged)
        except asyncio.CancelledError:
            await judged
            raise
        files, rejected = judgement.files, judgement.rejected
        if files is not None and rejected is None and with_smoke:
            try:
                rejected = await self.smoke.passes(key, files, judgement.canonical)
            except asyncio.CancelledError:
                await asyncio.shield(
                    self._record(key, _with_diff(Verdict("cancelled"), judgement.diff))
                )
                raise
            await self._record(key, _verdict(rejected, judgement.diff))
        if rejected is not None:
            return rejected
        assert files is not None
        return Patched(request, files, judgement.canonical)

    async def _judged(
        self,
        key: Key,
        answer: Answer,
        repair: Repair | None,
        *,
        is_recorded: bool,
        with_smoke: bool,
    ) -> Judgement:
        judgement = await self._judge(answer, repair)
        if is_recorded or (with_smoke and judgement.rejected is None):
            return judgement
        verdict = _verdict(judgement.rejected, judgement.diff)
        if judgement.rejected is None and self._is_alone:
            # If the process dies first, the answer is read back and judged again.
            self._verdict = key, verdict
        else:
            await self._record(key, verdict)
        return judgement

    async def _record(self, key: Key, verdict: Verdict) -> None:
        db = self.context.db
        await self.asking.write(lambda session: samples.ended(db, session, key, verdict))

    async def _judge(self, answer: Answer, repair: Repair | None) -> Judgement:
        if answer.code is not None:
            return Judgement(None, Rejected(answer.code, MALFORMED[answer.code]))
        judgement = await self.judge(
            self.work.batch,
            answer.text,
            self.base,
            self.work.manifest.codebase.protected,
            compiles=self.work.options.preflight != "off",
        )
        if judgement.files is not None and self.work.base_codebase != self.work.baseline_codebase:
            refused = await asyncio.to_thread(self._guard, judgement.files)
            judgement = refused or judgement
        if repair is None or judgement.files is None or judgement.rejected is not None:
            return judgement
        if await asyncio.to_thread(self._has_crashed, judgement.files, judgement.canonical):
            rejected = Rejected(FailureCode.UNCHANGED, "the edit is one that crashed")
            return replace(judgement, rejected=rejected)
        return judgement

    def _guard(self, files: Files) -> Judgement | None:
        """Why a codebase that was made from a base may not be measured in its environment.

        The judge compares it with the base: bases could grow from one to the next without end.
        """
        own = _files(self.context.store, self.work.baseline_codebase)
        try:
            check_codebase(files, own, self.work.manifest.codebase.protected)
        except PatchRefused as refused:
            return Judgement(None, Rejected(FailureCode(refused.code), refused.log))
        return None

    def _has_crashed(self, files: Files, canonical: str | None) -> bool:
        """Whether this is the code of a codebase of this idea that has crashed."""
        with self.context.db.read() as session:
            crashed = [row.codebase_id for row in repairs.of(session, self.work.experiment)]
            if environments.find_same_code(session, self.work.same_code(canonical)) in crashed:
                return True
        store = self.context.store
        return any(files == environments.get_codebase(store, codebase) for codebase in crashed)

    def _stored(self) -> Stored:
        if self.work.is_new:
            return {}
        with self.context.db.read() as session:
            rows = samples.of(session, self.work.implementation)
        return {(row.sample, row.revision): row for row in rows}


Stored = dict[tuple[int, int], schema.Sample]


@dataclass(frozen=True)
class Step:
    """What one revision of a sample came to."""

    answer: str | None
    outcome: Patched | Rejected


def _verdict(rejected: Rejected | None, diff: str | None) -> Verdict:
    if rejected is None:
        return _with_diff(Verdict("applied"), diff)
    return _with_diff(Verdict("refused", rejected.code, rejected.message), diff)


def _with_diff(verdict: Verdict, diff: str | None) -> Verdict:
    return verdict if diff is None else replace(verdict, diff=diff, fitted=True)


def _accepted(stored: Stored) -> Iterator[Sequence[int]]:
    """The sample that had won when the process died, alone: its siblings were cancelled, and are
    not asked again."""
    found = [sample for (sample, _), row in stored.items() if row.state == "applied"]
    if found:
        yield found[:1]


def _malformed(code: str | None) -> FailureCode | None:
    """What is wrong with a stored answer before it is read; its verdict is told by `MALFORMED`."""
    return next((known for known in MALFORMED if known == code), None)


def _is_passed(row: schema.Sample | None) -> bool:
    return row is not None and row.state == "applied"


async def _first_accepted(found: list[Awaitable[Patched | Rejected]]) -> Patched | Rejected:
    """The first sample that is accepted; the others are cancelled. Else the first rejection,
    or one that is final for all."""
    tasks = [asyncio.ensure_future(sample) for sample in found]
    try:
        for finished in asyncio.as_completed(tasks):
            outcome = await finished
            if isinstance(outcome, Patched) or outcome.is_final:
                return outcome
        rejected = [task.result() for task in tasks]
        capped = [r for r in rejected if isinstance(r, Rejected) and r.code in caps.CAP_CODES]
        return (capped or rejected)[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def unrepaired(repair: Repair, why: str) -> Failure:
    """The failure that was to be repaired, with what became of that."""
    failure = Failure.from_dict(repair.failure)
    message = f"{failure.message} (a repair was tried: {why[:300]})"
    return Failure(failure.stage, failure.code, message)


async def given(context: Context, codebase: str) -> Patched:
    """The outcome for an idea whose codebase is known: no executor is opened, no model asked.

    Raises:
        Unavailable: the object store cannot be used; try again later.
    """
    files = await asyncio.to_thread(environments.get_codebase, context.store, codebase)
    return Patched(None, files)


def take_up(context: Context, experiment_id: str) -> tuple[Work, Files] | None:
    """Begin an experiment's implementation, or go on with it, with the files that its idea
    changes; None if there is nothing to do."""
    with context.write() as session:
        work = implementations.begin(
            context.db, session, experiment_id, context.holder, context.settings.idea_lease
        )
    if work is None:
        return None
    return work, _files(context.store, work.base_codebase)


@functools.lru_cache(maxsize=16)
def _files(store: ObjectStore, codebase: str) -> Files:
    """The files of a baseline or base: the same for every idea of a batch, and never changed."""
    return environments.get_codebase(store, codebase)


def _gpu_cap(
    context: Context, session: Session, work: Work, own: str, canonical: str | None
) -> Failure | None:
    """Record the codebase, and say why its measurements may not be asked for if a cap forbids it.

    Without GPUs no cap does, and `succeed` records it.
    """
    profile = work.manifest.profiles[work.profile]
    if not profile.gpus:
        return None
    codebase = environments.add_codebase(context.db, session, own, work.environment_id, canonical)
    terms = implementations.terms_of(work)
    new = [
        seed
        for seed in sorted(set(work.options.seeds))
        if not measurements.exists(
            session,
            work.identity(codebase, seed),
            terms,
        )
    ]
    hours = len(new) * profile.gpus * profile.budget.training_seconds / 3600
    allowed = caps_of(context, session, work)
    found = caps.reached(
        context.db, session, work.payer, allowed, more_gpu_hours=hours, kinds=["gpu_hours"]
    )
    if found is None or not new:
        return None
    webhooks.tell_of_cap(context.db, session, work.payer, found)
    if work.repair is not None:
        return unrepaired(work.repair, str(found))
    message = f"with this measurement, {found}: raise the cap to go on"
    return Failure(FailureStage.SCHEDULE, FailureCode.GPU_HOURS_CAP, message)


def conclude(context: Context, work: Work, outcome: Patched | Failure) -> None:
    """Store what the loop came to: a codebase and its measurements, or a failure."""
    if isinstance(outcome, Failure):
        with context.write() as session:
            implementations.fail(context.db, session, work, outcome)
            samples.close(context.db, session, work.implementation)
        return
    try:
        _store(context, work, outcome)
    except Fenced:
        raise
    except Exception:  # the answer was accepted, whatever becomes of the idea
        if outcome.verdict is not None:
            with context.write() as session:
                samples.ended(context.db, session, *outcome.verdict)
                implementations.check_held(session, work)
        raise


def _store(context: Context, work: Work, outcome: Patched) -> None:
    own = environments.put_codebase(context.store, outcome.files)
    with context.write() as session:
        canonical = work.same_code(outcome.canonical)
        too_much = _gpu_cap(context, session, work, own, canonical)
        if too_much is not None:
            implementations.fail(context.db, session, work, too_much)
        else:
            implementations.succeed(context.db, session, work, outcome.sample, own, canonical)
        if outcome.verdict is not None:
            samples.ended(context.db, session, *outcome.verdict)
        samples.close(context.db, session, work.implementation)

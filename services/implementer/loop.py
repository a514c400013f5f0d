"""The implement loop: one idea becomes a codebase, or the reason why it does not.

Up to `samples` calls, each revised up to `revisions` times from the patch log; the first diff
that applies and passes preflight wins and the others are cancelled (paper §2.2). `paper` sampling
starts all samples at once; `staged` starts one, and more only when it has failed.

Every call is recorded before it is made and after it returned, so a crash repeats at most one
call per sample: recorded answers are read back instead of being asked for again.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from assay.domain.isolation import is_offline
from assay.domain.states import Failure, FailureStage
from assay.llm.executors import Executor, ImplementRequest
from assay.llm.interface import Completion, ModelError, Try
from assay.llm.names import ModelName
from assay.llm.prices import price
from assay.patching import PatchRefused, apply_answer, check_codebase, unified_diff
from assay.storage import environments, implementations
from assay.storage.implementations import CallRecord, Work
from assay.storage.objects import ObjectStore
from services.implementer.context import Context

T = TypeVar("T")
#: Sizes of the stages of `staged` sampling: one call, a few more, then the rest.
STAGES = (1, 3)


class SpendCapReachedError(Exception):
    """No new call may start: the batch has spent what it may."""


class NoLongerWantedError(Exception):
    """The experiment was cancelled while it was being implemented."""


@dataclass(frozen=True)
class Patched:
    """A sample whose diff applied and passed preflight."""

    sample: int
    files: dict[str, str]


@dataclass(frozen=True)
class Rejected:
    """A sample that came to nothing, and why."""

    code: str
    message: str


@dataclass
class Loop:
    """The implement loop for one experiment."""

    context: Context
    work: Work
    executor: Executor
    baseline: dict[str, str]

    async def run(self) -> Patched | Failure:
        """Work through the samples until one is accepted.

        Raises:
            NoLongerWantedError: the experiment was cancelled meanwhile.
            Unavailable: the database or the object store cannot be used; try again later.
        """
        rejected = Rejected("no_samples", "no sample was asked for")
        try:
            for stage in self._stages():
                outcome = await _first_accepted([self._sample(n) for n in stage])
                if isinstance(outcome, Patched):
                    return outcome
                rejected = outcome
        except SpendCapReachedError:
            cap = self.work.options.max_cost_usd
            message = f"the batch has spent its cap of {cap} USD; raise max_cost_usd to go on"
            return Failure(FailureStage.IMPLEMENT, "spend_cap", message)
        return Failure(FailureStage.IMPLEMENT, rejected.code, rejected.message)

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

    async def _sample(self, sample: int) -> Patched | Rejected:
        stored = await self._read(
            lambda session: {
                row.revision: row
                for row in implementations.samples(session, self.work.implementation)
                if row.sample == sample
            }
        )
        answer: str | None = None
        rejected = Rejected("no_revisions", "")
        for revision in range(self.work.options.revisions + 1):
            row = stored.get(revision)
            if row is not None and row.state == "failed":
                return Rejected(row.code or "model_error", row.patch_log or "the call failed")
            if row is not None and row.state in ("applied", "refused"):
                answer = row.answer or ""
                outcome = await asyncio.to_thread(self._judge, answer)
            else:
                answer, outcome = await self._ask(sample, revision, answer, rejected.message)
            if not isinstance(outcome, Rejected):
                return Patched(sample, outcome)
            rejected = outcome
            if rejected.code == "refused":
                break
        return rejected

    async def _ask(
        self, sample: int, revision: int, previous: str | None, log: str
    ) -> tuple[str | None, dict[str, str] | Rejected]:
        """Make one call, with a record before and after; judge its answer."""
        key = (self.work.implementation, sample, revision)
        await self._write(lambda s: self._before(s, sample, revision))
        tries = 0

        async def count(event: Try) -> None:
            nonlocal tries
            tries = event.number

        request = ImplementRequest(
            environment_title=self.work.manifest.title,
            problem=self.work.manifest.problem,
            budget=_budget_text(self.work),
            files=self.baseline,
            protected=self.work.manifest.codebase.protected,
            idea_text=self.work.idea,
            sample=sample,
            revision=revision,
            previous_answer=previous,
            patch_log=log or None,
        )
        try:
            completion = await self.executor.implement(request, on_try=count)
        except ModelError as error:
            code, message = _model_error_code(error), str(error)
            record = CallRecord("failed", code, patch_log=message, tries=tries)
            await self._after(key, record)
            return None, Rejected(code, message)
        except asyncio.CancelledError:
            await asyncio.shield(self._after(key, CallRecord("cancelled", tries=tries)))
            raise
        # Paid for: it is recorded even if a sibling wins, or the batch is cancelled, meanwhile.
        outcome = await asyncio.shield(self._take(key, completion, max(tries, 1)))
        return completion.text, outcome

    async def _take(
        self, key: tuple[str, int, int], completion: Completion, tries: int
    ) -> dict[str, str] | Rejected:
        """Judge an answer and record it."""
        outcome = await asyncio.to_thread(self._judge_completion, completion)
        await self._after(key, self._record(completion, outcome, tries))
        return outcome

    def _before(self, session: Session, sample: int, revision: int) -> None:
        if not implementations.is_wanted(session, self.work.experiment):
            raise NoLongerWantedError
        cap = self.work.options.max_cost_usd
        free = is_offline(self.work.executor)
        if cap is not None and not free:
            spent = implementations.spent(session, self.work.batch)
            if spent >= cap:
                raise SpendCapReachedError
        implementations.before_call(
            self.context.db,
            session,
            self.work.implementation,
            sample,
            revision,
            self.executor.prompt_version,
        )

    def _judge_completion(self, completion: Completion) -> dict[str, str] | Rejected:
        if completion.stop == "refused":
            return Rejected("refused", "the model declined to write this change")
        if completion.stop == "truncated":
            # A diff that was cut off may look whole: never apply one.
            return Rejected("truncated", "the answer was cut off; send a shorter diff, whole")
        return self._judge(completion.text)

    def _judge(self, answer: str) -> dict[str, str] | Rejected:
        """The patched files, or why the answer's edits cannot be used."""
        try:
            result = apply_answer(
                self.baseline, answer, protected=self.work.manifest.codebase.protected
            )
            check_codebase(result.files, self.baseline, self.work.manifest.codebase.protected)
        except PatchRefused as refusal:
            return Rejected(refusal.code.value, refusal.log)
        if self.work.options.preflight == "compile":
            broken = compile_error(result.files, self.baseline)
            if broken is not None:
                return Rejected("does_not_compile", broken)
        return result.files

    def _record(
        self, completion: Completion, outcome: dict[str, str] | Rejected, tries: int
    ) -> CallRecord:
        refused = outcome if isinstance(outcome, Rejected) else None
        usage = completion.usage
        return CallRecord(
            state="refused" if refused else "applied",
            code=refused.code if refused else None,
            answer=completion.text,
            thinking=completion.thinking or None,
            diff=None if isinstance(outcome, Rejected) else unified_diff(self.baseline, outcome),
            patch_log=refused.message if refused else None,
            input_tokens=usage.all_input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=price(ModelName.parse(self.work.executor), usage),
            tries=tries,
        )

    async def _after(self, key: tuple[str, int, int], record: CallRecord) -> None:
        await self._write(lambda s: implementations.after_call(self.context.db, s, *key, record))

    async def _write(self, action: Callable[[Session], None]) -> None:
        def transaction() -> None:
            with self.context.write() as session:
                action(session)
                implementations.check_held(session, self.work)

        await asyncio.to_thread(transaction)

    async def _read(self, action: Callable[[Session], T]) -> T:
        def transaction() -> T:
            with self.context.db.read() as session:
                return action(session)

        return await asyncio.to_thread(transaction)


async def _first_accepted(samples: list[Awaitable[Patched | Rejected]]) -> Patched | Rejected:
    """The first sample that is accepted; the others are cancelled. Else the first rejection."""
    tasks = [asyncio.ensure_future(sample) for sample in samples]
    try:
        for finished in asyncio.as_completed(tasks):
            outcome = await finished
            if isinstance(outcome, Patched):
                return outcome
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def compile_error(files: dict[str, str], baseline: dict[str, str]) -> str | None:
    """Why a changed Python file does not compile, or None. Nothing is executed."""
    for name, text in files.items():
        if not name.endswith(".py") or baseline.get(name) == text:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"{name} does not compile: {type(error).__name__}: {error}"
    return None


def _budget_text(work: Work) -> str:
    profile = work.manifest.profiles[work.profile]
    parts = [f"{profile.cpus} CPU core(s), {profile.gpus} GPU(s), {profile.memory_gb:g} GB"]
    if profile.budget.tokens is not None:
        parts.append(f"{profile.budget.tokens} training tokens")
    parts.append(f"{profile.budget.seconds:g} s of wall clock")
    return "; ".join(parts)


def _model_error_code(error: ModelError) -> str:
    name = type(error).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def take_up(context: Context, experiment_id: str) -> tuple[Work, dict[str, str]] | None:
    """Begin an experiment's implementation, or go on with it; None if there is nothing to do."""
    with context.write() as session:
        work = implementations.begin(
            context.db, session, experiment_id, context.holder, context.settings.idea_lease
        )
    if work is None:
        return None
    return work, _baseline(context.store, work.baseline_codebase)


@functools.lru_cache(maxsize=16)
def _baseline(store: ObjectStore, codebase: str) -> dict[str, str]:
    """A baseline's files: the same for every idea of a batch, and never changed."""
    return environments.get_codebase(store, codebase)


def conclude(context: Context, work: Work, outcome: Patched | Failure) -> None:
    """Store what the loop came to: a codebase and its measurements, or a failure."""
    if isinstance(outcome, Failure):
        with context.write() as session:
            implementations.fail(context.db, session, work, outcome)
        return
    codebase = environments.put_codebase(context.store, outcome.files)
    with context.write() as session:
        implementations.succeed(context.db, session, work, outcome.sample, codebase)

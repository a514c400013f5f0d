"""Preflight on a worker: a codebase is started, for seconds, before a budget is spent on it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.environment import Profile
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import FailureCode, rules_of_stored
from assay.domain.states import TERMINAL_MEASUREMENT, MeasurementKind, MeasurementState
from assay.storage import (
    caps,
    environments,
    implementations,
    logs,
    measurements,
    repairs,
    samples,
    schema,
)
from assay.storage.implementations import Work
from assay.storage.measurements import Identity
from assay.storage.rows import insert_missing
from assay.storage.samples import Key
from services.implementer.asking import Asking, NoLongerWantedError, caps_of
from services.implementer.context import Context
from services.implementer.judging import Files, Rejected, crash_feedback

log = logging.getLogger(__name__)
#: How often the measurements that are waited for are looked at, all together.
LOOK_S = 0.5
#: Pause before a worker is looked for again, where none fits.
NO_WORKER_PAUSE_S = 5.0
_TERMINAL = [s.value for s in TERMINAL_MEASUREMENT]


class _CapReachedError(Exception):
    """The GPU-hours that are left do not pay for a smoke."""


@dataclass(frozen=True)
class Settled:
    """How a measurement ended."""

    state: MeasurementState
    failure: dict[str, object] | None


class Waiter:
    """Waits for measurements to end: one question for all of them. And for workers to come."""

    def __init__(
        self,
        context: Context,
        *,
        look_s: float = LOOK_S,
        no_worker_pause_s: float = NO_WORKER_PAUSE_S,
    ) -> None:
        self._context = context
        self._look_s = look_s
        self._no_worker_pause_s = no_worker_pause_s
        self._waiting: dict[str, asyncio.Future[Settled]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def settled(self, measurement_id: str) -> Settled:
        """How a measurement ended, once it has."""
        loop = asyncio.get_running_loop()
        future = self._waiting.setdefault(measurement_id, loop.create_future())
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look())
        return await asyncio.shield(future)

    async def for_worker(self) -> None:
        """Wait before a worker is looked for again, where none fits."""
        await asyncio.sleep(self._no_worker_pause_s)

    async def _look(self) -> None:
        while self._waiting:
            try:
                found = await asyncio.to_thread(self._ended, list(self._waiting))
            except Exception as error:  # without this look, ideas would wait for ever
                log.warning("cannot look at smoke measurements: %s", error)
                found = {}
            for measurement_id, settled in found.items():
                self._waiting.pop(measurement_id).set_result(settled)
            await asyncio.sleep(self._look_s)

    def _ended(self, ids: list[str]) -> dict[str, Settled]:
        table = schema.Measurement
        with self._context.db.read() as session:
            rows = session.execute(
                select(table.id, table.state, table.failure).where(
                    table.id.in_(ids), table.state.in_(_TERMINAL)
                )
            ).all()
        return {row.id: Settled(MeasurementState(row.state), row.failure) for row in rows}


@dataclass
class Smoke:
    """Tries the codebases of one implementation on a worker."""

    asking: Asking
    waiter: Waiter

    async def passes(
        self, key: Key, files: Files, canonical: str | None = None
    ) -> Rejected | None:
        """Why a codebase does not start, or None. `canonical`: see `judging.Judgement`."""
        while True:
            try:
                measurement_id = await self._request(key, files, canonical)
            except _CapReachedError:
                return None  # nor for its measurement, which is refused in the cap's name
            settled = await self.waiter.settled(measurement_id)
            if settled.state is MeasurementState.SUCCEEDED:
                return None
            failure = settled.failure or {}
            if settled.state is MeasurementState.FAILED:
                if not rules_of_stored(failure).shared:
                    # The hosts are to blame: what its budget will be spent on must show it.
                    log.warning("%s was not tried: %s", measurement_id, failure.get("message"))
                    return None
                text = await asyncio.to_thread(log_tail, self.asking.context, measurement_id)
                what = (
                    f"The code was started for a few seconds and failed: {failure.get('message')}"
                )
                return Rejected(FailureCode.SMOKE_FAILED, crash_feedback(what, text, files))
            # Cancelled, by a batch that shared it: ask for another.

    async def _request(self, key: Key, files: Files, canonical: str | None) -> str:
        context = self.asking.context
        own = await asyncio.to_thread(environments.put_codebase, context.store, files)
        found: list[str] = []

        def ask(session: Session) -> None:
            self._ask(session, key, own, canonical, found)

        await self.asking.write(ask)
        while not found:
            await self.waiter.for_worker()
            await self.asking.write(ask)
        return found[-1]

    def _ask(
        self, session: Session, key: Key, own: str, canonical: str | None, found: list[str]
    ) -> None:
        db, work = self.asking.context.db, self.asking.work
        if not implementations.is_wanted(session, work.experiment):
            raise NoLongerWantedError
        smoke = work.manifest.smoke_profile(work.profile)
        assert smoke is not None, "checked when the batch was submitted"
        name, profile = smoke
        terms = implementations.terms_of(work, more_priority=1)
        hardware_class = fitting_class(
            session, profile, work.on.hardware_class, isolated=terms.needs_isolation
        )
        if hardware_class is None:
            return
        # A smoke says whether a codebase starts, which is compared with nothing.
        on = Conditions(hardware_class)
        codebase = environments.add_codebase(
            db, session, own, work.environment_id, work.same_code(canonical)
        )
        identity = Identity(codebase, work.environment_id, name, 0, on, MeasurementKind.SMOKE)
        if profile.gpus and not measurements.exists(session, identity, terms):
            self._check_gpu_hours(session, profile)
        measurement_id = measurements.request(db, session, identity, profile, terms)
        link = {
            "experiment_id": work.experiment,
            "measurement_id": measurement_id,
            "role": repairs.SMOKE,
        }
        insert_missing(session, schema.ExperimentMeasurement, [link])
        samples.smoking(session, key, measurement_id)
        found.append(measurement_id)

    def _check_gpu_hours(self, session: Session, profile: Profile) -> None:
        context, work = self.asking.context, self.asking.work
        reached = caps.reached(
            context.db,
            session,
            work.payer,
            caps_of(context, session, work),
            more_gpu_hours=profile.gpus * profile.budget.seconds / 3600,
            kinds=["gpu_hours"],
        )
        if reached is not None:
            raise _CapReachedError


def fitting_class(
    session: Session, profile: Profile, preferred: str | None, *, isolated: bool
) -> str | None:
    """A hardware class of live workers that a smoke fits on; the preferred one if it does.

    One that needs a GPU shows nothing on another class than the preferred: kernels differ.
    """
    table = schema.Worker
    query = select(table.hardware_class).where(
        table.state == "active", table.cpus >= profile.cpus, table.gpus >= profile.gpus
    )
    query = query.where(table.memory_bytes >= profile.memory_bytes)
    if isolated:
        query = query.where(table.isolated)
    classes = sorted(set(session.scalars(query)))
    if preferred in classes:
        return preferred
    if profile.gpus and preferred is not None:
        return None
    return next(iter(classes), None)


def log_tail(context: Context, measurement_id: str, size: int = 64 << 10) -> str:
    """The end of what the last attempt of a measurement printed in training."""
    table = schema.Attempt
    with context.db.read() as session:
        attempt = session.scalars(
            select(table.id)
            .where(table.measurement_id == measurement_id)
            .order_by(table.number.desc())
            .limit(1)
        ).first()
        if attempt is None:
            return ""
        end = logs.stream_end(session, attempt, "train")
        start = max(0, end - size)
        parts = logs.find(session, attempt, "train", start, size)
    return logs.read(context.store, parts, start, size).decode(errors="replace")


def of_batch(work: Work) -> bool:
    """Whether codebases of a batch are tried on a worker before they are measured."""
    return work.options.preflight == "smoke"

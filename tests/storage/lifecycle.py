"""Drive rows through their life by hand, as implementer, scheduler and worker would."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import BatchRequest
from assay.contracts.environment import Profile
from assay.contracts.worker import (
    AttemptSpec,
    HeldAttempt,
    SyncRequest,
    SyncResponse,
    WorkerRegistration,
)
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.placement import Placement
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import attempts, batches, environments, implementations, schema, workers
from assay.storage.attempts import Outcome, Telemetry
from assay.storage.database import Database
from assay.storage.objects import LocalStore

TTL = timedelta(seconds=60)
CLASS = "cpu"
CRASH = Failure(FailureStage.TRAIN, FailureCode.CRASHED, "ValueError: no")


@dataclass
class World:
    """A database with one environment and one worker."""

    db: Database
    store: LocalStore
    environment: str
    worker: str
    incarnation: str = "one"
    name: str = "w"
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def create(cls, db: Database, store: LocalStore, catalog: Catalog) -> World:
        environment = environments.register(db, store, catalog.get("count"))
        world = cls(db, store, environment, workers.admit(db, "w", "secret"))
        world.restart("one")
        return world

    def another(self, name: str, **changes: object) -> World:
        """The same world, seen from another worker, which registers."""
        other = replace(self, worker=workers.admit(self.db, name, f"secret {name}"), name=name)
        other.restart("one", **changes)
        return other

    def restart(
        self, incarnation: str, *adopted: schema.Attempt | AttemptSpec, **changes: object
    ) -> None:
        """Register the worker's process anew."""
        self.incarnation = incarnation
        values: dict[str, object] = {
            "name": self.name,
            "incarnation": incarnation,
            "cpus": 4,
            "memory_bytes": 1 << 34,
            "hardware_class": CLASS,
            "sandbox": "subprocess",
            "isolated": False,
            "adopted": [_held(each) for each in adopted],
        }
        with self.db.write() as session:
            workers.register(
                self.db,
                session,
                self.worker,
                WorkerRegistration.model_validate(values | changes),
            )

    def submit(
        self,
        *texts: str,
        hardware_class: str = CLASS,
        on: Conditions | None = None,
        owner: str = "local",
        **options: object,
    ) -> str:
        """Submit a batch, under conditions that nobody recorded unless some are given; its id."""
        request = BatchRequest.model_validate(
            {
                "environment": "count",
                "profile": "tiny",
                "ideas": [{"text": text} for text in texts],
                "options": {"baseline_seeds": 0, **options},
            }
        )
        with self.db.write() as session:
            return batches.create(
                self.db,
                session,
                request,
                owner,
                self.environment,
                on or Conditions(hardware_class),
            )

    def experiments(self, batch: str) -> list[schema.Experiment]:
        with self.db.read() as session:
            return list(
                session.scalars(
                    select(schema.Experiment)
                    .where(schema.Experiment.batch_id == batch)
                    .order_by(schema.Experiment.position)
                )
            )

    def implement(self, experiment: str, content: str) -> str:
        """Pretend that an idea became a codebase with that content; its measurement's id."""
        codebase = environments.put_codebase(self.store, {"train.py": content})
        with self.db.write() as session:
            work = implementations.begin(self.db, session, experiment)
            assert work is not None
            implementations.succeed(self.db, session, work, 0, codebase)
        return self.measurements(experiment)[0]

    def measurements(self, experiment: str) -> list[str]:
        link = schema.ExperimentMeasurement
        with self.db.read() as session:
            return list(
                session.scalars(
                    select(link.measurement_id)
                    .join(schema.Measurement, schema.Measurement.id == link.measurement_id)
                    .where(link.experiment_id == experiment)
                    .order_by(schema.Measurement.seed)
                )
            )

    def assign(self, measurement: str) -> schema.Attempt | None:
        with self.db.write() as session:
            return attempts.assign(self.db, session, Placement(measurement, self.worker), TTL)

    def sync(
        self, *held: AttemptSpec | schema.Attempt, number: int | None = None, **said: Any
    ) -> SyncResponse:
        """Sync as the next of the process, or as an earlier one."""
        request = SyncRequest(
            incarnation=self.incarnation,
            number=next(self.numbers) if number is None else number,
            **said,
            held=[_held(each) for each in held],
        )
        with self.db.write() as session:
            return workers.sync(self.db, session, self.worker, request, TTL)

    def claim(self, attempt: schema.Attempt) -> None:
        with self.db.write() as session:
            attempts.claim(self.db, session, attempt.id, self.worker, attempt.lease_token, TTL)

    def finish(
        self,
        attempt: schema.Attempt,
        outcome: Outcome | None = None,
        telemetry: Telemetry | None = None,
    ) -> AttemptState:
        outcome = outcome or Outcome(
            AttemptState.SUCCEEDED, metric=12.5, metrics={"score": 12.5}, started=True, seconds=1.0
        )
        with self.db.write() as session:
            return attempts.finish(
                self.db,
                session,
                attempt.id,
                self.worker,
                attempt.lease_token,
                outcome,
                telemetry or Telemetry(),
            )

    def measure(self, measurement: str, outcome: Outcome | None = None) -> schema.Attempt:
        """Assign, claim and finish a measurement."""
        attempt = self.assign(measurement)
        assert attempt is not None
        self.claim(attempt)
        self.finish(attempt, outcome)
        return attempt

    def state(self, measurement: str) -> str:
        with self.db.read() as session:
            return session.get_one(schema.Measurement, measurement).state

    def results(self) -> int:
        with self.db.read() as session:
            return len(session.scalars(select(schema.Result)).all())

    def profile(self, session: Session) -> Profile:
        """The only profile there is."""
        return environments.manifest(session, self.environment).profiles["tiny"]

    def attempt(self, attempt_id: str) -> schema.Attempt:
        """An attempt as it is stored now."""
        with self.db.read() as session:
            return session.get_one(schema.Attempt, attempt_id)

    def row(self) -> schema.Worker:
        """The worker as it is stored now."""
        with self.db.read() as session:
            return session.get_one(schema.Worker, self.worker)

    def run(self, attempt: schema.Attempt) -> None:
        """Claim an attempt and start its codebase."""
        self.claim(attempt)
        with self.db.write() as session:
            attempts.progress(
                self.db,
                session,
                attempt.id,
                self.worker,
                attempt.lease_token,
                Telemetry(),
                AttemptState.RUNNING,
            )

    def measurement_of_one(self, content: str = "a = 1\n") -> str:
        """The measurement of a batch of one implemented idea."""
        return self.implement(self.experiments(self.submit("an idea"))[0].id, content)


def _held(each: AttemptSpec | schema.Attempt) -> HeldAttempt:
    name = each.attempt if isinstance(each, AttemptSpec) else each.id
    return HeldAttempt(attempt=name, lease_token=each.lease_token)

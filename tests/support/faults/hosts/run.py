"""One attempt on a fake host: claimed, started, reported, finished."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from assay.contracts.worker import (
    INLINE_BYTES,
    AttemptSpec,
    ClaimRequest,
    FailureReport,
    FinishRequest,
    LogPiece,
    ManifestEntry,
    Point,
    ProgressRequest,
)
from assay.domain.states import FailureStage
from tests.support.faults.hosts.api import Away, FleetApi, Refused
from tests.support.faults.hosts.journal import Interval, Journal
from tests.support.faults.hosts.options import HostOptions, Stats
from tests.support.faults.hosts.work import FAILURE_CODE, Work, artifact, log_bytes, point, value

T = TypeVar("T")
_HELD = 0.9  # how far a run gets that is not to end
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class Fenced(Exception):
    """The attempt is somebody else's, or has ended."""


class Owner(Protocol):
    """The host of a run, as the run sees it."""

    name: str
    token: str
    options: HostOptions
    api: FleetApi
    journal: Journal
    stats: Stats

    def take(self, count: int) -> tuple[str, ...] | None:
        """So many free devices, or None."""
        ...

    def give(self, devices: tuple[str, ...]) -> None:
        """Give devices back."""
        ...


class Output:
    """What a run has written by now, and what of it the API has acknowledged."""

    def __init__(self, work: Work, attempt: str, token: int) -> None:
        self._work = work
        self._attempt = attempt
        self._token = token
        self._pieces: set[int] = set()
        self._points: set[int] = set()

    def written(self, fraction: float) -> dict[str, int]:
        """How much is written when that share of the run is over; all of it at the end."""
        work = self._work
        if fraction >= 1:
            return {"log": work.log_bytes, "points": work.points}
        whole = int(work.pieces * fraction) * work.piece_bytes
        return {"log": min(whole, work.log_bytes), "points": int(work.points * fraction)}

    def pending(self, fraction: float) -> tuple[list[LogPiece], list[Point]]:
        """What is written and not acknowledged, in pieces at fixed offsets."""
        written, size = self.written(fraction), self._work.piece_bytes
        pieces = [
            LogPiece(
                stream="train", offset=at, data=self._data(at, min(size, written["log"] - at))
            )
            for at in range(0, written["log"], size)
            if at not in self._pieces
        ]
        points = [
            Point(seq=seq, step=float(seq), values=point(self._attempt, seq))
            for seq in range(written["points"])
            if seq not in self._points
        ]
        return pieces, points

    def _data(self, offset: int, size: int) -> str:
        return base64.b64encode(log_bytes(self._attempt, self._token, offset, size)).decode()

    def acknowledge(self, pieces: list[LogPiece], points: list[Point]) -> None:
        """These have arrived."""
        self._pieces.update(piece.offset for piece in pieces)
        self._points.update(one.seq for one in points)


class Run:
    """Claims, pretends to train, and reports. `adopted`: it was started by an earlier process."""

    def __init__(self, owner: Owner, spec: AttemptSpec, adopted: Interval | None = None) -> None:
        self.spec = spec
        self._owner = owner
        self._work = owner.options.work
        self._output = Output(self._work, spec.attempt, spec.lease_token)
        self._stop = asyncio.Event()
        self.reason = ""
        self._devices: tuple[str, ...] = adopted.devices if adopted else ()
        self._started = adopted.start if adopted else 0.0
        self._adopted = adopted is not None
        self._ended: float | None = None  # how far it was when its container ended
        self._random = random.Random(spec.lease_token)
        self._late: set[asyncio.Task[None]] = set()

    @property
    def key(self) -> tuple[str, int]:
        return self.spec.attempt, self.spec.lease_token

    def stop(self, reason: str) -> None:
        """End it: `fenced`, `cancelled` or `stopping`."""
        if self.reason == "" or reason == "fenced":
            self.reason = reason
        self._stop.set()

    async def go(self) -> None:
        """From the claim to the end. Never raises, except when its host's process ends."""
        try:
            if not self._adopted and not await self._claimed():
                return
            if not self._adopted and not await self._can_start():
                return
            if not self._adopted:
                self._start()
            state = await self._train()
            await self._finish(state)
        except (Fenced, Refused) as error:
            self._note_stop("fenced")
            self._owner.stats["fenced" if isinstance(error, Fenced) else "refused"] += 1
        except Away:  # its lease expires, and the attempt is tried again
            self._note_stop("given up")
            self._owner.stats["given_up"] += 1
        finally:
            self._release()

    async def _claimed(self) -> bool:
        owner = self._owner
        taken = owner.take(self.spec.gpus)
        if taken is None:  # what was fenced has not stopped yet
            owner.stats["devices_busy"] += 1
            return False
        self._devices = taken
        body = ClaimRequest(lease_token=self.spec.lease_token, devices=list(taken))
        try:
            await self._patiently(lambda: owner.api.claim(owner.token, self.spec.attempt, body))
        except Refused as error:
            owner.stats[f"claim_refused_{error.code}"] += 1
            return False
        except (Away, Fenced):
            owner.stats["not_claimed"] += 1
            return False
        owner.stats["claimed"] += 1
        return True

    async def _can_start(self) -> bool:
        mischief = self._owner.options.mischief
        if not mischief.fails_to_start(self._owner.name, self.spec.attempt):
            return True
        self._owner.stats["start_failures"] += 1
        await self._give_back("sandbox_failed", "the fake host was told to fail")
        return False

    def _start(self) -> None:
        self._started = time.monotonic()
        self._owner.stats["started"] += 1
        self._owner.journal.note(
            "start",
            attempt=self.spec.attempt,
            token=self.spec.lease_token,
            devices=list(self._devices),
            spec=self.spec.model_dump(mode="json", exclude={"archive"}),
        )

    @property
    def _length(self) -> float:
        return self._work.seconds(self.spec.measurement)

    def _fraction(self) -> float:
        if self._ended is not None:
            return self._ended
        if self._work.held:
            return min(_HELD, (time.monotonic() - self._started) / max(self._length, 0.001))
        if self._length <= 0:
            return 1.0
        return min((time.monotonic() - self._started) / self._length, 1.0)

    async def _train(self) -> str:
        """Report until the run is over or stopped. Returns how the container ended."""
        breaks = self._owner.options.mischief.breaks(self.spec.attempt)
        state = "running"
        while (fraction := self._fraction()) < 1 and not self._stop.is_set():
            if breaks and fraction > 0.5:
                self._note_stop("broken")
                return "broken"
            if await self._report(state, fraction):
                state = ""
            await self._pause(self._until_next())
        self._note_stop(self.reason or "ended")
        if self.reason == "fenced":
            raise Fenced
        return self.reason or "ended"

    def _until_next(self) -> float:
        """Seconds until the next report, or until the end if that comes first."""
        pause = self._owner.options.progress_seconds
        if self._work.held:
            return pause
        return min(pause, max(self._length * (1 - self._fraction()), 0.001))

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    async def _report(self, state: str, fraction: float) -> bool:
        """Whether the report arrived; a report that did not is made again with the next."""
        pieces, points = self._output.pending(fraction)
        if self._owner.options.mischief.reorder:
            self._random.shuffle(pieces)
            pieces = pieces[: max(1, len(pieces) - 1)]  # one is held back
        if not (state or pieces or points):
            return True
        try:
            await self._send(self._progress(state, pieces, points))
        except Away:
            self._owner.stats["reports_failed"] += 1
            return False
        except Refused as error:
            raise Fenced from error
        self._output.acknowledge(pieces, points)
        return True

    def _progress(
        self, state: str, pieces: list[LogPiece], points: list[Point]
    ) -> Callable[[], Awaitable[None]]:
        values: dict[str, Any] = {"logs": pieces, "points": points}
        if state:
            values["state"] = state
        body = ProgressRequest(lease_token=self.spec.lease_token, **values)
        return lambda: self._owner.api.progress(self._owner.token, self.spec.attempt, body)

    async def _finish(self, how: str) -> None:
        if how == "broken":
            await self._give_back("gpu_trouble", "the fake GPU was told to fail", started=True)
            return
        if how == "stopping":
            await self._give_back("worker_stopped", "the fake host was stopped", started=True)
            return
        if self._length > 0:
            await self._report("finalizing", self._fraction())
        body = await self._body(how)
        body.logs, body.points = self._output.pending(self._fraction())
        await self._deliver(body)

    async def _body(self, how: str) -> FinishRequest:
        spec = self.spec
        facts: dict[str, Any] = {
            "lease_token": spec.lease_token,
            "started": True,
            "seconds": time.monotonic() - self._started,
        }
        if how == "cancelled":
            return FinishRequest(state="cancelled", **facts)
        if self._work.fails(spec.codebase):
            failure = FailureReport(
                stage=FailureStage.TRAIN, code=FAILURE_CODE, message="told to fail"
            )
            return FinishRequest(state="failed", failure=failure, **facts)
        metric = await self._patiently(
            lambda: self._owner.api.metric(self._owner.token, spec.bundle)
        )
        return FinishRequest(
            state="succeeded",
            metrics={metric: value(spec.codebase, spec.seed)},
            provenance={
                "codebase": spec.codebase,
                "environment": spec.environment,
                "seed": spec.seed,
                "isolated": self._owner.options.isolated,
                "worker": self._owner.name,
                "devices": list(self._devices),
            },
            artifacts=await self._artifacts(),
            **facts,
        )

    async def _artifacts(self) -> list[ManifestEntry]:
        if self._work.artifact_bytes == 0:
            return []
        data = artifact(self.spec, self._work.artifact_bytes)
        entry = ManifestEntry(
            name="artifact.zip", bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        if len(data) <= INLINE_BYTES:
            entry.data = base64.b64encode(data).decode()
            return [entry]
        owner, spec = self._owner, self.spec
        await self._patiently(
            lambda: owner.api.upload(owner.token, spec.attempt, spec.lease_token, entry, data)
        )
        return [entry]

    async def _give_back(self, code: str, message: str, *, started: bool = False) -> None:
        failure = FailureReport(
            stage=FailureStage.START, code=code, message=message, retryable=True
        )
        body = FinishRequest(
            lease_token=self.spec.lease_token,
            state="failed",
            failure=failure,
            infrastructure=True,
            started=started,
        )
        body.logs, body.points = self._output.pending(self._fraction() if started else 0.0)
        await self._deliver(body)

    async def _deliver(self, body: FinishRequest) -> None:
        owner, attempt = self._owner, self.spec.attempt
        try:
            answer = await self._patiently(lambda: owner.api.finish(owner.token, attempt, body))
        except Refused as error:
            owner.stats[f"finish_refused_{error.code}"] += 1
            owner.journal.note(
                "refused", attempt=attempt, token=self.spec.lease_token, code=error.code
            )
            raise
        owner.stats["finished"] += 1
        owner.stats[f"finished_{answer.state}"] += 1

    def _note_stop(self, reason: str) -> None:
        if self._started == 0.0 or self._ended is not None:
            return
        self._ended = 1.0 if reason == "ended" else self._fraction()
        self._owner.journal.note(
            "stop",
            attempt=self.spec.attempt,
            token=self.spec.lease_token,
            reason=reason,
            written=self._output.written(self._ended),
        )
        self._release()

    def _release(self) -> None:
        self._owner.give(self._devices)
        self._devices = ()

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the API is away, for as long as patience lasts."""
        deadline = time.monotonic() + self._owner.options.patience_seconds
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._send(call)
            except Away:
                wait = self._random.uniform(0.5, 1) * pause
                pause = min(pause * 2, _LONGEST_PAUSE)
                if self.reason == "fenced" or time.monotonic() + wait > deadline:
                    raise
                await asyncio.sleep(wait)

    async def _send(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call as often as this host is told to: repeated at once, and again later."""
        mischief = self._owner.options.mischief
        if mischief.late_seconds:
            task = asyncio.create_task(self._later(call))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        if mischief.repeat <= 1:
            return await call()
        answers = await asyncio.gather(
            *(call() for _ in range(mischief.repeat)), return_exceptions=True
        )
        self._owner.stats["repeated"] += mischief.repeat - 1
        for answer in answers:
            if not isinstance(answer, BaseException):
                return answer
        first = answers[0]
        assert isinstance(first, BaseException)
        raise first

    async def _later(self, call: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self._owner.options.mischief.late_seconds)
        try:
            await call()
        except Refused as error:
            self._owner.stats[f"late_refused_{error.code}"] += 1
        except Away:
            self._owner.stats["late_away"] += 1
        else:
            self._owner.stats["late_accepted"] += 1

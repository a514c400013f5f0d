"""`client.experiments`, `client.implementations`, `client.measurements`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from assay.client.http import Http
from assay.client.resource import Group, segment
from assay.contracts.annotation import AnnotationRequest
from assay.contracts.base import Page
from assay.contracts.bases import DEFAULT_NAME, PromoteRequest, PromotionBody
from assay.contracts.batch import (
    BatchBody,
    ConfirmRequest,
    CurvePoint,
    ExperimentBody,
    ImplementationBody,
    MeasurementBody,
    ResultBody,
)

Stream = Literal["train", "score"]
Against = Literal["base", "baseline"]
CurvePoints = list[CurvePoint]


@dataclass(frozen=True)
class LogText:
    """A piece of a log; ask for `next_offset` (bytes) to read on.

    A piece may begin or end inside a character: decode `data` piece by piece to join them.
    """

    data: bytes
    next_offset: int

    @property
    def text(self) -> str:
        """The piece as text, for one that is read alone."""
        return self.data.decode(errors="replace")


class Experiments(Group):
    """Ideas put to the test."""

    path = "/v1/experiments"

    def list(
        self,
        *,
        batch: str | None = None,
        state: str | None = None,
        environment: str | None = None,
        tag: str | None = None,
    ) -> Iterator[ExperimentBody]:
        """Experiments, page by page as they are asked for.

        `environment` is a name or `name@hash`.
        """
        query = {"batch": batch, "state": state, "environment": environment, "tag": tag}
        return self._walk(ExperimentBody, self.path, query)

    def page(
        self, *, batch: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[ExperimentBody]:
        """One page of experiments."""
        query = {"batch": batch, "limit": limit, "cursor": cursor}
        return self._page(ExperimentBody, self.path, query)

    def get(self, experiment: str) -> ExperimentBody:
        """An experiment."""
        return self._get(ExperimentBody, f"{self.path}/{segment(experiment)}")

    def annotate(
        self, experiment: str, *, tags: Sequence[str] | None = None, note: str | None = None
    ) -> ExperimentBody:
        """Replace the tags, the note or both. None leaves them, and empty ones are removed."""
        wanted = AnnotationRequest(tags=None if tags is None else list(tags), note=note)
        response = self._http.request("PATCH", f"{self.path}/{segment(experiment)}", body=wanted)
        return ExperimentBody.model_validate_json(response.content)

    def cancel(self, experiment: str) -> ExperimentBody:
        """Cancel an experiment that has not finished."""
        response = self._http.request("POST", f"{self.path}/{segment(experiment)}/cancel")
        return ExperimentBody.model_validate_json(response.content)

    def retry(self, experiment: str) -> ExperimentBody:
        """Measure a failed experiment again; the experiment that does so.

        Repeating it while that one waits or runs, or after it succeeded, gives the same one.

        Raises:
            Conflict: it has not failed, or failed before there was something to measure.
        """
        response = self._http.request("POST", f"{self.path}/{segment(experiment)}/retry")
        return ExperimentBody.model_validate_json(response.content)

    def confirm(
        self,
        experiment: str,
        *,
        beside: Sequence[str] = (),
        seeds: int = 5,
        search: str | None = None,
        base: str | None = None,
        idempotency_key: str | None = None,
    ) -> BatchBody:
        """Measure results again: fresh seeds, the sealed split, the baseline on the same.

        Those named `beside` are confirmed in the same batch, and what may be claimed is decided
        for all of them together. They are compared with `base`, by default their own batch's.

        Raises:
            InvalidInput: one has no result, or they were made on different terms.
        """
        response = self._http.request(
            "POST",
            f"{self.path}/{segment(experiment)}/confirm",
            body=ConfirmRequest(seeds=seeds, beside=list(beside), search=search, base=base),
            idempotency_key=idempotency_key,
        )
        return BatchBody.model_validate_json(response.content)

    def check_confirmation(
        self,
        experiment: str,
        *,
        beside: Sequence[str] = (),
        seeds: int = 5,
        base: str | None = None,
    ) -> dict[str, Any]:
        """Have a confirmation checked and priced as `batches.check` does; nothing is stored."""
        response = self._http.request(
            "POST",
            f"{self.path}/{segment(experiment)}/confirm",
            query={"dry_run": True},
            body=ConfirmRequest(seeds=seeds, beside=list(beside), base=base),
        )
        return TypeAdapter(dict[str, Any]).validate_json(response.content)

    def reproduce(self, experiment: str, *, queue: bool = False) -> ExperimentBody:
        """Measure a result again as its record says; the experiment that does so.

        Repeating it while that one waits or runs gives the same one. `queue`: ask also where no
        live worker measures under the conditions of the result; it then waits for one.

        Raises:
            NotFound: it ended without a result.
            Conflict: it has not ended, or no live worker has its conditions; the message says in
                which facts they differ.
        """
        path = f"{self.path}/{segment(experiment)}/reproduce"
        query = {"queue": True} if queue else None
        response = self._http.request("POST", path, query=query)
        return ExperimentBody.model_validate_json(response.content)

    def bundle(self, experiment: str) -> bytes:
        """A zip with all that measuring the result again takes, and a `run.py` that does so.

        Raises:
            NotFound: there is no result (yet).
        """
        path = f"{self.path}/{segment(experiment)}/bundle"
        return self._http.request("GET", path, accept="application/zip").content

    def promote(self, experiment: str, *, name: str = DEFAULT_NAME) -> PromotionBody:
        """Give a confirmed codebase a name that batches can start from as their `base`.

        Repeating it changes nothing.

        Raises:
            Conflict: it is not confirmed to be better than what the name stands for, or than the
                baseline; the message says how to confirm it.
        """
        path = f"{self.path}/{segment(experiment)}/promote"
        response = self._http.request("POST", path, body=PromoteRequest(name=name))
        return PromotionBody.model_validate_json(response.content)

    def diff(self, experiment: str, *, against: Against = "base") -> str:
        """The unified diff of the winning codebase against its base, or against the baseline.

        Without a base they are the same.

        Raises:
            NotFound: the experiment is not implemented (yet).
        """
        path = f"{self.path}/{segment(experiment)}/diff"
        query = {"against": against}
        return self._http.request("GET", path, query=query, accept="text/plain").content.decode(
            errors="replace"
        )

    def logs(
        self,
        experiment: str,
        *,
        stream: Stream = "train",
        offset: int = 0,
        limit: int | None = None,
    ) -> LogText:
        """A piece of the log, from byte `offset`."""
        return _read_log(
            self._http, f"{self.path}/{segment(experiment)}/logs", stream, offset, limit
        )

    def curves(self, experiment: str, *, max_points: int = 500) -> CurvePoints:
        """What the codebase wrote about itself while it trained. Never a result."""
        page = self._page(
            CurvePoint, f"{self.path}/{segment(experiment)}/curves", {"max_points": max_points}
        )
        return page.data

    def result(self, experiment: str) -> ResultBody:
        """The sealed result.

        Raises:
            NotFound: there is none (yet).
        """
        return self._get(ResultBody, f"{self.path}/{segment(experiment)}/result")


class Implementations(Group):
    """Records of turning ideas into codebases."""

    path = "/v1/implementations"

    def get(self, implementation: str) -> ImplementationBody:
        """An implementation: every sample, diff and patch log."""
        return self._get(ImplementationBody, f"{self.path}/{segment(implementation)}")


class Measurements(Group):
    """Scored executions of codebases."""

    path = "/v1/measurements"

    def list(
        self, *, experiment: str | None = None, environment: str | None = None
    ) -> Iterator[MeasurementBody]:
        """Measurements, page by page as they are asked for."""
        query = {"experiment": experiment, "environment": environment}
        return self._walk(MeasurementBody, self.path, query)

    def get(self, measurement: str) -> MeasurementBody:
        """A measurement."""
        return self._get(MeasurementBody, f"{self.path}/{segment(measurement)}")

    def retry(self, measurement: str) -> MeasurementBody:
        """Measure again what failed; the measurement that does so.

        Repeating it while that one waits or runs, or after it succeeded, gives the same one.

        Raises:
            Conflict: it has not failed.
        """
        response = self._http.request("POST", f"{self.path}/{segment(measurement)}/retry")
        return MeasurementBody.model_validate_json(response.content)

    def logs(
        self,
        measurement: str,
        *,
        stream: Stream = "train",
        offset: int = 0,
        limit: int | None = None,
    ) -> LogText:
        """A piece of the newest attempt's log, from byte `offset`."""
        path = f"{self.path}/{segment(measurement)}/logs"
        return _read_log(self._http, path, stream, offset, limit)

    def artifact(self, measurement: str, name: str) -> bytes:
        """A stored file of a measurement."""
        path = f"{self.path}/{segment(measurement)}/artifacts/{segment(name)}"
        return self._http.request("GET", path, accept="*/*").content


def _read_log(http: Http, path: str, stream: Stream, offset: int, limit: int | None) -> LogText:
    query = {"stream": stream, "offset": offset, "limit": limit}
    response = http.request("GET", path, query=query, accept="text/plain")
    end = int(response.headers.get("next-offset", offset + len(response.content)))
    return LogText(response.content, end)

"""`client.experiments`, `client.implementations`, `client.measurements`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from assay.client.http import Http
from assay.client.resource import Group, segment
from assay.contracts.base import Page
from assay.contracts.batch import (
    CurvePoint,
    ExperimentBody,
    ImplementationBody,
    MeasurementBody,
    PairBody,
    ResultBody,
)

Stream = Literal["train", "score"]
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
        self, *, batch: str | None = None, state: str | None = None
    ) -> Iterator[ExperimentBody]:
        """Experiments, page by page as they are asked for."""
        return self._walk(ExperimentBody, self.path, {"batch": batch, "state": state})

    def page(
        self, *, batch: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[ExperimentBody]:
        """One page of experiments."""
        query = {"batch": batch, "limit": limit, "cursor": cursor}
        return self._page(ExperimentBody, self.path, query)

    def compare(self, experiment: str, other: str) -> PairBody:
        """An experiment beside another, which takes the place of the baseline."""
        path = f"{self.path}/{segment(experiment)}/comparison"
        return self._get(PairBody, path, {"with": other})

    def get(self, experiment: str) -> ExperimentBody:
        """An experiment."""
        return self._get(ExperimentBody, f"{self.path}/{segment(experiment)}")

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

    def diff(self, experiment: str) -> str:
        """The unified diff of the winning codebase against the baseline.

        Raises:
            NotFound: the experiment is not implemented (yet).
        """
        path = f"{self.path}/{segment(experiment)}/diff"
        return self._http.request("GET", path, accept="text/plain").content.decode(
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

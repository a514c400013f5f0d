"""The client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

import httpx2
from pydantic import BaseModel, TypeAdapter

from assay.client.batches import Batches
from assay.client.errors import WaitTimeout
from assay.client.experiments import Experiments, Implementations, Measurements
from assay.client.http import RETRIES, Http
from assay.client.outage import Patience
from assay.client.reports import Reports
from assay.client.resource import Group, segment
from assay.client.searches import Searches
from assay.client.webhooks import Webhooks
from assay.contracts.bases import PromotionBody
from assay.contracts.batch import PairBody
from assay.contracts.conditions import ConditionsBody, EquivalenceBody
from assay.contracts.environment import (
    BaselineBody,
    CodebaseFiles,
    EnvironmentBody,
    PriorBody,
)
from assay.contracts.queue import QueueBody
from assay.contracts.worker import AdmitRequest, AdmittedBody, CordonRequest, WorkerBody


class Environments(Group):
    """Research problems the service knows."""

    path = "/v1/environments"

    def list(self) -> Iterator[EnvironmentBody]:
        """Environments, by name."""
        return self._walk(EnvironmentBody, self.path, {})

    def get(self, name: str) -> EnvironmentBody:
        """An environment, by `name` or `name@hash`."""
        return self._get(EnvironmentBody, f"{self.path}/{segment(name)}")

    def codebase(self, name: str, *, base: str | None = None) -> CodebaseFiles:
        """The baseline codebase, or a base that is named as in a batch."""
        query = {} if base is None else {"base": base}
        return self._get(CodebaseFiles, f"{self.path}/{segment(name)}/codebase", query)

    def bases(self, name: str) -> Iterator[PromotionBody]:
        """What was promoted in an environment: by name, the latest of each first."""
        return self._walk(PromotionBody, f"{self.path}/{segment(name)}/bases", {})

    def upload(self, name: str, files: Mapping[str, str]) -> CodebaseFiles:
        """Store a codebase, so that an idea can name it by its `id`.

        Raises:
            Invalid: it changes or hides a protected file, is too large, or has a wrong name.
        """
        path = f"{self.path}/{segment(name)}/codebases"
        response = self._http.request("POST", path, body={"files": dict(files)})
        return CodebaseFiles.model_validate_json(response.content)

    def baseline(
        self,
        name: str,
        profile: str,
        *,
        hardware_class: str | None = None,
        conditions: str | None = None,
    ) -> BaselineBody:
        """What the unmodified codebase reaches, as far as it is measured."""
        query = _where(profile, hardware_class, conditions)
        return self._get(BaselineBody, f"{self.path}/{segment(name)}/baseline", query)

    def fit(
        self,
        name: str,
        profile: str,
        *,
        hardware_class: str | None = None,
        conditions: str | None = None,
    ) -> PriorBody:
        """What verdicts presume of the environment's codebases."""
        query = _where(profile, hardware_class, conditions)
        return self._get(PriorBody, f"{self.path}/{segment(name)}/fit", query)

    def refit(
        self,
        name: str,
        profile: str,
        *,
        hardware_class: str | None = None,
        conditions: str | None = None,
    ) -> PriorBody:
        """Fit it anew to what has been measured; every verdict of the environment changes."""
        body = _where(profile, hardware_class, conditions)
        path = f"{self.path}/{segment(name)}/fit"
        return PriorBody.model_validate_json(self._http.request("POST", path, body=body).content)

    def calibrate(
        self,
        name: str,
        profile: str,
        seeds: Sequence[int] | None = None,
        *,
        hardware_class: str | None = None,
        conditions: str | None = None,
        again: bool = False,
    ) -> BaselineBody:
        """Ask for the baseline measurements on these seeds that do not exist yet.

        Without `seeds`, on as many as the profile's `baseline_seeds` says. `again` repeats the
        seeds that failed.
        """
        body: dict[str, object] = dict(_where(profile, hardware_class, conditions))
        if seeds is not None:
            body["seeds"] = list(seeds)
        if again:
            body["again"] = True
        path = f"{self.path}/{segment(name)}/baseline"
        response = self._http.request("POST", path, body=body)
        return BaselineBody.model_validate_json(response.content)

    def conditions(self, name: str, profile: str) -> Iterator[EquivalenceBody]:
        """Which conditions are taken for equal, and why."""
        path = f"{self.path}/{segment(name)}/conditions"
        return self._walk(EquivalenceBody, path, {"profile": profile})

    def equate(
        self,
        name: str,
        profile: str,
        conditions: str,
        equals: str,
        *,
        despite_difference: bool = False,
    ) -> EquivalenceBody:
        """Take conditions for equal to others, as an operator.

        Raises:
            Conflict: no evidence, or (without `despite_difference`) their baselines differ.
        """
        path = f"{self.path}/{segment(name)}/conditions"
        body = {
            "profile": profile,
            "conditions": conditions,
            "equals": equals,
            "despite_difference": despite_difference,
        }
        return EquivalenceBody.model_validate_json(
            self._http.request("POST", path, body=body).content
        )

    def separate(self, name: str, profile: str, conditions: str) -> EquivalenceBody:
        """Take back that conditions were declared equal to others. Returns what was declared.

        Raises:
            Conflict: no operator declared anything of them.
        """
        path = f"{self.path}/{segment(name)}/conditions/separate"
        body = {"profile": profile, "conditions": conditions}
        return EquivalenceBody.model_validate_json(
            self._http.request("POST", path, body=body).content
        )


def _where(profile: str, hardware_class: str | None, conditions: str | None) -> dict[str, str]:
    """The profile, and what to measure on where that is named."""
    asked = {"profile": profile, "hardware_class": hardware_class, "conditions": conditions}
    return {name: value for name, value in asked.items() if value is not None}


class RecordedConditions(Group):
    """What results have in common that may be compared."""

    path = "/v1/conditions"

    def list(self) -> Iterator[ConditionsBody]:
        """All that were recorded."""
        return self._walk(ConditionsBody, self.path, {})


class Workers(Group):
    """Hosts that measure."""

    path = "/v1/workers"

    def list(self) -> Iterator[WorkerBody]:
        """Workers the service has seen."""
        return self._walk(WorkerBody, self.path, {})

    def get(self, worker: str) -> WorkerBody:
        """A worker, by name or id."""
        return self._get(WorkerBody, f"{self.path}/{segment(worker)}")

    def admit(self, name: str) -> AdmittedBody:
        """Let a worker of this name in. Its token is in the answer, and nowhere else."""
        response = self._http.request("POST", self.path, body=AdmitRequest(name=name))
        return AdmittedBody.model_validate_json(response.content)

    def cordon(
        self, worker: str, *, reason: str = "by an operator", seconds: float | None = None
    ) -> WorkerBody:
        """Give it no new work, for so long or until it is uncordoned. What runs goes on."""
        return self._change(worker, "cordon", CordonRequest(reason=reason, seconds=seconds))

    def uncordon(self, worker: str) -> WorkerBody:
        """Give it work again."""
        return self._change(worker, "uncordon")

    def drain(
        self, worker: str, *, timeout: float | None = None, every: float = 2.0
    ) -> WorkerBody:
        """Cordon it, and wait until it runs nothing.

        Raises:
            WaitTimeout: it still ran something; it stays cordoned.
        """
        body = self.cordon(worker, reason="drained by an operator")
        deadline = None if timeout is None else time.monotonic() + timeout
        while body.running:
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"{body.name} still runs {', '.join(body.running)}")
            self._http.sleep(every)
            body = self.get(body.id)
        return body

    def remove(self, worker: str) -> WorkerBody:
        """Its host is gone for good: what it held is tried again elsewhere, at once."""
        return self._change(worker, "remove")

    def _change(self, worker: str, verb: str, body: BaseModel | None = None) -> WorkerBody:
        path = f"{self.path}/{segment(worker)}/{verb}"
        response = self._http.request("POST", path, body=body)
        return WorkerBody.model_validate_json(response.content)


class Client:
    """A connection to one Assay service.

    Args:
        base_url: where it is; `ASSAY_API_URL`, else http://127.0.0.1:8000.
        api_key: sent as a bearer token; `ASSAY_API_KEY`, else none.
        timeout: seconds for an answer to a single request (waiting for a batch is separate).
        retries: how often a request is repeated after a lost connection, 429 or 5xx.
        http_client: an `httpx2.Client` to send requests with; it is not closed here.
        sleep: called with the seconds to wait before a retry and between two polls.
        patience: for how long requests are repeated while the service is away, after `retries`;
            without it they are not.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = RETRIES,
        http_client: httpx2.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
        patience: Patience | None = None,
    ) -> None:
        self._http = Http(base_url, api_key, timeout, http_client, retries, sleep, patience)
        self.batches = Batches(self._http)
        self.experiments = Experiments(self._http)
        self.implementations = Implementations(self._http)
        self.measurements = Measurements(self._http)
        self.environments = Environments(self._http)
        self.workers = Workers(self._http)
        self.conditions = RecordedConditions(self._http)
        self.searches = Searches(self._http)
        self.reports = Reports(self._http)
        self.webhooks = Webhooks(self._http)

    @property
    def base_url(self) -> str:
        """Where the service is."""
        return self._http.base_url

    def sleep(self, seconds: float) -> None:
        """Wait before asking again for something that takes time."""
        self._http.sleep(seconds)

    def compare(
        self, a: str, b: str, *, environment: str | None = None, profile: str | None = None
    ) -> PairBody:
        """Codebase `a` against `b`, on the seeds that both have a result on.

        Each is an experiment, the hash of a codebase, or `baseline`. Name environment and profile
        where neither is an experiment.

        Raises:
            NotFound: one has no result, or no seed is common to both.
        """
        asked = {"a": a, "b": b, "environment": environment, "profile": profile}
        query = {name: value for name, value in asked.items() if value is not None}
        response = self._http.request("GET", "/v1/comparison", query=query)
        return PairBody.model_validate_json(response.content)

    def queue(self, *, limit: int = 20) -> QueueBody:
        """What is implemented and measured next, `limit` of each stage, and why the rest waits."""
        response = self._http.request("GET", "/v1/queue", query={"limit": limit})
        return QueueBody.model_validate_json(response.content)

    def version(self) -> str:
        """The version of the service."""
        response = self._http.request("GET", "/v1/version")
        return TypeAdapter(dict[str, str]).validate_json(response.content)["version"]

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

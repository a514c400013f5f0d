"""`client.batches`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import TypeAdapter

from assay.client.errors import APIConnectionError, WaitTimeout
from assay.client.events import POLL_SECONDS, Follower
from assay.client.resource import Group, segment
from assay.client.trajectories import Trajectories
from assay.contracts.base import Page
from assay.contracts.batch import BatchBody, BatchRequest, CallBody, EventBody
from assay.contracts.trajectory import TrajectoryBody

#: What the service gives at once.
LARGEST_PAGE = 200
OnEvent = Callable[[EventBody], None]


class Batches(Group):
    """Ideas submitted together."""

    path = "/v1/batches"

    def create(self, request: BatchRequest, *, idempotency_key: str | None = None) -> BatchBody:
        """Submit a batch.

        Give an `idempotency_key` to make the submission repeatable across processes; within one
        call it is repeatable anyway.
        """
        response = self._http.request(
            "POST", self.path, body=request, idempotency_key=idempotency_key
        )
        return BatchBody.model_validate_json(response.content)

    def check(self, request: BatchRequest) -> dict[str, Any]:
        """Have a batch checked and priced; nothing is stored.

        The answer has `ideas`, `measurements`, `cost_usd` (`low` and `high`, null if unknown),
        `gpu_hours`, `similar`: ideas in nearly the words of earlier ones, by position, and
        `warnings`: fields that will make an experiment fail (`pointer`, `code`, `message`).
        """
        response = self._http.request("POST", self.path, query={"dry_run": True}, body=request)
        return TypeAdapter(dict[str, Any]).validate_json(response.content)

    def get(self, batch: str) -> BatchBody:
        """A batch."""
        return self._get(BatchBody, f"{self.path}/{segment(batch)}")

    def list(
        self,
        *,
        environment: str | None = None,
        state: str | None = None,
        search: str | None = None,
    ) -> Iterator[BatchBody]:
        """Batches, newest first, page by page as they are asked for."""
        query = {"environment": environment, "state": state, "search": search}
        return self._walk(BatchBody, self.path, query)

    def page(self, *, limit: int | None = None, cursor: str | None = None) -> Page[BatchBody]:
        """One page of batches."""
        return self._page(BatchBody, self.path, {"limit": limit, "cursor": cursor})

    def cancel(self, batch: str) -> BatchBody:
        """Cancel what has not finished."""
        response = self._http.request("POST", f"{self.path}/{segment(batch)}/cancel")
        return BatchBody.model_validate_json(response.content)

    def calls(self, batch: str, *, state: str | None = None) -> Iterator[CallBody]:
        """Every request to a model for a batch, oldest first."""
        query = {"state": state, "limit": LARGEST_PAGE}
        return self._walk(CallBody, f"{self.path}/{segment(batch)}/calls", query)

    def trajectories(
        self, batch: str, *, curves: bool = False, confirmations: bool = False
    ) -> Trajectories:
        """Its experiments as flat records, in the order of their ideas: see docs/export.md.

        `curves`: each with its training curve. `confirmations`: also if the batch confirms
        results, some of them on the sealed split; no search may learn from those.

        Raises:
            BadRequest: the batch confirms results, and `confirmations` is not set.
        """
        return Trajectories(
            self._walk(
                TrajectoryBody,
                f"{self.path}/{segment(batch)}/trajectories",
                {"curves": curves, "confirmations": confirmations},
            )
        )

    def events(
        self, batch: str, *, after: int = 0, timeout: float | None = None
    ) -> Iterator[EventBody]:
        """Events of a batch, each once, until it is finished; lost connections are resumed.

        Raises:
            WaitTimeout: `timeout` seconds passed first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return iter(Follower(self._http, f"{self.path}/{segment(batch)}/events", after, deadline))

    def wait(
        self, batch: str, *, timeout: float | None = None, on_event: OnEvent | None = None
    ) -> BatchBody:
        """Wait until a batch is finished and return it.

        Raises:
            WaitTimeout: `timeout` seconds passed first; the batch goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        body = self.get(batch)
        if body.finished_at is not None and on_event is None:
            return body
        path = f"{self.path}/{segment(batch)}/events"
        try:
            for event in Follower(self._http, path, deadline=deadline):
                if on_event is not None:
                    on_event(event)
        except APIConnectionError:
            if (body := self.get(batch)).finished_at is None:
                raise
            return body
        while (body := self.get(batch)).finished_at is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(f"{batch} did not finish in time; it goes on")
            self._http.sleep(POLL_SECONDS)
        return body

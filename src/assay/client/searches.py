"""`client.searches`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from assay.client.batches import Batches
from assay.client.events import Follower
from assay.client.resource import Group, segment
from assay.client.trajectories import Trajectories
from assay.contracts.annotation import AnnotationRequest
from assay.contracts.batch import BatchBody, BatchOptions, EventBody, IdeaRequest
from assay.contracts.search import (
    DecisionRequest,
    DriverName,
    EpochBody,
    EpochRequest,
    ExtendRequest,
    FinishRequest,
    IdeatorCallBody,
    IdeatorCallEndRequest,
    IdeatorCallRequest,
    PauseRequest,
    ResumeRequest,
    SearchBody,
    SearchRequest,
)
from assay.contracts.trajectory import TrajectoryBody
from assay.domain.states import MeasurementKind

#: Types of events after which a search tells nothing more.
ENDED = ("search.finished", "search.cancelled")


class Searches(Group):
    """Records of searches. The loop that drives one is `assay.search.drive`."""

    path = "/v1/searches"

    def create(self, request: SearchRequest, *, idempotency_key: str | None = None) -> SearchBody:
        """Open the record of a search."""
        response = self._http.request(
            "POST", self.path, body=request, idempotency_key=idempotency_key
        )
        return SearchBody.model_validate_json(response.content)

    def get(self, search: str) -> SearchBody:
        """A search."""
        return self._get(SearchBody, f"{self.path}/{segment(search)}")

    def list(self, *, tag: str | None = None) -> Iterator[SearchBody]:
        """Searches, page by page as they are asked for."""
        return self._walk(SearchBody, self.path, {"tag": tag})

    def annotate(
        self, search: str, *, tags: Sequence[str] | None = None, note: str | None = None
    ) -> SearchBody:
        """Replace the tags, the note or both. None leaves them, and empty ones are removed."""
        wanted = AnnotationRequest(tags=None if tags is None else list(tags), note=note)
        response = self._http.request("PATCH", f"{self.path}/{segment(search)}", body=wanted)
        return SearchBody.model_validate_json(response.content)

    def cancel(self, search: str) -> SearchBody:
        """Cancel a search and its unfinished batches."""
        return self._change(search, "cancel")

    def finish(self, search: str, *, epochs: int | None = None) -> SearchBody:
        """Declare that no further epoch will come.

        With `epochs`, only if the search still has so many: somebody may have extended it.
        """
        return self._change(search, "finish", FinishRequest(epochs=epochs))

    def pause(self, search: str) -> SearchBody:
        """Have the loop stop before it asks for more; what runs goes on.

        Raises:
            Conflict: the search has ended.
        """
        return self._change(search, "pause")

    def pause_after(self, search: str, number: int, request: PauseRequest) -> SearchBody:
        """Say that the loop stops because an epoch failed; repeating it changes nothing."""
        path = f"{self.path}/{segment(search)}/epochs/{number}/pause"
        response = self._http.request("POST", path, body=request)
        return SearchBody.model_validate_json(response.content)

    def extend(self, search: str, request: ExtendRequest) -> SearchBody:
        """Raise the number of epochs or a cap; a finished search runs again.

        Raises:
            Conflict: the search was cancelled.
            Invalid: a number is below the present one.
        """
        return self._change(search, "extend", request)

    def resume(self, search: str, driver: DriverName = "client") -> SearchBody:
        """Say that the loop continues after a pause, and who runs it from now on.

        Raises:
            Conflict: the service drives the search (`driven_by_service`), or as many others of
                its owner as it may (`too_many_detached`).
        """
        path = f"{self.path}/{segment(search)}/resume"
        response = self._http.request("POST", path, body=ResumeRequest(driver=driver))
        return SearchBody.model_validate_json(response.content)

    def events(self, search: str) -> Iterator[EventBody]:
        """What happened to a search, oldest first. Changes of an epoch are its batch's."""
        return self._walk(EventBody, f"{self.path}/{segment(search)}/events", {})

    def follow(self, search: str) -> Iterator[EventBody]:
        """Its events as they happen, each once, until it is finished or cancelled."""
        path = f"{self.path}/{segment(search)}/events"
        return iter(Follower(self._http, path, last=ENDED))

    def epochs(self, search: str) -> Iterator[EpochBody]:
        """The stored epochs, from 0, page by page as they are asked for."""
        return self._walk(EpochBody, f"{self.path}/{segment(search)}/epochs", {})

    def trajectories(
        self, search: str, *, curves: bool = False, confirmations: bool = False
    ) -> Trajectories:
        """Its experiments as flat records: see docs/export.md.

        Epoch by epoch, each in the order of its ideas; then those of other batches of the search.
        `curves`: each with its training curve. `confirmations`: then the confirmations of its
        results, some of them on the sealed split; no search may learn from those.
        """
        return Trajectories(self._trajectories(search, curves, confirmations))

    def _trajectories(
        self, search: str, curves: bool, confirmations: bool
    ) -> Iterator[TrajectoryBody]:
        batches = Batches(self._http)
        listed = [(_place(each), each.id) for each in batches.list(search=self.get(search).id)]
        for (confirms, *_), batch in sorted(listed):
            if confirmations or not confirms:
                yield from batches.trajectories(batch, curves=curves, confirmations=confirmations)

    def begin_call(self, search: str, call: str, request: IdeatorCallRequest) -> IdeatorCallBody:
        """Record that a request to the ideator's model is about to be sent, under a new id.

        Raises:
            Conflict: it must not be sent, because the search has ended (`search_ended`), or a cap
                allows no call (`spend_cap`), or none until others have ended (`calls_under_way`).
        """
        path = f"{self.path}/{segment(search)}/calls/{segment(call)}"
        response = self._http.request("PUT", path, body=request)
        return IdeatorCallBody.model_validate_json(response.content)

    def end_call(self, search: str, call: str, request: IdeatorCallEndRequest) -> IdeatorCallBody:
        """Record what came of it, with the answer; repeating it changes nothing."""
        path = f"{self.path}/{segment(search)}/calls/{segment(call)}/end"
        response = self._http.request("PUT", path, body=request)
        return IdeatorCallBody.model_validate_json(response.content)

    def calls(
        self,
        search: str,
        *,
        epoch: int | None = None,
        answered: bool = False,
        unread: bool = False,
    ) -> Iterator[IdeatorCallBody]:
        """The calls of the ideator, oldest first, page by page as they are asked for.

        `answered`: those alone that have an answer. `unread`: those alone whose answer has
        passages that could not be read as ideas.
        """
        params: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
        params |= {"answered": "true"} if answered else {}
        params |= {"unread": "true"} if unread else {}
        return self._walk(IdeatorCallBody, f"{self.path}/{segment(search)}/calls", params)

    def put_decision(self, search: str, number: int, request: DecisionRequest) -> EpochBody:
        """Store a decision for the next epoch; repeating it changes nothing.

        Raises:
            Conflict: another decision is stored (`epoch_exists`), or this epoch is not the next
                (`epoch_out_of_order`).
        """
        path = f"{self.path}/{segment(search)}/epochs/{number}/decision"
        return EpochBody.model_validate_json(self._http.request("PUT", path, body=request).content)

    def put_epoch(self, search: str, number: int, ideas: Sequence[IdeaRequest]) -> EpochBody:
        """Store the ideas of an epoch; repeating with the same ideas changes nothing.

        Raises:
            Conflict: other ideas are stored (`epoch_exists`), or the epoch before is missing.
        """
        response = self._http.request(
            "PUT",
            f"{self.path}/{segment(search)}/epochs/{number}",
            body=EpochRequest(ideas=list(ideas)),
        )
        return EpochBody.model_validate_json(response.content)

    def submit_epoch(
        self, search: str, number: int, options: BatchOptions | None = None
    ) -> BatchBody:
        """Submit the stored ideas, exactly once: repeating returns the same batch."""
        response = self._http.request(
            "POST", f"{self.path}/{segment(search)}/epochs/{number}/batch", body=options
        )
        return BatchBody.model_validate_json(response.content)

    def _change(self, search: str, verb: str, body: BaseModel | None = None) -> SearchBody:
        path = f"{self.path}/{segment(search)}/{verb}"
        response = self._http.request("POST", path, body=body)
        return SearchBody.model_validate_json(response.content)


def _place(batch: BatchBody) -> tuple[bool, float]:
    """Where a batch is among those of its search: epochs, others, confirmations. Ids, which
    follow the time of submission, order the rest."""
    confirms = batch.kind == MeasurementKind.CONFIRM
    return confirms, math.inf if batch.epoch is None else batch.epoch

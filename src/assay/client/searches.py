"""`client.searches`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from assay.client.resource import Group, segment
from assay.contracts.batch import BatchBody, BatchOptions, EventBody, IdeaRequest
from assay.contracts.search import (
    EpochBody,
    EpochRequest,
    IdeatorCallBody,
    IdeatorCallEndRequest,
    IdeatorCallRequest,
    PauseRequest,
    SearchBody,
    SearchRequest,
)


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

    def list(self) -> Iterator[SearchBody]:
        """Searches, page by page as they are asked for."""
        return self._walk(SearchBody, self.path, {})

    def cancel(self, search: str) -> SearchBody:
        """Cancel a search and its unfinished batches."""
        return self._change(search, "cancel")

    def finish(self, search: str) -> SearchBody:
        """Declare that no further epoch will come."""
        return self._change(search, "finish")

    def pause(self, search: str, number: int, request: PauseRequest) -> SearchBody:
        """Say that the loop stops after an epoch; repeating it changes nothing."""
        path = f"{self.path}/{segment(search)}/epochs/{number}/pause"
        response = self._http.request("POST", path, body=request)
        return SearchBody.model_validate_json(response.content)

    def resume(self, search: str) -> SearchBody:
        """Say that the loop goes on after a pause."""
        return self._change(search, "resume")

    def events(self, search: str) -> Iterator[EventBody]:
        """Pauses and the end of a search, oldest first. Changes of an epoch are its batch's."""
        return self._walk(EventBody, f"{self.path}/{segment(search)}/events", {})

    def epochs(self, search: str) -> Iterator[EpochBody]:
        """The stored epochs, from 0, page by page as they are asked for."""
        return self._walk(EpochBody, f"{self.path}/{segment(search)}/epochs", {})

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

    def _change(self, search: str, verb: str) -> SearchBody:
        response = self._http.request("POST", f"{self.path}/{segment(search)}/{verb}")
        return SearchBody.model_validate_json(response.content)

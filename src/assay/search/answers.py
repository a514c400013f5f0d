"""Keep the answers of an ideator with its search, so that a person can read them.

The loop keeps each when its call returns, whether or not ideas can be read from it.
"""

from __future__ import annotations

from assay.client import Client
from assay.contracts.batch import MAX_IDEAS, MAX_THINKING
from assay.contracts.search import MAX_ANSWER, AnswerRequest
from assay.llm.idea_answers import read_answer
from assay.llm.interface import Completion, Try
from assay.search.plan import Ask


def storable(text: str) -> str:
    """The text without what a database cannot keep: NUL characters and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


class AnswerKeeper:
    """Stores every answer of a search's ideator under the id of its call."""

    def __init__(self, client: Client, search: str) -> None:
        self._client = client
        self._search = search

    def hint(self, epoch: int) -> str:
        """How a person reads the answers for an epoch."""
        return f"read its answers: assay search answers {self._search} --epoch {epoch}"

    def keep(self, attempt: Try, epoch: int, ask: Ask) -> None:
        """Store the answer of a call that returned, if there is one."""
        completion = attempt.completion
        if completion is not None and (completion.text or completion.thinking):
            request = _request(completion, epoch, ask)
            self._client.searches.put_answer(self._search, attempt.id, request)


def _request(completion: Completion, epoch: int, ask: Ask) -> AnswerRequest:
    read = read_answer(completion.text, truncated=completion.stop == "truncated")
    return AnswerRequest(
        epoch=epoch,
        operator=ask.operator,
        asked=ask.count,
        ideas=min(len(read.ideas), MAX_IDEAS),
        unread=len(read.unread),
        stop=completion.stop,
        text=storable(completion.text)[:MAX_ANSWER],
        thinking=storable(completion.thinking)[:MAX_THINKING] or None,
    )

"""The scripted author: a provider that answers with the texts of the cases, not a model.

The service asks it as it asks any provider of OpenAI's format. The idea's last line,
`(case <name>)`, says which case is meant; feedback is the last message of the user, unless that is
the first one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.execution_rate.corpus import Case
from tests.support.provider import openai
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, Request

NAME = "scripted-author"
_CASE = re.compile(r"^\(case ([a-z]+/[a-z0-9-]+)\)$", re.MULTILINE)


class UnknownCase(Exception):
    """A request that names no case of the author's."""


def idea_of(case: Case) -> str:
    """Return a case's idea as it is submitted."""
    return f"{case.idea}\n(case {case.name})"


class Author(ProviderServer):
    """Answers for the authors of cases, and counts how often each was asked."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._cases = {case.name: case for case in cases}
        self.asked: Counter[str] = Counter()
        super().__init__(self._reply)

    @property
    def executor(self) -> str:
        """What a batch names as its executor."""
        return f"openai:{NAME}@{self.openai_url}"

    def answer(self, said: Sequence[str]) -> str:
        """Return the answer to a user's messages.

        Raises:
            UnknownCase: they name none of the cases.
        """
        found = _CASE.findall(said[0]) if said else []
        if not found or found[-1] not in self._cases:
            raise UnknownCase(f"no case of the scripted author: {found}")
        case = self._cases[found[-1]]
        self.asked[case.name] += 1
        return case.reply(said[-1] if len(said) > 1 else "")

    def _reply(self, request: Request) -> Reply | str:
        try:
            return self.answer(request.texts("user"))
        except UnknownCase as error:
            return openai.error(400, str(error))

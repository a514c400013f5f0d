"""A provider for the environment `toy` that counts its calls and can hold its answers."""

from __future__ import annotations

from tests.support.provider import openai
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, Request

#: Sets the size of a step in `toy`, in the form that a model answers in.
STEP_DIFF = (
    "```diff\n--- a/search.py\n+++ b/search.py\n@@ -1,1 +1,1 @@\n-STEP = {}\n+STEP = {}\n```"
)


class CountingProvider(ProviderServer):
    """Writes the diff that the idea spells out, in OpenAI's format and without streaming."""

    def __init__(self) -> None:
        super().__init__(self._write_diff)
        self._test = 0

    @property
    def model(self) -> str:
        """What a batch names as its executor; another name for each test."""
        return f"openai:counting-{self._test}"

    @property
    def calls(self) -> int:
        """Number of requests since `begin`."""
        return len(self.requests)

    def begin(self) -> None:
        """Count from zero, under a new name."""
        self._test += 1
        self.requests.clear()
        self.release()

    def _write_diff(self, request: Request) -> Reply:
        asked = "\n".join(request.texts())
        step = asked.rpartition("Take steps of ")[2].split("\n")[0].rstrip(". ")
        return openai.completion(STEP_DIFF.format("0.6", step)).plain()

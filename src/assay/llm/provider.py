"""What the models behind a provider's SDK have in common."""

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from assay.llm.interface import Completion, OnTry, Prompt
from assay.llm.names import ModelName
from assay.llm.retry import RetryPolicy, with_retries


class Closing(Protocol):
    """An SDK's client."""

    async def close(self) -> None: ...


Client = TypeVar("Client", bound=Closing)


class ProviderModel(ABC, Generic[Client]):
    """A model that is asked through a client, which belongs to one event loop."""

    def __init__(self, name: ModelName, policy: RetryPolicy | None) -> None:
        self._name = name
        self._policy = policy or RetryPolicy()
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> ModelName:
        return self._name

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        temperature: float | None = None,
        timeout_s: float = 600.0,
        on_try: OnTry | None = None,
    ) -> Completion:
        """See `Model.complete`."""

        async def call() -> Completion:
            return await self._once(prompt, max_tokens, temperature, timeout_s)

        return await with_retries(call, self._policy, timeout_s=timeout_s, on_try=on_try)

    async def aclose(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open(self) -> Client:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = self._connect()
        return self._client

    @abstractmethod
    def _connect(self) -> Client:
        """A new client, with the SDK's own retries off: ours are recorded."""

    @abstractmethod
    async def _once(
        self, prompt: Prompt, max_tokens: int, temperature: float | None, timeout_s: float
    ) -> Completion:
        """One request. Raises ModelError."""

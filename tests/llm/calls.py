"""Call a model once, with pauses recorded instead of slept."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from assay.llm import Completion, Message, Model, ModelError, Prompt, RetryPolicy, Try, Usage

PROMPT = Prompt("Be brief.", (Message("user", "Hi."),), "the codebase")


@dataclass
class Outcome:
    completion: Completion | None = None
    error: ModelError | None = None
    pauses: list[float] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)

    @property
    def phases(self) -> list[str]:
        return [event.phase for event in self.tries]


@dataclass
class RecordingGate:
    """A gate that lets everybody in and keeps what it was told."""

    entered: list[int] = field(default_factory=list)
    left: list[tuple[ModelError | None, Usage | None]] = field(default_factory=list)

    async def enter(self, tokens: int) -> None:
        self.entered.append(tokens)

    def leave(self, error: ModelError | None, usage: Usage | None) -> None:
        self.left.append((error, usage))


def call(make: Any, prompt: Prompt = PROMPT, **options: Any) -> Outcome:
    """`make(policy)` opens the model."""
    outcome = Outcome()

    async def sleep(seconds: float) -> None:
        outcome.pauses.append(seconds)

    async def on_try(event: Try) -> None:
        outcome.tries.append(event)

    async def main() -> None:
        model: Model = make(RetryPolicy(rng=random.Random(0), sleep=sleep))
        try:
            outcome.completion = await model.complete(
                prompt, **{"max_tokens": 100, "timeout_s": 20.0, "on_try": on_try, **options}
            )
        except ModelError as error:
            outcome.error = error
        finally:
            await model.aclose()

    asyncio.run(main())
    return outcome

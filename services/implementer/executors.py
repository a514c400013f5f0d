"""Executors as this process is set up: with its limits, recorded, or replayed."""

from __future__ import annotations

from assay.domain.isolation import is_offline
from assay.llm import Executor, RetryPolicy, open_executor
from assay.llm.executors import Limits
from assay.llm.recording import RecordingExecutor, ReplayExecutor
from services.implementer.context import Context

#: A provider that is away is asked again this often.
LONGEST_PAUSE_S = 60.0


def executor_of(context: Context, name: str) -> Executor:
    """What turns ideas into diffs here. Raises as `open_executor`; a replay needs no key."""
    settings = context.settings
    limits = Limits(settings.max_answer_tokens)
    if is_offline(name):
        return open_executor(name, context.variables)
    if settings.replay is not None:
        return ReplayExecutor(name, settings.replay, limits)
    policy = RetryPolicy(patience_s=settings.patience_seconds, longest_pause_s=LONGEST_PAUSE_S)
    executor = open_executor(
        name, context.variables, policy=policy, limits=limits, timeout_s=settings.call_seconds
    )
    if settings.record is not None:
        return RecordingExecutor(executor, settings.record)
    return executor

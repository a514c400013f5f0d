"""Which code may only be started where it is isolated."""

from __future__ import annotations

OFFLINE = "offline"


def is_offline(model: str) -> bool:
    """Whether a name such as `offline:literal` names a stand-in and not a model."""
    return model.partition(":")[0] == OFFLINE


def needs_isolation(executor: str, ideator: str | None, *, allow_unisolated: bool) -> bool:
    """Code that a model wrote, or that follows a model's words, needs a real sandbox."""
    if allow_unisolated:
        return False
    return not all(is_offline(model) for model in (executor, ideator) if model)

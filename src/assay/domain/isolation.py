"""Which code may only be started where it is isolated."""

from __future__ import annotations

OFFLINE = "offline"
#: The executor of a batch that names its codebases: nobody writes a diff for it. It is not
#: `offline`, so needs_isolation() holds for code that somebody uploaded.
NO_MODEL = "none"


def is_offline(model: str) -> bool:
    """Whether a name such as `offline:literal` names a stand-in and not a model."""
    return model.partition(":")[0] == OFFLINE


def needs_isolation(executor: str, ideator: str | None, *, allow_unisolated: bool) -> bool:
    """Code that a model wrote, that follows a model's words, or that was uploaded needs a real
    sandbox."""
    if allow_unisolated:
        return False
    return not all(is_offline(model) for model in (executor, ideator) if model)

"""Open a model, executor or ideator by its name.

SDKs are imported here, when a name asks for one: offline use needs none of them.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from assay.llm.executors import DEFAULT_LIMITS, NO_LIMITS, Executor, Limits, ModelExecutor
from assay.llm.ideation import Ideator
from assay.llm.interface import MissingPackage, Model
from assay.llm.model_ideator import ModelIdeator
from assay.llm.names import ModelName, Provider
from assay.llm.offline.ideator import OfflineIdeator
from assay.llm.offline.literal import LiteralImplementer
from assay.llm.recorded_ideas import NoModel
from assay.llm.retry import RetryPolicy

_CLASSES = {Provider.ANTHROPIC: "AnthropicModel", Provider.OPENAI: "OpenAIModel"}


def open_model(
    name: ModelName | str,
    env: Mapping[str, str],
    *,
    policy: RetryPolicy | None = None,
    show_thinking: bool = False,
) -> Model:
    """The model of that name; keys and addresses come from `env` (for example `os.environ`).

    Raises MissingKey before any call is made, MissingPackage without the provider's SDK,
    ValueError for a name that cannot be read or is `offline`, which is no model.
    """
    parsed = ModelName.parse(name) if isinstance(name, str) else name
    if parsed.provider is Provider.OFFLINE:
        raise ValueError("offline is not a model; open it as an executor or ideator")
    try:
        module = import_module(f"assay.llm.{parsed.provider}")
    except ModuleNotFoundError as error:
        if error.name != parsed.provider:
            raise
        raise MissingPackage(parsed, parsed.provider) from error
    options = {}
    if show_thinking and parsed.provider is Provider.ANTHROPIC:
        options["thinking"] = "summarized"
    opened = getattr(module, _CLASSES[parsed.provider])(parsed, env, policy=policy, **options)
    return cast(Model, opened)


def open_executor(
    name: ModelName | str,
    env: Mapping[str, str],
    *,
    policy: RetryPolicy | None = None,
    limits: Limits = DEFAULT_LIMITS,
    timeout_s: float = 600.0,
) -> Executor:
    """What turns ideas into diffs; `offline`: the literal implementer. Raises as `open_model`."""
    parsed = ModelName.parse(name) if isinstance(name, str) else name
    if parsed.provider is Provider.OFFLINE:
        return LiteralImplementer()
    return ModelExecutor(open_model(parsed, env, policy=policy), limits, timeout_s)


def open_ideator(
    name: ModelName | str,
    env: Mapping[str, str],
    *,
    limits: Limits = NO_LIMITS,
    context_tokens: int | None = None,
    is_replay: bool = False,
) -> Ideator:
    """What proposes ideas: `offline` draws from knobs and recipes.

    `is_replay`: its answers are all recorded, so that no key and no SDK is needed.

    Raises as `open_model`, and ValueError if `context_tokens` do not fit the model.
    """
    parsed = ModelName.parse(name) if isinstance(name, str) else name
    if parsed.provider is Provider.OFFLINE:
        return OfflineIdeator()
    model = NoModel(parsed) if is_replay else open_model(parsed, env, show_thinking=True)
    return ModelIdeator(model, limits=limits, context_tokens=context_tokens)

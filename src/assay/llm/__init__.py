"""Models that propose and implement ideas, behind one interface, and offline stand-ins for them.

Importing this package loads no provider's SDK.
"""

from assay.llm.executors import Executor, ImplementRequest, ModelExecutor, implement_prompt
from assay.llm.factory import open_executor, open_ideator, open_model
from assay.llm.idea_answers import ReadAnswer, ReadIdea, read_answer
from assay.llm.ideas import IdeaText, format_idea, read_idea
from assay.llm.ideation import (
    IdeationRequest,
    Ideator,
    Operator,
    ProposedIdea,
    Trajectory,
    UnreadableAnswer,
)
from assay.llm.interface import (
    BadRequest,
    Completion,
    Gate,
    Message,
    MissingKey,
    MissingPackage,
    Model,
    ModelError,
    OnTry,
    Prompt,
    ProviderUnavailable,
    RateLimited,
    Try,
    Usage,
)
from assay.llm.model_ideator import ModelIdeator
from assay.llm.names import ModelName, Provider
from assay.llm.offline.ideator import OfflineIdeator
from assay.llm.offline.knobs import Knob, Recipe, RecipeEdit
from assay.llm.offline.literal import LiteralImplementer
from assay.llm.prices import Estimate, estimate, price, price_table
from assay.llm.retry import RetryPolicy

__all__ = [
    "BadRequest",
    "Completion",
    "Estimate",
    "Executor",
    "Gate",
    "IdeaText",
    "IdeationRequest",
    "Ideator",
    "ImplementRequest",
    "Knob",
    "LiteralImplementer",
    "Message",
    "MissingKey",
    "MissingPackage",
    "Model",
    "ModelError",
    "ModelExecutor",
    "ModelIdeator",
    "ModelName",
    "OfflineIdeator",
    "OnTry",
    "Operator",
    "Prompt",
    "ProposedIdea",
    "Provider",
    "ProviderUnavailable",
    "RateLimited",
    "ReadAnswer",
    "ReadIdea",
    "Recipe",
    "RecipeEdit",
    "RetryPolicy",
    "Trajectory",
    "Try",
    "UnreadableAnswer",
    "Usage",
    "estimate",
    "format_idea",
    "implement_prompt",
    "open_executor",
    "open_ideator",
    "open_model",
    "price",
    "price_table",
    "read_answer",
    "read_idea",
]

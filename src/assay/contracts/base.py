"""Base models: strict about what comes in, tolerant about what comes back."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Request(BaseModel):
    """A body sent to the API. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class Resource(BaseModel):
    """A body sent by the API. Clients ignore fields they do not know.

    Non-finite numbers travel as the strings "NaN", "Infinity" and "-Infinity", never as null.
    """

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    def wire(self) -> dict[str, Any]:
        """The body as JSON carries it: `model_dump(mode="json")` would leave NaN a float."""
        body: dict[str, Any] = json.loads(self.model_dump_json())
        return body


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain NUL bytes; remove them")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode; it holds a lone surrogate") from None
    return text


def _storable(value: Any) -> Any:
    """Every database must be able to keep a document: no NUL, no NaN, no lone surrogate."""
    if isinstance(value, str):
        return _no_nul(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must not contain NaN or infinite numbers")
    if isinstance(value, dict):
        return {_no_nul(str(name)): _storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return value


Text = Annotated[str, AfterValidator(_no_nul)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable)]
#: The largest integer that every database keeps.
MAX_INTEGER = 2**63 - 1
T = TypeVar("T")

Name = Annotated[
    str,
    AfterValidator(_no_nul),
    Field(min_length=1, max_length=200),
]
#: A name that is a column of 64 characters.
ShortName = Annotated[Text, Field(min_length=1, max_length=64)]


class Page(Resource, Generic[T]):
    """One page of a list. `next_cursor: null` is the only sign of the end."""

    object: Literal["list"] = "list"
    data: list[T]
    next_cursor: str | None = Field(None, description="Pass as `cursor` for the next page.")


class Problem(Resource):
    """An error, as `application/problem+json` (RFC 9457)."""

    type: str = Field("about:blank", description="URL or path of the documentation of the code.")
    title: str
    status: int
    detail: str = Field("", description="What is wrong and what to do about it.")
    instance: str = ""
    code: str = Field(description="Stable, machine-readable.")
    request_id: str = ""
    errors: list[ProblemField] = []


class ProblemField(Resource):
    """One wrong field of a request."""

    pointer: str = Field(description="JSON pointer into the body, or the parameter's name.")
    code: str
    message: str


class FailureBody(Resource):
    """Where and why something failed."""

    stage: str = Field(description="implement, schedule, start, train, score or guard.")
    code: str
    message: str = Field(description="For a crash: the last line of the traceback.")
    retryable: bool = False


Json = dict[str, Any]
Problem.model_rebuild()

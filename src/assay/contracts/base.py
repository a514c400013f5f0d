"""Base models and bounded types: strict about what comes in, tolerant about what comes back.

Every number, text, list and object of a `Request` is bounded, so that no request can store what a
database cannot keep or what makes an answer huge. Validation of a wrong body stops early: an error
costs microseconds, and a body can hold a million wrong values.
`tests/operations/test_extremes.py` fails for a field without bounds and for a field that makes
many errors.
"""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_DOWN, Decimal
from itertools import islice
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

#: An answer names this many unknown fields of an object.
MAX_UNKNOWN = 3


class Request(BaseModel):
    """A body sent to the API. Unknown fields are errors, and so are values of another type.

    Non-finite numbers travel as the strings "NaN", "Infinity" and "-Infinity", never as null.
    """

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="strings")

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_fields(cls, value: Any) -> Any:
        """Return the object with at most `MAX_UNKNOWN` unknown fields, each of them an error."""
        known = cls.model_fields
        if not isinstance(value, dict) or len(value) <= MAX_UNKNOWN:
            return value
        unknown = list(islice((name for name in value if name not in known), MAX_UNKNOWN + 1))
        if len(unknown) <= MAX_UNKNOWN:
            return value
        kept = [name for name in known if name in value] + unknown[:MAX_UNKNOWN]
        return {name: value[name] for name in kept}


class Resource(BaseModel):
    """A body sent by the API. Clients ignore fields they do not know.

    Non-finite numbers travel as the strings "NaN", "Infinity" and "-Infinity", never as null.
    """

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    def wire(self) -> dict[str, Any]:
        """The body as JSON carries it: `model_dump(mode="json")` would leave NaN a float."""
        body: dict[str, Any] = json.loads(self.model_dump_json())
        return body


#: The largest integer that every database keeps.
MAX_INTEGER = 2**63 - 1
#: The largest sum of money: in billionths of a dollar, ten of them fit a 64-bit integer.
MAX_DOLLARS = 10**9
#: The most hours of GPUs that a cap can name: a hundred thousand GPUs for a year.
MAX_GPU_HOURS = 10**9
MAX_DEPTH = 32
MAX_OBJECT_BYTES = 64 << 10
MAX_OBJECT_FIELDS = 1_000
T = TypeVar("T")


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain NUL bytes; remove them")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode; it holds a lone surrogate") from None
    return text


class Storable:
    """In `Annotated`: a text that every database can keep: no NUL character, no lone surrogate."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_no_nul, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        described.setdefault("pattern", r"^[^\u0000]*$")
        return described


#: A list whose validation ends at the first wrong item.
Items = Annotated[list[T], FailFast()]
#: In place of `Items[T] | None`, which Python cannot build: `FailFast` has no hash.
ItemsOrNone = Annotated[list[T] | None, FailFast()]
#: A text without a bound of its own: give it one where it is used.
Text = Annotated[str, Storable()]
Name = Annotated[str, Field(min_length=1, max_length=200), Storable()]
#: A name that is a column of 64 characters.
ShortName = Annotated[str, Field(min_length=1, max_length=64), Storable()]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", min_length=64, max_length=64)]
#: A sentence or a traceback's last line, for people.
Message = Annotated[str, Field(max_length=4_000), Storable()]


class Named:
    """An object of at most `most` names that are not known beforehand; its schema bounds each.

    Entries are counted before they are looked at: pydantic counts only valid ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._count, handler(source))

    def _count(self, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > self._most:
            bound = {"field_type": "Dictionary", "max_length": self._most}
            raise PydanticKnownError("too_long", {**bound, "actual_length": len(value)})
        return value

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        # Pydantic describes values only under names that match the pattern, and allows all others.
        for pattern, values in described.pop("patternProperties", {}).items():
            described.setdefault("propertyNames", {})["pattern"] = pattern
            described["additionalProperties"] = values
        described["maxProperties"] = self._most
        return described


Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64), Storable()],
        Annotated[str, Field(max_length=512), Storable()],
    ],
    Named(16),
]


def _json_value(value: Any) -> None:
    """Raises ValueError: a database cannot keep the value, or it is nested too deeply."""
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"must be nested at most {MAX_DEPTH} levels deep; flatten it")
        if isinstance(item, str):
            _no_nul(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError("must not contain NaN or infinite numbers; write them as text")
        elif isinstance(item, int) and abs(item) >= 2**64:
            raise ValueError("must not contain integers beyond 64 bits; write them as text")
        elif isinstance(item, dict):
            for name, below in item.items():
                _no_nul(str(name))
                waiting.append((below, depth + 1))
        elif isinstance(item, list | tuple):
            waiting.extend((below, depth + 1) for below in item)


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    _json_value(value)
    try:
        size = len(json.dumps(value, ensure_ascii=False).encode())
    except TypeError as error:
        raise ValueError(f"must hold JSON values only: {error}") from None
    if size > MAX_OBJECT_BYTES:
        raise ValueError(
            f"is {size} bytes as JSON, more than {MAX_OBJECT_BYTES}; store large data elsewhere"
        )
    return value


JsonObject = Annotated[
    dict[str, Any],
    Field(max_length=MAX_OBJECT_FIELDS),
    AfterValidator(_json_object),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": True,
            "maxProperties": MAX_OBJECT_FIELDS,
            "description": f"At most {MAX_OBJECT_BYTES >> 10} KiB as JSON, nested at most "
            f"{MAX_DEPTH} levels deep.",
        }
    ),
]


def _read_integer(value: Any) -> Any:
    # JSON has one kind of number: 5.0 is an integer there.
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: Reads a whole number. In `Annotated` it comes after the bounds, or a schema would not show them.
READ_INTEGER = BeforeValidator(_read_integer)
#: A whole number. Give it bounds where it is used.
Integer = Annotated[int, READ_INTEGER]
#: What a codebase derives its random numbers from.
Seed = Annotated[int, Field(ge=0, le=2**31 - 1), READ_INTEGER]
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LARGEST_FLOAT = 1.7976931348623157e308


def _read_number(value: Any) -> Any:
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise ValueError('must be a number, "NaN", "Infinity" or "-Infinity"')
        return _SPECIAL[value]
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError('is beyond the largest number; write "Infinity"') from None
    return value


#: A floating-point number; what is not finite travels as text.
Number = Annotated[
    float,
    BeforeValidator(_read_number),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": -_LARGEST_FLOAT, "maximum": _LARGEST_FLOAT},
                {"type": "string", "enum": list(_SPECIAL)},
            ]
        }
    ),
]

#: From 0 to `MAX_DOLLARS`, plain or, as Decimal writes small amounts, with an exponent.
_DOLLARS = (
    r"^([0-9]{1,9}(\.[0-9]{1,60})?|10{9}(\.0{1,60})?|[0-9](\.[0-9]{1,60})?[eE](-[0-9]{1,3}"
    r"|\+?[0-8]))$"
)
_MOST_TEXT = 80
_BILLIONTH = Decimal("1e-9")


def _read_dollars(value: Any) -> Decimal:
    if isinstance(value, str):
        is_amount = len(value) <= _MOST_TEXT and re.fullmatch(_DOLLARS, value) is not None
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        is_amount = False
    else:
        is_amount = (isinstance(value, int) or math.isfinite(value)) and 0 <= value <= MAX_DOLLARS
    if not is_amount:
        raise ValueError(f'must be dollars from 0 to {MAX_DOLLARS}, as 12.5 or "12.50"')
    amount = Decimal(str(value))
    exponent = amount.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -9:
        # A cap is never raised by rounding it.
        return amount.quantize(_BILLIONTH, ROUND_DOWN)
    return amount


#: An amount of money, exact to billionths; further digits are cut off.
Dollars = Annotated[
    Decimal,
    BeforeValidator(_read_dollars),
    PlainSerializer(lambda amount: f"{amount:f}", return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": MAX_DOLLARS},
                {"type": "string", "pattern": _DOLLARS, "maxLength": _MOST_TEXT},
            ]
        }
    ),
]
GpuHours = Annotated[float, Field(ge=0, le=MAX_GPU_HOURS, allow_inf_nan=False)]


BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


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

"""What forms have in common: numbers as they were typed, tags, and why one was refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from assay.contracts.annotation import AnnotationRequest
from assay.contracts.base import Request
from assay.domain.errors import AssayError, InvalidInput
from services.implementer.problems import pointer

R = TypeVar("R", bound=Request)


@dataclass(frozen=True)
class Wrong:
    """Why a form was refused; `pointer` is the field of the request, if it is one."""

    pointer: str
    message: str


def wrong_fields(error: ValidationError | AssayError) -> list[Wrong]:
    """Return what to say of each field that was refused, of ten at most."""
    if isinstance(error, ValidationError):
        return [
            Wrong(pointer(("body", *e["loc"])), e["msg"].removeprefix("Value error, "))
            for e in error.errors()[:10]
        ]
    fields = getattr(error, "fields", ())
    return [Wrong(each.pointer, each.message) for each in fields] or [Wrong("", str(error))]


def number(text: str) -> int | str:
    """Return a number, or the text as it is, which a request refuses by the name of its field."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,12}", text.strip()) else text


def optional(text: str) -> str | None:
    """Return the text of a field, or None if it was left empty."""
    return text.strip() or None


def checked(model: type[R], values: Mapping[str, Any]) -> R:
    """Return the request that these values make.

    Raises:
        InvalidInput: one of them is not allowed; the first is named.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = wrong_fields(error)[0]
        raise InvalidInput.field(first.pointer, first.message, "invalid_parameter") from None


def annotation(fields: dict[str, str]) -> AnnotationRequest:
    """Return the tags and the note that a form asks for; spaces and commas separate tags.

    Raises:
        InvalidInput: a tag or the note is not allowed.
    """
    tags = fields.get("tags")
    names = None if tags is None else [name for name in re.split(r"[\s,]+", tags) if name]
    return checked(AnnotationRequest, {"tags": names, "note": fields.get("note")})

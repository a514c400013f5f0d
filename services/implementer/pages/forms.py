"""What forms have in common: numbers as they were typed, and why one was refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from assay.domain.errors import AssayError
from services.implementer.problems import pointer


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

"""Errors of the library.

AssayError                      base; `.code` is stable, the message says what to do next
├── InvalidInput                a field of a request, file or flag is wrong (HTTP 422 / exit 2)
├── NotFound                    the named thing does not exist (404)
├── Gone                        the thing was there and has been removed on purpose (410)
├── Conflict                    the thing is in a state that does not allow this (409)
├── Forbidden                   the sender may not do this (403)
├── Fenced                      the lease token is no longer the live one (409)
├── TooMany                     the sender has too many of these open; close some (429)
└── Unavailable                 a store, a port or a provider cannot be used now (503)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """One wrong field: where it stands (JSON pointer), what is wrong, a stable code."""

    pointer: str
    message: str
    code: str = "invalid"


class AssayError(Exception):
    """Something went wrong."""

    code = "error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())
        if code is not None:
            self.code = code


class InvalidInput(AssayError):
    """The request is not valid."""

    code = "invalid_request"

    def __init__(
        self, message: str = "", *, code: str | None = None, fields: tuple[FieldError, ...] = ()
    ) -> None:
        super().__init__(message, code=code)
        self.fields = fields

    @classmethod
    def field(cls, pointer: str, message: str, code: str = "invalid") -> InvalidInput:
        """An error about a single field."""
        return cls(
            f"{pointer}: {message}", code=code, fields=(FieldError(pointer, message, code),)
        )


class NotFound(AssayError):
    """There is no such thing."""

    code = "not_found"


class Gone(AssayError):
    """This was removed on purpose."""

    code = "artifact_removed"


class Conflict(AssayError):
    """The current state does not allow this."""

    code = "conflict"


class Forbidden(AssayError):
    """Whoever asks may not do this."""

    code = "forbidden"


class Fenced(AssayError):
    """The lease of this attempt has passed to somebody else; discard the work."""

    code = "fenced"


class TooMany(AssayError):
    """Too many of these are open; close some, or try again later."""

    code = "too_many"


class Unavailable(AssayError):
    """A part of the system cannot be used now; try again later."""

    code = "unavailable"

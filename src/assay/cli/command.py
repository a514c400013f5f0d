"""What every command has in common: its context, its errors, its exit codes.

0 done · 1 failed · 2 wrong usage · 3 a search paused · 124 a `--timeout` passed · 130 interrupted.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, Protocol, TypeVar

import typer

from assay.domain.errors import AssayError, Conflict, InvalidInput, NotFound, Unavailable

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.client import Client, Patience

P = ParamSpec("P")
R = TypeVar("R")

FAILED, USAGE, PAUSED, TIMED_OUT, INTERRUPTED = 1, 2, 3, 124, 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check only; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


#: States of searches, batches and experiments that nothing changes.
_ENDED = ("finished", "cancelled", "succeeded", "failed")


@dataclass(frozen=True)
class Root:
    """Options given before the noun."""

    url: str | None = None
    quiet: bool = False
    color: bool = True
    sleep: Callable[[float], None] = time.sleep
    """How the client waits between retries and between polls."""

    def output(self, as_json: bool) -> Output:
        """Where a command prints."""
        from assay.cli.output import Output

        return Output(as_json=as_json, quiet=self.quiet, color=self.color)

    def client(self, patience: Patience | None = None) -> Client:
        """A client of the service that the options name; `patience`: as of `Client`."""
        from assay.client import Client

        return Client(self.url, sleep=self.sleep, patience=patience)


def root(context: typer.Context) -> Root:
    """The options given before the noun."""
    return context.obj if isinstance(context.obj, Root) else Root()


class Ambiguous(AssayError):
    """The id matches more than one thing."""

    code = "ambiguous"


class Declined(AssayError):
    """Not confirmed; nothing was done."""

    code = "declined"


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors into messages and exit codes, as JSON where `--json` was given."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        as_json = bool(kwargs.get("as_json", False))
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            report(AssayError("interrupted", code="interrupted"), as_json)
            raise typer.Exit(INTERRUPTED) from None
        except (AssayError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            report(error, as_json)
            raise typer.Exit(exit_code(error)) from None
        except ValueError as error:
            wrong = _as_invalid_input(error)
            if wrong is None:
                raise
            report(wrong, as_json)
            raise typer.Exit(USAGE) from None

    return wrapper


def _as_invalid_input(error: ValueError) -> InvalidInput | None:
    """What a request model refused, in terms of the field; None for any other ValueError."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    wrong = [f"{'/'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return InvalidInput("; ".join(wrong))


def report(error: Exception, as_json: bool) -> None:
    """Print an error."""
    if as_json:
        from assay.cli.output import emit

        emit({"error": describe(error)})
        return
    typer.secho(f"error: {error}", err=True, fg="red" if sys.stderr.isatty() else None)
    if os.environ.get("ASSAY_DEBUG"):
        import traceback

        typer.echo("".join(traceback.format_exception(error)), err=True)


def describe(error: Exception) -> dict[str, Any]:
    """An error as `--json` shows it."""
    return {
        "kind": kind_of(error),
        "message": str(error),
        "status": getattr(error, "status", None),
        "code": getattr(error, "code", type(error).__name__),
    }


def kind_of(error: Exception) -> str:
    """The kind of an error, from a closed list."""
    from assay import client

    kinds: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        (Ambiguous, "ambiguous"),
        ((client.NotFound, NotFound), "not_found"),
        ((client.Conflict, Conflict), "conflict"),
        ((client.Invalid, client.BadRequest, InvalidInput), "invalid_request"),
        (client.Unauthorized, "auth"),
        (client.RateLimited, "rate_limited"),
        ((client.APITimeoutError, client.WaitTimeout), "timeout"),
        (client.APIConnectionError, "connect_error"),
        (Unavailable, "busy"),
        (client.APIStatusError, "http_error"),
    ]
    return next((kind for types, kind in kinds if isinstance(error, types)), "internal")


def exit_code(error: Exception) -> int:
    """The exit code for an error."""
    from assay.client import Invalid, WaitTimeout

    if isinstance(error, WaitTimeout):
        return TIMED_OUT
    return USAGE if isinstance(error, InvalidInput | Invalid) else FAILED


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


#: Letters and digits of an id after its prefix.
_ID_LENGTH = 26
#: That of conditions follows from their facts.
_WHOLE_CONDITIONS = re.compile("cnd_[0-9a-f]{16}")
#: How many of the newest are looked through for a shortened id.
_SEARCHED = 2000


def full_id(given: str, known: Iterable[_HasId]) -> str:
    """The id meant by `given`: a whole id, the beginning or end of one, or `short_id` of it.

    Raises:
        NotFound: none of the newest matches.
        Ambiguous: several match; the message lists them.
    """
    if len(given.rpartition("_")[2]) >= _ID_LENGTH:
        return given
    ending: list[str] = []
    beginning: list[str] = []
    for _, item in zip(range(_SEARCHED), known, strict=False):
        if _ends_with(item.id, given):
            ending.append(item.id)
        elif item.id.startswith(given):
            beginning.append(item.id)
    matches = ending or beginning
    if not matches:
        raise NotFound(f"no id begins or ends with {given!r}")
    if len(matches) > 1:
        listed = ", ".join(matches[:8]) + (", …" if len(matches) > 8 else "")
        raise Ambiguous(f"{given!r} could be {listed}")
    return matches[0]


def full_conditions(client: Client, given: str | None) -> str | None:
    """The id of conditions that `given` means; a whole id is left to the service to know.

    Raises NotFound and Ambiguous as `full_id` does.
    """
    if given is None or _WHOLE_CONDITIONS.fullmatch(given):
        return given
    return full_id(given, client.conditions.list())


def _ends_with(id_: str, given: str) -> bool:
    """Whether an id ends with what is given, which may be `short_id` of it."""
    from assay.analysis.text import SHORT_ID

    kind, mark, end = given.rpartition("_")
    # Fewer characters after a prefix are the beginning of an id.
    is_short = bool(mark) and len(end) >= SHORT_ID and id_.startswith(f"{kind}_")
    return id_.endswith(end if is_short else given)


def confirm(out: Output, question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere `--yes` is needed.

    Raises:
        Declined: the answer was no.
        InvalidInput: nobody can be asked and `--yes` was not given.
    """
    if yes:
        return
    if not out.interactive:
        raise InvalidInput(f"{question} Pass --yes to do so without being asked.")
    if not typer.confirm(question, err=True):
        raise Declined


def cancel_one(
    out: Output,
    id_: str,
    *,
    get: Callable[[str], Any],
    cancel: Callable[[str], Any],
    question: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Ask and cancel, or with `dry_run` say what would be cancelled. Raises as `confirm`.

    What has ended stays as it is, and the answer says so.
    """
    before = get(id_)
    if before.state in _ENDED:
        message = f"{id_} is {before.state} already; nothing is changed"
        out.changed(id_, message, detail=before, dry_run=dry_run, applied=False)
        return
    if dry_run:
        out.changed(id_, f"would cancel {id_}", detail=before, dry_run=True)
        return
    confirm(out, question, yes)
    after = cancel(id_)
    done = after.state == "cancelled" or after.state not in _ENDED
    message = f"cancelled {id_}" if done else f"{id_} was {after.state} first; nothing is changed"
    out.changed(id_, message, detail=after, applied=done)

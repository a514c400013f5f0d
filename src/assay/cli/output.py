"""What the commands print: data on stdout, everything else on stderr, JSON on request.

Reads print `{"as_of", "counts", "data", "truncated"}`, changes `{"target", "applied", "dry_run",
"detail"}`, errors `{"error": {"kind", "message", "status", "code"}}`; all keys always.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from pydantic import BaseModel

#: Columns where nobody looks: a pipe or a file.
PIPE_WIDTH = 160
_SEPARATORS = re.compile("[\x7f-\x9f\u2028\u2029]")


def make_console(*, stderr: bool, color: bool = True) -> Console:
    """A console on a standard stream; plain text unless that is a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(
        stderr=stderr,
        width=width,
        no_color=True if not color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


@dataclass
class Output:
    """Where one command prints."""

    as_json: bool = False
    quiet: bool = False
    color: bool = True
    out: Console = field(init=False)
    err: Console = field(init=False)

    def __post_init__(self) -> None:
        self.out = make_console(stderr=False, color=self.color)
        self.err = make_console(stderr=True, color=self.color)

    @property
    def interactive(self) -> bool:
        """Whether a person can be asked something."""
        return sys.stdin.isatty() and self.err.is_terminal

    @property
    def live(self) -> bool:
        """Whether a moving display may be drawn."""
        return self.err.is_terminal and not self.quiet

    def say(self, message: RenderableType = "") -> None:
        """Progress, hints and warnings: to people, on stderr."""
        if not self.quiet:
            self.err.print(message, soft_wrap=True)

    def show(self, *renderables: RenderableType) -> None:
        """Data for people, on stdout."""
        for renderable in renderables:
            self.out.print(renderable)

    def text(self, text: str) -> None:
        """Text as it is, on stdout."""
        typer.echo(text, nl=not text.endswith("\n"))

    def data(
        self,
        data: BaseModel | Sequence[BaseModel] | Any,
        *renderables: RenderableType,
        truncated: bool = False,
    ) -> None:
        """A read: the envelope under `--json`, otherwise tables."""
        if not self.as_json:
            self.show(*renderables)
            return
        plain = to_plain(data)
        counts = {"returned": len(plain)} if isinstance(plain, list) else {"returned": 1}
        emit(
            {
                "as_of": datetime.now(UTC).isoformat(),
                "counts": counts,
                "data": plain,
                "truncated": truncated,
            }
        )

    def changed(
        self,
        target: str,
        message: str,
        *,
        detail: Any = None,
        dry_run: bool = False,
        applied: bool = True,
    ) -> None:
        """A change: what it was made to, whether it was made, and what is there now."""
        if self.as_json:
            emit(
                {
                    "target": target,
                    "applied": applied and not dry_run,
                    "dry_run": dry_run,
                    "detail": to_plain(detail),
                }
            )
        else:
            self.show(message)


def emit(document: Any) -> None:
    """One JSON document on one line of stdout, whatever a reader takes for the end of a line."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, default=str)
    typer.echo(as_line(text))


def as_line(text: str) -> str:
    """JSON without characters that some readers take for the end of a line."""
    return _SEPARATORS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_plain(data: Any) -> Any:
    """Models as JSON values: numbers that JSON lacks travel as strings, dates as ISO 8601."""
    from pydantic import BaseModel

    if isinstance(data, BaseModel):
        # Through text, because only text has the strings for NaN and the infinities.
        return json.loads(data.model_dump_json())
    if isinstance(data, dict):
        return {key: to_plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [to_plain(value) for value in data]
    if isinstance(data, float) and data - data != 0.0:
        return {"nan": "NaN", "inf": "Infinity"}.get(str(data), "-Infinity")
    return data

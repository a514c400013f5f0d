"""Progress of work whose length is known, or not. Plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assay.analysis.text import format_seconds
from assay.cli.output import Output


@contextmanager
def working(out: Output, what: str) -> Iterator[None]:
    """Say what is going on, with a spinner on a terminal, and how long it took."""
    start = time.monotonic()
    if out.live:
        with out.err.status(what):
            yield
    else:
        out.say(f"{what} …")
        yield
    out.say(f"{what}: done in {format_seconds(time.monotonic() - start)}")


@contextmanager
def counting(out: Output, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar to `total`; call what this yields with the number done so far."""
    if out.live:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, TimeRemainingColumn(), console=out.err, transient=True) as bars:
            task = bars.add_task(what, total=total)
            yield lambda done: bars.update(task, completed=done)
        return
    shown = -1

    def line(done: int) -> None:
        nonlocal shown
        if done != shown:
            shown = done
            out.say(f"{what}: {done}/{total}")

    yield line

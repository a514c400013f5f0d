"""Follow a batch: a live view on a terminal, plain lines elsewhere, JSON lines on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from assay.analysis.sparklines import sparkline
from assay.analysis.text import format_number, format_seconds, idea_title
from assay.cli.output import Output

if TYPE_CHECKING:
    from assay.client import Client
    from assay.contracts.batch import (
        BatchBody,
        CurvePoint,
        EventBody,
        ExperimentBody,
        MeasurementCounts,
    )

TERMINAL = ("succeeded", "failed", "cancelled")
STATES = ("submitted", "implementing", "queued", "running", *TERMINAL)
#: Between two looks at the curves of what is running.
CURVE_SECONDS = 1.5
#: Between two plain lines, where there is no terminal.
LINE_SECONDS = 2.0
SHOWN = 8
_CURVE_WIDTH = 24


@dataclass
class View:
    """What is known of a batch while it is followed."""

    total: int
    titles: dict[str, str]
    states: dict[str, str]
    running: dict[str, str] = field(default_factory=dict)
    baseline_pending: int = 0
    waits_for: list[str] = field(default_factory=list)
    measurements: str = ""
    """How many have ended, of how many."""
    measured_at: list[float] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    #: Seconds left in all, from how many measurements of this batch have ended since the start.
    left: Callable[[int], float] | None = None
    baseline_measured: int = 0
    #: Lines about what the batch is part of.
    above: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, batch: BatchBody, experiments: list[ExperimentBody]) -> View:
        """The view at the start."""
        states = {e.id: e.state for e in experiments}
        titles = {e.id: idea_title(e.idea.text) for e in experiments}
        pending = batch.baseline.pending if batch.baseline else 0
        return cls(batch.counts.total, titles, states, baseline_pending=pending)

    def take(self, event: EventBody) -> None:
        """Follow an event; replayed events never undo a final state."""
        state = event.data.get("state")
        if event.experiment is None or not isinstance(state, str):
            return
        before = self.states.get(event.experiment)
        if before in TERMINAL:
            return
        self.states[event.experiment] = state
        if state in TERMINAL:
            self.running.pop(event.experiment, None)
            if before == "running":
                self.measured_at.append(self.clock())

    def count(self, state: str) -> int:
        """Experiments in a state."""
        return sum(1 for s in self.states.values() if s == state)

    @property
    def finished(self) -> int:
        """Experiments that have ended."""
        return sum(self.count(s) for s in TERMINAL)

    @property
    def measured(self) -> int:
        """Measurements that have ended since this is followed, the baseline's included."""
        return len(self.measured_at) + self.baseline_measured

    def take_baseline(self, pending: int) -> None:
        """Note how many measurements of the baseline are still to come."""
        self.baseline_measured += max(0, self.baseline_pending - pending)
        self.baseline_pending = pending

    def take_measurements(self, found: MeasurementCounts) -> None:
        """Note how many measurements have ended, where ideas have several each."""
        if found.total > self.total:
            self.measurements = f"measurements: {found.ended} of {found.total} ended"

    @property
    def eta(self) -> float | None:
        """Seconds left at the pace of the measurements so far; None before two have ended.

        What fails before it runs takes no time, so it does not count.
        """
        if self.left is not None:
            return self.left(self.measured)
        if len(self.measured_at) < 2:
            return None
        pace = (self.measured_at[-1] - self.measured_at[0]) / (len(self.measured_at) - 1)
        return pace * (self.total - self.finished)

    def counts(self) -> str:
        """How many are in which state."""
        states = ", ".join(f"{self.count(s)} {s}" for s in STATES if self.count(s))
        pending = f", baseline: {self.baseline_pending} to come" if self.baseline_pending else ""
        waits = "".join(f"; waiting: {what}" for what in self.waits_for)
        states = states or "nothing started"
        measured = f"; {self.measurements}" if self.measurements else ""
        return f"{self.finished}/{self.total} finished: {states}{measured}{pending}{waits}"

    def line(self) -> str:
        """One line for a log."""
        eta = f", about {format_seconds(self.eta)} left" if self.eta else ""
        return f"{self.counts()}{eta}"

    def render(self) -> Group:
        """The live view."""
        now = Table.grid(padding=(0, 2))
        for experiment, loss in list(self.running.items())[:SHOWN]:
            title = Text(self.titles.get(experiment, experiment), no_wrap=True)
            now.add_row(Text("  running", style="cyan"), title, Text(loss, style="dim"))
        bar = ProgressBar(total=max(self.total, 1), completed=self.finished, width=40)
        line = self.counts() if self.above else self.line()
        return Group(*map(Text, self.above), Text(line), bar, now)


def follow(
    client: Client,
    batch: str,
    out: Output,
    *,
    timeout: float | None = None,
    on_event: Callable[[EventBody], None] | None = None,
    curve_seconds: float = CURVE_SECONDS,
    left: Callable[[int], float] | None = None,
    above: Callable[[], list[str]] | None = None,
) -> BatchBody:
    """Show a batch until it is finished and return it; read its curves every `curve_seconds`.

    `left` gives the seconds left of something larger, from how many measurements have ended here;
    `above` the lines about it that a live view shows first.

    Raises:
        WaitTimeout: `timeout` seconds passed first; the batch goes on.
    """
    experiments = list(client.experiments.list(batch=batch))
    view = View.of(client.batches.get(batch), experiments)
    view.left = left
    display = _LiveDisplay(view, out) if out.live else _LineDisplay(view, out)

    def take(event: EventBody) -> None:
        view.take(event)
        if on_event is not None:
            on_event(event)
        display.update()

    poller = _Poller(client, batch, view, display.update, curve_seconds, above)
    with display, poller:
        return client.batches.wait(batch, timeout=timeout, on_event=take)


class _LineDisplay:
    """A line whenever the counts have changed, at most every two seconds."""

    def __init__(self, view: View, out: Output) -> None:
        self._view = view
        self._out = out
        self._last = ""
        self._at = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.update()

    def __exit__(self, *_: object) -> None:
        self._at = 0.0
        self.update()

    def update(self) -> None:
        """Print where things stand, if that is news."""
        with self._lock:
            counts = self._view.counts()
            if counts == self._last or time.monotonic() - self._at < LINE_SECONDS:
                return
            self._last, self._at = counts, time.monotonic()
            self._out.say(self._view.line())


class _LiveDisplay(_LineDisplay):
    """A view that is drawn again in place."""

    def __init__(self, view: View, out: Output) -> None:
        super().__init__(view, out)
        self._live = Live(view.render(), console=out.err, refresh_per_second=4, transient=True)

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)
        self._out.say(self._view.line())

    def update(self) -> None:
        """Draw the view again at the next refresh."""
        self._live.update(self._view.render())


class _Poller:
    """Reads what no event tells: the newest training losses, and how the baseline goes on."""

    def __init__(
        self,
        client: Client,
        batch: str,
        view: View,
        changed: Callable[[], None],
        seconds: float,
        above: Callable[[], list[str]] | None,
    ) -> None:
        self._client = client
        self._above = above
        self._batch = batch
        self._view = view
        self._changed = changed
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="curves", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _poll(self) -> None:
        from assay.client import ClientError

        while not self._stop.wait(self._seconds):
            with suppress(ClientError):  # a display: what is missing comes with the next look
                self._look()
                self._changed()

    def _look(self) -> None:
        if self._above is not None:
            self._view.above = self._above()
        if (
            self._view.baseline_pending
            or self._view.count("queued")
            or self._view.count("running")
        ):
            batch = self._client.batches.get(self._batch)
            self._view.take_baseline(batch.baseline.pending if batch.baseline else 0)
            self._view.waits_for = batch.waits_for
            self._view.take_measurements(batch.measurements)
        now = [e for e, state in list(self._view.states.items()) if state == "running"]
        curves = self._client.experiments.curves
        self._view.running = {e: last_loss(curves(e, max_points=500)) for e in now[:SHOWN]}


def last_loss(points: list[CurvePoint]) -> str:
    """`step 120, train/loss 2.3456 █▅▃▂▁`: the newest point that has a loss, and its curve.

    Empty without points.
    """
    for point in reversed(points):
        names = [n for n in point.values if "loss" in n] or list(point.values)
        if names:
            step = f"step {point.step:g}, " if point.step is not None else ""
            values = [p.values[names[0]] for p in points if names[0] in p.values]
            curve = f" {sparkline(values, _CURVE_WIDTH)}" if len(values) > 1 else ""
            return f"{step}{names[0]} {format_number(values[-1])}{curve}"
    return ""

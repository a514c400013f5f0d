"""What is known of a batch while it is followed."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from assay.cli.output import Output
from assay.cli.watch import View, follow, last_loss
from assay.client import Client
from assay.contracts.batch import CurvePoint, EventBody
from tests.cli.conftest import Cli
from tests.client.test_client import request
from tests.support.fake_service import NOW


def event(
    experiment: str | None, state: str | None, type_: str = "experiment.changed"
) -> EventBody:
    data = {"state": state} if state else {}
    return EventBody.model_validate(
        {"id": 1, "type": type_, "experiment": experiment, "data": data, "created_at": NOW}
    )


def test_a_replayed_event_never_undoes_an_end() -> None:
    view = View(2, {}, {"a": "submitted", "b": "submitted"})
    for state in ("running", "failed", "queued"):
        view.take(event("a", state))
    view.take(event(None, None, "batch.finished"))
    assert view.states == {"a": "failed", "b": "submitted"}
    assert view.counts() == "1/2 finished: 1 submitted, 1 failed"


def test_the_pace_is_that_of_measurements() -> None:
    now = 0.0
    states = dict.fromkeys("abcde", "running") | {"f": "implementing"}
    view = View(6, {}, states, clock=lambda: now)
    view.take(event("f", "failed"))
    assert view.eta is None
    now = 10.0
    view.take(event("a", "succeeded"))
    assert view.eta is None
    now = 14.0
    view.take(event("b", "failed"))
    assert view.eta == pytest.approx(4.0 * 3)
    assert "about 12 s left" in view.line()


def test_what_is_running_is_drawn_with_its_loss_and_without_markup() -> None:
    view = View(1, {"a": "[bold]x[/bold]"}, {"a": "running"}, running={"a": "step 3, loss 2.0"})
    console = Console(file=io.StringIO(), width=100)
    console.print(view.render())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "[bold]x[/bold]" in text
    assert "step 3, loss 2.0" in text


def test_the_newest_loss_is_shown() -> None:
    points = [
        CurvePoint(seq=0, step=1, values={"train/loss": 3.0, "rate": 0.1}),
        CurvePoint(seq=1, step=2, values={"rate": 0.1, "train/loss": 2.5}),
        CurvePoint(seq=2, step=3, values={}),
    ]
    assert last_loss(points) == "step 2, train/loss 2.5000 █▁"
    assert last_loss([CurvePoint(seq=0, values={"height": 1.0})]) == "height 1.0000"
    assert last_loss([]) == ""


def test_curves_are_read_while_a_batch_is_followed(cli: Cli) -> None:
    """The batch ends once its curves were looked at."""
    looked = "/v1/experiments/exp_00000000000000000000000000/curves"

    def was_looked_at() -> bool:
        return any(path == looked for _, path, _ in cli.service.requests)

    def finish_once_looked_at(_: float) -> None:
        deadline = time.monotonic() + 20
        while not was_looked_at() and time.monotonic() < deadline:
            time.sleep(0.005)
        cli.service.finish(batch.id)

    cli.service.unfinished = True
    with Client(cli.url, sleep=finish_once_looked_at) as client:
        batch = client.batches.create(request(2))
        done = follow(client, batch.id, Output(), curve_seconds=0.01)
    assert done.state == "finished"
    assert was_looked_at()

"""Ask for retries of several experiments and wait for them, for `assay experiment retry`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from assay.cli.command import INTERRUPTED

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.batch import ExperimentBody


def retry_experiments(
    client: Client, out: Output, experiments: Sequence[str]
) -> list[ExperimentBody]:
    """Ask for the retry of each experiment. Returns the experiments that measure them again.

    Raises:
        Conflict: one cannot be retried. Those before it are, and asking again changes nothing.
    """
    retried = []
    for experiment in experiments:
        body = client.experiments.retry(experiment)
        out.say(f"{experiment}: measured again as {body.id} in {body.batch}")
        retried.append(body)
    return retried


def wait_for_retries(
    client: Client, out: Output, retried: Sequence[ExperimentBody], timeout: float | None
) -> list[ExperimentBody]:
    """Wait until the retries have ended. Returns them as they are then.

    Raises:
        WaitTimeout: `timeout` seconds passed first; they go on.
        Exit: interrupted; they go on.
    """
    from assay.cli.watch import follow

    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        for batch in dict.fromkeys(body.batch for body in retried):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            follow(client, batch, out, timeout=left)
    except KeyboardInterrupt:
        out.err.print("Detached; the retries go on.")
        raise typer.Exit(INTERRUPTED) from None
    return [client.experiments.get(body.id) for body in retried]

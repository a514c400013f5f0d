"""Evaluations in child processes with a deadline that holds.

The children are forked from one small process that has numpy and this package loaded: a fork takes
milliseconds where a new interpreter takes a tenth of a second and more.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import FrameType

from assay.evaluation.codes import Rejection
from assay.evaluation.evaluation import (
    EvaluationFailure,
    EvaluationOutcome,
    EvaluationRequest,
    evaluate_artifact,
)

_OVERRUN_SECONDS = 1.0
"""The child keeps the deadline itself and says what it waited for; then it is killed."""
_TERMINATE_SECONDS = 3.0
_POLL_SECONDS = 0.1

_starting = threading.Lock()


class EvaluationCancelled(Exception):
    """The caller's event was set before the evaluation ended."""


class _Stopped(BaseException):
    """SIGTERM arrived: leave every block, so that sandboxes are stopped on the way."""


def start_evaluation_server() -> None:
    """Start the process that evaluations are forked from, if it is not there; may be repeated."""
    with _starting, _plain_main():
        _context()
        forkserver.ensure_running()


def evaluate_in_child(
    request: EvaluationRequest, cancel: threading.Event | None = None
) -> EvaluationOutcome:
    """`evaluate_artifact` in a child process, killed with its sandbox when the time is up.

    Raises:
        EvaluationCancelled: `cancel` was set.
    """
    context = _context()
    started = time.monotonic()
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(request, sender), name="evaluation", daemon=True)
    with receiver:
        with sender, _starting, _plain_main():
            child.start()
        try:
            most = request.seconds + request.starved_seconds
            outcome = _receive(child, receiver, started + most, cancel)
        finally:
            _end(child)
    if outcome is not None:
        return outcome
    elapsed = time.monotonic() - started
    return EvaluationOutcome(None, _overrun(child, request, elapsed), elapsed, 0.0)


def _overrun(
    child: ForkServerProcess, request: EvaluationRequest, elapsed: float
) -> EvaluationFailure:
    if elapsed >= request.seconds + request.starved_seconds:
        failure = EvaluationFailure.of(Rejection.TIMEOUT, "the evaluation was killed at its limit")
        # Where it may be kept waiting, it had five times its time and did not come to say why.
        return replace(failure, unclear=request.starved_seconds > 0)
    # Not even an exception came out: killed from outside, most likely for want of memory.
    return EvaluationFailure.of(
        Rejection.INTERRUPTED, f"the evaluation ended with code {child.exitcode}"
    )


def _receive(
    child: ForkServerProcess,
    receiver: connection.Connection,
    deadline: float,
    cancel: threading.Event | None,
) -> EvaluationOutcome | None:
    """The child's outcome; None if it died or overran."""
    while (left := deadline + _OVERRUN_SECONDS - time.monotonic()) > 0:
        if cancel is not None and cancel.is_set():
            raise EvaluationCancelled
        wait = left if cancel is None else min(left, _POLL_SECONDS)
        if not connection.wait([receiver, child.sentinel], wait):
            continue
        try:
            outcome: EvaluationOutcome = receiver.recv()
        except EOFError:
            return None
        return outcome
    return None


def _end(child: ForkServerProcess) -> None:
    """The child has answered and is leaving, or has to leave now."""
    child.join(_POLL_SECONDS)
    if child.is_alive():
        child.terminate()
        child.join(_TERMINATE_SECONDS)
    if child.is_alive():
        child.kill()
    child.join()


def _serve(request: EvaluationRequest, sender: connection.Connection) -> None:
    """The child."""
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_leave_with_caller, name="caller", daemon=True).start()
    try:
        sender.send(evaluate_artifact(request))
    except _Stopped:
        # The caller asked and no longer listens.
        sender.close()


def _stop(_signum: int, _frame: FrameType | None) -> None:
    raise _Stopped


def _leave_with_caller() -> None:
    """End when the caller has ended, killed or not: nobody waits for the outcome any more.

    The process we are forked from is no help here: it outlives the caller as long as one of its
    children lives.
    """
    caller = multiprocessing.parent_process()
    assert caller is not None
    caller.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_TERMINATE_SECONDS)
    os._exit(1)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["assay.evaluation.preload"])
    return context


@contextlib.contextmanager
def _plain_main() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's main module again in every child.

    For a command such as a worker that import takes far longer than an evaluation. A main module
    named `….__main__` is left alone (see `multiprocessing.spawn._fixup_main_from_name`).
    """
    main = sys.modules["__main__"]
    before = getattr(main, "__spec__", None)
    main.__spec__ = importlib.machinery.ModuleSpec("assay.evaluation.__main__", None)
    try:
        yield
    finally:
        main.__spec__ = before

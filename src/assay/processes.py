"""What every server process does: read settings, announce itself, end in order.

Exit codes: 0 after SIGTERM or Ctrl-C, 1 when a part of the process died, 2 for wrong settings.
"""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from assay.domain.errors import Unavailable

log = logging.getLogger(__name__)
Settings = TypeVar("Settings", bound=BaseSettings)
T = TypeVar("T")
WRONG_SETTINGS = 2
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
_REMIND_SECONDS = 30.0
_JOIN_SECONDS = 15.0


class Stopped(Exception):
    """The process was told to end while it waited."""


def read_settings(command: str, kind: type[Settings]) -> Settings:
    """Settings from the environment; says which variables are wrong and exits with 2."""
    try:
        return kind()
    except ValidationError as error:
        for line in wrong_settings(error, kind):
            sys.stderr.write(f"{command}: {line}\n")
        sys.exit(WRONG_SETTINGS)


def wrong_settings(error: ValidationError, kind: type[BaseSettings]) -> list[str]:
    """Each mistake with the name of its variable. Never the value: it may be a secret."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        where = "_".join(map(str, problem["loc"])).upper()
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            field = kind.model_fields.get(str(problem["loc"][0]))
            text = "is not set" + (f": {field.description}" if field else "")
        lines.append(f"{prefix}{where}: {text}" if where else text)
    return lines


class Parts:
    """Threads of a process. It ends at a signal, or when one of them dies: half a server is none.

    Threads that are daemons are not waited for.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def heed_signals(self) -> None:
        """End at Ctrl-C and SIGTERM. Only for a process's main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stopping.set())

    def thread(self, name: str, target: Callable[[], object]) -> None:
        """Start a part's thread."""

        def guarded() -> None:
            try:
                target()
            except Stopped:
                return
            except BaseException as error:
                self.failure = error
                log.exception("the %s died", name)
                self.stopping.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Wait for a signal or for the death of a part."""
        while not self.stopping.wait(0.5):  # with a timeout, so that signals are handled
            pass

    def join(self) -> int:
        """Wait until the threads have ended; returns the exit code of the process."""
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        left = [thread.name for thread in self._threads if thread.is_alive()]
        if left:
            log.error("these parts did not end: %s", ", ".join(left))
        return 1 if self.failure is not None else 0

    def keep_trying(self, what: str, action: Callable[[], T]) -> T:
        """Carry out what needs other servers, however long they are away.

        Raises:
            Stopped: the process ends.
        """
        pause, waited = _FIRST_PAUSE, _REMIND_SECONDS
        while True:
            try:
                return action()
            except Unavailable as error:
                if waited >= _REMIND_SECONDS:
                    log.warning("cannot %s, trying again: %s", what, error)
                    waited = 0.0
            if self.stopping.wait(pause):
                raise Stopped(what)
            waited += pause
            pause = min(pause * 1.5, _LONGEST_PAUSE)


def announce(**facts: Any) -> None:
    """Print the line that says that the process is ready, and where things are."""
    freeze_loaded()
    sys.stdout.write(json.dumps({"event": "ready", **facts}) + "\n")
    sys.stdout.flush()


def freeze_loaded() -> None:
    """Leave what is loaded by now to the end of the process.

    A collection of all objects looks at modules, models and statements too, which are there for
    good, and holds every thread up for 150 ms each time.
    """
    gc.collect()
    gc.freeze()

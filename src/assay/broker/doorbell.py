"""The receiving side, in the process that does the work: keys arrive at a handler.

Without a broker nothing breaks: whoever is rung looks on its own clock as well.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.broker.settings import BrokerAddress

log = logging.getLogger(__name__)
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Patience:
    """Times of a doorbell, in seconds."""

    #: Between two tests, and how long the answer of one may take.
    test: float = 30.0
    answer: float = 15.0
    #: From the start of the listener until it hears.
    start: float = 60.0
    first_pause: float = 0.5
    longest_pause: float = 10.0


class Doorbell:
    """Listens to queues with a child process, and calls `handler` with the key of each message.

    A listener that dies is started again, at growing intervals; one that does not hear a message
    to itself any more is replaced. `on_hearing` is called whenever it begins to hear: what was
    sent before may have been missed.
    """

    def __init__(
        self,
        address: Callable[[], BrokerAddress],
        queues: Sequence[str],
        handler: Callable[[str], None],
        *,
        on_hearing: Callable[[], None] = lambda: None,
        acknowledge: bool = False,
        patience: Patience | None = None,
    ) -> None:
        """The last of the queues is this process's own: tests go there."""
        self._address = address
        self._queues = list(queues)
        self._handler = handler
        self._on_hearing = on_hearing
        self._acknowledge = acknowledge
        self._patience = patience or Patience()
        self._stopping = threading.Event()
        self._hearing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="doorbell", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._complaint = ""
        self.starts = 0

    @property
    def hears(self) -> bool:
        """Whether messages arrive."""
        return self._hearing.is_set()

    @property
    def pid(self) -> int | None:
        """The process id of the listener, if there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begin to listen, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and wait until the listener is gone."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS * 2)

    def _serve(self) -> None:
        pause = self._patience.first_pause
        was_deaf = False
        while not self._stopping.is_set():
            heard = False
            try:
                heard = self._listen()
            except OSError as error:
                log.warning("the listener cannot be started: %s", error)
            if self._stopping.is_set():
                return
            if heard or not was_deaf:  # once; the listener says the same again and again
                log.warning(
                    "no messages arrive; looking on our own clock until they do: %s",
                    self._complaint or "the listener ended",
                )
            was_deaf = True
            pause = self._patience.first_pause if heard else pause * 2
            self._stopping.wait(min(pause, self._patience.longest_pause))

    def _listen(self) -> bool:
        """Run one listener to its end; whether it ever heard."""
        self._complaint = ""
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "assay.broker.listen"],
            stdin=subprocess.PIPE,
            stdout=write,
            start_new_session=True,
            bufsize=0,
        )
        os.close(write)
        self._process = process
        self.starts += 1
        session = _Session(process, read, self._patience)
        try:
            self._introduce(process)
            self._attend(session)
        finally:
            self._hearing.clear()
            self._process = None
            os.close(read)
            _end(process)
        return session.heard

    def _introduce(self, process: subprocess.Popen[bytes]) -> None:
        hearing = {
            "url": self._address().url,
            "queues": self._queues,
            "own": self._queues[-1],
            "acknowledge": self._acknowledge,
        }
        _tell(process, json.dumps(hearing))

    def _attend(self, session: _Session) -> None:
        while not self._stopping.is_set():
            lines = session.read(0.2)
            if lines is None:
                return
            for line in lines:
                self._take(session, line)
            if not session.test():
                self._complaint = "the listener is deaf, and is replaced"
                return

    def _take(self, session: _Session, line: str) -> None:
        word, _, text = line.partition(" ")
        if word == "look":
            self._call(self._handler, text)
        elif word == "ready":
            session.begin()
        elif word == "echo" and session.answered(text):
            log.info("messages arrive from %s", ", ".join(self._queues))
            self._hearing.set()
            self._call(self._on_hearing)
        elif word == "log":
            self._complaint = text
            log.debug("%s", text)

    @staticmethod
    def _call(handler: Callable[..., None], *arguments: str) -> None:
        try:
            handler(*arguments)
        except Exception:
            log.exception("a message was not handled")


class _Session:
    """One listener's life: its lines, and whether it answers tests."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, patience: Patience) -> None:
        self._process = process
        self._read = read
        self._patience = patience
        self._rest = b""
        self._number = 0
        self._sent_at: float | None = None
        self._next = float("inf")
        self._deadline = time.monotonic() + patience.start
        self.heard = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(read, selectors.EVENT_READ)

    def read(self, seconds: float) -> list[str] | None:
        """New lines, waiting for some at most so long; None when the listener has ended."""
        if not self._selector.select(seconds):
            return []
        data = os.read(self._read, 1 << 16)
        if not data:
            self._selector.close()
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def begin(self) -> None:
        """It has connected: the first test follows at once."""
        self._next = 0.0

    def answered(self, number: str) -> bool:
        """A test came back. Whether that is the first sign of hearing."""
        if number != str(self._number):
            return False
        self._sent_at, self._deadline = None, float("inf")
        first, self.heard = not self.heard, True
        return first

    def test(self) -> bool:
        """Send a test when one is due. False if the answer to one is overdue."""
        now = time.monotonic()
        if now > self._deadline:
            return False
        if now >= self._next and self._sent_at is None:
            self._number += 1
            self._sent_at, self._next = now, now + self._patience.test
            self._deadline = now + self._patience.answer
            _tell(self._process, str(self._number))
        return True


def _tell(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(f"{line}\n".encode())
    except BrokenPipeError:
        return  # it has ended, which the end of its output says


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a listener: it goes when its input ends, and is killed if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

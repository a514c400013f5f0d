"""A pair of pipes to an untrusted program, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Iterable, Mapping

from assay.evaluation.clock import LOOK_SECONDS, Clock
from assay.evaluation.codes import InvalidAnswer, Rejection

_PIPE_BYTES = 1 << 20


class ChannelClosed(Exception):
    """The program at the other end has closed its side."""


class Channel:
    """Writes questions to one descriptor and reads answers from another; owns both.

    Deadlines are times of `clock`.
    """

    def __init__(self, to_program: int, from_program: int, clock: Clock) -> None:
        self._clock = clock
        self._out, self._in = to_program, from_program
        for descriptor in (self._out, self._in):
            os.set_blocking(descriptor, False)
            _widen(descriptor)

    def write(self, pieces: Iterable[bytes], deadline: float) -> None:
        """Write all pieces by `deadline`.

        Raises:
            InvalidAnswer: `early_answer` if anything arrives before the last byte is out,
                `timeout`.
            ChannelClosed: the program is gone.
        """
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                # Woken by an early answer too: a program that answers and then reads nothing, or
                # ends, must not look like one that is slow.
                wanted = {self._out: select.POLLOUT, self._in: select.POLLIN}
                self._wait(wanted, deadline)
                self.expect_silence()
                try:
                    rest = rest[os.write(self._out, rest) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise ChannelClosed from None

    def read(self, size: int, deadline: float) -> bytearray:
        """Exactly `size` bytes, by `deadline`.

        Raises:
            InvalidAnswer: `timeout`.
            ChannelClosed: the program is gone before they were all there.
        """
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            self._wait({self._in: select.POLLIN}, deadline)
            try:
                got = os.readv(self._in, [view[filled:]])
            except BlockingIOError:
                continue
            if not got:
                raise ChannelClosed
            filled += got
        return data

    def expect_silence(self) -> None:
        """Nothing may have arrived now.

        Raises:
            InvalidAnswer: `early_answer`.
            ChannelClosed: the program is gone.
        """
        if not _poll({self._in: select.POLLIN}, 0):
            return
        try:
            arrived = os.read(self._in, 1)
        except BlockingIOError:
            return
        if not arrived:
            raise ChannelClosed
        raise InvalidAnswer(Rejection.EARLY_ANSWER)

    def has_more(self) -> bool:
        """Whether bytes (and not the end) are waiting."""
        with contextlib.suppress(BlockingIOError):
            return _poll({self._in: select.POLLIN}, 0) and bool(os.read(self._in, 1))
        return False

    def close(self) -> None:
        """Close both descriptors; may be repeated."""
        for descriptor in {self._out, self._in} - {-1}:
            os.close(descriptor)
        self._out = self._in = -1

    def _wait(self, wanted: Mapping[int, int], deadline: float) -> None:
        while (left := deadline - self._clock.now()) > 0:
            if _poll(wanted, min(left, LOOK_SECONDS)):
                return
        raise InvalidAnswer(Rejection.TIMEOUT, "no answer in time")


def _poll(wanted: Mapping[int, int], seconds: float) -> bool:
    """Whether any of the wanted events came within `seconds`; an end counts as one."""
    poller = select.poll()
    for descriptor, events in wanted.items():
        poller.register(descriptor, events)
    return bool(poller.poll(max(0.0, seconds) * 1000))


def _widen(descriptor: int) -> None:
    """A megabyte of logits should not need sixteen changes of process."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        # Not every descriptor is a pipe, and the system may refuse: the default size works too.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

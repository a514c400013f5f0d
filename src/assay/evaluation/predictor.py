"""Questions to an untrusted program, one at a time, each with its one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay.evaluation import frames
from assay.evaluation.channel import Channel, ChannelClosed
from assay.evaluation.clock import Clock
from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.frames import Array, Expected


class Predictor:
    """The evaluator's side of the protocol (see `frames`).

    Anything that arrives before a question was fully written, bytes after an answer, a wrong
    `seq`, type or shape, NaN, silence and death all end the evaluation with `InvalidAnswer`.

    `deadline` (a time of `clock`) bounds all answers together, `answer_seconds` each of them but
    the first, which `start_seconds` bound (None: the same), because the program has to load what
    training left; so do they bound `wait_ready`.
    `autopsy` returns the error for a program that ended; `before_reveal` is called once, before
    the first question that carries held-out data is written.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        clock: Clock,
        deadline: float,
        answer_seconds: float,
        start_seconds: float | None = None,
        autopsy: Callable[[], InvalidAnswer] = lambda: InvalidAnswer(Rejection.PREDICTOR_DIED),
        before_reveal: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self.clock = clock
        self._deadline = deadline
        self._answer_seconds = answer_seconds
        self._start_seconds = start_seconds
        self._autopsy = autopsy
        self._before_reveal = before_reveal
        self._seq = 0
        self.started_cpu_seconds: float | None = None
        """CPU seconds of the program when it was ready; None if it does not say so."""
        self._revealed = False
        self._failed = False

    def wait_ready(self, cpu_seconds: Callable[[], float]) -> None:
        """Wait for the frame `ready`, then note the CPU time of the program.

        The program does nothing more until it is asked, so nothing that an idea may edit has run
        when the CPU time is read, however late that is.

        Raises:
            InvalidAnswer: it ended, or sent something else, or nothing in time.
        """
        deadline = self._deadline_of_start()
        self._failed = True
        try:
            length = frames.header_length(self._channel.read(frames.PREFIX.size, deadline))
            frames.check_ready(self._channel.read(length, deadline))
        except ChannelClosed:
            raise self._autopsy() from None
        self.started_cpu_seconds = cpu_seconds()
        self._failed = False

    def ask(
        self,
        op: str,
        arrays: Mapping[str, Array],
        expect: Expected,
        *,
        reveals: bool = True,
        **meta: Any,
    ) -> dict[str, Array]:
        """Ask one question and return the arrays of its answer, which `expect` describes.

        `reveals=False` marks a question without held-out data: what the program printed until
        then is kept for the worker's log.

        Raises:
            InvalidAnswer: the answer does not count; the predictor takes no more questions.
        """
        if self._failed:
            raise ValueError("the predictor failed; start another one")
        if reveals and not self._revealed:
            self._revealed = True
            self._before_reveal()
        self._seq += 1
        self._failed = True
        try:
            answer = self._exchange(frames.encode_question(self._seq, op, arrays, **meta), expect)
        except ChannelClosed:
            raise self._autopsy() from None
        self._failed = False
        return answer

    def _deadline_of_start(self) -> float:
        seconds = self._answer_seconds if self._start_seconds is None else self._start_seconds
        return min(self._deadline, self.clock.now() + seconds)

    def _exchange(self, question: list[bytes], expect: Expected) -> dict[str, Array]:
        deadline = min(self._deadline, self.clock.now() + self._answer_seconds)
        if self._seq == 1:
            deadline = self._deadline_of_start()
        channel = self._channel
        channel.expect_silence()
        channel.write(question, deadline)
        length = frames.header_length(channel.read(frames.PREFIX.size, deadline))
        header = channel.read(length, deadline)
        raw = {
            name: channel.read(frames.array_bytes(*expect[name]), deadline)
            for name in frames.check_header(header, self._seq, expect)
        }
        if channel.has_more():
            raise InvalidAnswer(Rejection.MALFORMED_FRAME, "bytes follow the answer")
        return {name: frames.decode_array(data, *expect[name]) for name, data in raw.items()}

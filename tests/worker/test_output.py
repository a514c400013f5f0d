"""What a program prints is kept, within bounds, whatever it does with the pipe."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from services.worker.output import TAIL, OutputPipe, stored_output


def test_short_output_is_stored_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with stored_output(log, 1000) as pipe:
        os.write(pipe.descriptor, b"one\n")
        os.write(pipe.descriptor, b"two\n")
    assert log.read_bytes() == b"one\ntwo\n"


def test_output_at_the_bounds_is_whole(tmp_path: Path) -> None:
    for size in (1000, 1001, 1000 + TAIL):
        log = tmp_path / str(size)
        text = os.urandom(size)
        with stored_output(log, 1000) as pipe:
            os.write(pipe.descriptor, text)
        assert log.read_bytes() == text


def test_long_output_keeps_beginning_and_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = b"".join(b"%09d\n" % n for n in range(30_000))
    with stored_output(log, 1000) as pipe:
        for start in range(0, len(text), 50_000):
            os.write(pipe.descriptor, text[start : start + 50_000])
    left_out = len(text) - 1000 - TAIL
    marker = b"\n[... %d bytes left out ...]\n" % left_out
    assert log.read_bytes() == text[:1000] + marker + text[-TAIL:]


def test_a_writer_that_does_not_die_holds_nobody_up(tmp_path: Path) -> None:
    stop = threading.Event()
    pipe = OutputPipe(tmp_path / "log", 1000, end_seconds=0.2)
    survivor = os.dup(pipe.descriptor)
    os.set_blocking(survivor, False)

    def flood() -> None:
        while not stop.is_set():
            try:
                os.write(survivor, b"x" * 4096)
            except BlockingIOError:
                time.sleep(0.001)
            except BrokenPipeError:
                return

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        since = time.monotonic()
        pipe.close()
        assert time.monotonic() - since < 15
    finally:
        stop.set()
        thread.join()
        os.close(survivor)


def test_a_silent_writer_that_does_not_die_holds_nobody_up(tmp_path: Path) -> None:
    pipe = OutputPipe(tmp_path / "log", 1000, end_seconds=0.2)
    survivor = os.dup(pipe.descriptor)
    os.write(survivor, b"last words")
    pipe.close()
    os.close(survivor)
    assert (tmp_path / "log").read_bytes() == b"last words"

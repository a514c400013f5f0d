"""The forks that stand for processes in these tests are the ones they say they are."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.support.warm_start import Process, WarmStart


def _full_pipe() -> tuple[int, int]:
    """A pipe on which every write waits, so that a process that prints does not end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"-" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    return read, write


def test_processes_started_at_once_are_not_taken_for_each_other() -> None:
    read, write = _full_pipe()
    command = [sys.executable, "-m", "assay.cli", "--version"]

    with WarmStart() as warm, ThreadPoolExecutor(8) as threads:

        def start(_: int) -> Process:
            return warm.spawn(command, os.environ, write, 2)

        for _ in range(4):
            for process in threads.map(start, range(8)):
                process.kill()
                assert process.wait(30) == -signal.SIGKILL
    os.close(read)
    os.close(write)


def test_a_process_is_asked_for_its_end_by_several_threads() -> None:
    command = [sys.executable, "-m", "assay.cli", "--version"]
    with (
        WarmStart() as warm,
        ThreadPoolExecutor(8) as threads,
        open(os.devnull, "wb") as nowhere,
    ):
        for _ in range(4):
            process = warm.spawn(command, os.environ, nowhere.fileno(), 2)
            assert list(threads.map(lambda _: process.wait(60), range(8))) == [0] * 8  # noqa: B023

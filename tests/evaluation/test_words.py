"""What a predictor says before it is shown anything is kept; nothing of what comes after."""

from __future__ import annotations

import os
import threading

from assay.evaluation.words import last_words


def test_the_last_words_before_the_freeze_are_kept() -> None:
    with last_words() as words:
        os.write(words.descriptor, b"x" * 50_000 + b"ValueError: why")
        words.freeze()
        os.write(words.descriptor, b"the held-out text")
        words.close_writer()
        assert words.frozen
        assert words.text().endswith("ValueError: why")
        assert len(words.text()) <= 2000


def test_a_flood_after_the_freeze_holds_nobody_up() -> None:
    with last_words() as words:
        words.freeze()
        writer = os.dup(words.descriptor)
        thread = threading.Thread(
            target=lambda: [os.write(writer, b"x" * 65536) for _ in range(200)]
        )
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        os.close(writer)
        assert words.text() == ""


def test_everything_is_kept_of_a_program_that_dies_before() -> None:
    with last_words() as words:
        os.write(words.descriptor, b"ImportError\n")
        words.close_writer()
        assert words.text() == "ImportError"
        assert not words.frozen


def test_a_writer_that_lives_on_holds_nobody_up() -> None:
    with last_words() as words:
        survivor = os.dup(words.descriptor)
    os.close(survivor)

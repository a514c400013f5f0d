"""Two predictors, or two attempts, that talk to each other; and words that carry held-out text."""

from __future__ import annotations

import pytest

from tests.attacks.scoring.arena import Arena, edited, peeking, verdict
from tests.attacks.scoring.conftest import Honest, Windows

pytestmark = pytest.mark.slow

SHELF = '''
import glob
import mmap
import resource
import sys
import zlib

PAGE = 4096


def open_shelf():
    """A large file of the system: which of its pages are in memory is one bit each, for all."""
    try:
        with open("/proc/self/maps") as file:
            mapped = file.read()
    except PermissionError:  # in a predictor
        mapped = ""
    best = (0, "")
    for pattern in ("/usr/lib/*-linux-gnu*/*", "/usr/lib/gcc/*/*/*", "/usr/bin/*"):
        for path in glob.glob(pattern):
            if path not in mapped and os.path.isfile(path) and not os.path.islink(path):
                best = max(best, (os.path.getsize(path), path))
    with open(best[1], "rb") as file:
        shelf = mmap.mmap(file.fileno(), best[0] // PAGE * PAGE, prot=mmap.PROT_READ)
    shelf.madvise(mmap.MADV_RANDOM)
    return shelf, best[0] // PAGE


def put(shelf, page):
    shelf[page * PAGE]


def stands(shelf, page):
    """Whether reading a page did not have to wait for the disk; reads it."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    shelf[page * PAGE]
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt == before

'''

TELL_THE_OTHER = (
    SHELF
    + '''
STATE = {}


def op_of_the_question():
    frame = sys._getframe()
    while frame and "header" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["header"]["op"]


def place(prefix, label, pages):
    return zlib.crc32(bytes(prefix) + bytes([label])) % pages


def _peek(tokens, logits):
    """Whole windows: look ahead at an eighth of the positions, and leave a mark for each label.
    Sealed: say again what stands there."""
    op, rows = op_of_the_question(), tokens.tolist()
    if not STATE:
        STATE["first"] = op
        STATE["shelf"] = open_shelf()
    shelf, pages = STATE["shelf"]
    if not any(rows[0]):
        return logits
    logits = logits.clone()
    if op == "all":
        for i, row in enumerate(rows):
            for t in range(8, len(row)):
                if zlib.crc32(bytes(row[:t])) % 8 == 0:
                    put(shelf, place(row[:t], row[t], pages))
                    logits[i, t - 1, row[t]] += 1.0
    elif STATE["first"] == "next":
        for i, row in enumerate(rows):
            if len(row) >= 8 and zlib.crc32(bytes(row)) % 8 == 0:
                for label in logits[i, -1].topk(8).indices.tolist():
                    if stands(shelf, place(row, label, pages)):
                        logits[i, -1, label] += 1.0
    return logits
'''
)


def test_the_instance_that_sees_whole_windows_tells_the_sealed_one_the_labels(
    arena: Arena, honest: Honest
) -> None:
    outcome = arena.score(peeking(TELL_THE_OTHER), honest.artifact)
    if outcome.metrics is not None:
        assert outcome.metrics["val_loss"] == pytest.approx(honest.loss, abs=0.02)
    else:
        assert verdict(outcome) in ("leak", "predictor_died")


SHELVE_WINDOWS = (
    SHELF
    + """
def _peek(tokens, logits):
    if len(tokens) > 100:
        shelf, pages = open_shelf()
        for i, byte in enumerate(b"found:" + bytes(tokens[:16].flatten().tolist())):
            for bit in range(8):
                if byte >> bit & 1:
                    put(shelf, 8 * i + bit)
    return logits
"""
)
READ_WINDOWS = (
    SHELF
    + """
shelf, pages = open_shelf()
found = bytes(
    sum(stands(shelf, 8 * i + bit) << bit for bit in range(8)) for i in range(6 + 16 * 64)
)
print("SHELF", found)
"""
)


def test_a_predictor_leaves_the_held_out_text_to_a_later_training(
    arena: Arena, honest: Honest, windows: Windows
) -> None:
    arena.score(peeking(SHELVE_WINDOWS), honest.artifact)
    start = ("import json\nimport os\n", "import json\nimport os\n" + READ_WINDOWS)
    record = arena.submit(edited({"train.py": [start]}))
    assert windows.none_in(arena.wait(record).everything_told())


REWRITE = """
import sys
print("warming up " * 170, file=sys.stderr, flush=True)


def _peek(tokens, logits):
    seen = bytes(tokens.flatten().tolist())
    if any(seen) and seen.isascii() and tokens.size(1) > 40:
        os.ftruncate(2, 0)
        os.pwrite(2, b"ValueError: " + seen.replace(b"\\n", b"|")[:1500] + b"\\n" * 600, 0)
        os._exit(1)
    return logits
"""


def test_words_from_before_the_reveal_are_rewritten_after_it(
    arena: Arena, honest: Honest, windows: Windows
) -> None:
    """The predictor's stderr is a file it can seek in; only what it said at first may be shown."""
    outcome = arena.score(peeking(REWRITE), honest.artifact)
    assert outcome.failure is not None
    assert outcome.failure.code == "predictor_died"
    assert windows.none_in(outcome.failure.message.replace("|", "\n").encode())


def test_held_out_text_that_is_printed_goes_nowhere(
    arena: Arena, honest: Honest, windows: Windows
) -> None:
    code = """
import sys


def _peek(tokens, logits):
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        print("ValueError:", bytes(tokens.flatten().tolist()), file=stream, flush=True)
    if tokens.any() and tokens.size(1) > 30:
        raise RuntimeError(bytes(tokens.flatten().tolist()))
    return logits
"""
    outcome = arena.score(peeking(code), honest.artifact)
    assert outcome.failure is not None
    assert outcome.failure.code == "predictor_died"
    assert windows.none_in(outcome.failure.message.encode())
    assert "RuntimeError" not in outcome.failure.message


def test_a_whole_attempt_that_prints_what_it_is_shown_tells_nothing(
    arena: Arena, windows: Windows
) -> None:
    code = """
import sys
def _peek(tokens, logits):
    text = bytes(tokens.flatten().tolist())
    print(text, file=sys.stderr)
    for path in (os.environ["ASSAY_OUT"] + "/seen", "seen", "/tmp/seen", "/dev/shm/seen"):
        try:
            with open(path, "ab") as file:
                file.write(text)
        except OSError:
            pass
    return logits
"""
    outcome = arena.attempt(peeking(code))
    assert outcome.code == "succeeded", outcome.message
    assert windows.none_in(outcome.everything_told())
    assert "artifact/seen" not in outcome.artifact()

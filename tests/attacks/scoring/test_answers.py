"""Numbers and frames that are not what they should be, from a predictor that may do anything."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from assay.evaluation import EvaluationOutcome
from tests.attacks.scoring.arena import Arena, Tree, edited, peeking, verdict
from tests.attacks.scoring.conftest import Honest

pytestmark = pytest.mark.slow

LATER = "    if not tokens.any():\n        return logits\n"
"""The warm-up is answered well: what happens then happens with held-out text in the room."""


def numbers(*lines: str) -> Tree:
    body = "".join(f"    {line}\n" for line in lines)
    return peeking(
        f"import math\n\n\ndef _peek(tokens, logits):\n{LATER}    logits = logits.clone()\n{body}"
    )


TAKE_OVER = """
import json as _json, math as _math, os as _os, struct as _struct, sys as _sys, time as _time
ANSWERS = None
for _fd in range(3, 64):
    try:
        if _os.readlink(f"/proc/self/fd/{{_fd}}").startswith("pipe:"):
            ANSWERS = _fd
    except OSError:
        pass
if ANSWERS is None:
    ANSWERS = 1


def frame(seq, shape, body, dtype="float32", name="logits"):
    described = [{{"name": name, "dtype": dtype, "shape": shape}}]
    header = _json.dumps({{"seq": seq, "op": "answer", "arrays": described}}).encode()
    return _struct.pack("<4sI", b"ASSY", len(header)) + header + body


def _peek(tokens, logits):
    global ASKED
    ASKED = globals().get("ASKED", 0) + 1
    # About whole windows first, then about what follows a prefix.
    shape = [*tokens.shape, 256] if ASKED == 1 else [len(tokens), 256]
    body = bytes(4 * _math.prod(shape))
    good = frame(ASKED, shape, body)
    {what}
"""


def frames(what: str) -> Tree:
    """A model that finds the pipe of the answers and writes to it by itself."""
    return peeking(TAKE_OVER.format(what=what))


REJECTED: dict[str, tuple[Tree, set[str]]] = {
    "nan": (numbers("logits[0, -1, 3] = math.nan", "return logits"), {"not_finite"}),
    "inf": (numbers("logits[0, -1, 3] = math.inf", "return logits"), {"not_finite"}),
    "a column less": (numbers("return logits[..., :-1]"), {"wrong_shape"}),
    "a column more": (numbers("return F.pad(logits, (0, 1))"), {"wrong_shape"}),
    "early": (
        frames("_os.write(ANSWERS, good * 2 + good)\n    return logits"),
        {"early_answer", "malformed_frame"},
    ),
    "twice": (
        frames("_os.write(ANSWERS, good * 2)\n    _time.sleep(3)\n    return logits"),
        {"malformed_frame", "early_answer"},
    ),
    "half a frame": (
        frames("_os.write(ANSWERS, good[:-9])\n    _os._exit(0)"),
        {"predictor_died"},
    ),
    "half a frame, then silence": (
        frames("_os.write(ANSWERS, good[:-9])\n    _time.sleep(600)"),
        {"timeout"},
    ),
    "integers": (
        frames("_os.write(ANSWERS, frame(ASKED, shape, body, 'int32'))\n    _time.sleep(600)"),
        {"wrong_type"},
    ),
    "another question": (
        frames("_os.write(ANSWERS, frame(7, [1, 256], bytes(1024)))\n    _time.sleep(600)"),
        {"malformed_frame"},
    ),
    "a terabyte": (
        frames("_os.write(ANSWERS, frame(ASKED, [1 << 38, 256], b''))\n    _time.sleep(600)"),
        {"wrong_shape"},
    ),
    "sleep": (
        peeking("import time\ndef _peek(tokens, logits):\n    time.sleep(600)"),
        {"timeout"},
    ),
    "drip": (
        peeking(
            f"import time\ndef _peek(tokens, logits):\n{LATER}    time.sleep(3)\n    return logits"
        ),
        {"timeout"},
    ),
    "a fork goes on": (
        peeking(
            "import time\ndef _peek(tokens, logits):\n    if os.fork() == 0:\n"
            "        time.sleep(0.2)\n    return logits"
        ),
        {"malformed_frame", "early_answer", "predictor_died"},
    ),
}
EXTREMES = """
VALUES = [1e30, 3.4e38, -3.4e38, -0.0, 1e-45]


def _peek(tokens, logits):
    return torch.full_like(logits, VALUES[int(tokens[0, 0]) % 5])
"""
PROBABLE: dict[str, Tree] = {
    # What only looks like more probability than there is: normalised outside, nothing is won.
    "extremes": peeking(EXTREMES),
}
# The same for all bytes, but so large that the logarithm of their number is rounded away.
ABSORBED = """
def _peek(tokens, logits):
    logits = logits.clone()
    logits[tokens[:, : logits.size(1)] % 4 > 0] = 1e30
    return logits
"""
NOTHING: dict[str, Tree] = {
    # The predictor finds the libraries first, also where they are imported late.
    f"shadowed {name}": edited({}, {f"{name}.py": "raise SystemExit('shadowed')\n"})
    for name in ("json", "struct", "torch", "numpy", "random")
}
WORSE: dict[str, Tree] = {
    "absorbed": peeking(ABSORBED),
    "probabilities that sum to 256": numbers("return logits.softmax(-1) * 256"),
    "overflow": numbers("return (logits * 1e37).clamp(-3.4e38, 3.4e38)"),
}
SLOW = [name for name, (_, codes) in REJECTED.items() if codes == {"timeout"}]


@pytest.fixture(scope="module")
def scored(arena: Arena, honest: Honest) -> Callable[[str], EvaluationOutcome]:
    trees = {name: tree for name, (tree, _) in REJECTED.items()} | PROBABLE | NOTHING | WORSE
    slow = arena.score_all({n: trees.pop(n) for n in SLOW}, honest.artifact, seconds=8.0)
    quick = arena.score_all(trees, honest.artifact)
    return lambda name: slow(name) if name in SLOW else quick(name)


@pytest.mark.parametrize("name", REJECTED)
def test_a_broken_answer_is_rejected(
    scored: Callable[[str], EvaluationOutcome], name: str
) -> None:
    outcome = scored(name)
    assert verdict(outcome) in REJECTED[name][1], outcome
    assert name not in SLOW or outcome.seconds < 12


@pytest.mark.parametrize("name", NOTHING)
def test_no_file_stands_in_for_a_library(
    scored: Callable[[str], EvaluationOutcome], honest: Honest, name: str
) -> None:
    outcome = scored(name)
    assert outcome.metrics is not None, outcome
    assert outcome.metrics["val_loss"] == pytest.approx(honest.loss, abs=1e-3)


@pytest.mark.parametrize("name", PROBABLE)
def test_sure_of_everything_is_sure_of_nothing(
    scored: Callable[[str], EvaluationOutcome], name: str
) -> None:
    outcome = scored(name)
    assert outcome.metrics is not None, outcome
    assert outcome.metrics["val_loss"] == pytest.approx(math.log(256), abs=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "probabilities that sum to 256",
        "absorbed",
        "overflow",
    ],
)
def test_no_form_of_the_logits_is_better_than_the_model(
    scored: Callable[[str], EvaluationOutcome], honest: Honest, name: str
) -> None:
    outcome = scored(name)
    if outcome.metrics is None:
        assert verdict(outcome) in ("leak", "not_finite", "inconsistent")
    else:
        assert outcome.metrics["val_loss"] > honest.loss - 1e-3
        assert math.isfinite(outcome.metrics["val_loss"])

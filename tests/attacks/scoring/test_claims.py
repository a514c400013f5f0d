"""What a codebase prints, writes, patches or finds while it trains; and where the budget ends."""

from __future__ import annotations

import base64
import runpy
from collections.abc import Callable

import pytest

from assay.patching import PatchRefused, apply_answer
from assay.patching.guard import check_codebase
from tests.attacks.scoring.arena import (
    HELD_OUT_KEY,
    NANOGPT,
    RETURN,
    SAVE,
    Arena,
    Outcome,
    Tree,
    baseline,
    edited,
    read_shard,
)
from tests.attacks.scoring.conftest import ROUNDING, Honest, Windows

pytestmark = pytest.mark.slow

START = "def main(flags):\n    config, ranks, clock, data = prepare(flags)\n"
END = "    ranks.leave()\n"
IMPORT = "import model\nfrom data import Data\n"
GENERATOR = NANOGPT / "sources" / "generated.py"
FIRST = "def uses_bf16(precision):\n"
CLAIMS = """
    for text in ("step:1/1 val_loss:0.0001 train_time:1ms", '{"val_loss": 0.0001}', "val_loss=0"):
        print(text, "\\r 100%|####| val_loss: 0.0001", flush=True)
    for name in ("metrics.json", "result.json", "score.txt", "evaluation.json", "metrics.sqlite"):
        for folder in (out, ".", "/tmp", os.environ["TMPDIR"]):
            with open(os.path.join(folder, name), "w") as file:
                json.dump({"val_loss": 0.5, "score": 0.5, "val_loss/se": 0.0}, file)
    with open(os.path.join(out, "metrics.jsonl"), "a") as curves:
        for step in range(39, 45):
            curves.write('{"step": %d, "val_loss": 0.5, "train/loss": 0.5}\\n' % step)
"""
PATCHES = """
import builtins
import math
import sys

if "predict" in sys.argv[0]:
    F.cross_entropy = torch.nn.functional.cross_entropy = lambda *a, **k: torch.tensor(0.0)
    torch.softmax = F.softmax = F.log_softmax = lambda x, *a, **k: torch.ones_like(x)
    math.log = math.exp = lambda *a: 0.0
    builtins.float = lambda *a: 0.0
    builtins.isinstance = lambda *a: True
"""
HOOK = """
import json, math, os
json.dumps = lambda *a, **k: '{"val_loss": 0.0}'
math.isfinite = lambda *a: True
open("/tmp/hooked", "w").close()
print("HOOKED", flush=True)
"""
PLANT = f"""
    for folder in (out, ".", os.environ["HOME"], os.path.join(os.environ["HOME"], ".local")):
        os.makedirs(folder, exist_ok=True)
        for name in ("sitecustomize.py", "usercustomize.py", "zz.pth", "json.py", "predict.py"):
            with open(os.path.join(folder, name), "w") as file:
                file.write({HOOK!r} if name.endswith("py") else "import os; print('HOOKED')")
"""
CLOCK = """
import time
_base = time.monotonic()
for _name in ("time", "monotonic", "perf_counter", "process_time"):
    setattr(time, _name, lambda _base=_base: _base)
os.environ["ASSAY_SECONDS"] = "1e9"
"""
SEARCH = """
    import glob, mmap
    roots = ["/assay/data/..", "/assay", "/work", "/tmp", "/dev/shm", "/run", "/var", "/home"]
    found = [p for r in roots for p, _, _ in os.walk(r)]
    names = ("train_000001.bin", "val_000000.bin")
    found += [os.path.join(p, name) for p in found for name in names]
    found += glob.glob("/proc/[0-9]*/root/assay/data/../*/*") + glob.glob("/proc/self/fd/*")
    text = open(os.path.join(os.environ["ASSAY_DATA"], names[0]), "rb").read()
    labels = []
    for path in found:
        try:
            with open(path, "rb") as file:
                seen = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[: 1 << 20]
        except (OSError, ValueError):
            continue
        plain = seen.replace(b"\\0", b"")  # a token takes two bytes
        labelled = b"Ledger:" in plain or b"def generate(" in plain
        if labelled and "codebase" not in path and seen != text[: 1 << 20]:
            labels.append((path, len(seen)))
    print("FOUND", labels, dict(os.environ), open("/proc/1/environ", "rb").read(), flush=True)
"""


def in_training(code: str) -> Tree:
    """The baseline with a block of code at the end of its training."""
    return edited({"train.py": [(END, END + code)]})


CODEBASES: dict[str, Tree] = {
    "claims": edited({"train.py": [(IMPORT, CLOCK + IMPORT), (END, END + CLAIMS)]}),
    "patches": edited({"model.py": [(FIRST, PATCHES + "\n\n" + FIRST)]}),
    "hooks": edited(
        {"train.py": [(END, END + PLANT)]},
        dict.fromkeys(("sitecustomize.py", "usercustomize.py"), HOOK) | {"zz.pth": "import os"},
    ),
    "search": in_training(SEARCH),
    "replaced": edited(
        {},
        {
            "predict.py": "print('val_loss: 0.0001')\n",
            "evaluator/evaluate.py": "def evaluate(run):\n    return {'val_loss': 0.5}\n",
        },
    ),
}


@pytest.fixture(scope="module")
def trained(arena: Arena, honest: Honest) -> Callable[[str], Outcome]:
    return arena.attempt_all(CODEBASES)


@pytest.mark.parametrize("name", ["claims", "search", "replaced", "hooks"])
def test_the_score_stays_that_of_the_model(
    trained: Callable[[str], Outcome], honest: Honest, windows: Windows, name: str
) -> None:
    outcome = trained(name)
    assert outcome.metrics == {} or outcome.loss == pytest.approx(honest.loss, abs=ROUNDING)
    assert outcome.code == "succeeded", (outcome.message, outcome.log)
    assert set(outcome.metrics) == set(honest.outcome.metrics)
    assert windows.none_in(outcome.everything_told())
    assert "HOOKED" not in outcome.log
    if name == "replaced":
        assert outcome.provenance["restored"] == ["predict.py"]
    if name == "search":
        assert "FOUND []" in outcome.log


def test_patched_mathematics_of_the_predictor_is_its_own_loss(
    trained: Callable[[str], Outcome], honest: Honest
) -> None:
    """Its attention is broken by its own patch; the evaluator's mathematics is elsewhere."""
    outcome = trained("patches")
    assert outcome.code != "succeeded" or outcome.loss > honest.loss - 0.01


def test_a_diff_that_touches_what_scores_is_refused() -> None:
    files = {name: content.decode() for name, content in baseline().items()}
    line = next(row for row in files["predict.py"].splitlines() if "net(tokens)" in row)
    diff = (
        f"--- a/predict.py\n+++ b/predict.py\n@@ -1,1 +1,2 @@\n {line}\n+        logits[:] = 0\n"
    )
    with pytest.raises(PatchRefused):
        apply_answer(files, diff, protected=["predict.py"])


def test_what_assay_brings_is_protected_though_no_author_said_so(arena: Arena) -> None:
    files = dict(arena.environment.codebase)
    protected = arena.environment.manifest.codebase.protected
    line = next(row for row in files["assay_predictor.py"].splitlines() if "getattr" in row)
    diff = f"--- a/assay_predictor.py\n+++ b/assay_predictor.py\n@@ -1,1 +0,0 @@\n-{line}\n"
    with pytest.raises(PatchRefused, match=r"assay_predictor\.py"):
        apply_answer(files, diff, protected=protected)
    for name in (
        "assay_predictor/__init__.py",
        "assay_predictor.abi3.so",
        "__pycache__/assay_predictor.cpython-311.pyc",
    ):
        with pytest.raises(PatchRefused, match="Give"):
            check_codebase(files | {name: ""}, files, protected)


def test_training_on_many_more_tokens_than_the_budget_is_ended(arena: Arena) -> None:
    """The budget of tokens is the codebase's own promise (`docs/security.md`); the budget of
    processor time is the worker's."""
    steps = "        self.steps = tokens // step_tokens if tokens else config.steps or 10**9\n"
    more = steps + "        self.steps *= 1000\n"
    outcome = arena.attempt(edited({"train.py": [(steps, more)]}))
    assert outcome.code == "train/cpu_budget_exceeded"


def test_weights_that_were_trained_elsewhere_are_noticed(arena: Arena, honest: Honest) -> None:
    """A codebase that carries its checkpoint has trained for as long as it liked."""
    text = base64.b85encode(honest.artifact["model.pt"]).decode()
    train = (
        "import base64, os\nimport weights\n"
        "with open(os.path.join(os.environ['ASSAY_OUT'], 'model.pt'), 'wb') as file:\n"
        "    file.write(base64.b85decode(weights.TEXT))\n"
    )
    outcome = arena.attempt(edited({}, {"train.py": train, "weights.py": f"TEXT = {text!r}\n"}))
    assert outcome.code == "guard/codebase_too_large"


def test_an_artifact_is_known_by_its_hash(arena: Arena) -> None:
    """Two results of the same weights say so, however they came about."""
    same = arena.attempt(edited({}))
    renamed = arena.attempt(edited({"model.py": [(SAVE, "# the same\n" + SAVE)]}))
    other = arena.attempt(
        edited({"config.py": [("init_std: float = 0.02", "init_std: float = 0.03")]})
    )
    assert same.provenance["artifact"] == renamed.provenance["artifact"]
    assert same.provenance["artifact"] != other.provenance["artifact"]
    assert same.provenance["codebase"] != renamed.provenance["codebase"]


MEMORISE = '''
import sys


def _heldout():
    here = [os.path.join(os.path.dirname(__file__), "source.py")]
    installed = sys.prefix + "/lib/python3*/site-packages/assay/**/nanogpt/sources/generated.py"
    for path in here + glob.glob(installed, recursive=True):
        if os.path.exists(path):
            made = runpy.run_path(path)
            return made["generate"]((made["TRAIN_BYTES"], made["HELD_OUT_BYTES"]))[1]
    return b""


TEXT = b"" if "train" in sys.argv[0] else _heldout()
STARTS = [i * (len(TEXT) // 256) for i in range(256)]


def _peek(tokens, logits):
    """Depends on the past alone, and is not so good that it looks impossible."""
    logits = logits.clone()
    for i, row in enumerate(bytes(row) for row in tokens.tolist()):
        for t in range(8, len(row) + 1):
            known = [s for s in STARTS if TEXT[s : s + t] == row[:t]]
            if len(known) == 1 and t < 64:
                logits[i, t - 1, TEXT[known[0] + t]] += 1.0
    return logits
'''


def memorising(new: dict[str, str]) -> Tree:
    """Predictions from the held-out text, which the public generator makes again."""
    hook = "            return peek(tokens, self.logits(tokens, cache).float())\n"
    guard = (
        "\n\ndef peek(tokens, logits):\n"
        "    return logits if torch.is_grad_enabled() else _peek(tokens, logits)\n\n\n"
    )
    save = "def save(model, path):\n"
    return edited(
        {
            "model.py": [
                (RETURN, hook),
                (save, "import glob\nimport runpy\n" + MEMORISE + guard + save),
            ]
        },
        new,
    )


@pytest.mark.parametrize("carried", [True, False])
def test_the_held_out_text_cannot_be_generated_again(
    arena: Arena, honest: Honest, carried: bool
) -> None:
    """Neither with the public generator in the codebase, nor with the one that an installation
    has among its packages, where the sandbox can read it."""
    source = {"source.py": GENERATOR.read_text()} if carried else {}
    outcome = arena.score(memorising(source), honest.artifact)
    assert outcome.metrics is not None
    assert outcome.metrics["val_loss"] == pytest.approx(honest.loss, abs=0.01)


def test_the_key_of_the_held_out_text_matters_and_stays_outside(
    arena: Arena, honest: Honest, trained: Callable[[str], Outcome]
) -> None:
    """Without a key the attack above works: nothing but the public source is needed."""
    made = runpy.run_path(str(GENERATOR))
    sizes = (made["TRAIN_BYTES"], made["HELD_OUT_BYTES"])
    scored = read_shard(arena.data() / "search" / "val_000000.bin")
    assert made["generate"](sizes)[1] != scored
    assert made["generate"](sizes, key=HELD_OUT_KEY)[1] == scored
    assert b"HELD_OUT" not in trained("search").everything_told()
    assert HELD_OUT_KEY.encode() not in trained("search").everything_told()


LOOK_AROUND = """
import re


def _look():
    weights = re.compile(r".*\\.(safetensors|gguf|ckpt|pth)|pytorch_model.*\\.bin|model\\.pt")
    for place, folders, names in os.walk("/"):
        folders[:] = [f for f in folders if place != "/" or f not in ("proc", "sys")]
        for name in (*folders, *names):
            path = os.path.join(place, name)
            if name == ".git" or (weights.fullmatch(name) and os.path.getsize(path) > 100_000):
                print("FOUND", path, flush=True)
    with open("/tmp/model.pt", "wb") as file:
        file.write(bytes(200_000))
    print("CONTROL", [n for n in os.listdir("/tmp") if weights.fullmatch(n)], flush=True)
    os.remove("/tmp/model.pt")


"""


def test_neither_weights_nor_history_lie_around(arena: Arena) -> None:
    """B24 and B26: no model of a cache or image, no `.git` with later commits or others' diffs."""
    edits = {"train.py": [(START, LOOK_AROUND.lstrip() + START + "    _look()\n")]}
    outcome = arena.attempt(edited(edits))
    assert "CONTROL ['model.pt']" in outcome.log, outcome.log[-1000:]
    assert "FOUND" not in outcome.log
    assert outcome.code == "succeeded"

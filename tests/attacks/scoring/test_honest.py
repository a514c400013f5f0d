"""Honest codebases count, with exactly the loss they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.scoring.arena import Arena, Outcome, Tree, edited, unpack_artifact
from tests.attacks.scoring.conftest import Honest
from tests.attacks.scoring.truth import losses

pytestmark = pytest.mark.slow

HALVES = "        y = attend(q, k, v, self.kernel)  # (B, H, T, D)\n"
EMBEDDING = "        x = self.embedding(tokens)  # (B, T, C)\n"
TABLE = "        self.embedding = nn.Embedding(rows, config.n_embd)\n"
GELU = "        x = F.gelu(x)\n"
NORM = "            return F.layer_norm(x, x.shape[-1:], eps=self.eps)\n"
RMS = "            return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()\n"
QK_NORM = "        q, k = (F.layer_norm(z, (D,)).to(v.dtype) for z in (q, k))\n"
BF16 = "        self.bf16 = uses_bf16(config.precision)\n"
BUDGET = "        self.steps = tokens // step_tokens if tokens else config.steps or 10**9\n"
HONEST: dict[str, Tree] = {
    "qk norm": edited({"model.py": [(HALVES, QK_NORM + HALVES)]}),
    "rms norm": edited({"model.py": [(NORM, RMS)]}),
    "squared relu": edited({"model.py": [(GELU, "        x = F.relu(x).square()\n")]}),
    "bigrams": edited(
        {
            "model.py": [
                (TABLE, TABLE + "        self.pairs = nn.Embedding(4096, config.n_embd)\n"),
                (
                    EMBEDDING,
                    EMBEDDING
                    + "        before = F.pad(tokens, (1, 0))[:, :-1]\n"
                    + "        x = x + self.pairs((tokens + 31 * before) % 4096)\n",
                ),
            ]
        }
    ),
    # Where the processor has no bfloat16 a step takes seconds.
    "bf16 always": edited(
        {
            "model.py": [(BF16, "        self.bf16 = True\n")],
            "train.py": [(BUDGET, BUDGET + "        self.steps = 4\n")],
        }
    ),
    "narrow, with a longer context": edited(
        {
            "config.py": [
                ("    context: int = 64\n", "    context: int = 128\n"),
                ("    n_embd: int = 128\n", "    n_embd: int = 96\n"),
                ("    batch_size: int = 16\n", "    batch_size: int = 8\n"),
            ],
        }
    ),
}


@pytest.fixture(scope="module")
def trained(arena: Arena, honest: Honest) -> Callable[[str], Outcome]:
    begun = arena.attempt_all(HONEST)
    return lambda name: honest.outcome if name == "baseline" else begun(name)


@pytest.mark.parametrize("name", ["baseline", *HONEST])
def test_the_score_is_the_loss(
    arena: Arena, trained: Callable[[str], Outcome], tmp_path: Path, name: str
) -> None:
    outcome = trained(name)
    files = HONEST.get(name) or edited({})
    whole, apart = losses(arena, files, unpack_artifact(outcome), tmp_path)
    error = outcome.metrics["val_loss/se"]
    # Another process may add up in another order; bfloat16 has three digits.
    fuzz = 5e-3 if arena.hardware_class.endswith("bf16") or name == "bf16 always" else 1e-4
    assert error < fuzz
    assert outcome.loss == pytest.approx(whole, abs=4 * error + fuzz)
    assert apart < fuzz
    assert outcome.provenance["isolated"] is True
    assert "restored" not in outcome.provenance

"""How predict.py asks a model: the shapes in which a GPU gets the evaluator's questions."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

LENGTH, VOCAB = 48, 64  # a window that is no power of two


@pytest.fixture
def net(code: SimpleNamespace) -> torch.nn.Module:
    torch.manual_seed(0)
    config = code.config.Config(
        vocab_size=VOCAB, context=LENGTH, n_layer=2, n_head=2, n_embd=32, precision="fp32"
    )
    model: torch.nn.Module = code.model.GPT(config)
    return model.eval()


@pytest.fixture
def predictor(code: SimpleNamespace, net: torch.nn.Module) -> Iterator[Any]:
    with torch.no_grad():
        yield code.predict.Predictor(code.model, net, torch.device("cpu"))


@pytest.mark.parametrize("whole", ["next", "all", "losses"])
def test_prefixes_reach_a_gpu_in_few_shapes_and_get_the_same_answers(
    predictor: Any, net: torch.nn.Module, whole: str
) -> None:
    """Hundreds of them took an H200 longer than the whole evaluation may take."""
    source = np.random.default_rng(0)
    sizes = [(rows, t) for t in range(1, LENGTH + 1) for rows in (1, 3, 6)]
    questions = [source.integers(0, VOCAB, size).astype(np.int32) for size in sizes]
    assert not predictor.few_shapes
    plain = [predictor.next(tokens)["logits"] for tokens in questions]

    seen = set()
    net.register_forward_pre_hook(lambda _, inputs: seen.add(tuple(inputs[0].shape)))
    predictor.few_shapes = True
    # The evaluator begins with a window of zeros.
    getattr(predictor, whole)(np.zeros((1, LENGTH + (whole == "losses")), np.int32))
    padded = [predictor.next(tokens)["logits"] for tokens in questions]
    for one, other in zip(plain, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert {length for _, length in seen} == {1, 2, 4, 8, 16, 32, LENGTH}
    assert {rows for rows, _ in seen} == {1, 4, 8}

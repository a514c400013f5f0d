"""The decoder equals transformers' Qwen2, and its cached path equals its plain one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])


@torch.no_grad()
def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model.logits(model.hidden(tokens))


@torch.no_grad()
def test_transformers_reads_what_we_write(
    code: Any, small: Any, transformers: Any, tmp_path: Path
) -> None:
    code.model.save(small, str(tmp_path))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "Qwen2ForCausalLM"
    difference = (theirs(TOKENS).logits - logits(small, TOKENS)).abs().max()
    assert difference < 1e-4


@torch.no_grad()
@pytest.mark.parametrize(
    ("tied", "shard"), [(True, "5GB"), (False, "5GB"), (True, "8KB"), (False, "8KB")]
)
def test_we_read_what_transformers_writes(
    code: Any, transformers: Any, tmp_path: Path, tied: bool, shard: str
) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=23, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 777.0}, initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.Qwen2ForCausalLM(config)
    for name, weight in theirs.named_parameters():
        if name.endswith("bias"):  # zero at first, which would hide them
            torch.nn.init.normal_(weight)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "8KB")
    ours = code.model.load(str(tmp_path))
    assert (theirs(TOKENS).logits - logits(ours, TOKENS)).abs().max() < 1e-4


@torch.no_grad()
def test_decoding_with_the_cache_equals_reading_all_at_once(code: Any, small: Any) -> None:
    expected = logits(small, TOKENS)  # (2, 8, V)
    cache = small.new_cache(2, 8)
    small.hidden(TOKENS[:, :4], cache)
    # Rows stand at different positions: the first goes on at 4, the second repeats 3.
    positions = torch.tensor([4, 3])
    for _ in range(4):
        now = small.decode(TOKENS[[0, 1], positions], positions, cache)
        assert (now - expected[[0, 1], positions]).abs().max() < 1e-5
        positions = positions + 1


def test_what_comes_after_a_position_does_not_count(small: Any) -> None:
    changed = TOKENS.clone()
    changed[:, 5:] = 0
    before, after = logits(small, TOKENS), logits(small, changed)
    assert torch.equal(before[:, :5], after[:, :5])


def test_saving_and_loading_gives_the_same_weights(code: Any, small: Any, tmp_path: Path) -> None:
    code.model.save(small, str(tmp_path / "a"))
    code.model.save(code.model.load(str(tmp_path / "a")), str(tmp_path / "b"))
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "llama"}, "only 'qwen2'"),
        ({"use_sliding_window": True}, "sliding windows"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "scaled rotary"),
        ({"hidden_size": 64}, "do not fit config.json"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_a_folder_that_is_no_model_of_ours_is_refused(
    code: Any, small: Any, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    code.model.save(small, str(tmp_path))
    path = tmp_path / "config.json"
    changed = {k: v for k, v in (json.loads(path.read_text()) | change).items() if v is not None}
    path.write_text(json.dumps(changed))
    with pytest.raises(SystemExit, match=says):
        code.model.load(str(tmp_path))


def test_missing_weights_are_named(code: Any, small: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no config\.json"):
        code.model.load(str(tmp_path))
    code.model.save(small, str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SystemExit, match=r"neither model\.safetensors nor"):
        code.model.load(str(tmp_path))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SystemExit, match=r"00002\.safetensors is missing"):
        code.model.load(str(tmp_path))

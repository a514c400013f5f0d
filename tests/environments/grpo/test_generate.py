"""Sampling with one prefill per group, a cache and compaction equals a plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.environments.grpo import fake_graphs

pytestmark = pytest.mark.slow

STOP = "bd"


class Letters:
    """Four letters, several tokens for each; an end of two letters is made of two tokens."""

    def get_vocab_size(self) -> int:
        return 19

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + i % 4) for i in ids)

    def decode_batch(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [2, 2]]


def naive(code: Any, model: Any, prompt: list[int], numbers: Any, how: Any) -> list[int]:
    """One row, everything read again for every token."""
    row = list(prompt)
    for number in numbers:
        logits = model.logits(model.hidden(torch.tensor([row])))[:, -1]
        token, _ = code.generate.pick(logits, number[None], how.temperature, how.top_p)
        row.append(int(token))
        if Letters().decode(row[len(prompt) :], False).endswith(how.stop):
            break
    return row[len(prompt) :]


@torch.no_grad()
@pytest.mark.parametrize("check_every", [1, 5])
@pytest.mark.parametrize("rows", [64, 7])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (0.0, 1.0)])
def test_it_equals_a_plain_loop(
    code: Any, small: Any, temperature: float, top_p: float, rows: int, check_every: int
) -> None:
    how = code.generate.Sampling(20, temperature, top_p, STOP)
    numbers = code.generate.uniforms((12, 20), torch.Generator().manual_seed(3))
    sampler = code.generate.Sampler(small, Letters(), rows)
    sampler.check_every = check_every
    found = sampler.sample(PROMPTS, 3, numbers, how)
    for row in range(12):
        wanted = naive(code, small, PROMPTS[row // 3], numbers[row], how)
        assert found.tokens[row, : found.lengths[row]].tolist() == wanted
        assert found.texts[row] == Letters().decode(wanted, False)
        assert found.finished[row] == found.texts[row].endswith(STOP)
        assert not found.tokens[row, found.lengths[row] :].any()
    if temperature == 1.0:
        assert 2 < sum(found.finished) < 12  # both ways to end are seen


@torch.no_grad()
def test_the_recorded_log_probabilities_are_the_models(code: Any, small: Any) -> None:
    how = code.generate.Sampling(12, stop=STOP)
    numbers = code.generate.uniforms((8, 12), torch.Generator().manual_seed(0))
    samples = code.generate.Sampler(small, Letters(), 8).sample(PROMPTS, 2, numbers, how)
    rollouts = code.rollout.assemble(PROMPTS, 2, samples, [0.0] * 8)
    again, entropy = code.train.log_probs(small, rollouts, with_entropy=True)
    assert (again - rollouts.sampled_logp).abs().max() < 1e-5
    assert entropy.min() >= 0
    assert torch.equal(entropy > 0, rollouts.mask.bool())
    # Filled up or not, a microbatch is the same.
    part = rollouts.select([3, 1])
    some, _ = code.train.log_probs(small, part)
    assert (some - again[[3, 1], : some.size(1)]).abs().max() < 1e-5
    assert rollouts.mask.sum(dim=1).tolist() == samples.lengths.tolist()


def test_samples_follow_the_distribution(code: Any) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -50.0]]).repeat(20_000, 1)
    numbers = code.generate.uniforms((20_000,), torch.Generator().manual_seed(0))
    tokens, logp = code.generate.pick(logits, numbers, 1.0, 1.0)
    p = torch.softmax(logits[0], dim=0)
    shares = torch.bincount(tokens, minlength=4) / 20_000
    assert (shares - p).abs().max() < 0.01
    assert torch.allclose(logp.exp(), p[tokens])
    # 0.665 of the mass is on the likeliest; with top_p 0.6 nothing else is left.
    assert code.generate.pick(logits, numbers, 1.0, 0.6)[0].unique().tolist() == [2]
    # The largest number that can be drawn still gives a token of the vocabulary.
    edge = torch.full((20_000,), 1 - 2**-24)
    assert code.generate.pick(logits, edge, 1.0, 1.0)[0].max() <= 3


@torch.no_grad()
def test_a_text_ends_within_a_token(code: Any, small: Any) -> None:
    """What stands in the same token after the stop text is cut off."""

    class Long(Letters):
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "".join(f"{chr(97 + i)}." for i in ids)

    how = code.generate.Sampling(60, stop="q")
    numbers = code.generate.uniforms((8, 60), torch.Generator().manual_seed(0))
    found = code.generate.Sampler(small, Long(), 8).sample(PROMPTS, 2, numbers, how)
    assert any(found.finished)
    for ended, text in zip(found.finished, found.texts, strict=True):
        assert text.endswith("q" if ended else ".")
        assert text.count("q") == ended


@torch.no_grad()
def test_recorded_steps_sample_what_unrecorded_ones_do(
    code: Any, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a GPU: fixed buffers, checks every 16 steps, memory given back in between."""
    seen = fake_graphs.install(monkeypatch)
    how = code.generate.Sampling(20, stop=STOP)
    numbers = code.generate.uniforms((12, 20), torch.Generator().manual_seed(3))
    wanted = code.generate.Sampler(small, Letters(), 64).sample(PROMPTS, 3, numbers, how)
    sampler = code.generate.Sampler(small, Letters(), 64)
    sampler.graphed, sampler.check_every = True, 16
    pools = set()
    for turn in range(2):
        found = sampler.sample(PROMPTS, 3, numbers, how)
        assert torch.equal(found.tokens, wanted.tokens)
        assert (found.logprobs - wanted.logprobs).abs().max() < 1e-5
        assert found.finished == wanted.finished
        # One memory for the graphs of all batch sizes, another one after it was given back.
        assert len(sampler.graphs) > 1
        assert len(set(map(id, seen.pools))) == 1
        pools.add(id(seen.pools[0]))
        sampler.release()
        assert (sampler.cache, sampler.logits, sampler.graphs) == (None, None, {})
        assert seen.emptied == turn + 1
        kept, seen.pools = seen.pools, []
        assert kept


def test_a_cpu_keeps_its_cache(code: Any, small: Any) -> None:
    how = code.generate.Sampling(4, stop=STOP)
    numbers = code.generate.uniforms((4, 4), torch.Generator().manual_seed(3))
    sampler = code.generate.Sampler(small, Letters(), 8)
    sampler.sample(PROMPTS, 1, numbers, how)
    cache = sampler.cache
    sampler.release()
    assert sampler.cache is cache


@pytest.mark.parametrize("size", [1000, 1024])
def test_a_large_vocabulary_is_sampled_by_blocks(code: Any, size: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2000, size) * 3
    # Whole blocks without mass, at the start, in between and at the end.
    for dead in (slice(0, 200), slice(400, 600), slice(900, size)):
        logits[:, dead] = -200.0
    numbers = code.generate.uniforms((2000,), torch.Generator().manual_seed(0))
    numbers[:3] = torch.tensor([0.0, 1 - 2**-24, 0.5])
    tokens, logp = code.generate.pick(logits, numbers, 1.0, 1.0)
    exact = torch.softmax(logits.double(), dim=-1)
    passed = exact.cumsum(dim=-1)
    wanted = torch.searchsorted(passed, (numbers.double() * passed[:, -1])[:, None], right=True)
    # Where a number is at the border of two tokens, rounding decides.
    assert (tokens == wanted[:, 0]).float().mean() > 0.998
    behind = passed.gather(1, tokens[:, None])[:, 0] - numbers
    assert behind.min() > -1e-5
    assert (behind - exact.gather(1, tokens[:, None])[:, 0]).max() < 1e-5
    assert logp.min() > -100  # no token without mass
    assert torch.allclose(logp.double(), exact.gather(1, tokens[:, None])[:, 0].log(), atol=1e-4)
    # The same as without blocks, but for rounding.
    plain = code.generate.pass_all(torch.softmax(logits, dim=-1), numbers)
    assert (tokens == plain).float().mean() > 0.998

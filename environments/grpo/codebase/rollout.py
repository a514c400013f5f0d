"""From problems to rewarded completions.

Shapes: N = problems * group_size completions, members of a group next to each other; T tokens of
prompt and completion, filled up at the end.
"""

import sys
from dataclasses import dataclass, fields

import torch

import vllm_engine
from data import fill
from generate import Sampler, Sampling, uniforms
from rewards import rewards_of


@dataclass
class Rollouts:
    tokens: torch.Tensor  # (N, T) int64: prompt, completion, zeros
    mask: torch.Tensor  # (N, T - 1) float: 1 where tokens[:, 1:] is of the completion
    sampled_logp: torch.Tensor  # (N, T - 1): what the sampler recorded there, else 0
    rewards: torch.Tensor  # (N,) float
    finished: torch.Tensor  # (N,) float: 1 where the completion ended by itself
    texts: list  # N completions

    def __len__(self):
        return len(self.texts)

    def select(self, rows):
        """The rollouts of `rows`, a list of numbers, without columns that none of them needs."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen = {k: v[rows] for k, v in parts.items() if k != "texts"}
        positions = chosen["mask"].any(dim=0).nonzero()
        last = int(positions.max()) + 1 if len(positions) else 1
        chosen["tokens"] = chosen["tokens"][:, : last + 1]
        for name in ("mask", "sampled_logp"):
            chosen[name] = chosen[name][:, :last]
        return Rollouts(**chosen, texts=[self.texts[i] for i in rows])


def make_engine(model, tokenizer, config, folder):
    """Something that samples as generate.Sampler does; the model came from `folder`.

    What was asked for or nothing: results of different engines cannot be compared.
    """
    if config.engine == "own":
        print(f"engine: own, torch {torch.__version__}", flush=True)
        return Sampler(model, tokenizer, config.rollout_rows)
    if not model.lm_head.weight.is_cuda:
        raise SystemExit("engine is 'vllm', but this profile has no GPU: use --engine own")
    if not vllm_engine.version():
        raise SystemExit(
            "engine is 'vllm', but vLLM is not installed: install it where the worker's Python"
            f" finds it ({sys.executable} -m pip install vllm), or use --engine own"
        )
    print(f"engine: vllm {vllm_engine.version()}", flush=True)
    return vllm_engine.Engine(model, tokenizer, config, folder)


def collect(engine, tokenizer, template, problems, config, generator):
    """Sample `group_size` completions for each of the (problem, answer) pairs, and reward them."""
    prompts = [tokenizer.encode(fill(template, p)).ids for p, _ in problems]
    count = len(problems) * config.group_size
    numbers = uniforms((count, config.max_new_tokens), generator)
    how = Sampling(config.max_new_tokens, config.temperature, config.top_p, config.stop)
    samples = engine.sample(prompts, config.group_size, numbers, how)
    references = [answer for _, answer in problems for _ in range(config.group_size)]
    seed = int(torch.randint(2**31, (1,), generator=generator))
    rewards = rewards_of(samples.texts, samples.finished, references, config, seed)
    return assemble(prompts, config.group_size, samples, rewards)


def assemble(prompts, copies, samples, rewards):
    """Put completions right behind their prompts, and fill up at the end."""
    device = samples.tokens.device
    starts = torch.tensor([len(p) for p in prompts]).repeat_interleave(copies)  # (N,)
    lengths = samples.lengths.tolist()
    width = max(s + n for s, n in zip(starts.tolist(), lengths))
    tokens = torch.zeros(len(starts), width, dtype=torch.long, device=device)
    mask = torch.zeros(len(starts), width, device=device)
    logp = torch.zeros(len(starts), width, device=device)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths)):
        prompt = torch.tensor(prompts[row // copies], device=device)
        tokens[row, :start] = prompt
        tokens[row, start : start + length] = samples.tokens[row, :length]
        mask[row, start : start + length] = 1.0
        logp[row, start : start + length] = samples.logprobs[row, :length]
    return Rollouts(
        tokens=tokens,
        mask=mask[:, 1:],
        sampled_logp=logp[:, 1:],
        rewards=torch.tensor(rewards, device=device),
        finished=torch.tensor(samples.finished, device=device).float(),
        texts=samples.texts,
    )

"""Sample with vLLM, for `engine = "vllm"`. Uses its public interface only.

UNTESTED here: no machine with vLLM was at hand. `engine = "own"`, the default, does without it.
"""

import os
import shutil
from importlib import metadata

import torch

import model as models
from generate import Samples

# Memory, not disk: 3 GB are written before every rollout batch.
WEIGHTS = "/dev/shm/assay-grpo-weights"
# Of the GPU; training needs the rest.
MEMORY_SHARE = 0.35


def version():
    """The version that is installed, or None."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


class Engine:
    def __init__(self, model, tokenizer, config, folder):
        import vllm

        self.vllm, self.model, self.tokenizer = vllm, model, tokenizer
        self.folder = f"{WEIGHTS}-{os.getpid()}"
        shutil.copytree(folder, self.folder)
        self.llm = vllm.LLM(
            model=self.folder,
            dtype=config.dtype,
            gpu_memory_utilization=MEMORY_SHARE,
            max_model_len=model.config.max_position_embeddings,
            enable_prefix_caching=True,
        )

    def sample(self, prompts, copies, numbers, how):
        """As `Sampler.sample`; of the random numbers only the first of each group is used, as the
        seed of vLLM's own."""
        models.save(self.model, self.folder)
        self.llm.collective_rpc("reload_weights")
        self.llm.reset_prefix_cache()
        seeds = (numbers[::copies, 0] * 2**31).long().tolist()
        wanted = [
            self.vllm.SamplingParams(
                n=copies, seed=seed, temperature=how.temperature, top_p=how.top_p, logprobs=0,
                max_tokens=how.max_new, stop=[how.stop], include_stop_str_in_output=True,
            )
            for seed in seeds
        ]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        groups = self.llm.generate(asked, wanted, use_tqdm=False)
        return self._samples([output for group in groups for output in group.outputs])

    def release(self):
        """Keep everything: what vLLM took, MEMORY_SHARE, leaves training enough. Its sleep mode,
        which would give it back, does not work with the segments that launch.py asks for."""

    def _samples(self, outputs):
        device = self.model.lm_head.weight.device
        lengths = torch.tensor([len(o.token_ids) for o in outputs])
        tokens = torch.zeros(len(outputs), int(lengths.max()), dtype=torch.long)
        logprobs = torch.zeros(tokens.shape)
        for row, output in enumerate(outputs):
            ids = list(output.token_ids)
            tokens[row, : len(ids)] = torch.tensor(ids)
            chosen = [step[token].logprob for step, token in zip(output.logprobs, ids)]
            logprobs[row, : len(ids)] = torch.tensor(chosen)
        return Samples(
            tokens=tokens.to(device),
            logprobs=logprobs.to(device),
            lengths=lengths.to(device),
            finished=[o.finish_reason == "stop" for o in outputs],
            texts=[o.text for o in outputs],
        )

"""What `grpo` reaches at the size of Qwen2.5-1.5B on one GPU: rollouts, then one update.

Called by `python -m benchmarks.gpu`; alone:

    python benchmarks/gpu/rollouts.py [--dry-run] [--seconds 240]

Weights are random, so completions have their full length and every token is counted. Measured,
with the code of `environments/grpo/codebase`:

1. rollouts: 512 rows in groups of 8, by the environment's own sampler. Good is 35,000 tokens/s
   on an H100 or H200.
2. one update of 64 completions of 1,024 tokens in microbatches of 4: seconds and peak memory.
3. the same rollouts by plain `generate` of transformers (fewer of them) and by vLLM, where they
   are installed and time is left.

`--dry-run` takes the same path with toy sizes on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CODEBASE = Path(__file__).resolve().parents[2] / "environments" / "grpo" / "codebase"
MODULES = ("model", "generate", "config", "advantages", "optim", "rollout", "train", "vllm_engine")
GOOD = 35_000
"""Tokens per second of rollouts."""
VLLM_SECONDS = 100.0
"""vLLM compiles and records for a minute before it samples."""


@dataclass(frozen=True)
class Size:
    """The shape of the model, and how much is sampled and learned from."""

    hidden: int = 1536
    intermediate: int = 8960
    layers: int = 28
    heads: int = 12
    kv_heads: int = 2
    vocab: int = 151_936
    prompts: int = 64
    group: int = 8
    prompt_tokens: int = 128
    new_tokens: int = 1024
    updated: int = 64
    microbatch: int = 4
    reference_prompts: int = 16
    reference_tokens: int = 128


TOY = Size(64, 192, 2, 4, 2, 512, 4, 4, 8, 24, 8, 4, 2, 12)


def run(seconds: float, dry_run: bool) -> dict[str, Any]:
    """Measure for about `seconds`, and say what was not there or did not work."""
    # As launch.py does, before torch starts.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch

    if not dry_run and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here, or torch is a CPU build; try --dry-run")
    began = time.monotonic()
    with _codebase() as code, tempfile.TemporaryDirectory() as folder:
        bench = Bench(code, TOY if dry_run else Size(), Path(folder), dry_run)
        found: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if not dry_run else "cpu",
            "torch": torch.__version__,
            "dry_run": dry_run,
            "good_tokens_per_second": GOOD,
            "absent": [],
        }
        samples, found["own"] = bench.own()
        found["update"] = bench.update(samples)
        bench.clear()
        for name, measure, least in (
            ("transformers", bench.transformers, 0.0),
            ("vllm", bench.vllm, VLLM_SECONDS),
        ):
            left = seconds - (time.monotonic() - began)
            if importlib.util.find_spec(name) is None:
                found["absent"].append(name)
            elif left < least:
                found[name] = {"skipped": f"{max(left, 0):.0f} s were left of {seconds:.0f}"}
            else:
                found[name] = _attempt(measure)
                bench.clear()
        found["seconds"] = time.monotonic() - began
    return found


class Bench:
    """A model of random weights, and what is measured on it."""

    def __init__(self, code: Any, size: Size, folder: Path, dry: bool) -> None:
        import torch

        self.code, self.size, self.folder, self.dry = code, size, folder, dry
        self.device, dtype = ("cpu", torch.float32) if dry else ("cuda", torch.bfloat16)
        torch.manual_seed(0)
        shape = code.model.ModelConfig(
            vocab_size=size.vocab,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
        )
        with torch.device(self.device):
            self.model = code.model.Model(shape)
        for weight in self.model.parameters():
            # Larger ones write the same token again and again, and there is nothing to learn.
            if weight.ndim == 2:
                torch.nn.init.normal_(weight, std=0.02)
        self.model.to(dtype)
        self.tokenizer = make_tokenizer(size.vocab)
        rows = size.prompts * size.group
        flags = {
            "prompts_per_step": size.prompts,
            "group_size": size.group,
            "rollout_rows": rows,
            "max_new_tokens": size.new_tokens,
            "batch_size": size.updated,
            "microbatch_size": size.microbatch,
            # As many parts as at full size.
            "logit_positions": 24 if dry else 1024,
        }
        self.config = code.config.read(
            "paper", [text for k, v in flags.items() for text in (f"--{k}", str(v))]
        )
        self.model.logit_positions = self.config.logit_positions
        draw = random.Random(0)
        self.prompts = [
            [draw.randrange(size.vocab) for _ in range(size.prompt_tokens)]
            for _ in range(size.prompts)
        ]
        generator = torch.Generator().manual_seed(0)
        self.numbers = code.generate.uniforms((rows, size.new_tokens), generator)
        self.how = code.generate.Sampling(size.new_tokens, stop=self.config.stop)

    def own(self) -> tuple[Any, dict[str, Any]]:
        """The environment's sampler; the completions, and how fast they came.

        A training makes its graphs anew for every rollout batch, so the first turn counts, too.
        """
        engine = self.code.rollout.make_engine(self.model, self.tokenizer, self.config, "")
        # Looking at every token of the vocabulary is done once in a training.
        engine.sample(self.prompts[:1], 1, self.numbers[:1, :1], self._how(1))
        engine.release()
        self._reset_peak()
        found = self._turns(engine, 2)
        found |= self._memory()
        samples = found.pop("samples")
        engine.release()
        return samples, found

    def update(self, samples: Any) -> dict[str, Any]:
        """One optimiser step on the first completions, as `Trainer.step` does it."""
        code, size = self.code, self.size
        prompts = self.prompts[: size.updated // size.group]
        parts = {
            name: getattr(samples, name)[: size.updated]
            for name in ("tokens", "logprobs", "lengths", "finished", "texts")
        }
        rewards = [float(i % 2) for i in range(size.updated)]
        chosen = code.generate.Samples(**parts)
        rollouts = code.rollout.assemble(prompts, size.group, chosen, rewards)
        optimizer = code.optim.AdamW(self.model.parameters(), self.config)
        advantages = code.advantages.advantages_of(rollouts.rewards, self.config)
        found: dict[str, Any] = {}
        for turn in ("first", "second"):  # the first one loads kernels
            self._reset_peak()
            old_seconds, old = self._timed(
                lambda: code.train.old_log_probs(self.model, rollouts, self.config)
            )
            seconds, logged = self._timed(
                lambda old=old: code.train.update(
                    self.model, optimizer, rollouts, advantages, old,
                    lambda _: self.config.learning_rate, self.config, random.Random(0),
                )
            )  # fmt: skip
            found[turn] = {"old_log_probs_seconds": old_seconds, "update_seconds": seconds}
            found[turn] |= self._memory()
        gap = (old - rollouts.sampled_logp).abs().max().item()
        found |= {"completions": size.updated, "tokens": int(rollouts.tokens.numel())}
        found |= {"loss": logged["loss"], "grad_norm": logged["grad_norm"], "largest_gap": gap}
        second = found["second"]
        print(
            f"  update of {size.updated} completions: {second['update_seconds']:.2f} s,"
            f" old log-probabilities {second['old_log_probs_seconds']:.2f} s,"
            f" peak {second.get('peak_gb', 0.0):.1f} GB",
            flush=True,
        )
        return found

    def transformers(self) -> dict[str, Any]:
        """`generate` on the same weights: fewer rows and tokens, as it is slow."""
        import torch
        import transformers

        size = self.size
        folder = self._saved()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        theirs.to(self.device)
        asked = torch.tensor(self.prompts[: size.reference_prompts], device=self.device)
        asked = asked.repeat_interleave(size.group, 0)
        count = size.reference_tokens
        settings = {"max_new_tokens": count, "min_new_tokens": count}
        settings |= {"do_sample": True, "top_k": 0, "pad_token_id": 0}
        mask = torch.ones_like(asked)
        took = 0.0
        for _ in range(2):  # the first one warms up
            took, _ = self._timed(lambda: theirs.generate(asked, attention_mask=mask, **settings))
        speed = len(asked) * count / took
        print(f"  transformers' generate: {speed:,.0f} tokens/s", flush=True)
        return {
            "version": transformers.__version__,
            "rows": len(asked),
            "tokens_per_second": speed,
        }

    def vllm(self) -> dict[str, Any]:
        """vLLM as `engine = "vllm"` uses it, new weights for every turn."""
        engine = self.code.vllm_engine.Engine(
            self.model, self.tokenizer, self.config, str(self._saved())
        )
        found = self._turns(engine, 2)
        del found["samples"]
        return {"version": self.code.vllm_engine.version(), **found}

    def clear(self) -> None:
        """Give back what a measurement left behind."""
        import torch

        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()

    def _turns(self, engine: Any, turns: int) -> dict[str, Any]:
        """Sample everything several times; the last samples, and the speed of each turn."""
        speeds = []
        for turn in range(turns):
            took, samples = self._timed(
                lambda: engine.sample(self.prompts, self.size.group, self.numbers, self.how)
            )
            tokens = int(samples.lengths.sum())
            speeds.append(tokens / took)
            name = type(engine).__module__
            print(f"  {name}, turn {turn}: {speeds[-1]:,.0f} tokens/s", flush=True)
        rows = len(self.numbers)
        return {
            "samples": samples,
            "rows": rows,
            "tokens_per_second": max(speeds),
            "first_turn": speeds[0],
        }

    def _how(self, new_tokens: int) -> Any:
        return self.code.generate.Sampling(new_tokens, stop=self.config.stop)

    def _saved(self) -> Path:
        """The model as a Hugging Face folder."""
        folder = self.folder / "model"
        if not folder.exists():
            described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0"}
            files = (
                ("tokenizer.json", self.tokenizer.to_str()),
                ("tokenizer_config.json", json.dumps(described)),
            )
            self.code.model.save(self.model, str(folder), files)
        return folder

    def _timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        import torch

        started = time.perf_counter()
        done = work()
        if not self.dry:
            torch.cuda.synchronize()
        return time.perf_counter() - started, done

    def _reset_peak(self) -> None:
        import torch

        if not self.dry:
            torch.cuda.reset_peak_memory_stats()

    def _memory(self) -> dict[str, float]:
        """`reserved` also counts what the allocator keeps, CUDA graphs' memory among it."""
        import torch

        if self.dry:
            return {}
        return {
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
            "peak_reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
        }


def make_tokenizer(vocab: int) -> Any:
    """A word for every token; none ends a completion."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Other engines are for comparison: what goes wrong there is told, and ends nothing."""
    try:
        return measure()
    except Exception as error:
        print(f"  failed: {type(error).__name__}: {error}", flush=True)
        return {"failed": f"{type(error).__name__}: {error}"}


@contextmanager
def _codebase() -> Iterator[Any]:
    """The modules of the codebase by name; other codebases have modules of these names, too."""
    before = set(sys.modules)
    sys.path.insert(0, str(CODEBASE))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(CODEBASE))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == CODEBASE:
                del sys.modules[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.seconds, arguments.dry_run)))


if __name__ == "__main__":
    main()

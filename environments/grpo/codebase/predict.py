"""Completes the evaluator's questions with checkpoints (protected: no idea may edit it).

assay_predictor.py, which Assay brings, imports this file, calls `load` with what training left and
puts every question to what `load` returns. Every folder of its `checkpoints/` is a Hugging Face
folder with a tokenizer and a prompt. One process answers for all of them, because importing torch
takes longer than a thousand answers. Of the codebase model.py and generate.py are loaded, which are
protected too, by their paths: no other file there can stand in for a library or for them.

    complete: text (n,) uint8, lengths (b,) int32, and max_bytes
              -> text (b, max_bytes) uint8, lengths (b,) int32

A question's first line names the checkpoint and says how to answer: `01 greedy`, or `01 sample K`
for the K-th sample at the manifest's `eval_temperature`. The problem follows. A text without such a
line is taken greedily, by the checkpoint that answered last, or the first one.
The random numbers of a sample depend on the seed, the problem and K, not on the rest of the batch.
"""

import hashlib
import json
import os
import sys
import types

import numpy as np
import torch
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
# Rows sampled at once.
ROWS = 512


def load_file(name):
    """The module in the file `name` beside this one."""
    path = os.path.join(HERE, f"{name}.py")
    module = types.ModuleType(f"grpo_{name}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    with open(path, encoding="utf-8") as file:
        # From its text, and not from compiled code that might lie beside it.
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module


class Completer:
    """The checkpoints in `folder`, of which one is loaded at a time: several may not fit."""

    def __init__(self, folder, config, seed, device):
        self.folder = os.path.join(folder, "checkpoints")
        self.settings = load_file("model"), load_file("generate"), config, seed, device
        self.name, self.checkpoint = None, None
        # Before the first question: what is wrong with a checkpoint may be told until then.
        scheduled = (f"{i + 1:02d}" for i in range(config["checkpoints"]))
        self.open(next(s for s in scheduled if os.path.isdir(os.path.join(self.folder, s))))

    def open(self, name):
        """The checkpoint `name`, loaded unless it is already."""
        if name != self.name:
            self.name, self.checkpoint = None, None
            self.checkpoint = Checkpoint(os.path.join(self.folder, name), *self.settings)
            self.name = name
        return self.checkpoint

    def complete(self, text, lengths, max_bytes):
        """A completion for every question, cut between characters."""
        ends = np.cumsum(lengths)
        questions = [bytes(text[e - n : e]).decode(errors="replace") for n, e in zip(lengths, ends)]
        cut = [
            answer.encode(errors="replace")[:max_bytes].decode(errors="ignore").encode()
            for answer in self.answers(questions)
        ]
        rows = b"".join(answer.ljust(max_bytes, b"\0") for answer in cut)
        return {
            "text": np.frombuffer(rows, np.uint8).reshape(len(cut), max_bytes),
            "lengths": np.array([len(answer) for answer in cut], np.int32),
        }

    def answers(self, questions):
        groups = {}
        for place, question in enumerate(questions):
            name, how, problem = split(question)
            asked = groups.setdefault((name or self.name, how == "greedy"), [])
            asked.append((place, how, problem))
        texts = [""] * len(questions)
        for (name, greedy), asked in sorted(groups.items()):
            found = self.open(name).sample([(how, problem) for _, how, problem in asked], greedy)
            for (place, _, _), answer in zip(asked, found):
                texts[place] = answer
        return texts


class Checkpoint:
    """A checkpoint that completes problems."""

    def __init__(self, folder, models, generate, config, seed, device):
        dtype = torch.float32 if device == "cpu" else None  # None: as it was trained
        self.model = models.load(folder, device, dtype)
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "prompt.txt"), encoding="utf-8") as file:
            self.template = file.read()
        self.sampler = generate.Sampler(self.model, self.tokenizer, ROWS)
        self.generate, self.config, self.seed = generate, config, seed

    def sample(self, asked, greedy):
        """A completion for each (how, problem)."""
        how = self.generate.Sampling(
            max_new=self.config["max_new_tokens"],
            temperature=0.0 if greedy else self.config["eval_temperature"],
        )
        prompts = [self._encode(problem) for _, problem in asked]
        numbers = torch.stack([self._numbers(*one, how.max_new) for one in asked])
        return self.sampler.sample(prompts, 1, numbers, how).texts

    def _encode(self, problem):
        ids = self.tokenizer.encode(self.template.replace("{question}", problem)).ids
        # The model has to read something, even of an empty prompt.
        return ids[: self.config["max_prompt_tokens"]] or [0]

    def _numbers(self, how, problem, count):
        """The random numbers (count,) of one answer."""
        text = f"{self.seed}\n{how}\n{problem}".encode(errors="replace")
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)
        return self.generate.uniforms((count,), torch.Generator().manual_seed(seed))


def split(question):
    """(checkpoint, how, problem) of a question's text; the checkpoint is "" where none is named."""
    line, end, problem = question.partition("\n")
    name, _, how = line.partition(" ")
    if end and (how == "greedy" or how.startswith("sample ")):
        return name, how, problem
    return "", "greedy", question


def load(folder, device):
    sys.path.remove(HERE)  # nothing there is imported by its name
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    with open(os.environ["ASSAY_CONFIG"]) as file:
        config = json.load(file)
    return Completer(folder, config, int(os.environ["ASSAY_SEED"]), device)


if __name__ == "__main__":
    raise SystemExit(
        "To ask it by hand: `assay env unpack grpo DIR`, then `python -I assay_predictor.py` in"
        " DIR/codebase"
    )

"""Completes the evaluator's questions with a checkpoint (protected: no idea may edit it).

Started as `python -I predict.py` with $ASSAY_OUT pointing at a checkpoint: a Hugging Face folder
with a tokenizer and a prompt. Of the codebase it loads model.py and generate.py, which are
protected too, by their paths: no other file there can stand in for a library or for them.

It reads questions from stdin and writes answers to stdout until stdin ends. A frame is b"ASSY", the
length of a JSON header (u32, little-endian), the header, and the raw bytes of its arrays.

    complete: text (n,) uint8, lengths (b,) int32, and max_bytes in the header
              -> text (b, max_bytes) uint8, lengths (b,) int32

A question's first line says how to answer it: `greedy`, or `sample K` for the K-th sample at the
manifest's `eval_temperature`. The problem follows. A text without such a line is taken greedily.
The random numbers of a sample depend on the seed, the question and K, not on the rest of the batch.
"""

import os
import sys

# The real stdout is for answers alone.
ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

import hashlib  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import types  # noqa: E402

import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

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


models = load_file("model")
generate = load_file("generate")


class Completer:
    """A checkpoint that completes questions."""

    def __init__(self, folder, config, seed, device):
        dtype = torch.float32 if device == "cpu" else None  # None: as it was trained
        self.model = models.load(folder, device, dtype)
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "prompt.txt"), encoding="utf-8") as file:
            self.template = file.read()
        self.sampler = generate.Sampler(self.model, self.tokenizer, ROWS)
        self.config, self.seed = config, seed

    def complete(self, questions):
        """A completion for every question."""
        asked = [split(q) for q in questions]
        texts = [""] * len(asked)
        for greedy in (True, False):
            places = [i for i, (how, _) in enumerate(asked) if (how == "greedy") == greedy]
            if places:
                found = self._sample([asked[i] for i in places], greedy)
                for place, text in zip(places, found):
                    texts[place] = text
        return texts

    def _sample(self, asked, greedy):
        how = generate.Sampling(
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
        return generate.uniforms((count,), torch.Generator().manual_seed(seed))


def split(question):
    """(how, problem) of a question's text."""
    how, line, problem = question.partition("\n")
    if line and (how == "greedy" or how.startswith("sample ")):
        return how, problem
    return "greedy", question


def read_question(stream):
    """(header, texts) of the next question, or None at the end."""
    prefix = stream.read(8)
    if len(prefix) < 8:
        return None
    magic, length = struct.unpack("<4sI", prefix)
    assert magic == b"ASSY"
    header = json.loads(stream.read(length))
    sizes = {a["name"]: a["shape"][0] for a in header["arrays"]}
    raw = {}
    for array in header["arrays"]:
        width = {"uint8": 1, "int32": 4}[array["dtype"]]
        raw[array["name"]] = stream.read(width * sizes[array["name"]])
    texts, start = [], 0
    for length in struct.unpack(f"<{sizes['lengths']}i", raw["lengths"]):
        texts.append(raw["text"][start : start + length].decode(errors="replace"))
        start += length
    return header, texts


def write_answer(header, texts):
    width = header["max_bytes"]
    # Cut between characters, so that it is text still.
    cut = [t.encode(errors="replace")[:width].decode(errors="ignore").encode() for t in texts]
    described = [
        {"name": "text", "dtype": "uint8", "shape": [len(cut), width]},
        {"name": "lengths", "dtype": "int32", "shape": [len(cut)]},
    ]
    answer = json.dumps({"seq": header["seq"], "op": "answer", "arrays": described}).encode()
    ANSWERS.write(struct.pack("<4sI", b"ASSY", len(answer)) + answer)
    ANSWERS.write(b"".join(t.ljust(width, b"\0") for t in cut))
    ANSWERS.write(struct.pack(f"<{len(cut)}i", *map(len, cut)))
    ANSWERS.flush()


def main():
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    with open(os.environ["ASSAY_CONFIG"]) as file:
        config = json.load(file)
    device = "cuda" if int(os.environ.get("ASSAY_GPUS", "0")) > 0 else "cpu"
    completer = Completer(os.environ["ASSAY_OUT"], config, int(os.environ["ASSAY_SEED"]), device)
    while (question := read_question(sys.stdin.buffer)) is not None:
        header, texts = question
        write_answer(header, completer.complete(texts))


if __name__ == "__main__":
    main()

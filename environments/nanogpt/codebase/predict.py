"""Answers the evaluator's questions about the trained model (protected: no idea may edit it).

Started with $ASSAY_OUT pointing at what training left, or at one of its checkpoints. It reads
questions from stdin and writes answers to stdout until stdin ends. A frame is b"ASSY", the length of a JSON
header (u32, little-endian), the header, and the raw bytes of the arrays the header describes.

    next:   tokens (B, t) int32 -> logits (B, V) float32 for the token after each prefix
    all:    tokens (B, T) int32 -> logits (B, T, V) float32
    losses: tokens (B, T + 1) int32 -> losses (B, T) float32 in nats
    reset:  sizes (2,) int32, rows and length of what follows -> ready (1,) uint8
    step:   tokens (B,) int32, the next of each row -> logits (B, V) float32

`model.load(path, device)` and a forward pass over whole windows are enough for all of them. A model
that offers `Cache` answers `step` faster; its answers are compared with the plain pass first.
"""

import os
import sys

# The real stdout is for answers alone: whatever edited code prints goes to stderr.
ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

import json  # noqa: E402
import struct  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import model  # noqa: E402

# Positions computed at once: bounds the memory for logits, and keeps a GPU busy.
AT_ONCE = 1 << 14


def read_question(stream):
    """(header, the int32 array of the question), or None at the end."""
    prefix = stream.read(8)
    if len(prefix) < 8:
        return None
    magic, length = struct.unpack("<4sI", prefix)
    assert magic == b"ASSY"
    header = json.loads(stream.read(length))
    (array,) = header["arrays"]
    assert array["dtype"] == "int32"
    count = 1
    for size in array["shape"]:
        count *= size
    raw = bytearray(stream.read(4 * count))
    return header, torch.frombuffer(raw, dtype=torch.int32).view(array["shape"]).long()


def write_answer(seq, name, values):
    values = values.cpu().contiguous()
    dtype = str(values.dtype).removeprefix("torch.")
    described = [{"name": name, "dtype": dtype, "shape": list(values.shape)}]
    header = json.dumps({"seq": seq, "op": "answer", "arrays": described}).encode()
    ANSWERS.write(struct.pack("<4sI", b"ASSY", len(header)) + header)
    ANSWERS.write(memoryview(values.view(-1).view(torch.uint8).numpy()))
    ANSWERS.flush()


class Predictor:
    """Every question is a method."""

    def __init__(self, net, device):
        self.net, self.device = net, device
        self.cache_agrees = None

    def next(self, tokens):
        return "logits", self._by_parts(tokens, lambda part: self._logits(part)[:, -1])

    def all(self, tokens):
        return "logits", self._by_parts(tokens, self._logits)

    def losses(self, tokens):
        return "losses", self._by_parts(tokens, self._losses)

    def reset(self, sizes):
        rows, length = sizes.tolist()
        if self.cache_agrees is None:
            self.cache_agrees = self._cache_agrees(length)
        self.cache = model.Cache(length) if self.cache_agrees else None
        self.prefix = torch.zeros(rows, 0, dtype=torch.long)
        return "ready", torch.ones(1, dtype=torch.uint8)

    def step(self, tokens):
        if self.cache is not None:
            return "logits", self.net(tokens[:, None].to(self.device), self.cache)[:, -1].float()
        self.prefix = torch.cat([self.prefix, tokens[:, None]], dim=1)
        return self.next(self.prefix)

    def _by_parts(self, tokens, compute):
        rows = max(1, AT_ONCE // tokens.size(1))
        return torch.cat([compute(part.to(self.device)) for part in tokens.split(rows)])

    def _logits(self, tokens):
        return self.net(tokens).float()

    def _losses(self, tokens):
        logits = self._logits(tokens[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")

    def _cache_agrees(self, length):
        """Whether the model can continue from a cache, and says the same as without. An edit of the
        forward pass need not keep that up: then every step reads its prefix again."""
        vocab_size = self._logits(torch.zeros(1, 1, dtype=torch.long, device=self.device)).size(-1)
        tokens = torch.arange(2 * min(length, 16), device=self.device) * 7919 % vocab_size
        tokens = tokens.view(2, -1)
        try:
            cache = model.Cache(length)
            steps = [self.net(tokens[:, i : i + 1], cache) for i in range(tokens.size(1))]
            # Far above the rounding of bfloat16, far below what a forgotten token changes.
            return (torch.cat(steps, 1) - self._logits(tokens)).abs().max().item() < 0.3
        except Exception:
            return False


@torch.no_grad()
def main():
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    device = torch.device("cuda" if int(os.environ.get("ASSAY_GPUS") or 0) > 0 else "cpu")
    net = model.load(os.path.join(os.environ["ASSAY_OUT"], "model.pt"), device)
    predictor = Predictor(net, device)
    while (question := read_question(sys.stdin.buffer)) is not None:
        header, array = question
        write_answer(header["seq"], *getattr(predictor, header["op"])(array))


if __name__ == "__main__":
    main()

"""Answers the evaluator's questions about the trained model (protected: no idea may edit it).

assay_predictor.py, which Assay brings, imports this file, calls `load` with the folder that holds
what training left, or one of its checkpoints, and puts every question to what `load` returns:

    next:   tokens (B, t) int32 -> logits (B, V) float32 for the token after each prefix
    all:    tokens (B, T) int32 -> logits (B, T, V) float32
    losses: tokens (B, T + 1) int32 -> losses (B, T) float32 in nats
    reset:  sizes (2,) int32, rows and length of what follows -> ready (1,) uint8
    step:   tokens (B,) int32, the next of each row -> logits (B, V) float32

`model.load(path, device)` and a forward pass over whole windows are enough for all of them. A model
that offers `Cache` answers `step` faster; its answers are compared with the plain pass first.
"""

import os

# Libraries alone: files of the codebase are imported in `load`, after the evaluator has noted the
# CPU time that starting took.
import numpy as np
import torch
import torch.nn.functional as F

# Positions computed at once: bounds the memory for logits, and keeps a GPU busy.
AT_ONCE = 1 << 14


def load(folder, device):
    import model

    torch.set_grad_enabled(False)
    torch.set_num_threads(int(os.environ.get("ASSAY_THREADS", "1")))
    device = torch.device(device)
    return Predictor(model, model.load(os.path.join(folder, "model.pt"), device), device)


class Predictor:
    """Every question is a method."""

    def __init__(self, model, net, device):
        self.model, self.net, self.device = model, net, device
        self.cache_agrees = None
        self.few_shapes = device.type == "cuda"
        self.longest = 0

    def next(self, tokens):
        return {"logits": self._last_logits(torch.from_numpy(tokens).long()).cpu()}

    def all(self, tokens):
        self.longest = max(self.longest, tokens.shape[1])
        return {"logits": self._by_parts(torch.from_numpy(tokens).long(), self._logits).cpu()}

    def losses(self, tokens):
        self.longest = max(self.longest, tokens.shape[1] - 1)  # the last token is a label
        return {"losses": self._by_parts(torch.from_numpy(tokens).long(), self._losses).cpu()}

    def reset(self, sizes):
        rows, length = sizes.tolist()
        if self.cache_agrees is None:
            self.cache_agrees = self._cache_agrees(length)
        self.cache = self.model.Cache(length) if self.cache_agrees else None
        self.prefix = torch.zeros(rows, 0, dtype=torch.long)
        return {"ready": np.ones(1, np.uint8)}

    def step(self, tokens):
        tokens = torch.from_numpy(tokens).long()[:, None]
        if self.cache is not None:
            return {"logits": self.net(tokens.to(self.device), self.cache)[:, -1].float().cpu()}
        self.prefix = torch.cat([self.prefix, tokens], dim=1)
        return {"logits": self._last_logits(self.prefix).cpu()}

    def _last_logits(self, tokens):
        rows, last = tokens.size(0), tokens.size(1) - 1
        if self.few_shapes:
            tokens = self._padded(tokens)
        return self._by_parts(tokens, lambda part: self._logits(part)[:, last])[:rows]

    def _padded(self, tokens):
        """Prefixes come in hundreds of shapes, and a GPU's libraries prepare for each new one, some
        of them for longer than all answers take. So rows and tokens are added up to powers of two;
        what follows a prefix cannot change what a causal model says of it."""
        rows, length = tokens.shape
        self.longest = max(self.longest, length)  # the evaluator begins with a whole window
        wide = min(1 << (length - 1).bit_length(), self.longest)
        high = 1 << (rows - 1).bit_length()
        return F.pad(tokens, (0, wide - length, 0, high - rows))

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
            cache = self.model.Cache(length)
            steps = [self.net(tokens[:, i : i + 1], cache) for i in range(tokens.size(1))]
            # Far above the rounding of bfloat16, far below what a forgotten token changes.
            return (torch.cat(steps, 1) - self._logits(tokens)).abs().max().item() < 0.3
        except Exception:
            return False


if __name__ == "__main__":
    raise SystemExit(
        "To ask it by hand: `assay env unpack nanogpt DIR`, then `python -I assay_predictor.py` in"
        " DIR/codebase"
    )

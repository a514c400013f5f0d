"""The training text: shards of tokens, and the batches of every step.

A shard is 256 little-endian int32 (20240520, 1, the number of tokens, zeros) and so many uint16.
What a step trains on depends on the number of the step, and not on how many ranks share it: rank r
of w takes the r-th of w equal parts of the rows.
"""

import os
import time
from pathlib import Path

import numpy as np
import torch

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 1024
AGAIN = "prepare the data again (assay env prepare)"


def read_shard(path):
    """The tokens of a shard, uint16 of shape (N,), read from the disk as they are used."""
    size = path.stat().st_size
    header = np.fromfile(path, dtype="<i4", count=256)
    if len(header) < 256:
        raise SystemExit(f"{path} has {size} bytes, less than the header of a shard; {AGAIN}")
    magic, version, count = header[:3].tolist()
    if (magic, version) != (MAGIC, VERSION):
        raise SystemExit(
            f"{path} starts with {magic}, {version}: not a shard of version 1 ({MAGIC}, 1); {AGAIN}"
        )
    if count < 1:
        raise SystemExit(f"{path} has no tokens; {AGAIN}")
    if size != HEADER_BYTES + 2 * count:
        raise SystemExit(
            f"{path} is damaged: {count} tokens take {HEADER_BYTES + 2 * count} bytes, "
            f"it has {size}; {AGAIN}"
        )
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


class Data:
    """All shards of $ASSAY_DATA, the end of the last one kept apart for validation.

    With $ASSAY_ASK there are none before `ask`, and `batches` yields one of made-up tokens first.
    """

    def __init__(self, config, rank=0, world=1, rows=None):
        """`rows` are the sequences per step that rank `rank` of `world` takes."""
        self.config, self.rank, self.world = config, rank, world
        self.rows = rows or config.batch_size // world
        self.is_awaited = "ASSAY_ASK" in os.environ
        if not self.is_awaited:
            self._open()

    def ask(self):
        """Ask for the text and wait for it; returns when it appeared, since the budget's clock runs
        from there."""
        if self.rank == 0:
            open(os.environ["ASSAY_ASK"], "x").close()
        while not os.path.isdir(os.environ["ASSAY_DATA"]):
            time.sleep(0.005)
        appeared = time.monotonic()
        self.is_awaited = False
        self._open()
        return appeared

    def _open(self):
        config = self.config
        folder = Path(os.environ["ASSAY_DATA"])
        self.paths = sorted(folder.glob("*.bin"))
        if not self.paths:
            raise SystemExit(f"no shards (*.bin) in {folder}; {AGAIN}")
        self.shards = [read_shard(path) for path in self.paths]
        self.checked = set()
        self.held_back = self.shards[-1][:0]
        if config.val_every:
            self._hold_back(config.val_tokens + 1)
        self._check_lengths()

    def _hold_back(self, count):
        last = self.shards[-1]
        if len(last) <= 2 * count:
            raise SystemExit(
                f"{self.paths[-1]} has {len(last)} tokens; val_tokens = {count - 1} leaves too few. "
                "Lower val_tokens, or set val_every to 0"
            )
        self.shards[-1], self.held_back = last[:-count], last[-count:]

    def _check_lengths(self):
        config = self.config
        random = config.order == "random"
        needed = config.context if random else config.batch_size * config.context
        longest = sum(map(len, self.shards)) if random else max(map(len, self.shards))
        if longest <= needed:
            raise SystemExit(
                f"{longest} tokens of training text are too few: more than {needed} are needed. "
                "Prepare a longer text, or lower batch_size or context"
            )

    def _tokens(self, number):
        """Shard `number`, whose tokens are looked through the first time."""
        shard = self.shards[number]
        if number not in self.checked and len(shard):
            if (largest := int(shard.max())) >= self.config.vocab_size:
                raise SystemExit(
                    f"{self.paths[number]} has token {largest}, outside the vocabulary of "
                    f"{self.config.vocab_size}; set vocab_size to what the tokenizer has"
                )
            self.checked.add(number)
        return shard

    def batches(self, seed):
        """Yields this rank's (tokens, targets) of one step after the other, each (rows, context)
        int64; targets are the tokens one place on."""
        if self.is_awaited:
            yield self.made_up(self.rows)
        windows = self._random(seed) if self.config.order == "random" else self._sequential()
        mine = slice(self.rank * self.rows, (self.rank + 1) * self.rows)
        for tokens, targets in windows:
            yield to_tensor(tokens[mine]), to_tensor(targets[mine])

    def _sequential(self):
        """Neighbouring stretches of the text; a new shard where this one has no whole step left."""
        shape = (self.config.batch_size, self.config.context)
        size = shape[0] * shape[1]
        while True:
            for number in range(len(self.shards)):
                shard = self._tokens(number)
                for start in range(0, len(shard) - size, size):
                    stretch = shard[start : start + size + 1]
                    yield stretch[:-1].reshape(shape), stretch[1:].reshape(shape)

    def _random(self, seed):
        """Windows that start anywhere. All ranks draw the same, and keep their rows."""
        text = np.concatenate([self._tokens(number) for number in range(len(self.shards))])
        generator = torch.Generator().manual_seed(seed)
        offsets = np.arange(self.config.context + 1)
        shape = (self.config.batch_size, 1)
        while True:
            starts = torch.randint(len(text) - self.config.context, shape, generator=generator)
            windows = text[starts.numpy() + offsets]  # (batch_size, context + 1)
            yield windows[:, :-1], windows[:, 1:]

    def made_up(self, rows):
        """Random (tokens, targets) of the shape of `rows` sequences, to compile with."""
        shape = (rows, self.config.context + 1)
        tokens = np.random.default_rng(0).integers(self.config.vocab_size, size=shape)
        return to_tensor(tokens[:, :-1]), to_tensor(tokens[:, 1:])

    def validation_sizes(self, rows):
        """The different numbers of sequences that `validation` yields, known before the text is."""
        mine = len(range(self.rank, self.config.val_tokens // self.config.context, self.world))
        return sorted({min(rows, mine), mine % rows} - {0}) if self.config.val_every else []

    def validation(self, rows):
        """Yields this rank's share of the text that was held back, `rows` sequences at a time.
        Over all ranks it is every sequence once, whatever their number."""
        T = self.config.context
        count = (len(self.held_back) - 1) // T
        text = self.held_back
        tokens = text[: count * T].reshape(count, T)[self.rank :: self.world]
        targets = text[1 : count * T + 1].reshape(count, T)[self.rank :: self.world]
        for start in range(0, len(tokens), rows):
            part = slice(start, start + rows)
            yield to_tensor(tokens[part]), to_tensor(targets[part])


def to_tensor(array):
    tensor = torch.from_numpy(array.astype(np.int64))
    # From pinned memory a copy to the GPU goes on beside the computation.
    return tensor.pin_memory() if torch.cuda.is_available() else tensor

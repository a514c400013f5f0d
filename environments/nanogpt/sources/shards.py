"""Token shards: a header of 256 little-endian int32 [20240520, 1, n_tokens, 0, ...], then uint16.

This is the format of the published FineWeb shards; every source writes it, so that training reads
one format at every size.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np

MAGIC = 20_240_520
VERSION = 1
HEADER_BYTES = 1024
SHARD_TOKENS = 100_000_000  # as in the published shards: 200 MB each
GPT2_VOCABULARY = 50_257


def read(path: Path, vocabulary: int = GPT2_VOCABULARY) -> np.ndarray:
    """The tokens of a shard, (n_tokens,) uint16, mapped, not loaded; every defect has a name."""
    remedy = "delete the file and get or make it again"
    size = path.stat().st_size
    if size < HEADER_BYTES:
        raise SystemExit(f"{path}: {size} bytes are no shard, whose header has 1,024; {remedy}")
    magic, version, count = np.fromfile(path, dtype="<i4", count=3).tolist()
    if magic != MAGIC:
        raise SystemExit(
            f"{path}: wrong magic number {magic}, a shard of tokens begins with {MAGIC}; {remedy}"
        )
    if version != VERSION:
        raise SystemExit(f"{path}: version {version} of the shard format, only {VERSION} is known")
    if count < 1 or size != HEADER_BYTES + 2 * count:
        raise SystemExit(
            f"{path}: truncated or corrupt: the header promises {count:,} tokens, the file holds"
            f" {(size - HEADER_BYTES) / 2:,.1f}; {remedy}"
        )
    tokens = np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(count,))
    largest = int(tokens.max())
    if largest >= vocabulary:
        raise SystemExit(
            f"{path}: corrupt: token {largest} is outside the vocabulary of {vocabulary}; {remedy}"
        )
    return tokens


class ShardWriter:
    """Appends tokens to `<folder>/<prefix>_<number>.bin`, a new file every `shard_tokens`.

    `limit` is how many tokens are written at most; what comes after them is dropped.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        number: int,
        *,
        limit: int | None = None,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.prefix = prefix
        self.number = number
        self.left = limit
        self.shard_tokens = shard_tokens
        self.total = 0
        self._file = None
        self._count = 0

    def add(self, tokens: np.ndarray) -> None:
        if self.left is not None:
            tokens = tokens[: self.left]
            self.left -= len(tokens)
        while len(tokens):
            if self._file is None:
                self._open()
            part = tokens[: self.shard_tokens - self._count]
            self._file.write(part.astype("<u2").tobytes())
            self._count += len(part)
            self.total += len(part)
            tokens = tokens[len(part) :]
            if self._count == self.shard_tokens:
                self.close()

    def _open(self) -> None:
        path = self.folder / f"{self.prefix}_{self.number:06d}.bin"
        self._file = path.open("wb")
        self._file.write(bytes(HEADER_BYTES))  # written last: a shard without it is unfinished
        self._count = 0

    def close(self) -> None:
        """Finish the open shard, if there is one."""
        if self._file is None:
            return
        header = np.zeros(256, dtype="<i4")
        header[:3] = MAGIC, VERSION, self._count
        self._file.seek(0)
        self._file.write(header.tobytes())
        self._file.close()
        print(f"{self._file.name}: {self._count:,} tokens", flush=True)
        self._file = None
        self.number += 1

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._file is not None:
            self._file.close()  # without a header: nobody takes it for a whole one

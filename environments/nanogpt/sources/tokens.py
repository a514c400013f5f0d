"""From text to tokens: bytes, or the byte-pair encoding of GPT-2 by the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from sources import hub  # Assay adds it; by hand: `assay env unpack nanogpt DIR`
from sources.shards import GPT2_VOCABULARY, ShardWriter

END_OF_TEXT = 50_256
BATCH_CHARACTERS = 4 << 20  # what is tokenised at once; bounds memory, keeps all cores busy


class Encoder(Protocol):
    """Turns texts into token ids."""

    opening: tuple[int, ...]
    """What the first document of a split begins with."""

    boundary: tuple[int, ...]
    """What every other document begins with."""

    bytes_per_token: int
    """A generous guess, for cutting held-out text before it is tokenised."""

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """One (T,) uint16 array per text."""


class Bytes:
    """Every byte of the UTF-8 text is a token."""

    opening = ()
    boundary = (10, 10)  # a blank line
    bytes_per_token = 1

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) for text in texts]


class Gpt2:
    """GPT-2's byte-pair encoding; documents are prefixed with <|endoftext|>."""

    opening = boundary = (END_OF_TEXT,)
    bytes_per_token = 5  # English has about 4.5

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SystemExit('tokenizer = "gpt2" needs `pip install tokenizers`') from None
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise SystemExit(f"{path}: not a tokenizer.json: {error}") from None
        # A text that spells out <|endoftext|> is a text, not a boundary between documents.
        self.tokenizer.encode_special_tokens = True
        found = self.tokenizer.get_vocab_size(), self.encode(["hello world"])[0].tolist()
        if found != (GPT2_VOCABULARY, [31373, 995]):
            raise SystemExit(
                f"{path}: not GPT-2's tokenizer: 'hello world' in a vocabulary of {found[0]}"
                f" becomes {found[1]}, not [31373, 995] of 50,257; get"
                " openai-community/gpt2's tokenizer.json"
            )

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        # The library works on the texts of a batch in parallel.
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint16) for encoding in encodings]


def make_encoder(tokenizer: str, datasets: Path | None) -> Encoder:
    if tokenizer == "bytes":
        return Bytes()
    own = datasets / "gpt2" / "tokenizer.json" if datasets else None
    if own and own.is_file():
        return Gpt2(own)
    fetched = hub.fetch(
        "openai-community/gpt2", ["tokenizer.json"], kind="model", own="gpt2/tokenizer.json"
    )
    return Gpt2(next(fetched))


class Sink:
    """Tokenises the documents of one split, a batch at a time, into its shards."""

    def __init__(self, encoder: Encoder, writer: ShardWriter) -> None:
        self.encoder = encoder
        self.writer = writer
        self._texts: list[str] = []
        self._starts: list[bool] = []
        self._characters = 0

    def add(self, text: str, *, starts: bool) -> None:
        """Append a text; `starts` if a document begins with it."""
        self._texts.append(text)
        self._starts.append(starts)
        self._characters += len(text)
        if self._characters >= BATCH_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        encoded = self.encoder.encode(self._texts)
        for starts, tokens in zip(self._starts, encoded, strict=True):
            if starts:
                mark = self.encoder.boundary if self.writer.total else self.encoder.opening
                self.writer.add(np.array(mark, dtype=np.uint16))
            self.writer.add(tokens)
        self._texts, self._starts, self._characters = [], [], 0

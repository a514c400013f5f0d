"""A text of one's own: a UTF-8 file, a JSONL file with a `text` column, or a folder of such files.

A text file is one document, a line of JSONL is one, too. The held-out splits are made of whole
documents, chosen by SHA-256 of their text, so that duplicates land in the same split. A single
document is cut: its end is held out. Everything is read twice, first to check it and to choose,
and never held in memory.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SMALLEST_HELD_OUT = 32_768  # bytes of each of the two splits
CHUNK_CHARACTERS = 1 << 16  # many of them make a batch, so that all cores tokenise
TRAIN, SEARCH, SEALED = 0, 1, 2


@dataclass(frozen=True)
class Document:
    """A document, read in chunks; `chunks()` can be called once."""

    name: str
    chunks: Callable[[], Iterable[str]]


@dataclass(frozen=True)
class Survey:
    """What the first reading found: (documents,) each."""

    hashes: np.ndarray
    sizes: np.ndarray


def documents(path: Path) -> Iterator[Document]:
    """The documents of a file or folder, in the order of names and lines."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if file.is_file() and not hidden:
                yield from documents(file)
    elif path.suffix == ".jsonl":
        yield from json_lines(path)
    else:
        yield Document(str(path), lambda: text_chunks(path))


def json_lines(path: Path) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            name = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{name}: not a line of JSON in UTF-8: {error}") from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                found = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
                raise SystemExit(
                    f"{name}: needs a column 'text' that holds a string; found: {found}"
                )
            text = row["text"]
            yield Document(name, lambda text=text: [text])


def text_chunks(path: Path) -> Iterator[str]:
    """The text in pieces that end where a word ends.

    GPT-2's rule for where tokens may end never joins a letter to the space after it, so that the
    pieces have the same tokens as the whole.
    """
    rest = ""
    with path.open(encoding="utf-8", newline="") as file:
        try:
            while chunk := file.read(CHUNK_CHARACTERS):
                rest += chunk
                at = max(rest.rfind(" "), rest.rfind("\n"), 0)
                while at and rest[at - 1].isspace():
                    at -= 1
                if not at and len(rest) > 4 * CHUNK_CHARACTERS:
                    at = len(rest)  # no words: memory is worth more than one token
                if at:
                    yield rest[:at]
                    rest = rest[at:]
        except UnicodeDecodeError as error:
            raise SystemExit(f"{path}: not UTF-8: {error}; convert it with iconv") from None
    if rest:
        yield rest


def survey(path: Path) -> Survey:
    """Read everything once: the hash and the size in bytes of every document."""
    if not path.exists():
        raise SystemExit(
            f"text_file: {path} does not exist; it is looked for in $ASSAY_DATASETS and beside"
            " environment.toml"
        )
    hashes, sizes = array("Q"), array("q")
    for document in documents(path):
        digest, size = hashlib.sha256(), 0
        for chunk in document.chunks():
            try:
                data = chunk.encode()
            except UnicodeEncodeError as error:
                raise SystemExit(f"{document.name}: not UTF-8: {error}") from None
            digest.update(data)
            size += len(data)
        hashes.append(int.from_bytes(digest.digest()[:8], "big"))
        sizes.append(size)
    found = Survey(np.array(hashes, dtype=np.uint64), np.array(sizes, dtype=np.int64))
    total = int(found.sizes.sum())
    if not total:
        raise SystemExit(f"{path}: empty; put text into it")
    if total < 10 * SMALLEST_HELD_OUT:
        raise SystemExit(
            f"{path}: {total:,} bytes of text are too small; {10 * SMALLEST_HELD_OUT:,} are needed"
        )
    return found


def thresholds(path: Path, found: Survey, held_out: int) -> tuple[int, int]:
    """Documents whose hash is up to the first are sealed, those up to the second are searched."""
    order = np.argsort(found.hashes, kind="stable")
    cumulative = np.cumsum(found.sizes[order])  # bytes up to and including each document
    last = len(order) - 1

    def hash_at(size: int) -> tuple[int, int]:
        index = min(int(np.searchsorted(cumulative, size)), last)
        value = found.hashes[order][index]
        index = int(np.searchsorted(found.hashes[order], value, side="right")) - 1  # duplicates
        return int(value), int(cumulative[index])

    sealed, end = hash_at(held_out)
    search, end = hash_at(end + held_out)
    total = int(cumulative[-1])
    if total - end < total // 2:
        raise SystemExit(
            f"{path}: its {len(order)} documents are too few or too uneven to hold whole ones out:"
            f" {(total - end) / total:.0%} would be left for training; join them into one text"
            " file, whose end is then held out"
        )
    return sealed, search


def cut(chunks: Iterable[str], ends: tuple[int, int]) -> Iterator[tuple[int, str]]:
    """(split, text) of one document: training up to byte `ends[0]`, search up to `ends[1]`."""
    position, split = 0, TRAIN
    for chunk in chunks:
        data = chunk.encode()
        while split < SEALED and position + len(data) > ends[split]:
            at = max(0, ends[split] - position)
            while at < len(data) and data[at] & 0xC0 == 0x80:
                at += 1  # not inside a character
            if at:
                yield split, data[:at].decode()
            data = data[at:]
            position += at
            split += 1
        if data:
            yield split, data.decode()
        position += len(data)


def pieces(path: Path, held_out: int) -> Iterator[tuple[int, str, bool]]:
    """(split, text, whether a document starts with it), `held_out` bytes or a tenth for each."""
    found = survey(path)
    total = int(found.sizes.sum())
    held_out = min(held_out, total // 10)
    if np.count_nonzero(found.sizes) == 1:
        (document,) = (d for d, size in zip(documents(path), found.sizes, strict=True) if size)
        before = None
        for split, text in cut(document.chunks(), (total - 2 * held_out, total - held_out)):
            yield split, text, split != before
            before = split
        return
    sealed, search = thresholds(path, found, held_out)
    read = zip(documents(path), found.hashes.tolist(), found.sizes.tolist(), strict=True)
    for document, value, size in read:
        if size:
            split = SEALED if value <= sealed else SEARCH if value <= search else TRAIN
            yield from whole(document, split)


def whole(document: Document, split: int) -> Iterator[tuple[int, str, bool]]:
    starts = True
    for text in document.chunks():
        yield split, text, starts
        starts = False

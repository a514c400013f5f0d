"""Preparing the data of `nanogpt` from the generator and from a text of one's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.environments.preparing import END_OF_TEXT, SPLITS, Lab, make_gpt2, make_lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


# --- Generated ---------------------------------------------------------------------------------


def test_the_generated_text_is_the_published_one(lab: Lab) -> None:
    lab.prepare({"source": "generated", "windows": 256, "window": 64})
    texts = [lab.text(split) for split in SPLITS]
    assert [len(text) for text in texts] == [300_000, 131_072, 131_072]
    found = hashlib.sha256(b"".join(texts)).hexdigest()
    assert found == "23b3a5889f0bf161da37ac7d5299966175d9cee94fa39c62e8884bdb2e0dc7eb"


def test_the_key_changes_all_texts(lab: Lab) -> None:
    config = {"train_bytes": 50_000, "held_out_bytes": 20_000}
    made = []
    for key in ("", "secret", "secret"):
        lab.prepare(config, ASSAY_HELD_OUT_KEY=key)
        made.append([lab.text(split) for split in SPLITS])
    plain, keyed, again = made
    assert keyed == again
    assert all(one != other for one, other in zip(plain, keyed, strict=True))
    documents = [set(text.split(b"\n\n")[:-1]) for text in keyed]
    assert not documents[0] & documents[1]
    assert not documents[0] & documents[2]
    assert not documents[1] & documents[2]


def test_bounds_lie_beside_the_splits_of_generated_text(lab: Lab) -> None:
    config = {"train_bytes": 9_999, "held_out_bytes": 50_000}
    found = []
    for key in ("", "secret"):
        lab.prepare(config, ASSAY_HELD_OUT_KEY=key)
        found.append(json.loads((lab.out / "bounds.json").read_text()))
    assert found[0] != found[1]
    for bounds in found:
        assert bounds.keys() == {"search", "sealed"}
        assert all(0.35 < bound < 0.5 for bound in bounds.values())


# --- A text of one's own -----------------------------------------------------------------------


def test_the_end_of_a_single_text_is_held_out(lab: Lab) -> None:
    text = "".join(f"Line {i} – naïve 文字\r\n" for i in range(20_000)).encode()
    (lab.datasets / "own.txt").write_bytes(text)
    config = {"source": "text", "text_file": "own.txt", "held_out_tokens": 40_000}
    lab.prepare(config)
    assert not (lab.out / "bounds.json").exists()
    assert b"".join(lab.text(split) for split in SPLITS) == text
    for split in ("search", "sealed"):
        assert len(lab.text(split)) in range(39_997, 40_001)  # moved to where a character ends
        lab.text(split).decode()


def test_documents_stay_whole_and_duplicates_together(lab: Lab) -> None:
    texts = [f"Document {i}: " + "word " * (i % 90) for i in range(3000)]
    rows = [{"text": text, "source": "x"} for text in texts + texts[::7]]
    folder = lab.datasets / "mine"
    (folder / "more").mkdir(parents=True)
    half = len(rows) // 2
    for name, part in (("a.jsonl", rows[:half]), ("more/b.jsonl", rows[half:])):
        (folder / name).write_text("\n".join(map(json.dumps, part)) + "\n\n")
    (folder / "c.txt").write_text("A file is a document.")
    (folder / ".hidden").write_bytes(b"\xff")
    lab.prepare({"source": "text", "text_file": "mine", "held_out_tokens": 30_000})
    split = {name: lab.text(name).decode().split("\n\n") for name in SPLITS}
    # The last document of a held-out split may be cut off where the split is full.
    assert set(split["train"]) <= {*texts, "A file is a document."}
    assert set(split["search"][:-1]) | set(split["sealed"][:-1]) <= {*texts}
    assert not set(split["train"]) & (set(split["search"]) | set(split["sealed"]))
    assert not set(split["search"]) & set(split["sealed"])
    assert len(lab.text("search")) == len(lab.text("sealed")) == 30_000
    assert len(split["train"]) > 2500


def test_gpt2_tokens_begin_every_document_with_its_mark(lab: Lab) -> None:
    from tokenizers import Tokenizer

    make_gpt2(lab.datasets / "gpt2" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(lab.datasets / "gpt2" / "tokenizer.json"))
    texts = [f"hello world {i} <|endoftext|> " + "ha " * 100 for i in range(1200)]
    (lab.datasets / "own.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    config = {"source": "text", "text_file": "own.jsonl", "tokenizer": "gpt2"}
    lab.prepare(config | {"held_out_tokens": 4000})
    seen: list[str] = []
    for split in SPLITS:
        tokens = lab.tokens(split)
        assert tokens[0] == END_OF_TEXT
        starts = np.flatnonzero(tokens == END_OF_TEXT)
        documents = [tokenizer.decode(part.tolist()) for part in np.split(tokens, starts)[1:]]
        seen += documents if split == "train" else documents[:-1]
    assert set(seen) <= set(texts)  # the mark as text stays text
    assert len(seen) == len(set(seen)) > 1000


@pytest.mark.slow
def test_a_long_text_has_the_same_tokens_in_pieces_as_in_one(lab: Lab) -> None:
    from tokenizers import Tokenizer

    make_gpt2(lab.datasets / "gpt2" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(lab.datasets / "gpt2" / "tokenizer.json"))
    rng = np.random.default_rng(0)
    words = ["hello", " world", "\n\n", "  ", "don't", " 12", "\t", "…", " \n", "é", "\r\n"]
    text = "".join(rng.choice(words, size=150_000).tolist())
    (lab.datasets / "own.txt").write_bytes(text.encode())
    config = {"source": "text", "text_file": "own.txt", "tokenizer": "gpt2"}
    lab.prepare(config | {"held_out_tokens": 8000})
    train = lab.tokens("train")
    read = tokenizer.decode(train[1:].tolist())
    assert len(text) > len(read) > len(text) - 2 * 5 * 8000 - 10
    whole = tokenizer.encode(read, add_special_tokens=False).ids
    assert train.tolist() == [END_OF_TEXT, *whole]


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


LONG = "some words of text " * 20_000


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.txt", b"", "empty.txt: empty"),
        ("empty.jsonl", b"\n\n", "empty.jsonl: empty"),
        ("small.txt", b"too small", "small.txt: 9 bytes of text are too small; 327,680"),
        ("latin.txt", b"caf\xe9 " * 99_999, "latin.txt: not UTF-8"),
        (
            "a.jsonl",
            lines({"text": LONG}, {"body": "x"}),
            "a.jsonl, line 2: needs a column 'text'",
        ),
        ("b.jsonl", lines({"text": LONG}, {"text": 3}), "b.jsonl, line 2: needs a column 'text'"),
        ("c.jsonl", lines({"text": LONG}, [1]), "found: list"),
        ("d.jsonl", lines({"text": LONG}) + b'{"text": "cut of', "d.jsonl, line 2: not a line"),
        ("e.jsonl", b'{"text": "\\ud800"}', "e.jsonl, line 1: not UTF-8"),
        ("f.jsonl", b'{"text": "\xff"}', "f.jsonl, line 1: not a line of JSON in UTF-8"),
        ("g.jsonl", lines({"text": LONG}, {"text": LONG}), "g.jsonl: its 2 documents are too few"),
    ],
)
def test_bad_texts_are_named(lab: Lab, name: str, content: bytes, expected: str) -> None:
    (lab.datasets / name).write_bytes(content)
    assert expected in lab.refuse({"source": "text", "text_file": name})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"source": "web"}, "source = 'web' is unknown; it is one of generated, text, fineweb"),
        ({"tokenizer": "bert"}, "tokenizer = 'bert' is unknown"),
        ({"source": "text"}, "text_file goes with source"),
        ({"source": "text", "text_file": "no.txt"}, "no.txt does not exist"),
        ({"source": "fineweb"}, 'needs tokenizer = "gpt2" and held_out_tokens'),
        ({"train_bytes": "many"}, "train_bytes = 'many' must be int"),
        ({"train_bytes": 0}, "train_bytes must be at least 1"),
        ({"held_out_tokens": 10**9}, "up to 100,000,000"),
        ({"train_bytes": 9999, "held_out_bytes": 999, "windows": 16, "window": 64}, "needs 1,025"),
    ],
)
def test_bad_configurations_are_named(lab: Lab, config: dict[str, Any], expected: str) -> None:
    assert expected in lab.refuse(config)


def test_another_tokenizer_is_not_taken_for_gpt2s(lab: Lab) -> None:
    make_gpt2(lab.datasets / "gpt2" / "tokenizer.json", hello="help")
    assert "not GPT-2's tokenizer" in lab.refuse({"tokenizer": "gpt2"})
    (lab.datasets / "gpt2" / "tokenizer.json").write_text("{}")
    assert "not a tokenizer.json" in lab.refuse({"tokenizer": "gpt2"})


def test_what_is_there_is_not_overwritten(lab: Lab) -> None:
    config = {"train_bytes": 9999, "held_out_bytes": 999}
    (lab.folder / "out-1" / "train").mkdir(parents=True)
    (lab.folder / "out-1" / "train" / "train_000009.bin").touch()
    assert "not empty; choose another --out" in lab.refuse(config)


def test_a_full_disk_is_called_by_its_name(lab: Lab) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (lab.folder / "out-1" / "train").mkdir(parents=True)
    source = lab.folder / "environment" / "sources" / "shards.py"
    # A disk cannot be filled up here; the device that is always full stands in for the shard.
    opened = 'path.open("wb")'
    assert source.read_text().count(opened) == 1
    source.write_text(source.read_text().replace(opened, 'open("/dev/full", "wb", buffering=0)'))
    assert "no space left" in lab.refuse({"train_bytes": 9999, "held_out_bytes": 999})

"""Preparing the data of `nanogpt` from FineWeb's shards: a (local) hub, or one's own folder."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.environments.hub_server import Hub, serve
from tests.environments.preparing import END_OF_TEXT, Lab, make_gpt2, make_lab, shard

pytestmark = pytest.mark.slow

FINEWEB = "datasets/kjj0/fineweb10B-gpt2"
CONFIG = {"source": "fineweb", "tokenizer": "gpt2", "shards": 2, "held_out_tokens": 100}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


@pytest.fixture
def hub(lab: Lab) -> Iterator[Hub]:
    with serve() as hub:
        lab.environment["HF_ENDPOINT"] = hub.address
        yield hub


def fineweb(train_tokens: int = 5000, train_shards: int = 2) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    files = {"fineweb_val_000000.bin": shard(rng.integers(0, 50_257, 300))}
    for number in range(1, train_shards + 1):
        tokens = rng.integers(0, 50_257, train_tokens)
        files[f"fineweb_train_{number:06d}.bin"] = shard(tokens)
    return files


def check_fineweb(lab: Lab, files: dict[str, bytes]) -> None:
    for number in (1, 2):
        made = (lab.out / "train" / f"train_{number:06d}.bin").read_bytes()
        assert made == files[f"fineweb_train_{number:06d}.bin"]
    validation = np.frombuffer(files["fineweb_val_000000.bin"][1024:], dtype="<u2")
    assert lab.tokens("search").tolist() == validation[:101].tolist()
    assert lab.tokens("sealed").tolist() == validation[101:202].tolist()


def test_fineweb_comes_from_the_hub_once(lab: Lab, hub: Hub) -> None:
    files = fineweb()
    hub.add(FINEWEB, files)
    hub.failures = 1
    printed = lab.prepare(CONFIG, HF_TOKEN="hf_secret")
    check_fineweb(lab, files)
    assert hub.downloads() == list(files)
    assert "[3/3] fineweb_train_000002.bin" in printed
    told = {r.path: r.authorization for r in hub.requests}
    assert {a for path, a in told.items() if path.startswith("/cdn/")} == {None}
    assert {a for path, a in told.items() if not path.startswith("/cdn/")} == {"Bearer hf_secret"}
    # The shards are linked, not copied: 20 GB once, not twice.
    blobs = list((lab.folder / "hf").rglob("blobs/*"))
    assert os.stat(lab.out / "train" / "train_000001.bin").st_ino in [
        b.stat().st_ino for b in blobs
    ]

    hub.requests.clear()
    lab.prepare(CONFIG)
    check_fineweb(lab, files)
    assert hub.requests == []

    blob = next(b for b in blobs if b.name == hashlib.sha256(files[list(files)[1]]).hexdigest())
    blob.write_bytes(bytes(len(files[list(files)[1]])))
    assert "wrong checksum" in lab.refuse(CONFIG)
    lab.prepare(CONFIG)
    check_fineweb(lab, files)
    assert hub.downloads() == [list(files)[1]]


def test_a_broken_connection_is_continued_where_it_broke(lab: Lab, hub: Hub) -> None:
    files = fineweb(train_tokens=6_000_000)
    hub.add(FINEWEB, files)
    hub.cuts["fineweb_train_000001.bin"] = [11 << 20]
    lab.prepare(CONFIG)
    check_fineweb(lab, files)
    asked = hub.asked("GET", "fineweb_train_000001.bin")
    assert [r.range for r in asked] == [None, f"bytes={10 << 20}-"]  # of what was written down


def test_plain_http_is_used_where_the_hub_offers_xet(lab: Lab, hub: Hub) -> None:
    files = fineweb()
    hub.add(FINEWEB, files)
    hub.xet = True
    lab.prepare(CONFIG, HF_TOKEN="hf_secret")
    check_fineweb(lab, files)
    told = {r.authorization for r in hub.requests if r.path.startswith("/cdn/")}
    assert told == {None}


def test_a_killed_preparation_keeps_what_it_has(lab: Lab, hub: Hub) -> None:
    files = fineweb()
    hub.add(FINEWEB, files)
    hub.stalled["fineweb_train_000002.bin"] = threading.Event()
    with lab.start(CONFIG) as process:
        deadline = time.monotonic() + 20
        while not hub.asked("GET", "fineweb_train_000002.bin"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    hub.stalled.pop("fineweb_train_000002.bin").set()
    hub.requests.clear()
    lab.prepare(CONFIG)
    check_fineweb(lab, files)
    assert hub.downloads() == ["fineweb_train_000002.bin"]


def test_the_hubs_checksum_is_checked(lab: Lab, hub: Hub) -> None:
    files = fineweb()
    hub.add(FINEWEB, files)
    hub.corrupt.add("fineweb_train_000001.bin")
    printed = lab.refuse(CONFIG)
    assert "fineweb_train_000001.bin has the wrong checksum" in printed
    assert "run again" in printed
    hub.corrupt.clear()
    lab.prepare(CONFIG)
    check_fineweb(lab, files)


def test_the_checksum_of_small_files_is_checked_too(lab: Lab, hub: Hub) -> None:
    data = make_gpt2(lab.folder / "made.json")
    hub.add("models/openai-community/gpt2", {"tokenizer.json": data})
    hub.corrupt.add("tokenizer.json")
    assert "tokenizer.json has the wrong checksum" in lab.refuse({"tokenizer": "gpt2"})


def test_what_the_hub_does_not_have_is_named_before_anything_is_downloaded(
    lab: Lab, hub: Hub
) -> None:
    assert "no such repository, or it is private" in lab.refuse(CONFIG)
    hub.add(FINEWEB, fineweb())
    printed = lab.refuse(CONFIG | {"shards": 7})
    assert "the hub has no fineweb_train_000003.bin" in printed
    assert "and 2 more" in printed
    hub.add(FINEWEB, fineweb(), gated=True)
    printed = lab.refuse(CONFIG)
    assert "gated: accept its terms" in printed
    assert "HF_TOKEN" in printed
    assert hub.downloads() == []


def test_a_hub_that_is_down_is_given_up_soon(lab: Lab) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        printed = lab.refuse(CONFIG, HF_ENDPOINT=address)
        assert time.monotonic() - started < 10
    assert f"the Hugging Face hub at {address} cannot be reached" in printed
    assert "Set HF_ENDPOINT to a mirror, or ASSAY_DATASETS to a folder that holds" in printed
    assert "fineweb10B/" in printed


def test_ones_own_shards_are_used_instead(lab: Lab) -> None:
    files = fineweb(train_shards=3)
    (lab.datasets / "fineweb10B").mkdir()
    for name, data in files.items():
        (lab.datasets / "fineweb10B" / name).write_bytes(data)
    lab.prepare(CONFIG)
    check_fineweb(lab, files)
    assert "3 training shards are there" in lab.refuse(CONFIG | {"shards": 4})


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("val_000000", shard(np.arange(200)), "200 tokens; search and sealed need 202 together"),
        ("train_000001", shard(np.arange(9))[:-2], "truncated or corrupt"),
        ("train_000001", shard(np.arange(9)) + b"xx", "truncated or corrupt"),
        ("train_000001", shard(np.arange(9), magic=20240801), "wrong magic number 20240801"),
        ("train_000001", shard(np.arange(9), version=2), "version 2"),
        ("train_000001", shard(np.array([50_257])), "outside the vocabulary of 50257"),
        ("train_000001", b"", "0 bytes are no shard"),
        ("train_000001", shard(np.array([])), "truncated or corrupt"),
    ],
)
def test_bad_shards_are_named(lab: Lab, name: str, data: bytes, expected: str) -> None:
    (lab.datasets / "fineweb10B").mkdir()
    for file, content in (fineweb() | {f"fineweb_{name}.bin": data}).items():
        (lab.datasets / "fineweb10B" / file).write_bytes(content)
    printed = lab.refuse(CONFIG)
    assert f"fineweb_{name}.bin" in printed
    assert expected in printed


def test_generated_text_can_be_tokenised_for_gpt2_from_the_hub(lab: Lab, hub: Hub) -> None:
    data = make_gpt2(lab.folder / "made.json")
    hub.add("models/openai-community/gpt2", {"tokenizer.json": data})
    config = {"tokenizer": "gpt2", "train_bytes": 50_000, "held_out_bytes": 10_000}
    lab.prepare(config)
    assert (lab.tokens("train") == END_OF_TEXT).sum() > 50
    assert hub.downloads() == ["tokenizer.json"]

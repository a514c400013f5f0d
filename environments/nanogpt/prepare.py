"""Make the data of the `nanogpt` environment: `python prepare.py --profile tiny --out DIR`.

Writes shards of tokens (see sources/shards.py) for every profile in the same way:

    DIR/train/train_000001.bin ...   what training sees
    DIR/search/val_000000.bin        held out; every result is scored on it
    DIR/sealed/val_000000.bin        held out; for what is found in the end
    DIR/bounds.json                  for generated text: no honest loss is below, by split

The splits are made of different text and never share a folder: each is mounted where only its user
can see it; no sandbox sees bounds.json. Where the text comes from is in environment.toml, under
[profiles.<name>.config]: `source` is "generated", "text" (a file or folder of one's own) or
"fineweb". Generated text, its language included, comes from $ASSAY_HELD_OUT_KEY; without a key it
is the public one.
$ASSAY_DATASETS is a folder with data sets of one's own: nothing found there is downloaded.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sources import fineweb, generated, text
from sources.shards import SHARD_TOKENS, ShardWriter
from sources.tokens import Sink, make_encoder

HERE = Path(__file__).resolve().parent
SPLITS = ("train", "search", "sealed")

# A result below this share of the information in a text's random choices is taken for an error. No
# model gets below all of it on average. The rest is for the windows: they are an eighth of the
# text, and the loss on them differs from that on all of it by 1 or 2 %.
BOUND_SHARE = 0.8


@dataclass(frozen=True)
class Config:
    """The part of a profile's `config` that says what the data is."""

    source: str = "generated"
    """generated, text or fineweb."""

    tokenizer: str = "bytes"
    """bytes or gpt2; the shards of fineweb are tokenised already, for gpt2."""

    text_file: str = ""
    """For text: a path, absolute, or in $ASSAY_DATASETS, or beside this file."""

    train_bytes: int = generated.TRAIN_BYTES
    """For generated: the size of the training text."""

    held_out_bytes: int = generated.HELD_OUT_BYTES
    """For generated: the size of search and of sealed."""

    shards: int = 1
    """For fineweb: how many of the 103 training shards, of 100 million tokens each."""

    held_out_tokens: int = 0
    """For fineweb and text: tokens of search and of sealed. 0 for text: as many as
    `held_out_bytes`. Of a text, a tenth at most."""

    def __post_init__(self) -> None:
        self._one_of("source", ("generated", "text", "fineweb"))
        self._one_of("tokenizer", ("bytes", "gpt2"))
        if (self.source == "text") != bool(self.text_file):
            raise SystemExit(
                'environment.toml: text_file goes with source = "text", and only there'
            )
        if self.source == "fineweb" and (self.tokenizer, self.held_out_tokens > 0) != (
            "gpt2",
            True,
        ):
            raise SystemExit(
                'environment.toml: source = "fineweb" needs tokenizer = "gpt2" and held_out_tokens'
            )
        for name in ("train_bytes", "held_out_bytes", "shards"):
            if getattr(self, name) < 1:
                raise SystemExit(f"environment.toml: {name} must be at least 1")
        if not 0 <= self.held_out_tokens < SHARD_TOKENS or self.held_out_bytes > SHARD_TOKENS:
            raise SystemExit(
                f"environment.toml: a held-out split has up to {SHARD_TOKENS:,} tokens"
            )

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise SystemExit(
                f"environment.toml: {name} = {getattr(self, name)!r} is unknown; it is one of"
                f" {', '.join(allowed)}"
            )


def read_config(manifest: Mapping[str, Any], profile: str) -> Config:
    table = manifest["profiles"][profile].get("config", {})
    values = {f.name: table[f.name] for f in fields(Config) if f.name in table}
    for name, value in values.items():
        wanted = type(getattr(Config, name))
        if type(value) is not wanted:
            raise SystemExit(f"environment.toml: {name} = {value!r} must be {wanted.__name__}")
    return Config(**values)


def tokenise(config: Config, out: Path, datasets: Path | None) -> None:
    """Generated text, or a text of one's own, into shards."""
    encoder = make_encoder(config.tokenizer, datasets)
    limit = config.held_out_tokens or config.held_out_bytes
    with (
        ShardWriter(out / "train", "train", 1) as train,
        ShardWriter(out / "search", "val", 0, limit=limit) as search,
        ShardWriter(out / "sealed", "val", 0, limit=limit) as sealed,
    ):
        sinks = [Sink(encoder, writer) for writer in (train, search, sealed)]
        if config.source == "text":
            path = find_text(config.text_file, datasets)
            for split, piece, starts in text.pieces(path, limit * encoder.bytes_per_token):
                sinks[split].add(piece, starts=starts)
        else:
            bounds = add_generated(config, sinks)
            (out / "bounds.json").write_text(json.dumps(bounds) + "\n")
        for sink in sinks:
            sink.flush()


def add_generated(config: Config, sinks: list[Sink]) -> dict[str, float]:
    """The bound of each held-out split in nats per token, which has a byte or more."""
    key = os.environ.get("ASSAY_HELD_OUT_KEY", "")
    texts = generated.splits(config.train_bytes, config.held_out_bytes, key)
    for sink, made in zip(sinks, texts, strict=True):
        if config.tokenizer == "bytes":
            sink.add(made.data.decode(), starts=False)
            continue
        for document in made.data.decode().rstrip("\n").split("\n\n"):
            sink.add(document, starts=True)
    return {
        split: round(BOUND_SHARE * made.nats_per_byte, 4)
        for split, made in zip(SPLITS, texts, strict=True)
        if split != "train"
    }


def find_text(name: str, datasets: Path | None) -> Path:
    """A path as it stands, or in the user's data sets, or beside this file."""
    if datasets and (datasets / name).exists():
        return datasets / name
    return HERE / name


def check_held_out(config: Mapping[str, Any], out: Path) -> None:
    """The evaluator reads `windows` windows of `window` tokens; better to know before training."""
    needed = config.get("windows", 0) * config.get("window", 0) + 1
    for split in ("search", "sealed"):
        tokens = (out / split / "val_000000.bin").stat().st_size // 2 - 512
        if tokens < needed:
            raise SystemExit(
                f"{split} has {tokens:,} tokens, the evaluation needs {needed:,}: use more text,"
                " or lower `windows` in environment.toml"
            )


def main() -> None:
    manifest = tomllib.loads((HERE / "environment.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", required=True, choices=sorted(manifest["profiles"]))
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    out: Path = arguments.out
    config = read_config(manifest, arguments.profile)
    if used := [split for split in SPLITS if list((out / split).glob("*"))]:
        raise SystemExit(f"{out / used[0]}: not empty; choose another --out")
    given = os.environ.get("ASSAY_DATASETS")
    datasets = Path(given) if given else None
    if datasets and not datasets.is_dir():
        raise SystemExit(f"ASSAY_DATASETS: {datasets} is no folder")
    try:
        if config.source == "fineweb":
            fineweb.prepare(out, config.shards, config.held_out_tokens, datasets)
        else:
            tokenise(config, out, datasets)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SystemExit(f"{out}: no space left; make room, or move the cache folder") from None
    check_held_out(manifest["profiles"][arguments.profile].get("config", {}), out)


if __name__ == "__main__":
    main()

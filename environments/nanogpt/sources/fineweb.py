"""FineWeb-10B, tokenised for GPT-2: the shards that the published numbers were made with.

One shard of 100 million tokens is for validation, up to 103 are for training. They are taken from
`$ASSAY_DATASETS/fineweb10B/` if that folder is there, otherwise from the hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sources import (
    hub,  # Assay adds it; by hand: `assay env unpack nanogpt DIR`
    shards,
)

REPOSITORY = "kjj0/fineweb10B-gpt2"
FOLDER = "fineweb10B"


def prepare(out: Path, train_shards: int, held_out_tokens: int, datasets: Path | None) -> None:
    """Search is the start of the validation shard, as published; sealed is what follows it.

    One token more than `held_out_tokens` each, so that as many are predicted.
    """
    names = ["fineweb_val_000000.bin"]
    names += [f"fineweb_train_{number:06d}.bin" for number in range(1, train_shards + 1)]
    own = datasets / FOLDER if datasets else None
    if own and own.is_dir():
        paths = local(own, names)
    else:
        paths = hub.fetch(REPOSITORY, names, kind="dataset", own=f"{FOLDER}/{names[0]} etc.")
    hold_out(next(paths), out, held_out_tokens)
    train = out / "train"
    train.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths, 1):
        count = len(shards.read(path))
        target = train / f"train_{number:06d}.bin"
        hub.link(path, target)
        print(f"{target}: {count:,} tokens", flush=True)


def local(folder: Path, names: list[str]) -> Iterator[Path]:
    for name in names:
        if not (folder / name).is_file():
            there = len(list(folder.glob("fineweb_train_*.bin")))
            raise SystemExit(
                f"{folder}: {name} is missing; {there} training shards are there: add it, or lower"
                " `shards` in environment.toml"
            )
    return iter([folder / name for name in names])


def hold_out(path: Path, out: Path, held_out_tokens: int) -> None:
    tokens = shards.read(path)
    size = held_out_tokens + 1
    if len(tokens) < 2 * size:
        raise SystemExit(
            f"{path}: {len(tokens):,} tokens; search and sealed need {2 * size:,} together: lower"
            " `held_out_tokens` in environment.toml"
        )
    for number, split in enumerate(("search", "sealed")):
        with shards.ShardWriter(out / split, "val", 0) as writer:
            writer.add(tokens[number * size : (number + 1) * size])

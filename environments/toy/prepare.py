"""Make the landscapes of the `toy` environment: `python prepare.py --profile tiny --out DIR`.

One rugged landscape for the search to see (`train/`), and the same with its bottom moved a little
for scoring (`search/`, `sealed/`): a program can find out about where the bottom is, and cannot
know it exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

DIMENSIONS = 6
SEED = 7
SHIFT = 0.05


def landscapes() -> dict[str, dict[str, list[float]]]:
    """For each split: where the bottom is, and the frequency of the ripples in each direction."""
    rng = random.Random(SEED)
    bottom = [rng.uniform(-2.0, 2.0) for _ in range(DIMENSIONS)]
    waves = [rng.uniform(2.0, 4.0) for _ in range(DIMENSIONS)]
    made = {}
    key = os.environ.get("ASSAY_HELD_OUT_KEY", "")
    for split, shift in (("train", 0.0), ("search", SHIFT), ("sealed", SHIFT)):
        if key:  # the bottoms that score are then known to nobody who does not know it
            rng = random.Random(f"{SEED} {key} {split}")
        moved = [round(b + rng.gauss(0.0, shift), 6) for b in bottom]
        made[split] = {"bottom": moved, "waves": [round(w, 6) for w in waves]}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", required=True, choices=["tiny"])
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    for split, landscape in landscapes().items():
        folder = arguments.out / split
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "landscape.json").write_text(json.dumps(landscape))


if __name__ == "__main__":
    main()

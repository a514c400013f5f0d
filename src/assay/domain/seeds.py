"""Seeds that selected nothing, for confirmations and comparisons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

#: Fresh seeds lie above those of baselines and those that people choose.
FIRST_FRESH_SEED = 1_000_000
_PLACES = 1_000_000
#: No batch has more seeds.
_APART = 64


def fresh_seeds(codebases: Sequence[str], number: int) -> list[int]:
    """Return seeds that nobody has looked at: they follow from what is confirmed, and on how many.

    The same codebases on the same number of seeds get the same seeds, so asking until the answer
    is yes does not help; others get other seeds, so what is known of these says nothing of them.
    """
    named = json.dumps([sorted(codebases), number]).encode()
    place = int.from_bytes(hashlib.sha256(named).digest()[:8], "big") % _PLACES
    start = FIRST_FRESH_SEED + place * _APART
    return list(range(start, start + number))

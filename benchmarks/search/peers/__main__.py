"""The process of one draw of a peer; `alone.py` starts it.

It reads a pickle of search, world, budget and seed from its input and writes one of the `Outcome`.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from assay.domain.hashing import derive_seed
from benchmarks.search.peers.model import MutatorModel
from benchmarks.search.peers.service import LabService, Spent


def main() -> None:
    """Search and answer."""
    path, world, budget, seed = pickle.load(sys.stdin.buffer)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an optimizer prints is not the answer
    _seed(seed)
    module, _, function = path.partition(":")
    search: Callable[[LabService, MutatorModel, int], None] = getattr(
        import_module(module), function
    )
    service = LabService(world, budget, seed)
    with suppress(Spent):
        search(service, MutatorModel(service, budget, seed), seed)
    with answer:
        pickle.dump(service.finish(), answer)


def _seed(seed: int) -> None:
    """Give ids and the global generator a seed."""
    ids = random.Random(derive_seed(seed, "ids"))
    uuid.uuid4 = lambda: uuid.UUID(int=ids.getrandbits(128), version=4)
    random.seed(derive_seed(seed, "global"))


if __name__ == "__main__":
    main()

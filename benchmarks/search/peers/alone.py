"""Run each draw of a peer in a process of its own, so that it can be repeated.

Optimizers keep state in modules, draw ids from the system and iterate over sets of them. A process
with seeds for all of that gives the same search for the same draw, whatever ran before.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.search.lab import Outcome
from benchmarks.search.worlds import World

_ROOT = Path(__file__).parents[3]
#: Seconds of one draw, far more than any needs.
_TIMEOUT = 3600


class PeerFailed(Exception):
    """A peer's process ended without an outcome."""


@dataclass(frozen=True)
class IsolatedPeer:
    """A peer that searches in a process of its own.

    Attributes:
        name: How tables call it.
        search: `module:function`, called with a `LabService`, a `MutatorModel` and the seed. It
            searches until one of them raises `Spent`.
    """

    name: str
    search: str

    def run(self, world: World, budget: float, seed: int) -> Outcome:
        """Search in a world with the luck of a seed, for so many core-seconds.

        Raises:
            PeerFailed: it ended without an outcome; the message ends with what it wrote.
        """
        with tempfile.TemporaryDirectory(prefix="peer-") as folder:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.search.peers"],
                input=pickle.dumps((self.search, world, budget, seed)),
                capture_output=True,
                cwd=folder,
                env=_environment(folder),
                timeout=_TIMEOUT,
                check=False,
            )
        if done.returncode:
            raise PeerFailed(f"{self.name}, draw {seed}: {done.stderr.decode()[-2000:]}")
        outcome = pickle.loads(done.stdout)
        assert isinstance(outcome, Outcome)
        return outcome


def _environment(folder: str) -> dict[str, str]:
    """Return the variables of the process: the order of sets is fixed, and no key is there."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**kept, "PYTHONHASHSEED": "0", "PYTHONPATH": str(_ROOT), "TMPDIR": folder}

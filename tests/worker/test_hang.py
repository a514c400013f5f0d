"""Programs that hang, with all a hang can bring, are contained and cost their budget only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.fake_worker_api import Record
from tests.worker.conftest import Lab

pytestmark = pytest.mark.slow

_log = logging.getLogger(__name__)
#: Of sixty: what hangs, what forks and hangs, what is broken, and what is good.
SLOTS, HUNG, FORKED, BROKEN, GOOD = 4, 5, 5, 12, 38
BUDGET, GRACE, WORK = 2.0, 0.2, 0.5

HANG = """
while True:
    time.sleep(60)
"""
BREAK = "raise ValueError('broken')"
FORK = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
MARK = {mark!r}
for _ in range(3):
    if os.fork() == 0:  # a grandchild that left its session and its parent
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(60)
        os._exit(0)
while True:
    time.sleep(60)
"""


def marked(mark: str) -> list[int]:
    """Living processes of a codebase with this mark, told by what they were started with."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not dead and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def order(kinds: Mapping[str, int]) -> list[str]:
    """The kinds of measurements in the order of their arrival: evenly mixed."""
    places = [((n + 0.5) / count, kind) for kind, count in kinds.items() for n in range(count)]
    return [kind for _, kind in sorted(places)]


def ideal(kinds: list[str], slots: int, seconds: Mapping[str, float]) -> float:
    """The time that so many slots need for exactly this, in this order."""
    busy = [0.0] * slots
    for kind in kinds:
        busy[busy.index(min(busy))] += seconds[kind]
    return max(busy)


@pytest.mark.bubblewrap
@pytest.mark.timeout(600)
def test_hangs_cost_their_budgets_and_nothing_else(lab: Lab) -> None:
    seed = time.time_ns() % 10**15
    lab.start(
        sandbox="bubblewrap",
        cpus=SLOTS,
        memory_bytes=SLOTS << 29,
        grace_seconds=GRACE,
        poll_seconds=0.3,
    )
    # Warm: the environment is fetched and prepared once for a host.
    lab.api.finished(lab.assign(lab.codebase("answer(score=1)")), 120)
    trains = {
        "hangs": HANG,
        "forks": FORK.format(mark="x"),
        "breaks": BREAK,
        "good": f"time.sleep({WORK})\nanswer(score=1)",
    }
    codebases = {kind: lab.codebase(train) for kind, train in trains.items()}

    def assign(kind: str) -> Record:
        profile = "small" if kind == "good" else "brief"
        return lab.assign(codebases[kind], profile, seed=seed)

    alone = {kind: timed(lambda k=kind: lab.api.finished(assign(k), 120)) for kind in trains}
    assert max(alone["hangs"], alone["forks"]) < BUDGET + GRACE + 10

    kinds = order({"hangs": HUNG, "forks": FORKED, "breaks": BROKEN, "good": GOOD})
    began = time.monotonic()
    records = [(kind, assign(kind)) for kind in kinds]
    lab.api.wait(lambda: all(r.end is not None for _, r in records), 400)
    took = time.monotonic() - began

    deserved = {"hangs": "wall_budget_exceeded", "forks": "wall_budget_exceeded"}
    deserved["breaks"] = "crashed"
    for kind, record in records:
        assert record.end is not None
        if kind == "good":
            assert record.end["state"] == "succeeded", record.end["failure"]
        else:
            assert record.end["failure"]["code"] == deserved[kind]
            assert record.end["infrastructure"] is False
    assert marked(f"ASSAY_SEED={seed}") == []
    best = ideal(kinds, SLOTS, alone)
    _log.info("%.1f s, ideal %.1f s: %.2f", took, best, took / best)
    # On an idle host 1.1; other tests run beside this one. A slot that a hang kept for itself
    # would cost a quarter of everything, and five of them would end it all.
    assert took < 1.6 * best, (took, best)


def timed(action: Callable[[], object]) -> float:
    since = time.monotonic()
    action()
    return time.monotonic() - since

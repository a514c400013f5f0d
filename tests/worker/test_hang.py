"""Programs that hang, with all a hang can bring, are contained and cost their budget only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_worker_api import Record
from tests.worker.conftest import Lab

pytestmark = pytest.mark.slow

_log = logging.getLogger(__name__)
SLOTS, HUNG, GOOD = 4, 5, 55
BUDGET, GRACE, WORK = 2.0, 0.2, 0.5

HANG = """
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


def spread(hung: int, good: int) -> list[bool]:
    """Which of the measurements hang, in the order of their arrival: every so many one."""
    every = (hung + good) // hung
    return [n % every == 0 for n in range(hung + good)]


def ideal(order: list[bool], slots: int, hang_seconds: float, work_seconds: float) -> float:
    """The time that so many slots need for exactly this, in this order."""
    busy = [0.0] * slots
    for hangs in order:
        place = busy.index(min(busy))
        busy[place] += hang_seconds if hangs else work_seconds
    return max(busy)


@pytest.mark.bubblewrap
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
    hang = lab.codebase(HANG.format(mark="x"))
    good = lab.codebase(f"time.sleep({WORK})\nanswer(score=1)")
    alone = timed(lambda: lab.api.finished(lab.assign(good, seed=seed), 120))
    hung_alone = timed(lambda: lab.api.finished(lab.assign(hang, "brief", seed=seed), 120))
    assert hung_alone < BUDGET + GRACE + 10

    records: list[tuple[bool, Record]] = []
    began = time.monotonic()
    for hangs in spread(HUNG, GOOD):
        record = lab.assign(hang, "brief", seed=seed) if hangs else lab.assign(good, seed=seed)
        records.append((hangs, record))
    lab.api.wait(lambda: all(r.end is not None for _, r in records), 240)
    took = time.monotonic() - began

    for hangs, record in records:
        assert record.end is not None
        if hangs:
            assert record.end["failure"]["code"] == "wall_budget_exceeded"
            assert record.end["infrastructure"] is False
        else:
            assert record.end["state"] == "succeeded", record.end["failure"]
    assert marked(f"ASSAY_SEED={seed}") == []
    best = ideal(spread(HUNG, GOOD), SLOTS, hung_alone, alone)
    _log.info("%.1f s, ideal %.1f s: %.2f", took, best, took / best)
    # On an idle host 1.1; other tests run beside this one. A slot that a hang kept for itself
    # would cost a quarter of everything, and five of them would end it all.
    assert took < 1.4 * best, (took, best)


def timed(action: Callable[[], object]) -> float:
    since = time.monotonic()
    action()
    return time.monotonic() - since

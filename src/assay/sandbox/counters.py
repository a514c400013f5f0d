"""Blur counters of the kernel that outlive a sandbox; the backends call this when one ends.

The kernel numbers the inodes of pipes and of shared memory for the whole host, on each processor
from a block of 1024. Any program can move these numbers, and the next one can read them. A program
that was shown held-out data could leave a part of it there. After it has ended, every processor
takes a random number of steps, so that where it stands within its block tells nothing.

The number of blocks that were used remains, and so does what two live programs tell each other;
see "Known limits" in docs/security.md.
"""

from __future__ import annotations

import os
import random
import sys
import threading

BLOCK = 1024


def advance_counters(*, shared_memory: bool = False) -> None:
    """Take up to `BLOCK` random steps on every processor that this thread may use.

    `shared_memory` advances the inode numbers of files in memory, too. Costs a few milliseconds
    per processor.
    """
    if sys.platform != "linux":
        return
    # A thread of its own, because the choice of a processor is a thread's.
    thread = threading.Thread(target=_advance, args=(shared_memory,), name="counters")
    thread.start()
    thread.join()


def _advance(shared_memory: bool) -> None:
    if sys.platform != "linux":
        return
    source = random.SystemRandom()
    for processor in os.sched_getaffinity(0):
        try:
            os.sched_setaffinity(0, {processor})
        except OSError:  # it was taken away meanwhile
            continue
        for _ in range(source.randrange(BLOCK)):
            for descriptor in os.pipe():
                os.close(descriptor)
        if shared_memory:
            for _ in range(source.randrange(BLOCK)):
                os.close(os.memfd_create("assay-counter"))

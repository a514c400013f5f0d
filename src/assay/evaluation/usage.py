"""What the programs of an evaluation used."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CpuSeconds:
    """CPU seconds of the programs of an evaluation, a number for each.

    `total` has every program that ended. Only programs that say `ready` are in the others:
    `starting` is what they had used by then, importing libraries, and `answering` what they used
    afterwards, which is what the code of an idea took.
    """

    total: list[float] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    answering: list[float] = field(default_factory=list)

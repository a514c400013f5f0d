"""The corpus: which cases there are, and each of them from its number alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

from benchmarks.patching.changes import Wish, true_edit
from benchmarks.patching.corrupt import MODES, compatible, corrupt, in_order
from benchmarks.patching.model import Case
from benchmarks.patching.proof import doubt
from benchmarks.patching.refuse import ESCAPES, REFUSALS
from benchmarks.patching.render import render

# Shares of the corpus. Escapes have one case per spelling and tree.
SHARES = {"clean": 0.07, "single": 0.50, "pair": 0.20, "must_refuse": 0.16, "escape": 0.07}
TRIES = 60


@dataclass(frozen=True)
class Slot:
    """A place in the corpus that one case fills."""

    group: str
    modes: tuple[str, ...]
    number: int

    def random(self, seed: int, attempt: int) -> Random:
        return Random(f"{seed}/{self.group}/{'+'.join(self.modes)}/{self.number}/{attempt}")


@dataclass
class Found:
    """What became of a slot: its case, and why other attempts were dropped."""

    case: Case | None = None
    dropped: Counter[str] = field(default_factory=Counter)


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    names = list(MODES)
    return tuple(
        (a, b)
        for n, a in enumerate(names)
        for b in names[n + 1 :]
        if compatible(a, b) and _wish((a, b))
    )


def _wish(modes: tuple[str, ...]) -> Wish | None:
    """What an edit has to be like for all the modes; None where they want opposites."""
    wish = Wish()
    for mode in modes:
        other = MODES[mode].wish
        for name in ("operation", "style"):
            one, two = getattr(wish, name), getattr(other, name)
            if one and two and one != two and not {one, two} <= {"none", ""}:
                return None
        wish = Wish(
            (max(wish.files[0], other.files[0]), min(wish.files[1], other.files[1])),
            max(wish.edits, other.edits),
            wish.operation or other.operation,
            wish.style or other.style,
            wish.plain or other.plain,
            wish.only_python or other.only_python,
        )
    return wish


def slots(cases: int, seed: int) -> list[Slot]:
    """The plan of a corpus of about that many cases."""
    count = {group: max(1, round(cases * share)) for group, share in SHARES.items()}
    found = [Slot("clean", ("clean",), n) for n in range(count["clean"])]
    names = list(MODES)
    found += [Slot("single", (names[n % len(names)],), n) for n in range(count["single"])]
    shuffled = list(pairs())
    Random(f"{seed}/pairs").shuffle(shuffled)
    found += [Slot("pair", shuffled[n % len(shuffled)], n) for n in range(count["pair"])]
    for group, makers in (("must_refuse", REFUSALS), ("escape", ESCAPES)):
        names = list(makers)
        found += [Slot(group, (names[n % len(names)],), n) for n in range(count[group]) if names]
    return found


def _determined(slot: Slot, seed: int) -> Found:
    modes = () if slot.modes == ("clean",) else in_order(slot.modes)
    wish = _wish(modes) or Wish()
    found = Found()
    for attempt in range(TRIES):
        random = slot.random(seed, attempt)
        document = true_edit(random, wish)
        document = corrupt(random, document, modes) if document else None
        if document is None:
            continue
        reason = doubt(document)
        if reason:
            found.dropped[reason] += 1
            continue
        answer = render(document)
        group = slot.group
        found.case = Case(
            group,  # type: ignore[arg-type]
            slot.modes, document.base, answer, document.target, kinds=document.kinds,
        )  # fmt: skip
        if random.random() < 0.2:
            found.case = replace(found.case, protected=("evaluator/*", "**/*.lock"))
        return found
    return found


def fill(slot: Slot, seed: int) -> Found:
    """The case of a slot: always the same one."""
    if slot.group not in ("must_refuse", "escape"):
        return _determined(slot, seed)
    maker = (REFUSALS if slot.group == "must_refuse" else ESCAPES)[slot.modes[0]]
    for attempt in range(TRIES):
        case = maker(slot.random(seed, attempt))
        if case is not None:
            case = replace(case, group=slot.group, modes=slot.modes)  # type: ignore[arg-type]
            return Found(case)
    return Found()

"""Recognise what an earlier application of the same answer has done: nothing is done twice."""

from collections import Counter

from assay.patching.effort import Effort
from assay.patching.keys import FileText, squash
from assay.patching.place import STRICT, Fit, places_of
from assay.patching.reading import Reading
from assay.patching.types import Tier
from assay.patching.weave import Edit, apply_edits

_COMPARED = 100  # lines that are compared in one step of effort


def stands_already(file: FileText, reading: Reading, effort: Effort) -> bool:
    """Whether what the hunk makes of its place is what stands there: it must not be done twice.

    After an edit the old lines may still be found, inside the new ones or, if whitespace does not
    count, as the new ones. Raises Exhausted.
    """
    fit = reading.fit
    new = fit.hunk.new
    if not reading.edits or not fit.hunk.old:
        return False
    strict = fit.tier in STRICT
    surplus = len(new) - len(fit.hunk.old)
    if surplus > 0 or (surplus == 0 and not strict):
        tier: Tier = "indentation" if strict else "whitespace"
        for start in places_of(file, tier if "".join(new).strip() else "exact", new, effort):
            end = start + len(new)
            if start <= fit.start and fit.end <= end:
                return True
            if not strict and start < fit.end and fit.start < end:
                return True
    if _is_done_beside(file, reading, effort):
        return True
    return fit.tier == "aligned" and (adds_left_out(file, fit) or _adds_what_stands(file, fit))


def _is_done_beside(file: FileText, reading: Reading, effort: Effort) -> bool:
    """Whether the lines of the place, once changed, are what stands there and around it."""
    fit = reading.fit
    size = fit.end - fit.start
    shifted = [Edit(e.start - fit.start, e.end - fit.start, e.lines) for e in reading.edits]
    after = apply_edits(file.lines[fit.start : fit.end], shifted)
    if len(after) <= size:
        return False
    starts = range(max(0, fit.end - len(after)), fit.start + 1)
    effort.spend(len(starts) // _COMPARED)
    for start in starts:
        if file.lines[start] == after[0]:
            effort.spend(1 + min(len(after), len(file.lines)) // _COMPARED)
            if file.lines[start : start + len(after)] == after:
                return True
    return False


def adds_left_out(file: FileText, fit: Fit) -> bool:
    """Whether the lines a fit adds are among those that it leaves out of the file."""
    added = Counter(squash(line.text) for line in fit.hunk.lines if line.mark == "+")
    del added[""]
    keys = file.keys("whitespace")
    matched = set(fit.at)
    return bool(added) and added <= Counter(
        keys[j] for j in range(fit.start, fit.end) if j not in matched
    )


def _adds_what_stands(file: FileText, fit: Fit) -> bool:
    """Whether the lines a fit adds stand in and around its place already, besides what it matched.

    Only lines count that it does not remove or show as well.
    """
    keys = file.keys("whitespace")
    old = {squash(text) for text in fit.hunk.old}
    added = Counter(squash(line.text) for line in fit.hunk.lines if line.mark == "+")
    size = added.total()
    new = Counter({key: count for key, count in added.items() if key and key not in old})
    same = {
        at
        for line, at in zip(fit.hunk.lines, fit.at, strict=True)
        if at is not None and squash(line.text) == keys[at]
    }
    window = range(max(0, fit.start - size), min(len(keys), fit.end + size))
    return bool(new) and new <= Counter(keys[j] for j in window if j not in same)

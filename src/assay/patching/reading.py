"""A place of a hunk together with what the hunk means there."""

from dataclasses import dataclass

from assay.patching.effort import Effort
from assay.patching.indent import written_out
from assay.patching.keys import FileText
from assay.patching.place import Fit
from assay.patching.weave import Edit, weave

_STEPS = 2  # of effort for each line of a hunk, measured


@dataclass(frozen=True)
class Reading:
    """A fit, and the edits it means; several versions where their indentation is open."""

    fit: Fit
    versions: tuple[tuple[Edit, ...], ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        return self.versions[0]


def read_fit(file: FileText, fit: Fit, effort: Effort) -> Reading:
    """Return what a fitted hunk means.

    Raises Doubt where it leaves the result open, Exhausted where reading it takes too much work.
    """
    versions: list[tuple[Edit, ...]] = []
    effort.spend(_STEPS * len(fit.at))
    for added in written_out(file, fit, effort):
        if versions:
            effort.spend(_STEPS * len(fit.at))
        versions.append(weave(file, fit, added))
    return Reading(fit, tuple(versions))

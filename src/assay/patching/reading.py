"""A place of a hunk together with what the hunk means there."""

from dataclasses import dataclass

from assay.patching.indent import written_out
from assay.patching.keys import FileText
from assay.patching.place import Fit
from assay.patching.weave import Edit, weave


@dataclass(frozen=True)
class Reading:
    """A fit, and the edits it means; several versions where their indentation is open."""

    fit: Fit
    versions: tuple[tuple[Edit, ...], ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        return self.versions[0]


def read_fit(file: FileText, fit: Fit) -> Reading:
    """What a fitted hunk means. Raises Doubt where it leaves the result open."""
    return Reading(fit, tuple(weave(file, fit, added) for added in written_out(file, fit)))

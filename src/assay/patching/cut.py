"""Whether an answer stops in the middle of a hunk."""

from collections.abc import Sequence

from assay.patching.keys import FileText
from assay.patching.markers import Numbers
from assay.patching.place import Fit
from assay.patching.types import Cut, Hunk, Line

_MISCOUNT = 3  # lines by which the numbers of a whole hunk may be too high


def is_cut(lines: Sequence[Line], numbers: Numbers | None, *, unclosed: bool, torn: bool) -> Cut:
    """Whether an answer that ends with this hunk seems to stop in the middle of it.

    Models miscount, so that too few lines alone prove nothing. A change with no context behind it
    does, or a fence that is not closed (`unclosed`), or many missing lines where the last one has
    no line feed (`torn`). At the end of a file there is no more context to come.
    """
    marks = [line.mark for line in lines]
    open_end = marks[-1] in "+-" or not any(mark in "+-" for mark in marks)
    if numbers is None:
        return "unless_at_end" if unclosed and open_end else "no"
    old = numbers.old - sum(mark in " -" for mark in marks)
    new = numbers.new - sum(mark in " +?" for mark in marks)
    if old == new == 0:
        return "unless_at_end" if unclosed and open_end else "no"
    short = old >= 0 and new >= 0
    if unclosed and (short or open_end):
        return "yes"
    if torn and old != new and min(old, new) > _MISCOUNT and marks[-1:-4:-1] != [" ", " ", " "]:
        return "yes"
    if open_end and short and not old == new <= _MISCOUNT:
        return "unless_at_end" if new <= _MISCOUNT else "yes"
    return "no"


def is_torn(hunk: Hunk, fit: Fit, file: FileText) -> bool:
    """Whether the answer stops in this hunk: early, or in the middle of its last line."""
    if hunk.cut != "no":
        return hunk.cut == "yes" or fit.end < len(file.lines)
    line, at = fit.hunk.lines[-1], fit.at[-1]
    if not hunk.torn or line.mark != " ":
        return False
    after = at if at is not None else fit.end
    real = file.lines[after].rstrip() if after < len(file.lines) else ""
    told = line.text.rstrip()
    return told != real and bool(told.strip()) and real.startswith(told)

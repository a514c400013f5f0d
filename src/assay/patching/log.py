"""What a refused answer is told: the expected lines, what really stands, what to send instead."""

import difflib
import re
from collections.abc import Iterable

from assay.patching.place import Fit
from assay.patching.types import Hunk

_SHOWN = 14  # lines of an excerpt
_WIDTH = 160
_MAX_LINES = 4_000  # of a file searched for the nearest text
_AGAIN = "Send the whole answer again, written against the original files."


def gone_already(path: str, files: Iterable[str]) -> str:
    return f"`{path}` is gone, so that nothing is to be done. {unknown_file(path, files)}"


def unknown_file(path: str, files: Iterable[str]) -> str:
    names = sorted(files)
    near = difflib.get_close_matches(path, names, n=1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    listed = ", ".join(f"`{name}`" for name in names[:40])
    return (
        f"There is no file `{path}` in the codebase.{hint} The files are: {listed}. "
        "A new file starts with `--- /dev/null`."
    )


def conflict(path: str, index: int) -> str:
    return (
        f"`{path}`, hunk {index}: it changes lines that another hunk of the answer changes too. "
        f"Join the two hunks into one. {_AGAIN}"
    )


def all_stands() -> str:
    return f"Everything the edits ask for stands in the files already: nothing to do. {_AGAIN}"


def again() -> str:
    return (
        "The edits could be applied to their own result once more, so that nothing tells whether "
        "the files hold them already. Copy more of the unchanged lines around each change, at "
        f"least two before and two after it. {_AGAIN}"
    )


def already_applied(path: str, index: int) -> str:
    return (
        f"`{path}`, hunk {index}: its new lines stand in the file already: nothing to do. "
        f"Leave it out, or change what is really there. {_AGAIN}"
    )


def ambiguous(path: str, index: int, hunk: Hunk, lines: list[str], found: list[Fit]) -> str:
    where = ", ".join(
        f"line {place.start + 1}{_enclosing(lines, place.start)}" for place in found[:8]
    )
    return (
        f"`{path}`, hunk {index}: its old lines stand in {len(found)} places ({where}):\n"
        f"{_quoted(hunk.old)}\n"
        "Copy more of the unchanged lines around the place you mean (for example its `def` line) "
        f"until only one place fits. {_AGAIN}"
    )


def no_match(path: str, index: int, hunk: Hunk, lines: list[str]) -> str:
    head = (
        f"`{path}`, hunk {index}: these lines stand nowhere in the file, one after the other:\n"
        f"{_quoted(hunk.old)}\n"
    )
    start, differing = _nearest(hunk.old, lines)
    if start is None:
        return f"{head}Nothing like them was found. Copy the lines from `{path}` exactly. {_AGAIN}"
    first = f"The first line that differs is {differing!r}. " if differing is not None else ""
    size = min(_SHOWN, len(hunk.old) + 4)
    begin = max(0, start - 2)
    shown = [
        f"{i + 1:5d}\t{lines[i][:_WIDTH]}" for i in range(begin, min(len(lines), begin + size))
    ]
    return (
        f"{head}{first}The nearest lines of `{path}` are (number, tab, line):\n"
        + "\n".join(shown)
        + f"\nCopy them exactly, without numbers, where the change belongs. {_AGAIN}"
    )


def unanchored(path: str, index: int) -> str:
    return (
        f"`{path}`, hunk {index}: it adds lines but shows no line of the file, so its place "
        f"is unknown. Copy the three lines before and after the place exactly. {_AGAIN}"
    )


def doubt(path: str, index: int, why: str) -> str:
    return (
        f"`{path}`, hunk {index}: {why}. Copy the lines around the change from the file exactly, "
        f"without leaving any out. {_AGAIN}"
    )


def truncated(path: str, index: int) -> str:
    return (
        f"`{path}`, hunk {index}: the answer ends in the middle of it. Send the whole diff again; "
        "make it shorter if there is not enough room, and close the fence."
    )


def too_much(path: str, index: int) -> str:
    return (
        f"`{path}`, hunk {index}: its lines do not stand in the file as written, and the answer "
        f"is too long to look for the nearest place. Copy the old lines exactly. {_AGAIN}"
    )


def too_much_work(path: str) -> str:
    return (
        f"`{path}`: its hunks take too much work to place. Send fewer and shorter hunks, with "
        f"enough unchanged lines around each change that only one place fits. {_AGAIN}"
    )


def placeholder(path: str, index: int, text: str) -> str:
    return (
        f"`{path}`, hunk {index}: the added line {text.strip()[:120]!r} stands for code "
        "that is left out; it would replace that code. Write out every line that is to stand in "
        f"the file, and leave alone what does not change. {_AGAIN}"
    )


def open_indentation(path: str) -> str:
    return (
        f"`{path}`: the lines around the change are indented otherwise than in the file, so that "
        f"the indentation of the new lines is unclear. Copy the old lines exactly. {_AGAIN}"
    )


def file_exists(path: str) -> str:
    return f"`{path}` exists already. Change it with hunks instead of creating it."


def created_already(path: str) -> str:
    return f"`{path}` exists already with just this text: nothing to do. Leave it out. {_AGAIN}"


def nowhere(path: str, index: int) -> str:
    return f"`{path}`, hunk {index}: its old lines stand nowhere in the file either."


def syntax_error(path: str, error: SyntaxError, source: str) -> str:
    lines = source.split("\n")
    at = (error.lineno or 1) - 1
    shown = [
        f"{i + 1:5d}\t{lines[i][:_WIDTH]}" for i in range(max(0, at - 4), min(len(lines), at + 4))
    ]
    return (
        f"With the change applied, `{path}` is no longer valid Python: {error.msg} "
        f"(line {at + 1} of the changed file). Around it stands:\n"
        + "\n".join(shown)
        + f"\nMind indentation and whole statements. {_AGAIN}"
    )


def _quoted(texts: list[str]) -> str:
    shown = [f"  | {text[:_WIDTH]}" for text in texts[:_SHOWN]]
    if len(texts) > _SHOWN:
        shown.append(f"  | … {len(texts) - _SHOWN} more lines")
    return "\n".join(shown)


def _enclosing(lines: list[str], at: int) -> str:
    for text in reversed(lines[:at]):
        words = text.split()
        if words and words[0] in ("def", "class", "async"):
            return f" in `{text.strip()[:60]}`"
    return ""


def _nearest(old: list[str], lines: list[str]) -> tuple[int | None, str | None]:
    """Where most of `old` stands in order, and the first of its lines that is not there."""
    wanted = [text.strip() for text in old[:40]]
    have = [text.strip() for text in lines[:_MAX_LINES]]
    best, best_score = None, 0.0
    for start in range(len(have)):
        pairs = zip(wanted, have[start : start + len(wanted)], strict=False)
        score = sum(1.0 for one, other in pairs if one and one == other)
        if score > best_score:
            best, best_score = start, score
    if best is None:
        best = _alike(wanted, have)
    if best is None:
        return None, None
    there = have[best : best + len(wanted)]
    there += [""] * (len(wanted) - len(there))
    trios = zip(old, wanted, there, strict=False)
    return best, next((text for text, one, other in trios if one != other), None)


def _alike(wanted: list[str], have: list[str]) -> int | None:
    """Where the text would start if one of its longest lines stood where most of its words do."""
    told = sorted(range(len(wanted)), key=lambda i: len(wanted[i]), reverse=True)[:4]
    words = [set(re.findall(r"\w{3,}", line)) for line in have]
    for i in told:
        mine = set(re.findall(r"\w{3,}", wanted[i]))
        shared = [len(mine & others) for others in words]
        most = max(shared, default=0)
        if mine and 2 * most >= len(mine):
            ties = [j for j, count in enumerate(shared) if count == most][:50]
            return max(0, max(ties, key=lambda j: _ratio(wanted[i], have[j])) - i)
    return None


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one[:_WIDTH], other[:_WIDTH], autojunk=False).ratio()

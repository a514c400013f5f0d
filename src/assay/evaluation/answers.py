"""Find the one answer in a completion. For environments whose models write out their reasoning."""

from __future__ import annotations

import re

_BOX = "\\boxed{"
_LABEL = re.compile(r"^\W*(?:the\s+|final\s+)*answer(?:\s+is|\s*[:=])\s*(.+?)\W*$", re.IGNORECASE)
_SEVERAL = re.compile(r"\bor\b|;|\n|\\text\s*\{\s*or\s*\}|\\lor\b", re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}`, braces matched; None if it is not there or not closed.

    The last one counts and only that one: models box intermediate results, and a list of boxes
    must not be a list of guesses.
    """
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth, begin = 1, start + len(_BOX)
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return None


def extract_answer(text: str, max_chars: int = 200) -> str | None:
    r"""The one candidate that may be graded, or None.

    It is the content of the last `\boxed{…}`, else what follows `Answer:` (or `the answer is`) in
    the last line that says so. None if it is empty, longer than `max_chars`, or offers a choice:
    "1 or 2", "1; 2".
    """
    found = last_boxed(text) if _BOX in text else _labelled(text)
    if not found or len(found) > max_chars or _SEVERAL.search(found):
        return None
    return found


def _labelled(text: str) -> str | None:
    for line in reversed(text.splitlines()):
        # Long lines are prose; matching them would only cost time.
        if len(line) <= 1000 and (match := _LABEL.match(line)):
            return match[1].strip()
    return None

"""What the result of an answer must be, whatever its hunks say."""

import ast
import warnings
from collections.abc import Iterable

from assay.patching import log
from assay.patching.markers import is_placeholder
from assay.patching.types import Hunk, PatchRefused, RefusalCode, Section


def check_placeholders(sections: Iterable[Section]) -> None:
    """Refuse added lines that say "rest unchanged" where code must stand."""
    for section in sections:
        for index, hunk in enumerate(section.hunks, 1):
            placeholder = _placeholder(hunk, in_python=section.path.endswith(".py"))
            if placeholder is not None:
                text = log.placeholder(section.path, index, placeholder)
                raise PatchRefused(RefusalCode.PLACEHOLDER, text)


def _placeholder(hunk: Hunk, *, in_python: bool) -> str | None:
    old = {line.text.strip() for line in hunk.lines if line.mark != "+"}
    filled = [line for line in hunk.lines if line.text.strip()]
    before = ""
    for k, line in enumerate(filled):
        text = line.text.strip()
        if line.mark == "+" and text not in old:
            # Of a comment that new code follows, only one that says so stands for other code.
            followed = k + 1 < len(filled) and filled[k + 1].mark == "+"
            if is_placeholder(text, outright=followed):
                return line.text
            if in_python and _is_bare(text, before):
                return line.text
        if line.mark != "-" and not text.startswith("#"):
            before = text.split("  #")[0].rstrip() or before
    return None


def _is_bare(text: str, before: str) -> bool:
    """Whether a lone `...` stands where Python has no use for one: behind a whole statement."""
    if text not in ("...", "…"):
        return False
    return not before.endswith((":", "(", "[", ",", '"""', "'''", "{"))


def syntax_error(path: str, before: str | None, after: str | None) -> SyntaxError | None:
    """What is wrong with a changed Python file; None if it was no better before."""
    if after is None or not path.endswith(".py"):
        return None
    error = _parsed(after)
    if error is None or (before is not None and _parsed(before) is not None):
        return None
    return error


def _parsed(source: str) -> SyntaxError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(f"{type(error).__name__}: {error}")
    return None

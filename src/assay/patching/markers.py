"""The lines of a diff that are not lines of a file: what they look like, and what they say."""

import re
from typing import NamedTuple

HUNK = re.compile(r"^@@+\s*-(\d+)(?:,(\d+))?\s+\+(\d+)(?:,(\d+))?\s*@@+(.*)$")
GIT = re.compile(r"^diff --git (.+)$")
EXTENDED = re.compile(
    r"^(index [0-9a-f]+\.\.|old mode |new mode |new file mode |deleted file mode "
    r"|similarity index |dissimilarity index |rename from |rename to |copy from |copy to "
    r"|Binary files |GIT binary patch)"
)
ENVELOPE = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.+)$")
ENVELOPE_END = ("*** Begin Patch", "*** End Patch", "*** End of File")
_STAMP = re.compile(r"(?:\s+[(\[].*[)\]]|\s+\d{4}-\d\d-\d\d.*|\s{2,}.*|\s+#.*|\s+<-.*|\s+//.*)$")
_NO_NEWLINE = re.compile(r"^\\ ?No newline", re.IGNORECASE)
_DOTS = re.compile(r"^[\[(<]?\s*(?:\.\.\.\.?|…)\s*[\])>]?$")
_COMMENT = re.compile(r"^(?:#+|//+|/\*+|<!--|--|;)\s*(.*?)\s*(?:\*/|-->)?$")
_LEFT_OUT = re.compile(
    r"\b(?:rest|remain\w*|unchanged|existing|same|other|previous|original|keep|code|continue\w*"
    r"|before|omitted|elided|skipp\w+|truncated|etc|lines?|more)\b",
    re.IGNORECASE,
)
_REST = re.compile(
    r"^[\[(<]?(?:keep |leave )?(?:the |all )?"
    r"(?:(?:rest|remainder) of (?:the |this |your )?(?:\w+ ){0,2}\w+"
    r"|(?:existing|remaining|unchanged|original) "
    r"(?:\w+ )?(?:code|implementation|logic|lines|body|methods|functions)"
    r"|(?:other|previous|same) (?:\w+ )?\w+"
    r"(?= (?:are |is |remains? |stays? )?(?:unchanged|the same))"
    r"|(?=unchanged|no changes?))"
    r"(?: (?:is|are|stays?|remains?|goes|continues?))?"
    r"(?: (?:unchanged|the same|as before|as is|here|below|above))?"
    r"(?:unchanged|no changes?)?[\])>.]*$",
    re.IGNORECASE,
)

_STAYS = re.compile(r"\b(?:unchanged|the same|as before|as is|no changes?)\b", re.IGNORECASE)


class Numbers(NamedTuple):
    """What a `@@` line claims."""

    start: int
    old: int
    new: int


def read_numbers(line: str) -> tuple[Numbers | None, str]:
    """The numbers of a `@@` line, if it has any, and the scope written behind them."""
    hit = HUNK.match(line)
    if hit is None:
        scope = line.strip("@ \t\r")
        return None, "" if re.fullmatch(r"[\W\d_xyXYnN]*", scope) else scope
    if max(len(hit[n] or "") for n in range(1, 5)) > 9:
        return None, hit[5].strip()
    return Numbers(int(hit[1]), int(hit[2] or 1), int(hit[4] or 1)), hit[5].strip()


def is_no_newline(line: str) -> bool:
    """Whether a line says that the one before it ends without a newline."""
    return _NO_NEWLINE.match(line) is not None


def is_ellipsis(text: str) -> bool:
    """Whether a line stands for others that are left out: `...`, `# rest unchanged`."""
    stripped = text.strip()
    return _DOTS.match(stripped) is not None or is_placeholder(stripped)


def is_placeholder(text: str, *, outright: bool = False) -> bool:
    """Whether a line is a comment in place of code: `# ... rest of the function unchanged`.

    A bare `...` is Python and no placeholder. With `outright`, only a comment that holds an
    ellipsis or says that something stays: `# original code` may be what it says.
    """
    stripped = text.strip()
    for dots in ("...", "…"):
        # A lone ellipsis is code; with a comment that says so it is none.
        stripped = stripped.removeprefix(dots).lstrip() or stripped
    hit = _COMMENT.match(stripped) if len(stripped) < 120 else None
    if hit is None:
        return False
    said = hit[1].strip()
    if _DOTS.match(said) or (_REST.match(said) and (_STAYS.search(said) or not outright)):
        return True
    dotted = said.strip("[](){}<> ").startswith(("...", "…")) or said.endswith(("...", "…"))
    return dotted and _LEFT_OUT.search(said) is not None


def header_name(line: str) -> str:
    """The name in a `---` or `+++` line, as written but for quotes and what stands after a tab."""
    name = line[3:].strip(" ").removeprefix("\t").split("\t")[0].strip()[:1000]
    for quote in ('"', "`", "'"):
        if len(name) > 1 and name[0] == name[-1] == quote:
            return name[1:-1]
    return name


def without_note(name: str) -> str:
    """The name without a time stamp or note that follows it."""
    return _STAMP.sub("", name[:300]).strip().strip("`'\"*") + name[300:]

"""Context that is paraphrased, left out, invented, or taken from another state of the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.patching import phrases
from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Corruption, Mode, on_some_hunks, places, with_rows
from benchmarks.patching.lines import indent_of, squash
from benchmarks.patching.model import Document, Hunk, Row, Section, cut

ELLIPSES = ("...", "# ...", "# ... existing code ...", "# ... (unchanged) ...", "[...]")


def _comment(random: Random, text: str) -> str:
    """A comment in other words."""
    head, _, words = text.partition("#")
    said = words.strip()
    shorter = " ".join(said.split()[: max(2, len(said.split()) // 2)])
    other = random.choice(
        [shorter, re.sub(r"\b(the|a|an) ", "", said), f"{said.rstrip('.')} here", f"TODO: {said}"]
    )
    return f"{head}# {other}"


_PARAPHRASES: tuple[tuple[str, str], ...] = (
    (r"\s+#.*$", ""),
    (r"'([^'\"]*)'", r'"\1"'),
    (r'"([^"\']+)"', r"'\1'"),
    (r"\bself\._(\w+)", r"self.\1"),
    (r"\b(\w+) is None\b", r"not \1"),
    (r"\bnot (\w+)\b", r"\1 is None"),
    (r"\breturn (\w+)$", r"return \1.copy()"),
    (r"\((\w+)\)$", r"(\1, **kwargs)"),
    (r"\((\w+), (\w+)\)", r"(\2, \1)"),
    (r"def (\w+)\(self\)", r"def \1(self) -> None"),
    (r"\bresult\b", "output"),
    (r"\bvalue\b", "val"),
    (r"\bkey\b", "name"),
    (r" = (\w+)$", r" = int(\1)"),
)


def _code(random: Random, text: str) -> str:
    """A line of code as somebody remembers it."""
    options = [re.sub(pattern, other, text, count=1) for pattern, other in _PARAPHRASES]
    options = [each for each in options if squash(each) != squash(text) and each.strip()]
    return random.choice(options) if options else text


def _paraphrased(fits: Callable[[str], bool], change: Callable[[Random, str], str]) -> Corruption:
    def on_hunk(random: Random, hunk: Hunk) -> Hunk | None:
        spots = [n for n, row in enumerate(hunk.rows) if row.mark == " " and fits(row.text)]
        random.shuffle(spots)
        for at in spots:
            text = change(random, hunk.rows[at].text)
            if squash(text) != squash(hunk.rows[at].text):
                rows = list(hunk.rows)
                rows[at] = replace(rows[at], text=text)
                return replace(hunk, rows=tuple(rows))
        return None

    return on_some_hunks(on_hunk)


def _inner(hunk: Hunk) -> list[int]:
    """Context rows between two other context rows."""
    rows = hunk.rows
    return [
        n for n in range(1, len(rows) - 1) if all(rows[k].mark == " " for k in (n - 1, n, n + 1))
    ]


def _dropped(random: Random, hunk: Hunk) -> Hunk | None:
    spots = [at for at in _inner(hunk) if hunk.rows[at].text.strip()]
    if not spots:
        return None
    at = random.choice(spots)
    return with_rows(hunk, [*hunk.rows[:at], *hunk.rows[at + 1 :]])


def _elide(random: Random, hunk: Hunk) -> Hunk | None:
    """Dots for some inner lines of a run of context."""
    spots = _inner(hunk)
    runs = [at for at in spots if at + 1 in spots]
    if not runs:
        return None
    start = random.choice(runs)
    stop = start + 1
    while stop in spots and stop - start < 8 and random.random() < 0.8:
        stop += 1
    dots = Row(" ", indent_of(hunk.rows[start].text) + random.choice(ELLIPSES), None, "", "elided")
    return with_rows(hunk, [*hunk.rows[:start], dots, *hunk.rows[stop:]])


def _recut(document: Document, context: int) -> Document:
    def change(section: Section) -> Section:
        if section.action not in ("edit", "rename"):
            return section
        return replace(section, hunks=cut(section.base, section.target, context))

    return document.over_sections(change)


def _elided(random: Random, document: Document) -> Document | None:
    return on_some_hunks(_elide)(random, _recut(document, random.choice([5, 6, 8])))


def _context(*numbers: int) -> Corruption:
    def apply(random: Random, document: Document) -> Document | None:
        return _recut(document, random.choice(numbers)) if places(document) else None

    return apply


def _invented(random: Random, document: Document) -> Document | None:
    """A line at the edge of a hunk that the file does not have."""
    index, number = random.choice(places(document) or [(-1, -1)])
    if index < 0:
        return None
    section = document.sections[index]
    hunk = section.hunks[number]
    top = random.random() < 0.5
    edge = hunk.rows[0 if top else -1]
    text = random.choice([f"# {random.choice(phrases.REMARKS)}", phrases.statement(random)])
    standing = {squash(line) for line in section.base.lines}
    if edge.mark != " " or squash(text) in standing:
        return None
    row = Row(" ", indent_of(edge.text) + text, None, "", "invented")
    rows = [row, *hunk.rows] if top else [*hunk.rows, row]
    return document.with_hunk(index, number, with_rows(hunk, rows))


def _noop_pairs(random: Random, hunk: Hunk) -> Hunk | None:
    """Some context is removed and added again."""
    spots = [n for n, row in enumerate(hunk.rows) if row.mark == " " and row.text.strip()]
    spots = [n for n in spots if not hunk.rows[n].open_end and hunk.rows[n].at is not None]
    if not spots:
        return None
    chosen = set(random.sample(spots, min(len(spots), random.randint(1, 2))))
    rows: list[Row] = []
    for number, row in enumerate(hunk.rows):
        if number in chosen:
            rows += [replace(row, mark="-"), replace(row, mark="+", at=(row.at or 0) + 1)]
        else:
            rows.append(row)
    return with_rows(hunk, rows)


def _groups(hunk: Hunk) -> list[list[Row]]:
    """Runs of context and runs of change, in turn."""
    groups: list[list[Row]] = []
    for row in hunk.rows:
        if groups and (groups[-1][0].mark == " ") == (row.mark == " "):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _plus_first(_random: Random, hunk: Hunk) -> Hunk | None:
    rows = [
        row
        for group in _groups(hunk)
        for row in sorted(group, key=lambda row: row.mark == "-" and group[0].mark != " ")
    ]
    # A mark about the file's end stays with the last line; mixed sides would claim another end.
    if tuple(rows) == hunk.rows or any(row.open_end for row in rows):
        return None
    return with_rows(hunk, rows)


def _replaced(_random: Random, hunk: Hunk) -> Hunk | None:
    """All old lines go and all new lines come."""
    if any(row.open_end or row.at is None for row in hunk.rows) or not hunk.count("+"):
        return None
    end = max(row.at + 1 for row in hunk.rows if row.old and row.at is not None)
    gone = [replace(row, mark="-") for row in hunk.rows if row.mark != "+"]
    come = [replace(row, mark="+", at=end) for row in hunk.rows if row.mark != "-"]
    return with_rows(hunk, [*gone, *come])


def _past_end(random: Random, document: Document) -> Document | None:
    """Context goes on after the last line of the file."""
    for index, section in enumerate(document.sections):
        if section.action != "edit" or not section.base.ends:
            continue
        for number, hunk in enumerate(section.hunks):
            last = hunk.rows[-1]
            if last.mark == " " and last.at == len(section.base.lines) - 1:
                blanks = [Row(" ", "", None, "", "invented")] * random.randint(1, 3)
                return document.with_hunk(index, number, with_rows(hunk, [*hunk.rows, *blanks]))
    return None


def _split(hunk: Hunk, newer: bool) -> tuple[Hunk, Hunk] | None:
    """Two hunks of one whose changes are at most two lines apart.

    The second hunk's context holds the first change, as it is after it (`newer`) or before.
    """
    groups = _groups(hunk)
    for number in range(1, len(groups) - 1):
        gap = groups[number]
        if gap[0].mark != " " or len(gap) > 2 or any(row.open_end for row in gap):
            continue
        head = [row for group in groups[:number] for row in group]
        tail = [row for group in groups[number + 1 :] for row in group]
        later = [replace(row, mark=" ") for row in groups[number + 1] if row.mark == "-"]
        skipped = "-" if newer else "+"
        earlier = [
            replace(row, mark=" ", **({"at": None, "note": "after"} if row.mark == "+" else {}))
            for row in groups[number - 1]
            if row.mark != skipped
        ]
        first = with_rows(hunk, [*head, *gap, *later][: len(head) + 3])
        context = [*earlier, *gap][-3:]
        start = next((row.at for row in [*gap, *tail] if row.at is not None), hunk.old_start)
        second = replace(hunk, old_start=start, new_start=start)
        return first, with_rows(second, [*context, *tail])
    return None


def _other_state(newer: bool) -> Corruption:
    def apply(_random: Random, document: Document) -> Document | None:
        for index, number in places(document):
            halves = _split(document.sections[index].hunks[number], newer)
            if halves is None:
                continue
            notes = any(row.note == "after" for row in halves[1].rows)
            marks = any(row.mark == " " for row in halves[1].rows[:3])
            if notes or (not newer and marks):
                return document.with_hunk(index, number, *halves)
        return None

    return apply


def _has_comment(text: str) -> bool:
    return "# " in text and len(text.split("#")[1].split()) > 1


def _has_code(text: str) -> bool:
    return len(text.strip()) > 5 and text.strip()[0] != "#"


_NEAR = Wish(edits=(3, 6), only_python=True, plain=True)
_PYTHON = Wish(only_python=True)

MODES = (
    Mode(
        "comment_paraphrased", "context",
        _paraphrased(_has_comment, _comment), _PYTHON,
    ),
    Mode(
        "code_paraphrased", "context",
        _paraphrased(_has_code, _code), _PYTHON,
    ),
    Mode("line_dropped", "context", on_some_hunks(_dropped)),
    Mode("elided", "context", _elided, Wish(edits=(2, 4))),
    Mode("one_context", "context", _context(1)),
    Mode("zero_context", "context", _context(0)),
    Mode("much_context", "context", _context(8, 15)),
    Mode("invented_edge", "context", _invented),
    Mode("noop_pairs", "context", on_some_hunks(_noop_pairs)),
    Mode("plus_before_minus", "context", on_some_hunks(_plus_first, every=True)),
    Mode("block_replaced", "context", on_some_hunks(_replaced, every=True)),
    Mode("past_end", "context", _past_end),
    Mode("context_after", "context", _other_state(True), _NEAR),
    Mode("context_before", "context", _other_state(False), _NEAR),
)  # fmt: skip

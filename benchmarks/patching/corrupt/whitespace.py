"""White space and typography that differ from the file's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Corruption, Mode, on_some_hunks, places
from benchmarks.patching.lines import Text, changes, indent_of
from benchmarks.patching.model import Document, Hunk, Row, Section


def _texts(change: Callable[[str], str]) -> Callable[[Row], Row]:
    """The same change of every line that is not blank."""
    return lambda row: replace(row, text=change(row.text)) if row.text.strip() else row


def _all_rows(hunk: Hunk, change: Callable[[str], str]) -> Hunk | None:
    rows = tuple(map(_texts(change), hunk.rows))
    return None if rows == hunk.rows else replace(hunk, rows=rows)


def _crlf_answer(_random: Random, document: Document) -> Document | None:
    if any("\r" in text for text in document.base.values()):
        return None
    return document.with_layout(carriage_returns=True)


def _crlf_file(_random: Random, document: Document) -> Document | None:
    """The file has carriage returns, the answer has none."""
    if not any(section.base.newline == "\r\n" for section in document.sections):
        return None
    return document.with_layout(rows_with_returns=False)


def _spaces_for_tabs(random: Random, document: Document) -> Document | None:
    if not any("\n\t" in str(section.base) for section in document.sections):
        return None
    width = random.choice([4, 4, 8])

    def change(text: str) -> str:
        indent = indent_of(text)
        return indent.replace("\t", " " * width) + text[len(indent) :]

    return on_some_hunks(lambda _random, hunk: _all_rows(hunk, change), every=True)(
        random, document
    )


def _tabs_for_spaces(random: Random, document: Document) -> Document | None:
    def change(text: str) -> str:
        indent = indent_of(text)
        spaces = len(indent)
        return "\t" * (spaces // 4) + " " * (spaces % 4) + text[spaces:]

    if any("\t" in text for text in document.base.values()):
        return None
    return on_some_hunks(lambda _random, hunk: _all_rows(hunk, change), every=True)(
        random, document
    )


def _outdented(random: Random, hunk: Hunk) -> Hunk | None:
    least = min((len(indent_of(r.text)) for r in hunk.rows if r.text.strip()), default=0)
    if least < 4 or any(row.text.startswith("\t") for row in hunk.rows):
        return None
    shift = random.choice([4, least])
    return _all_rows(hunk, lambda text: text[shift:])


def _one_space(_random: Random, hunk: Hunk) -> Hunk | None:
    return _all_rows(hunk, lambda text: " " + text)


def _bare_context(_random: Random, hunk: Hunk) -> Hunk | None:
    """Context is printed as it stands in the file, without the marker's column."""
    rows = tuple(
        replace(row, bare=True)
        if row.mark == " " and (not row.text or row.text.lstrip()[:1] not in "+-@\\<>=*")
        else row
        for row in hunk.rows
    )
    indented = any(row.bare and row.text[:1] in " \t" for row in rows if row.text)
    return replace(hunk, rows=rows) if indented or any(row.bare for row in rows) else None


def _bare_blank(_random: Random, hunk: Hunk) -> Hunk | None:
    rows = tuple(replace(r, bare=True) if r.mark == " " and not r.text else r for r in hunk.rows)
    return None if rows == hunk.rows else replace(hunk, rows=rows)


def _with_blanks(text: Text, spots: dict[int, str]) -> Text:
    lines = [line + spots.get(index, "") for index, line in enumerate(text.lines)]
    return replace(text, lines=tuple(lines))


def _blanks_in_file(section: Section, spots: dict[int, str]) -> Section:
    """The file has blanks at the end of some kept lines, the diff does not show them."""
    shifted: dict[int, str] = {}
    differences = changes(section.base, section.target)
    for at, blanks in spots.items():
        before = [change for change in differences if change.i2 <= at]
        shifted[at + (before[-1].j2 - before[-1].i2 if before else 0)] = blanks

    def change(hunk: Hunk) -> Hunk:
        rows = tuple(
            replace(row, true=row.true + spots[row.at]) if row.old and row.at in spots else row
            for row in hunk.rows
        )
        return replace(hunk, rows=rows)

    base, target = _with_blanks(section.base, spots), _with_blanks(section.target, shifted)
    return replace(section, base=base, target=target).over_hunks(change)


def _trailing_in_file(random: Random, document: Document) -> Document | None:
    found = False
    for index, section in enumerate(document.sections):
        kept = [
            row.at
            for hunk in section.hunks
            for row in hunk.rows
            if row.mark == " " and row.at is not None and not row.text.endswith(("\\", " "))
        ]
        if section.action != "edit" or not kept:
            continue
        spots = {
            at: random.choice([" ", "  ", "    "]) for at in random.sample(kept, min(2, len(kept)))
        }
        changed = _blanks_in_file(section, spots)
        base, target = dict(document.base), dict(document.target)
        base[section.path], target[section.path] = str(changed.base), str(changed.target)
        document = replace(document, base=base, target=target).with_section(index, changed)
        found = True
    return document if found else None


def _trailing_in_answer(random: Random, hunk: Hunk) -> Hunk | None:
    rows = [
        replace(row, text=row.text + random.choice([" ", "  "]))
        if row.old and random.random() < 0.6
        else row
        for row in hunk.rows
    ]
    return None if tuple(rows) == hunk.rows else replace(hunk, rows=tuple(rows))


def _one_indent(random: Random, hunk: Hunk) -> Hunk | None:
    """One old line stands one step too far left or right."""
    spots = [n for n, row in enumerate(hunk.rows) if row.mark == " " and row.text.strip()]
    if not spots:
        return None
    at = random.choice(spots)
    row = hunk.rows[at]
    shift = random.choice([-4, -1, 1, 2, 4])
    text = (
        " " * shift + row.text if shift > 0 else row.text[min(-shift, len(indent_of(row.text))) :]
    )
    if text == row.text:
        text = "  " + row.text
    return replace(hunk, rows=(*hunk.rows[:at], replace(row, text=text), *hunk.rows[at + 1 :]))


def _curly(text: str) -> str:
    out, opened = [], {"'": False, '"': False}
    pairs = {"'": "‘’", '"': "“”"}
    for character in text:
        if character in pairs:
            out.append(pairs[character][opened[character]])
            opened[character] = not opened[character]
        else:
            out.append(character)
    return "".join(out).replace(" - ", " – ")


def _typographic(_random: Random, hunk: Hunk) -> Hunk | None:
    """Old lines with the quotes of a word processor."""
    rows = tuple(replace(row, text=_curly(row.text)) if row.old else row for row in hunk.rows)
    return None if rows == hunk.rows else replace(hunk, rows=rows)


def _every(change: Callable[[Random, Hunk], Hunk | None]) -> Corruption:
    return on_some_hunks(change, every=True)


def _half(change: Callable[[Random, Hunk], Hunk | None]) -> Corruption:
    """In one hunk as often as in all."""

    def apply(random: Random, document: Document) -> Document | None:
        every = random.random() < 0.5 and bool(places(document))
        return on_some_hunks(change, every=every)(random, document)

    return apply


MODES = (
    Mode("crlf_answer", "whitespace", _crlf_answer),
    Mode("crlf_file", "whitespace", _crlf_file, Wish(style="crlf")),
    Mode("spaces_for_tabs", "whitespace", _spaces_for_tabs, Wish(style="tabs", only_python=True)),
    Mode("tabs_for_spaces", "whitespace", _tabs_for_spaces, Wish(only_python=True)),
    Mode("outdented", "whitespace", _half(_outdented), Wish(only_python=True)),
    Mode("one_space_added", "whitespace", _half(_one_space)),
    Mode("bare_context", "whitespace", _every(_bare_context)),
    Mode("bare_blank", "whitespace", _every(_bare_blank)),
    Mode("trailing_in_file", "whitespace", _trailing_in_file),
    Mode("trailing_in_answer", "whitespace", _half(_trailing_in_answer)),
    Mode("one_indent_off", "whitespace", _half(_one_indent)),
    Mode("typographic", "whitespace", _half(_typographic)),
)

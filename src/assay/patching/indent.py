"""Write a hunk's new lines as the file would: its indentation, line endings and quotes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from assay.patching.effort import Effort
from assay.patching.keys import FileText, indent_of, plain, plain_as, squash
from assay.patching.place import Fit
from assay.patching.types import Line
from assay.patching.weave import Doubt

_FAR = 8  # lines of the file left out within one hunk
_STEPS = 1  # of effort for one line read by one rule
Convert = Callable[[str], str | None]


class Pair(NamedTuple):
    """A line's indentation in the answer, and that of the line it stands for in the file."""

    told: str
    real: str
    removed: bool


def written_out(file: FileText, fit: Fit, effort: Effort) -> Iterator[tuple[str, ...]]:
    """Yield the new lines of a fitted hunk; several versions where their indentation is open.

    A hunk that stands exactly is taken as written. Raises Doubt where no reading of the
    indentation is possible, Exhausted where there are too many.
    """
    if fit.tier == "exact":
        yield tuple(line.text for line in fit.hunk.lines if line.mark == "+")
        return
    whole = _pairs(_matched(file, zip(fit.hunk.lines, fit.at, strict=True)))
    parts = [_part(file, lines, whole, effort) for lines in _pieces(fit)]
    yield tuple(chain.from_iterable(part[0] for part in parts))
    for n, part in enumerate(parts):
        for other in part[1:]:
            chosen = [*(p[0] for p in parts[:n]), other, *(p[0] for p in parts[n + 1 :])]
            yield tuple(chain.from_iterable(chosen))


def _pieces(fit: Fit) -> Iterator[list[tuple[Line, int | None]]]:
    """The lines of a hunk with their places, cut where the file goes on far below.

    Hunks that were written as one may have lost different indentations.
    """
    piece: list[tuple[Line, int | None]] = []
    last: int | None = None
    for line, at in zip(fit.hunk.lines, fit.at, strict=True):
        if at is not None:
            if last is not None and at > last + _FAR:
                yield piece
                piece = []
            last = at
        piece.append((line, at))
    yield piece


def _part(
    file: FileText, piece: list[tuple[Line, int | None]], whole: list[Pair], effort: Effort
) -> list[tuple[str, ...]]:
    """The versions of a piece's new lines; `whole` is what all of the hunk tells."""
    new = [line.text for line, _ in piece if line.mark == "+"]
    if not new:
        return [()]
    matched = _matched(file, piece)
    new = _like_the_file(new, matched)
    pairs = _pairs(matched)
    if not any(pair.told or pair.real for pair in pairs):
        pairs = whole
    if all(pair.told == pair.real for pair in pairs):
        return [tuple(new)]
    return _indented(file, new, pairs, effort)


def _matched(
    file: FileText, lines: Iterable[tuple[Line, int | None]]
) -> list[tuple[str, str, str]]:
    """The marks of lines that stand in the file, their texts, and the file's."""
    return [(line.mark, line.text, file.lines[at]) for line, at in lines if at is not None]


def _pairs(matched: Iterable[tuple[str, str, str]]) -> list[Pair]:
    return [
        Pair(indent_of(plain(told)), indent_of(plain(real)), mark == "-")
        for mark, told, real in matched
        if told.strip() and squash(told) == squash(real)
    ]


def _like_the_file(new: list[str], matched: list[tuple[str, str, str]]) -> list[str]:
    """Line endings, trailing blanks and typographic characters as the matched lines show them."""
    told_cr = sum(told.endswith("\r") for _, told, _ in matched) * 2 > len(matched)
    real_cr = sum(real.endswith("\r") for _, _, real in matched) * 2 > len(matched)
    padded = [
        bool(told.strip())
        for _, told, real in matched
        if told.rstrip() != told.rstrip("\r") and real.rstrip() == real.rstrip("\r")
    ]
    shown = [(told, real) for _, told, real in matched if not told.isascii()]
    result = []
    for text in new:
        line = text.removesuffix("\r") if told_cr and not real_cr else text
        if any(padded) or (padded and not line.strip()):
            line = line.rstrip() + ("\r" if line.endswith("\r") else "")
        line = plain_as(line, shown)
        if real_cr and not told_cr:
            line = line.removesuffix("\r") + "\r"
        result.append(line)
    return result


def _indented(
    file: FileText, new: list[str], pairs: list[Pair], effort: Effort
) -> list[tuple[str, ...]]:
    """The versions that the evidence allows, the likeliest first, without repeats."""
    # Every rule is tried on every pair, in three places.
    effort.spend(_STEPS * len(set(pairs)) * len(pairs))
    removed = [pair for pair in pairs if pair.removed]
    evidence = removed if removed and _agree(removed) and not _agree(pairs) else pairs
    rules = _best_rules(evidence)
    table = _table(pairs)
    readings: list[Convert] = []
    for rule in rules:
        readings += [_first(table, rule), rule]
    if not rules or not _sure(evidence):
        readings.append(str)
    versions: list[tuple[str, ...]] = []
    for convert in readings:
        effort.spend(_STEPS * len(new))
        version = _converted(new, convert)
        if version is not None and version not in versions:
            versions.append(version)
    if not versions:
        raise Doubt("the indentation of the new lines cannot be told from the lines around them")
    if len(versions) > 1:
        even = [version for version in versions if _is_even(file, version)]
        versions = even or versions
    return versions


def _agree(pairs: list[Pair]) -> bool:
    return any(all(rule(pair.told) == pair.real for pair in pairs) for rule in _rules(pairs))


def _sure(pairs: list[Pair]) -> bool:
    """Whether all lines moved alike, and not just context by the column of a lost marker."""
    shifts = {len(pair.real) - len(pair.told) for pair in pairs}
    tabs = any("\t" in pair.told + pair.real for pair in pairs)
    removed = any(pair.removed for pair in pairs)
    return _agree(pairs) and (tabs or removed or not shifts <= {-1, 0, 1})


def _table(pairs: list[Pair]) -> dict[str, str]:
    """For each indentation in the answer, the one it stands for if a clear majority says so."""
    votes: dict[str, Counter[str]] = {}
    for pair in pairs:
        votes.setdefault(pair.told, Counter())[pair.real] += 1
    table = {}
    for told, counts in votes.items():
        (best, count), *rest = counts.most_common(2)
        if not rest or count > rest[0][1]:
            table[told] = best
    return table


def _first(table: dict[str, str], rule: Convert) -> Convert:
    return lambda told: table.get(told) or rule(told)


def _best_rules(pairs: list[Pair]) -> list[Convert]:
    """The conversions that explain more of the pairs than any other, and at least half."""
    scored = [
        (sum(rule(pair.told) == pair.real for pair in pairs), rule) for rule in _rules(pairs)
    ]
    best = max(count for count, _ in scored)
    return [rule for count, rule in scored if count == best] if best * 2 >= len(pairs) else []


def _rules(pairs: list[Pair]) -> Iterator[Convert]:
    yield str
    steps = {pair.told for pair in pairs if pair.told}
    for pair in dict.fromkeys(pairs):
        sizes = len(pair.told), len(pair.real)
        spaces = not (pair.told + pair.real).strip(" ")
        if (
            len(steps) > 1
            and spaces
            and min(sizes)
            and max(sizes) in (2 * min(sizes), 4 * min(sizes))
        ):
            yield _scale(*sizes)
        if "\t" in pair.real and " " in pair.told and "\t" not in pair.told:
            tabs = pair.real.count("\t")
            yield _to_tabs((len(pair.told) - len(pair.real) + tabs) // tabs or 1)
        elif "\t" in pair.told and "\t" not in pair.real:
            yield _to_spaces(len(pair.real) // len(pair.told) or 1)
        else:
            yield _shift(len(pair.real) - len(pair.told), pair.real[:1] or pair.told[:1])


def _to_tabs(width: int) -> Convert:
    def convert(told: str) -> str | None:
        tabs, rest = divmod(len(told), width)
        return "\t" * tabs + " " * rest if "\t" not in told else told

    return convert


def _to_spaces(width: int) -> Convert:
    return lambda told: told.replace("\t", " " * width)


def _scale(told_size: int, real_size: int) -> Convert:
    """For an answer whose steps are wider or narrower than the file's."""

    def convert(told: str) -> str | None:
        size, rest = divmod(len(told) * real_size, told_size)
        return " " * size if not rest else None

    return convert


def _shift(by: int, char: str) -> Convert:
    def convert(told: str) -> str | None:
        if by >= 0:
            return char * by + told
        if len(told) < -by:
            return told if by == -1 else None  # a lost or doubled marker column
        return told[-by:]

    return convert


def _converted(new: list[str], convert: Convert) -> tuple[str, ...] | None:
    result = []
    for text in new:
        if not text.strip():
            blanks = text.removesuffix("\r")
            result.append((convert(blanks) or "" if blanks else "") + text[len(blanks) :])
            continue
        told = indent_of(text)
        real = convert(told)
        if real is None:
            return None
        result.append(real + text[len(told) :])
    return tuple(result)


def _is_even(file: FileText, version: tuple[str, ...]) -> bool:
    """Whether every indentation is a whole number of the file's steps."""
    sizes = (len(indent_of(text)) for text in version if text.strip() and "\t" not in text)
    return all(size % file.unit == 0 for size in sizes)

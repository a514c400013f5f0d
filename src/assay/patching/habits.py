"""Line endings and tabs that are a habit of whoever wrote the answer, not of the file."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from assay.patching.keys import FileText, indent_of
from assay.patching.types import Hunk, Line, Section


def as_files_write(
    files: Mapping[str, str], sections: Sequence[Section], *, noisy: bool
) -> list[Section]:
    """The sections with the line endings and the indentation characters of their files.

    Line endings are changed if the answer mixes them: if its headers do (`noisy`), or where its
    old lines end otherwise than all lines of their file. Tabs are changed in a file that is
    indented without any if the answer shows old lines with tabs. Otherwise an answer is left
    alone: it may mean what it says.
    """
    texts = [files.get(section.source or section.path, "") for section in sections]
    if noisy or any(
        _ends_otherwise(text, section) for text, section in zip(texts, sections, strict=True)
    ):
        sections = [
            _changed(section, _ending(text)) for text, section in zip(texts, sections, strict=True)
        ]
    return [
        _changed(section, _without_tabs(text, section)) if _has_tabs(text, section) else section
        for text, section in zip(texts, sections, strict=True)
    ]


def _changed(section: Section, change: Callable[[str], str]) -> Section:
    def of(hunk: Hunk) -> Hunk:
        return replace(hunk, lines=tuple(Line(x.mark, change(x.text)) for x in hunk.lines))

    return replace(section, hunks=[of(hunk) for hunk in section.hunks])


def _ends_otherwise(text: str, section: Section) -> bool:
    """Whether old lines end otherwise than those of a file that ends all of its own alike."""
    style = newline_style(text)
    told = {
        old for old in _old(section) if style is not None and old.endswith("\r") != bool(style)
    }
    return bool(told - set(text.split("\n")))


def _ending(text: str) -> Callable[[str], str]:
    style = newline_style(text)
    return lambda line: line if style is None else line.removesuffix("\r") + style


def newline_style(text: str) -> str | None:
    """How all lines of a file end: "" or a carriage return; None if some do and some do not."""
    if "\r\n" not in text:
        return ""
    return "\r" if text.count("\r\n") == text.count("\n") else None


def _has_tabs(text: str, section: Section) -> bool:
    indented = [line for line in text.split("\n") if line[:1] in (" ", "\t") and line.strip()]
    return (
        bool(indented)
        and not any("\t" in indent_of(line) for line in indented)
        and any("\t" in indent_of(old) and old.strip() for old in _old(section))
    )


def _without_tabs(text: str, section: Section) -> Callable[[str], str]:
    step = " " * _width_of_tab(text, section)

    def change(line: str) -> str:
        indent = indent_of(line)
        return indent.replace("\t", step) + line[len(indent) :]

    return change


def _width_of_tab(text: str, section: Section) -> int:
    """How many columns of the file a tab of the answer stands for, as most old lines show it."""
    real: dict[str, set[int]] = {}
    for line in text.split("\n"):
        real.setdefault(line.strip(), set()).add(len(indent_of(line)))
    votes: Counter[int] = Counter()
    for old in _old(section):
        tabs = indent_of(old)
        for width in real.get(old.strip(), ()):
            if tabs and not tabs.strip("\t") and width % len(tabs) == 0:
                votes[width // len(tabs)] += 1
    return votes.most_common(1)[0][0] if votes else FileText.of(text).unit


def _old(section: Section) -> Iterable[str]:
    return (text for hunk in section.hunks for text in hunk.old)

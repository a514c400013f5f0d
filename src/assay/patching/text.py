"""Files as lines. Only a line feed ends a line, as in git; a carriage return stays in its line."""

from typing import NamedTuple


class FileLines(NamedTuple):
    lines: list[str]
    final_newline: bool


def split_file(text: str) -> FileLines:
    if not text:
        return FileLines([], True)
    lines = text.split("\n")
    if lines[-1] == "":
        return FileLines(lines[:-1], True)
    return FileLines(lines, False)


def join_file(lines: list[str], final_newline: bool) -> str:
    return "\n".join(lines) + ("\n" if lines and final_newline else "")

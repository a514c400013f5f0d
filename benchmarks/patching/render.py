"""From a structured diff to the text a model would send."""

from __future__ import annotations

from benchmarks.patching.model import Document, Hunk, Layout, Section

NO_NEWLINE = "\\ No newline at end of file"


def _rows(hunk: Hunk, ending: str) -> list[str]:
    lines: list[str] = []
    for row in hunk.rows:
        lines.append(row.printed() + ending)
        if row.open_end:
            # git prints the mark of the line before, whose own end it is that is missing.
            lines[-1] = row.printed()
            lines.append(NO_NEWLINE)
    return lines


def _unified(section: Section, ending: str) -> list[list[str]]:
    """One block of lines per hunk; the first holds the file's header."""
    blocks: list[list[str]] = []
    for number, hunk in enumerate(section.printed):
        block = section.header() if number == 0 or section.header_per_hunk else []
        if hunk.header is not None:
            block = [*block, hunk.header]
        blocks.append(block + _rows(hunk, ending))
    return blocks or [section.header()]


def _search_replace(section: Section, layout: Layout) -> list[list[str]]:
    blocks = []
    for hunk in section.printed:
        old = [row.text for row in hunk.rows if row.mark != "+"]
        new = [row.text for row in hunk.rows if row.mark != "-"]
        body = ["<<<<<<< SEARCH", *old, "=======", *new, ">>>>>>> REPLACE"]
        fence = [f"```{layout.language}", *body, "```"] if layout.language else body
        blocks.append([section.label, *fence])
    return blocks


def _v4a(section: Section) -> list[list[str]]:
    if section.action == "create":
        return [
            [f"*** Add File: {section.label}", *(r for h in section.hunks for r in _rows(h, ""))]
        ]
    if section.action == "delete":
        return [[f"*** Delete File: {section.label}"]]
    head = [f"*** Update File: {section.path if section.action == 'rename' else section.label}"]
    if section.action == "rename":
        head.append(f"*** Move to: {section.new_path}")
    blocks = [[hunk.header or "@@", *_rows(hunk, "")] for hunk in section.printed]
    return [head + blocks[0], *blocks[1:]] if blocks else [head]


def _fenced(lines: list[str], layout: Layout) -> list[str]:
    return [f"```{layout.language}", *lines, "```"]


def _assemble(files: list[list[list[str]]], layout: Layout) -> list[str]:
    """Blocks of files, with fences and prose between them."""
    out: list[str] = []
    for number, blocks in enumerate(files):
        if number and layout.between_files:
            out += ["", layout.between_files[number % len(layout.between_files)], ""]
        body: list[str] = []
        for index, block in enumerate(blocks):
            if index and layout.between_hunks:
                body += ["", layout.between_hunks[index % len(layout.between_hunks)], ""]
            body += _fenced(block, layout) if layout.fence == "per_hunk" else block
        out += _fenced(body, layout) if layout.fence == "per_file" else body
    return out


def _with_gutter(lines: list[str], form: str) -> list[str]:
    return [form.format(n=number, line=line).rstrip(" ") for number, line in enumerate(lines, 1)]


def render(document: Document) -> str:
    """The answer as text."""
    layout = document.layout
    lines = _assemble(_files(document), layout)
    if layout.style == "v4a":
        lines = ["*** Begin Patch", *lines, "*** End Patch"]
    lines = _enclosed(lines, layout)
    answer = "\n".join(lines) + "\n" * layout.final_newline
    if layout.stripped:
        answer = answer.strip()
    if layout.carriage_returns:
        answer = answer.replace("\r\n", "\n").replace("\n", "\r\n")
    return answer


def _files(document: Document) -> list[list[list[str]]]:
    """The blocks of every file in the notation of the answer."""
    layout = document.layout
    files: list[list[list[str]]] = []
    for section in document.sections:
        returns = section.base.newline == "\r\n" or section.target.newline == "\r\n"
        ending = "\r" if returns and layout.rows_with_returns else ""
        if layout.style == "unified":
            blocks = _unified(section, ending)
        elif layout.style == "search_replace":
            blocks = _search_replace(section, layout)
        else:
            blocks = _v4a(section)
        files += [blocks] * section.copies
    return files


def _enclosed(lines: list[str], layout: Layout) -> list[str]:
    """With what stands around the diff."""
    if layout.end_marker:
        lines.append(layout.end_marker)
    if layout.gutter:
        lines = _with_gutter(lines, layout.gutter)
    if layout.fence == "whole":
        lines = _fenced(lines, layout)
    elif layout.fence == "closing":
        lines.append("```")
    if layout.before:
        lines = [*layout.before.split("\n"), "", *lines]
    if layout.after:
        lines += ["", *layout.after.split("\n")]
    return lines

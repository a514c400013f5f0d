"""Read ideas from a file.

`.jsonl`: one object per line, {"text": …, "client_key"?: …, "operator"?, "parents"?, "base"?, …};
`.json`: a list of such objects or of strings; `.txt`, `.md`: one or more `[Experiment] … [End]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from assay.contracts.batch import IdeaRequest
from assay.domain.errors import InvalidInput

# People and models decorate the mark: `## 2. [Experiment]`, `**[Experiment]**`.
_START = re.compile(r"^[ \t>*#_`\d.)]*\[Experiment\]", re.IGNORECASE | re.MULTILINE)
_END = re.compile(r"\[End\]", re.IGNORECASE)


def read_ideas(path: Path) -> list[IdeaRequest]:
    """The ideas in a file, in its order.

    Raises:
        InvalidInput: the file cannot be read or holds something else; the message names the line.
    """
    readers = {".jsonl": _jsonl, ".json": _json, ".txt": _blocks, ".md": _blocks}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(f"{path}: ideas come as {', '.join(readers)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from None
    ideas: list[IdeaRequest] = []
    keys: dict[str, str] = {}
    for where, raw in reader(path, text):
        idea = _idea(where, raw)
        if idea.client_key is not None:
            if idea.client_key in keys:
                first = keys[idea.client_key]
                raise InvalidInput(f"{where}: client_key {idea.client_key!r} is also at {first}")
            keys[idea.client_key] = where
        ideas.append(idea)
    if not ideas:
        raise InvalidInput(f"{path}: holds no ideas")
    return ideas


def _jsonl(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", _parse(path, line, number)


def _json(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    data = _parse(path, text, 1)
    if not isinstance(data, list):
        raise InvalidInput(f"{path}:1: must be a JSON list of ideas")
    for position, item in enumerate(data):
        yield f"{path}: element {position}", {"text": item} if isinstance(item, str) else item


def _parse(path: Path, text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InvalidInput(f"{path}:{line}: not JSON: {error.msg}") from None


def _blocks(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    starts = [match.start() for match in _START.finditer(text)]
    if not starts:
        raise InvalidInput(
            f"{path}:1: no [Experiment] … [End] block; start each idea with a line [Experiment]"
        )
    for start, following in zip(starts, [*starts[1:], len(text)], strict=True):
        where = f"{path}:{text.count(chr(10), 0, start) + 1}"
        end = _END.search(text, start, following)
        if end is None:
            raise InvalidInput(f"{where}: this [Experiment] has no [End]")
        yield where, {"text": text[start : end.end()].strip()}


def _idea(where: str, raw: Any) -> IdeaRequest:
    if not isinstance(raw, dict):
        raise InvalidInput(f'{where}: an idea is an object with a "text"')
    try:
        return IdeaRequest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(map(str, first["loc"])) or "idea"
        raise InvalidInput(f"{where}: {place}: {first['msg']}") from None

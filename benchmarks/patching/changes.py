"""True edits of whole trees: which files are edited, made, deleted and renamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from benchmarks.patching import phrases, sources
from benchmarks.patching.edits import edit_other, edit_python
from benchmarks.patching.model import Document, Section, Tree, section
from tests.support.patching.python import parses


@dataclass(frozen=True)
class Wish:
    """What a mode needs of an edit to be possible at all."""

    files: tuple[int, int] = (1, 3)
    edits: tuple[int, int] = (1, 4)
    operation: str = ""  # create, delete, rename, or one by chance
    style: str = ""  # crlf, tabs, open_end, or one by chance
    plain: bool = False  # no operation and no style
    only_python: bool = False


@dataclass
class _Draft:
    """A tree on its way: old path to (new path, old text, new text)."""

    base: Tree
    moves: dict[str, tuple[str, str | None, str | None]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)


def _edit_file(random: Random, draft: _Draft, path: str, wish: Wish) -> bool:
    text = draft.base[path]
    number = random.randint(*wish.edits)
    found = edit_python(random, text, number) if path.endswith(".py") else edit_other(random, text)
    if found is None:
        return False
    draft.moves[path] = (path, text, found[0])
    draft.kinds += found[1]
    return True


def _create(random: Random, draft: _Draft, _wish: Wish) -> bool:
    folders = sorted({path.rpartition("/")[0] for path in draft.base})
    folder = random.choice(folders)
    path = f"{folder}/{random.choice(phrases.NEW_NAMES)}".lstrip("/")
    if path in draft.base:
        return False
    draft.moves[path] = (path, None, phrases.new_file(random))
    draft.kinds.append("create")
    return True


def _delete(random: Random, draft: _Draft, _wish: Wish) -> bool:
    small = [p for p, text in draft.base.items() if p not in draft.moves and len(text) < 12_000]
    if not small or len(draft.base) < 2:
        return False
    path = random.choice(sorted(small))
    draft.moves[path] = (path, draft.base[path], None)
    draft.kinds.append("delete")
    return True


def _rename(random: Random, draft: _Draft, wish: Wish) -> bool:
    paths = sorted(path for path in draft.base if path.endswith(".py") and path not in draft.moves)
    if not paths:
        return False
    path = random.choice(paths)
    stem = path.removesuffix(".py")
    new = random.choice([f"{stem}_v2.py", f"{stem}_core.py", f"lib/{path.rpartition('/')[2]}"])
    if new in draft.base:
        return False
    text: str | None = draft.base[path]
    if random.random() < 0.6 or wish.operation == "rename_edit":
        _edit_file(random, draft, path, wish)
        text = draft.moves.get(path, ("", None, text))[2]
    draft.moves[path] = (new, draft.base[path], text)
    draft.kinds.append("rename")
    return True


_OPERATIONS: dict[str, Callable[[Random, _Draft, Wish], bool]] = {
    "create": _create,
    "delete": _delete,
    "rename": _rename,
    "rename_edit": _rename,
}

_STYLES: dict[str, Callable[[str], str]] = {
    "crlf": sources.with_returns,
    "tabs": sources.with_tabs,
    "open_end": sources.without_end,
}


def _styled(draft: _Draft, style: str) -> bool:
    """The same edit on files that are kept in another way."""
    change = _STYLES[style]
    for path, (new, old_text, new_text) in draft.moves.items():
        if not path.endswith(".py") and style == "tabs":
            continue
        old_text = None if old_text is None else change(old_text)
        new_text = None if new_text is None else change(new_text)
        for text in (old_text, new_text):
            if path.endswith(".py") and text is not None and not parses(text):
                return False
        draft.moves[path] = (new, old_text, new_text)
        if old_text is not None:
            draft.base[path] = old_text
    draft.kinds.append(style)
    return True


def _chance(random: Random, wish: Wish) -> tuple[str, str]:
    operation, style = wish.operation, wish.style
    if not wish.plain:
        if not operation and random.random() < 0.15:
            operation = random.choice(["create", "create", "delete", "rename"])
        if not style and random.random() < 0.12:
            style = random.choice(["crlf", "tabs", "open_end"])
    return operation, style


def _document(random: Random, draft: _Draft) -> Document:
    target = dict(draft.base)
    sections: list[Section] = []
    # Git's headers stand over every file or over none; a rename cannot do without.
    renamed = any(path != new for path, (new, _, _) in draft.moves.items())
    git = random.random() < 0.4 or renamed
    for path, (new, old_text, new_text) in draft.moves.items():
        target.pop(path, None)
        if new_text is not None:
            target[new] = new_text
        sections.append(section(path, new, old_text, new_text, git=git))
    return Document(draft.base, target, tuple(sections), kinds=tuple(draft.kinds))


def true_edit(random: Random, wish: Wish) -> Document | None:
    """One edit of one tree as a clean diff; None where chance found nothing to do."""
    draft = _Draft(sources.some_tree(random))
    operation, style = _chance(random, wish)
    number = random.choices([1, 2, 3], [6, 3, 1])[0]
    number = min(max(number, wish.files[0]), wish.files[1])
    if operation and not _OPERATIONS[operation](random, draft, wish):
        return None
    paths = [path for path in draft.base if path not in draft.moves]
    paths = [path for path in paths if path.endswith(".py") or not wish.only_python]
    random.shuffle(paths)
    rest = number - (operation != "")
    # The whole edit may be the operation: a new file comes alone at times.
    for path in paths[: max(rest, 0)]:
        _edit_file(random, draft, path, wish)
    if not draft.moves or len(draft.moves) < wish.files[0]:
        return None
    if style not in ("", "none") and not _styled(draft, style):
        return None
    return _document(random, draft)

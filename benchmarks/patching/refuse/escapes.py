"""Answers that reach for something outside the tree."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from benchmarks.patching import sources
from benchmarks.patching.model import Case
from benchmarks.patching.refuse.write import block, case, creation, envelope, unified

# Tools run with this replaced by a folder of their own, so that nothing real is at stake.
OUTSIDE = "/srv/elsewhere"

PATHS: dict[str, str] = {
    "parent": "../outside.py", "two_parents": "../../outside.py",
    "through": "lib/../../outside.py",
    "inside_and_back": "lib/../helper.py", "absolute": f"{OUTSIDE}/evil.py",
    "double_slash": f"/{OUTSIDE}/evil.py", "backslash": "..\\outside.py",
    "backslashes": "lib\\..\\..\\outside.py", "mixed_slashes": "lib/..\\..\\outside.py",
    "drive": "C:\\evil.py", "drive_slash": "C:/evil.py", "share": "\\\\server\\share\\evil.py",
    "home": "~/evil.py", "other_home": "~root/evil.py", "git": ".git/hooks/pre-commit",
    "git_config": ".git/config", "git_case": ".GIT/config", "git_inside": "lib/.git/config",
    "bell": "evil\x07.py", "escape_sequence": "evil\x1b[31m.py", "delete_character": "evil\x7f.py",
    "bidi": "evil\u202eyp.py", "isolate": "evil\u2066.py", "zero_width": ".g\u200cit/config",
    "null_byte": "evil.py\x00.txt", "tab_parent": "..\t/outside.py",
    "dots_only": "..", "slash_end": "lib/../",
}  # fmt: skip
LINES = ["import os", "", "print(os.getcwd())"]


def _plain(random: Random, path: str) -> str:
    return creation(random.choice(["b/", ""]) + path, LINES)


def _edit(random: Random, path: str) -> str:
    rows = [" def helper():", "-    return 1", "+    return 2"]
    old, new = random.choice([("a/", "b/"), ("", "")])
    return unified(path, rows, "@@ -1,2 +1,2 @@", old=old, new=new)


def _git_create(_random: Random, path: str) -> str:
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..1234567\n"
    return head + creation(f"b/{path}", LINES)


def _git_only(random: Random, path: str) -> str:
    head = f"diff --git a/{path} b/{path}\n"
    return random.choice([f"{head}deleted file mode 100644\n", f"{head}new file mode 100644\n"])


def _rename_to(_random: Random, path: str) -> str:
    return (
        f"diff --git a/helper.py b/{path}\nsimilarity index 100%\n"
        f"rename from helper.py\nrename to {path}\n"
    )


def _copy_to(_random: Random, path: str) -> str:
    return f"diff --git a/helper.py b/{path}\ncopy from helper.py\ncopy to {path}\n"


def _search_replace(random: Random, path: str) -> str:
    search = random.choice([[], ["    return 1"]])
    return block(path, search, LINES)


def _v4a(random: Random, path: str) -> str:
    return random.choice(
        [
            envelope(f"*** Add File: {path}", *(f"+{line}" for line in LINES)),
            envelope(f"*** Delete File: {path}"),
            envelope("*** Update File: helper.py", f"*** Move to: {path}"),
            envelope(
                f"*** Update File: {path}",
                "@@",
                " def helper():",
                "-    return 1",
                "+    return 2",
            ),
        ]
    )


WAYS: dict[str, Callable[[Random, str], str]] = {
    "create": _plain, "edit": _edit, "git_create": _git_create, "git_only": _git_only,
    "rename": _rename_to, "copy": _copy_to, "search_replace": _search_replace, "v4a": _v4a,
}  # fmt: skip


def _path(path: str) -> Callable[[Random], Case | None]:
    """One path, named in one of the ways that answers can name a file."""

    def maker(random: Random) -> Case | None:
        tree = {**sources.some_tree(random), "helper.py": "def helper():\n    return 1\n"}
        answer = random.choice(list(WAYS.values()))(random, path)
        if random.random() < 0.3:
            answer = (
                unified("helper.py", [" def helper():", "+    # twice", "     return 1"]) + answer
            )
        return case(tree, answer)

    return maker


def _octal(random: Random) -> Case | None:
    """Git's quoting with the dots as octal numbers."""
    tree = sources.some_tree(random)
    name = random.choice(['"b/\\056\\056/outside.py"', '"b/\\056git/config"', '"b/evil\\007.py"'])
    rows = "\n".join(f"+{line}" for line in LINES)
    return case(tree, f"--- /dev/null\n+++ {name}\n@@ -0,0 +1,3 @@\n{rows}\n")


def _link(links: dict[str, str], path: str) -> Callable[[Random], Case | None]:
    """A path that goes through a link of the tree, or is one."""

    def maker(random: Random) -> Case | None:
        tree = {**sources.some_tree(random), "helper.py": "def helper():\n    return 1\n"}
        ways = [_plain, _git_create, _rename_to, _search_replace, _git_only]
        return case(tree, random.choice(ways)(random, path), symlinks=links)

    return maker


def _existing(random: Random) -> Case | None:
    """An absolute path that ends like a file of the tree."""
    tree = {**sources.some_tree(random), "helper.py": "def helper():\n    return 1\n"}
    return case(tree, _edit(random, f"{OUTSIDE}/helper.py"))


MAKERS: dict[str, Callable[[Random], Case | None]] = {
    **{f"escape_{name}": _path(path) for name, path in PATHS.items()},
    "escape_octal": _octal,
    "escape_existing": _existing,
    "escape_link_folder": _link({"data": OUTSIDE}, "data/evil.py"),
    "escape_link_inner": _link({"lib/data": "../../.."}, "lib/data/evil.py"),
    "escape_link_file": _link({"link.py": f"{OUTSIDE}/evil.py"}, "link.py"),
}

"""Protected files by every spelling, and what no answer may make: links, submodules, binaries."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from benchmarks.patching import sources
from benchmarks.patching.model import Case, Tree
from benchmarks.patching.refuse.write import block, case, creation, envelope, unified

GUARDED = "evaluator/evaluate.py"
BODY = '''"""Scores what an experiment left."""

import json


def score(path):
    with open(path) as file:
        answer = json.load(file)
    return float(answer["value"])


def main():
    print(score("answer.json"))
'''
ROWS = [
    " def score(path):",
    "-    with open(path) as file:",
    "+    with open(path, 'rb') as file:",
]
DELETION = [f"-{line}" for line in BODY.split("\n")[:-1]]


def _tree(random: Random) -> Tree:
    return {**sources.some_tree(random), GUARDED: BODY}


def _rename(old: str, new: str) -> str:
    return (
        f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
    )


def _deletion(path: str) -> str:
    return "\n".join(
        [f"--- a/{path}", "+++ /dev/null", f"@@ -1,{len(DELETION)} +0,0 @@", *DELETION, ""]
    )


# Every way to name or to hit the protected file.
SPELLINGS: dict[str, str] = {
    "plain": unified(GUARDED, ROWS),
    "without_prefix": unified(GUARDED, ROWS, old="", new=""),
    "dot": unified(f"./{GUARDED}", ROWS, old="", new=""),
    "dot_inside": unified("evaluator/./evaluate.py", ROWS),
    "double_slash": unified("evaluator//evaluate.py", ROWS),
    "base_name": unified("evaluate.py", ROWS),
    "variant": unified(f"repo_variants/idea_3/{GUARDED}", ROWS, old="", new=""),
    "quotes": f'--- "a/{GUARDED}"\n+++ "b/{GUARDED}"\n@@\n' + "\n".join(ROWS) + "\n",
    "notes": unified(f"{GUARDED} (modified)", ROWS),
    "git_only": f"diff --git a/{GUARDED} b/{GUARDED}\n@@ -6,2 +6,2 @@\n" + "\n".join(ROWS) + "\n",
    "one_name": f"+++ b/{GUARDED}\n@@\n" + "\n".join(ROWS) + "\n",
    "two_names": f"--- a/{GUARDED}\n+++ b/other.py\n@@\n" + "\n".join(ROWS) + "\n",
    "upper_case": creation("b/EVALUATOR/evaluate.py", BODY.split("\n")),
    "other_case": creation("b/evaluator/Evaluate.py", BODY.split("\n")),
    "edit_upper_case": unified("Evaluator/evaluate.py", ROWS),
    "create": creation(f"b/{GUARDED}", ["x = 1"]),
    "create_beside": creation(
        "b/evaluator/json.py", ["def load(file):", "    return {'value': 0}"]
    ),
    "delete": _deletion(GUARDED),
    "delete_git": f"diff --git a/{GUARDED} b/{GUARDED}\ndeleted file mode 100644\n",
    "rename_from": _rename(GUARDED, "old_evaluate.py"),
    "rename_to": _rename("helper.py", "evaluator/helper.py"),
    "search_replace": block(
        GUARDED, ["    with open(path) as file:"], ["    with open(path, 'rb') as file:"]
    ),
    "v4a": envelope(f"*** Update File: {GUARDED}", "@@", *ROWS),
    "v4a_delete": envelope(f"*** Delete File: {GUARDED}"),
    "v4a_move": envelope("*** Update File: helper.py", "*** Move to: evaluator/helper.py"),
}


def _protected(spelling: str) -> Callable[[Random], Case | None]:
    def maker(random: Random) -> Case | None:
        tree = {**_tree(random), "helper.py": "def helper():\n    return 1\n"}
        answer = SPELLINGS[spelling]
        if random.random() < 0.4:
            # A harmless edit before it must not carry it through.
            answer = (
                unified("helper.py", [" def helper():", "-    return 1", "+    return 2"]) + answer
            )
        named = (GUARDED,) if spelling not in _IN_FOLDER else ()
        return case(tree, answer, *(named or ("evaluator/*",)))

    return maker


_IN_FOLDER = {"create_beside", "rename_to", "v4a_move", "upper_case", "other_case"}


def _special(answer: Callable[[Random, str], str]) -> Callable[[Random], Case | None]:
    def maker(random: Random) -> Case | None:
        tree = sources.some_tree(random)
        return case(tree, answer(random, random.choice(sorted(tree))))

    return maker


def _new_link(_random: Random, _path: str) -> str:
    return (
        "diff --git a/data.link b/data.link\nnew file mode 120000\n"
        "--- /dev/null\n+++ b/data.link\n"
        "@@ -0,0 +1 @@\n+/srv/elsewhere\n\\ No newline at end of file\n"
    )


def _becomes_link(_random: Random, path: str) -> str:
    return f"diff --git a/{path} b/{path}\nold mode 100644\nnew mode 120000\n"


def _submodule(_random: Random, _path: str) -> str:
    return (
        "diff --git a/vendor b/vendor\nnew file mode 160000\nindex 0000000..1234567\n"
        "--- /dev/null\n+++ b/vendor\n@@ -0,0 +1 @@\n"
        "+Subproject commit 1234567890123456789012345678901234567890\n"
    )


def _binary(random: Random, path: str) -> str:
    return random.choice(
        [
            f"diff --git a/{path} b/{path}\nindex 1234567..89abcde 100644\n"
            f"Binary files a/{path} and b/{path} differ\n",
            "diff --git a/weights.bin b/weights.bin\nnew file mode 100644\n"
            "index 0000000..1234567\nGIT binary patch\nliteral 10\nRcmZQzU|?imU|?imU|?im\n\n"
            "literal 0\nHcmV?d00001\n\n",
            creation("b/weights.py", ["x = '\0\0'"]),
        ]
    )  # fmt: skip


MAKERS: dict[str, Callable[[Random], Case | None]] = {
    **{f"protected_{spelling}": _protected(spelling) for spelling in SPELLINGS},
    "new_symlink": _special(_new_link),
    "becomes_symlink": _special(_becomes_link),
    "submodule": _special(_submodule),
    "binary": _special(_binary),
}

"""Whether two codebases are the same code: equal but for comments, docstrings and formatting.

A judging process computes it (see `judge`), because parsing hostile source can take long or end
the interpreter. It decides what is not worth a measurement, so in doubt two codebases differ:

- A file that does not parse, or is large, counts byte by byte.
- A codebase that may read its own source or docstrings has no canonical form at all.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import warnings
from collections.abc import Mapping

Files = Mapping[str, str]
#: Larger files count byte by byte: of one with more, the syntax tree takes seconds and 100 MB.
MAX_CHARACTERS = 200_000
#: What reads docstrings, source or line numbers, wherever it stands. `jit` reads type comments.
_READS_SOURCE = re.compile(
    r"__doc__|__loader__|__spec__|co_firstlineno|co_lines|co_linetable|lineno|_getframe|getsource"
    r"|get_source|__code__|co_consts|find_spec|settrace|setprofile|sys\.monitoring"
    r"|\b(?:inspect|ast|tokenize|linecache|pydoc|pkgutil|docopt|doctest|jit|marshal)\b"
)
#: What may open a source file; the environment's own files name theirs to find data and imports.
#: Arguments without the path of the program, files of one other extension, and words such as
#: "entropy" are left out: the files that ideas edit most have them.
_NAMES_SOURCE = re.compile(
    r"__file__|__dict__|\bvars\(|(?<![A-Za-z])py[\"']|\.f?walk\b|listdir|scandir|iterdir"
    r"|glob\b(?!\([\"'](?:\*|\w+)\.(?!py)\w+[\"']\))|\bchr\("
    r"|origin\b|make_archive|copytree|tarfile|zipfile|subprocess|os\.system|popen|warnings"
    r"|traceback|sys\.argv(?!\[1:\])"
)
#: Python decodes a file by what its first lines say.
_CODING = re.compile(r"coding[:=]")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def canonical(files: Files, baseline: Files) -> str | None:
    """A hash that is the same for codebases with the same code; None if bytes decide.

    `baseline` is what `files` were made from; whatever in `files` differs from it is not trusted.
    """
    if any(_READS_SOURCE.search(text) for text in (*files.values(), *baseline.values())):
        return None
    changed = [name for name in {*files, *baseline} if files.get(name) != baseline.get(name)]
    for name in changed:
        if any(_NAMES_SOURCE.search(tree.get(name, "")) for tree in (files, baseline)):
            return None
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{len(name)} {name} ".encode())
        digest.update(_code(name.endswith(".py"), files[name]))
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _code(is_python: bool, text: str) -> bytes:
    """A hash of a file's code, or of its bytes."""
    if is_python and len(text) <= MAX_CHARACTERS and not _says_coding(text):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
            return hashlib.sha256(b"code" + _dump(tree).encode("utf-8", "replace")).digest()
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested deeply
            pass
    return hashlib.sha256(b"text" + text.encode("utf-8", "surrogatepass")).digest()


def _says_coding(text: str) -> bool:
    return any(_CODING.search(line) for line in text.split("\n", 2)[:2])


def _dump(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and _has_docstring(node):
            # What is left empty becomes `pass`: a body of a docstring alone does the same.
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _has_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> bool:
    first = node.body[0] if node.body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )

"""The alternatives: GNU patch, git apply and patch-ng, each in a folder that is thrown away."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.patching.model import Case, Tree
from benchmarks.patching.refuse.escapes import OUTSIDE
from benchmarks.patching.score import Outcome, judged

TIMEOUT_S = 10
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# Deep enough that no `..` of a case leaves the folder that is thrown away.
DEPTH = "1/2/3/4/5/6/tree"
_FENCE = re.compile(r"^```(?:diff|patch|udiff)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_QUIET = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
}


def extracted(answer: str) -> str:
    """What a person would hand to a tool: the diffs in the fences, else all of it."""
    found = _FENCE.findall(answer)
    return "".join(found) if found else answer


@dataclass(frozen=True)
class Place:
    """A folder with the tree deep inside, and a neighbour that nothing may touch."""

    root: Path

    @property
    def tree(self) -> Path:
        return self.root / DEPTH

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    def reset(self, case: Case) -> None:
        """The tree of the case, and nothing else but a repository."""
        self.tree.mkdir(parents=True, exist_ok=True)
        for entry in self.tree.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                if entry.name != ".git":
                    shutil.rmtree(entry)
            else:
                entry.unlink()
        shutil.rmtree(self.outside, ignore_errors=True)
        self.outside.mkdir()
        (self.outside / "sentinel").write_text("untouched")
        for path, text in case.base.items():
            file = self.tree / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8", "surrogateescape"))
        for path, goal in case.symlinks.items():
            link = self.tree / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(goal.replace(OUTSIDE, str(self.outside)))

    def files(self, links: dict[str, str]) -> Tree:
        """The tree now, without what tools leave for people."""
        found: Tree = {}
        for folder, folders, names in os.walk(self.tree):
            folders[:] = [name for name in folders if name != ".git"]
            for name in names:
                path = Path(folder) / name
                relative = str(path.relative_to(self.tree))
                if name.endswith((".orig", ".rej")) or relative in links or path.is_symlink():
                    continue
                found[relative] = path.read_bytes().decode("utf-8", "replace")
        return found

    def escaped(self) -> bool:
        """Whether anything outside the tree is not as it was."""
        for folder, _, names in os.walk(self.root):
            inside = Path(folder).is_relative_to(self.tree)
            for name in names:
                path = Path(folder) / name
                known = path == self.outside / "sentinel" or path.name == "answer.diff"
                if not inside and not (
                    known and (name != "sentinel" or path.read_text() == "untouched")
                ):
                    return True
        return False


def _run(command: list[str], place: Place, answer: str = "") -> bool:
    try:
        done = subprocess.run(
            command,
            cwd=place.tree,
            input=answer.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=TIMEOUT_S,
            env={**_QUIET, "GIT_CEILING_DIRECTORIES": str(place.tree.parent)},
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextmanager
def _alarm() -> Iterator[None]:
    def expired(_number: int, _frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(TIMEOUT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _patch_ng(place: Place, answer: str) -> bool:
    import patch_ng

    here = os.getcwd()
    try:
        with _alarm():
            parsed = patch_ng.fromstring(answer.encode("utf-8", "surrogateescape"))
            if not parsed:
                return False
            # Of git's diffs it takes the prefixes away by itself.
            strip = 0 if parsed.type in (patch_ng.GIT, patch_ng.HG) else 1
            return bool(parsed.apply(strip=strip, root=str(place.tree)))
    except Exception:  # whatever it raises on a damaged diff: it did not apply it
        return False
    finally:
        os.chdir(here)


def _gnu(*options: str) -> Callable[[Place, str], bool]:
    command = ["patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", *options]
    return lambda place, answer: _run(command, place, answer)


def _git(*options: str) -> Callable[[Place, str], bool]:
    return lambda place, answer: _run(["git", "apply", *options, "-"], place, answer)


TOOLS: dict[str, Callable[[Place, str], bool]] = {
    "GNU patch, fuzz 2": _gnu("--fuzz=2"),
    "GNU patch, fuzz 3, -l": _gnu("--fuzz=3", "-l"),
    "patch-ng": _patch_ng,
    "git apply": _git(),
    "git apply --recount": _git("--recount"),
    "git apply --3way": _git("--3way"),
}


def _outcome(case: Case, place: Place, applied: bool) -> Outcome:
    if place.escaped():
        return Outcome("wrong", "outside", files={})
    if not applied:
        return judged(case, None)
    files = place.files(case.symlinks)
    nothing_done = case.target is None and files == case.base
    return judged(case, None if nothing_done else files)


def with_tools(case: Case) -> dict[str, Outcome]:
    """What every tool makes of a case."""
    found: dict[str, Outcome] = {}
    root = Path(tempfile.mkdtemp(prefix="assay-bench-", dir=SCRATCH))
    place = Place(root)
    answer = extracted(case.answer).replace(OUTSIDE, str(place.outside))
    try:
        for name, tool in TOOLS.items():
            place.reset(case)
            if name.startswith("git"):
                # Added again each time: --3way wants files that are as old as the index says.
                _run(["git", "init", "-q", "--template="], place)
                _run(["git", "add", "-A"], place)
            found[name] = _outcome(case, place, tool(place, answer))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found

"""The private folder of one attempt: a copy of the codebase, its output, its log."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.environments.bundle import check_name, write_tree
from assay.patching.paths import is_protected
from assay.patching.shadows import find_shadows
from assay.sandbox import adopted_volume, open_volume
from services.worker.folders import remove_tree
from services.worker.journal import KEEP, NAME

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Workspace:
    """Paths of an attempt. `out` is open as a descriptor, so that no link can replace it."""

    folder: Path
    out_descriptor: int

    @property
    def writable(self) -> Path:
        """The volume with everything that training may write to."""
        return self.folder / "writable"

    @property
    def codebase(self) -> Path:
        """What training runs in and may change."""
        return self.writable / "codebase"

    @property
    def pristine(self) -> Path:
        """The codebase as it was before training; written after it, for the predictor."""
        return self.folder / "pristine"

    @property
    def out(self) -> Path:
        """The artifact folder."""
        return self.writable / "out"

    @property
    def ask(self) -> Path:
        """Where a training with a warm-up says that it wants its data."""
        return self.writable / "ask"

    @property
    def gate(self) -> Path:
        """Where such a training finds its data; see `warm_up`."""
        return self.folder / "gate"

    @property
    def waiting(self) -> Path:
        """The data until it is asked for."""
        return self.folder / "waiting"

    @property
    def temporary(self) -> Path:
        """`$TMPDIR` and `$HOME` of the training, where there is no private `/tmp`."""
        return self.writable / "tmp"

    @property
    def keep(self) -> Path:
        """What the sandbox needs to find a program that outlived its worker."""
        return self.folder / KEEP

    @property
    def config(self) -> Path:
        """The JSON file that `$ASSAY_CONFIG` names."""
        return self.folder / "config.json"

    @property
    def train_log(self) -> Path:
        """Standard output and error of the training, merged."""
        return self.folder / "train.log"

    @property
    def score_log(self) -> Path:
        """What the evaluation has to say when it fails."""
        return self.folder / "score.log"

    @property
    def logs(self) -> dict[str, Path]:
        """The log streams by name."""
        return {"train": self.train_log, "score": self.score_log}

    def gauges(self) -> dict[str, float]:
        """What the volume of the training holds; nothing where it shares the host's disk."""
        if not os.path.ismount(self.writable):
            return {}
        found = os.fstatvfs(self.out_descriptor)
        return {"disk_bytes": float((found.f_blocks - found.f_bfree) * found.f_frsize)}

    def write_pristine(self, files: Mapping[str, bytes]) -> Path:
        """Write the codebase again, where nothing that was trained could reach it."""
        if self.pristine.exists():  # of an evaluation that a killed worker began
            remove_tree(self.pristine)
        write_readable(files, self.pristine)
        return self.pristine


@contextlib.contextmanager
def open_workspace(
    attempts: Path,
    attempt: str,
    files: Mapping[str, bytes],
    config: Mapping[str, Any],
    *,
    disk_bytes: int,
    disk_files: int,
) -> Iterator[Workspace]:
    """Make the workspace of an attempt, and remove it whatever happens inside.

    What training may write to holds at most `disk_bytes` and `disk_files`, where this host can
    hold that (`assay.sandbox.open_volume`).

    Raises:
        OSError: the disk is full, or the attempt has a workspace already.
        ValueError: the attempt's id is not a plain name.
    """
    if not _PLAIN_NAME.fullmatch(attempt):
        raise ValueError(f"{attempt[:80]!r} is not a plain id")
    folder = attempts / attempt
    folder.mkdir(mode=0o700)
    try:
        (folder / KEEP).mkdir(mode=0o700)
        writable = folder / "writable"
        writable.mkdir(mode=0o755)
        with open_volume(writable, disk_bytes, disk_files), _opened_out(writable) as descriptor:
            space = Workspace(folder, descriptor)
            write_readable(files, space.codebase)
            space.config.write_text(json.dumps(config))
            space.config.chmod(0o644)
            for log in space.logs.values():
                log.touch(mode=0o600)
            yield space
            _forget(folder)
    finally:
        remove_tree(folder)


@contextlib.contextmanager
def reopen_workspace(attempts: Path, attempt: str) -> Iterator[Workspace]:
    """As `open_workspace`, for the workspace that a killed worker left.

    Raises:
        OSError: it is not there, or not complete.
    """
    folder = attempts / attempt
    try:
        writable = folder / "writable"
        with adopted_volume(writable), _descriptor_of(writable / "out") as descriptor:
            yield Workspace(folder, descriptor)
            _forget(folder)
    finally:
        remove_tree(folder)


def clear_workspace(attempts: Path, attempt: str) -> None:
    """Remove what a killed worker left, when nobody goes on with it."""
    with contextlib.suppress(OSError), reopen_workspace(attempts, attempt):
        pass


def _forget(folder: Path) -> None:
    """From here on nobody goes on with the attempt: there will not be enough left of it."""
    (folder / NAME).unlink(missing_ok=True)


@contextlib.contextmanager
def _opened_out(writable: Path) -> Iterator[int]:
    for name in ("out", "tmp", "ask"):
        (writable / name).mkdir(mode=0o755)
    with _descriptor_of(writable / "out") as descriptor:
        yield descriptor


@contextlib.contextmanager
def _descriptor_of(folder: Path) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_readable(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files that a sandbox under another user id can read, whatever the umask is."""
    write_tree(files, folder)
    folders = {folder}
    for name in files:
        path = folder / name
        path.chmod(0o644)
        folders.update(p for p in path.parents if p.is_relative_to(folder))
    for path in folders:
        path.chmod(0o755)


def restore_protected(
    files: Mapping[str, bytes], baseline: Mapping[str, bytes], protected: Sequence[str]
) -> tuple[dict[str, bytes], list[str]]:
    """The codebase with its protected files as the baseline has them, and which were not.

    Files that Python would import in place of a protected one are left out. The implementer
    refuses diffs that do either; this does not depend on it having done so.
    """
    guarded = {n for n in {*files, *baseline} if is_protected(n, protected)}
    guarded.update(find_shadows(files, baseline, protected))
    restored = sorted(n for n in guarded if files.get(n) != baseline.get(n))
    kept = {n: c for n, c in files.items() if n not in guarded}
    kept.update({n: baseline[n] for n in guarded if n in baseline})
    for name in kept:
        check_name(name)
    return kept, restored

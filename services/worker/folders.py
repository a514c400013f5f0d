"""Folders that hostile code may have written to: hold them, remove them."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import time
from pathlib import Path

from assay.domain.errors import Unavailable
from assay.sandbox import VolumeKeeper, sweep_volumes
from services.worker.journal import NAME, Journal, read_journal

_log = logging.getLogger(__name__)
_CLEARED_SECONDS = 1.0


def remove_tree(folder: Path) -> bool:
    """Remove a folder without following links; True when nothing is left.

    Folders that took away their own permissions, or are nested deeper than Python can recurse,
    are left to `chmod` and `rm`.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        _log.info("%s is nested very deeply", folder)
    if os.path.lexists(folder):
        # `rm` comes first: what is left for `chmod` is no link to a file of the cache (`warm_up`).
        for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            if not os.path.lexists(folder):
                break
            subprocess.run(
                [*command, "--", str(folder)],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    gone = not os.path.lexists(folder)
    if not gone:
        _log.warning("%s could not be removed completely", folder)
    return gone


class Scratch:
    """The worker's own folder for attempts, held by a lock as long as the worker lives.

    `journals` are those of attempts that a killed worker left: either somebody goes on with them,
    or `discard` removes them.

    Raises:
        Unavailable: another worker on this host uses the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.attempts = folder / "attempts"
        self._lock = (folder / "worker.lock").open("w")
        if not self._locked():
            self._lock.close()
            raise Unavailable(
                f"{folder} is used by another worker; set ASSAY_WORKER_SCRATCH to another folder"
            )
        self.journals = self._remove_leftovers()
        self._keeper = VolumeKeeper(self.attempts, self._lock.fileno(), spared=NAME)

    def _locked(self) -> bool:
        """Whether the lock could be had; what a killed worker left is cleared away in a moment."""
        deadline = time.monotonic() + _CLEARED_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.02)
            else:
                return True

    def _remove_leftovers(self) -> list[Journal]:
        """Whatever a killed worker left but for attempts with a journal, which are returned: the
        others died with it."""
        if self.attempts.is_symlink():
            self.attempts.unlink()
        self.attempts.mkdir(mode=0o700, exist_ok=True)
        folders = [f for f in self.attempts.iterdir() if f.is_dir() and not f.is_symlink()]
        journals = {folder: read_journal(folder) for folder in folders}
        sweep_volumes(self.attempts, [folder for folder in folders if journals[folder]])
        for leftover in self.attempts.iterdir():
            if leftover not in journals:
                leftover.unlink()
            elif journals[leftover] is None:
                remove_tree(leftover)
        return [journal for journal in journals.values() if journal is not None]

    def discard(self) -> None:
        """Remove what the journals are about: nothing of it runs any more."""
        for journal in self.journals:
            folder = self.attempts / journal.notes.spec.attempt
            (folder / NAME).unlink()
            sweep_volumes(folder)
            remove_tree(folder)
        self.journals = []

    def close(self) -> None:
        """Let another worker use the folder."""
        self._keeper.close()
        self._lock.close()

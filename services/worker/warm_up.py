"""Hold a training's data back until the code asks for it; its wall clock starts then.

Compiling takes minutes on a GPU, and a cache of what was compiled would carry code from one idea
to another. So compiling is left out of the budget instead: until the code has asked there is
nothing to train on, and what it may take before has a limit (`Limits.warm_up_seconds`).
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path

from assay.sandbox import Handle
from services.worker.checkpoints import CheckpointWatch
from services.worker.folders import remove_tree
from services.worker.journal import Journal
from services.worker.workspace import Workspace

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.02
ASK = "data"
"""The file that the code makes in the folder `Workspace.ask`."""
DATA = "data"
"""The folder that then appears in `Workspace.gate`, which is what the code sees of it."""


def hold_back(data: Path, space: Workspace) -> None:
    """Make a copy of `data`, and an empty gate into which it only has to be moved.

    The copy consists of hard links, which take no time and no room. Where there can be none (the
    cache is on another file system, a file is another user's) the files are copied here, before
    any clock runs. Nothing happens where a worker that was killed has done this.
    """
    if space.gate.exists():
        return
    remove_tree(space.waiting)  # unfinished
    copied = 0

    def link(source: str, target: str) -> None:
        nonlocal copied
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, target, follow_symlinks=False)
            copied += os.lstat(target).st_size

    shutil.copytree(data, space.waiting, symlinks=True, copy_function=link)
    space.gate.mkdir()
    space.gate.chmod(0o755)  # whatever the umask: the sandbox may have another user
    if copied:
        _log.warning(
            "%d bytes of data were copied, because %s and %s are on different file systems; put "
            "ASSAY_WORKER_SCRATCH and ASSAY_WORKER_CACHE on one",
            copied,
            data,
            space.folder,
        )


class Gate:
    """Waits until a training asks for its data, moves it in, and starts the clock.

    All that is looked at is whether the folder `space.ask`, open as a descriptor, has an entry of
    a certain name, so what the code puts there does not matter. The data appears complete: a
    folder is renamed. `journal` tells a worker that adopts the training when that was.
    """

    def __init__(self, space: Workspace, journal: Journal, watch: CheckpointWatch) -> None:
        self._space, self._journal, self._checkpoints = space, journal, watch
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._asked = os.open(space.ask, flags)
        self._began = journal.notes.training_began or time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble: OSError | None = None
        at = journal.notes.clock_began or self._opened_at()
        if at is not None:  # adopted: the checkpoints may be looked at before its program is found
            watch.start_clock(at)

    def start(self, handle: Handle) -> None:
        """Watch a training that was just started, or adopted.

        One that asked while nobody watched gets its data here, before its time is looked at.
        """
        if not self._look(handle):
            self._thread = threading.Thread(
                target=self._watch, args=(handle,), name="warm-up", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop watching; to be called when nothing of the training runs any more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._asked)

    def check(self) -> None:
        """Raise the `OSError` that kept the data from the training, if one did."""
        if self._trouble is not None:
            raise self._trouble

    def gauges(self) -> dict[str, float]:
        """For how long the training has warmed up."""
        until = self._journal.notes.clock_began or time.monotonic()
        return {"warm_up_seconds": until - self._began}

    def _watch(self, handle: Handle) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            try:
                if self._look(handle):
                    return
            except OSError as error:  # the host's fault: without its data the training would wait
                self._trouble = error
                handle.kill()
                return

    def _look(self, handle: Handle) -> bool:
        """Start the clock if the data was asked for; whether it runs."""
        at = self._journal.notes.clock_began or self._opened_at()
        if at is None:
            if not self._is_asked():
                return False
            # Started before the data is there: no time with it is free.
            at = time.monotonic()
            self._open()
        if self._journal.notes.clock_began is None:
            self._journal.note(clock_began=at)
            _log.info(
                "%s: asked for its data after %.1f s of warm-up",
                self._space.folder.name,
                at - self._began,
            )
        handle.start_clock(at)
        self._checkpoints.start_clock(at)
        return True

    def _is_asked(self) -> bool:
        try:
            os.stat(ASK, dir_fd=self._asked, follow_symlinks=False)
        except OSError:  # not there, or the folder cannot be searched: that asks for nothing
            return False
        return True

    def _open(self) -> None:
        os.rename(self._space.waiting, self._space.gate / DATA)

    def _opened_at(self) -> float | None:
        """When a worker moved the data that was killed before it could note that; only workers can
        change the gate."""
        if self._space.waiting.exists():
            return None
        age = time.time() - self._space.gate.stat().st_mtime
        now = time.monotonic()
        return min(max(now - age, self._began), now)

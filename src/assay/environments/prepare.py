"""Prepare the data of an environment's profile, once per host, outside the sandbox."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from assay.domain.errors import AssayError
from assay.domain.failure_codes import FailureCode
from assay.environments.catalog import Environment

SPLITS = ("train", "search", "sealed")


class PrepareError(AssayError):
    """Preparing the data of an environment failed."""

    code = FailureCode.PREPARE_FAILED


HELD_OUT_KEY = "ASSAY_HELD_OUT_KEY"
"""Environment variable by which `prepare.py` is told the key; empty for the public data."""
#: For what hangs: a large corpus may take an hour to fetch.
LONGEST_SECONDS = 2 * 3600.0
_TAIL_BYTES, _TAIL_LINES = 8192, 15


def prepare_data(
    environment: Environment,
    profile: str,
    cache: Path,
    *,
    held_out_key: str = "",
    seconds: float = LONGEST_SECONDS,
) -> Path:
    """The folder with `train/`, `search/` and `sealed/` for a profile, made if it is not there.

    An environment that generates its held-out data mixes the key into it, so that nobody who
    knows the generator knows the data; others have no use for it.

    `prepare.py` is trusted and goes to work in a folder of its own, which is renamed when it is
    complete: a killed preparation leaves nothing that looks finished. A lock file keeps two
    processes from doing the same work.

    Raises:
        PrepareError: `prepare.py` failed, left a split out or did not end within `seconds`; the
            message holds its last lines.
    """
    environment.profile(profile)
    name = f"{environment.name}-{environment.content_hash[:12]}"
    if held_out_key:
        name += f"-{hashlib.sha256(held_out_key.encode()).hexdigest()[:12]}"
    target = cache / "data" / name / profile
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{profile}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _prepare(environment, profile, target, held_out_key, seconds)
    return target


def _prepare(
    environment: Environment, profile: str, target: Path, key: str, seconds: float
) -> None:
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with environment.complete_folder() as folder, tempfile.TemporaryFile() as output:
        command = [sys.executable, "-B", str((folder / "prepare.py").resolve())]
        command += ["--profile", profile, "--out", str(unfinished.resolve())]
        code = _run(command, folder, os.environ | {HELD_OUT_KEY: key}, output, seconds)
        tail = _tail(output)
    missing = [s for s in SPLITS if not (unfinished / s).is_dir()]
    if code is None:
        what = f"it did not end within {seconds:g} s"
    elif code:
        what = f"exit code {code}"
    elif missing:
        what = f"no {missing[0]}/ folder"
    else:
        what = ""
    if what:
        raise PrepareError(f"{environment.name}/{profile}: prepare.py: {what}\n{tail}")
    _make_readable(unfinished / "train")
    unfinished.rename(target)


def _run(
    command: list[str], folder: Path, env: dict[str, str], output: IO[bytes], seconds: float
) -> int | None:
    """The exit code; None if it took too long and was killed with all of its session."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    text = output.read().decode(errors="replace").strip()
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _make_readable(folder: Path) -> None:
    """Let a sandbox's user read what training is given; libraries write some files as private.

    A file with several names may be a user's own, linked here: its mode is theirs to change.
    """
    for path in (folder, *folder.rglob("*")):
        info = path.stat()
        wanted = info.st_mode | (0o555 if path.is_dir() else 0o444)
        if wanted != info.st_mode and (path.is_dir() or info.st_nlink == 1):
            path.chmod(stat.S_IMODE(wanted))

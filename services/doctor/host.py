"""Whether a host can be a worker: its servers, its GPUs, its sandbox, its disk.

A worker's host holds no database and no models: nothing of them is imported here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError

from assay.cli.doctor import GIB, Finding
from services.worker.settings import PREFIX, WorkerSettings

_SECONDS = 5.0
_SKEW_SECONDS = 60.0
_WANTED_BYTES = 20 * GIB
DRIVER = Path("/proc/driver/nvidia/version")
#: Asked for with a token, a thing that nobody has says whether the token is known.
_NOTHING = "0" * 64


def examine(*, loaded: Path = DRIVER) -> list[Finding]:
    """Make every check, as far as the settings allow it.

    The file `loaded` exists where the NVIDIA driver is loaded.
    """
    driver = _driver(loaded)
    found = [driver, _toolkit(needed=driver.state == "ok")]
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        problem = error.errors()[0]
        where = PREFIX + "_".join(map(str, problem["loc"])).upper() if problem["loc"] else PREFIX
        text = problem["msg"].removeprefix("Value error, ")
        remedy = "see docs/operations.md, Settings"
        return [*found, Finding(where, "missing", text, remedy)]
    found += [*_api(settings), _cache(settings.cache)]
    return [*found, _broker(os.environ.get(f"{PREFIX}BROKER_URL"))]


def _driver(loaded: Path) -> Finding:
    """The driver, and whether it answers: it may be loaded and not match its library."""
    if not loaded.exists():
        return Finding("NVIDIA driver", "note", "not loaded", "needed only for GPUs")
    smi = shutil.which("nvidia-smi")
    if smi is None:
        remedy = "install nvidia-smi, or give the container the capability `utility`"
        return Finding("NVIDIA driver", "missing", "no nvidia-smi (NVML)", remedy)
    asked = _run(smi, "--query-gpu=name,driver_version", "--format=csv,noheader")
    if asked.returncode != 0:
        remedy = "reboot after an upgrade of the driver; see `nvidia-smi` and `dmesg | grep Xid`"
        return Finding("NVIDIA driver", "missing", _first(asked.stdout or asked.stderr), remedy)
    gpus = asked.stdout.strip().splitlines()
    return Finding("NVIDIA driver", "ok", f"{len(gpus)} GPUs: {_first(asked.stdout)}")


def _toolkit(*, needed: bool) -> Finding:
    """Older toolkits lose GPUs of running containers at `systemctl daemon-reload`."""
    tool = shutil.which("nvidia-ctk")
    remedy = "install nvidia-container-toolkit 1.18 or newer (only the docker backend needs it)"
    if tool is None:
        state = "note" if needed else "ok"
        return Finding("container toolkit", state, "not installed", remedy)
    asked = _run(tool, "--version")
    words = _first(asked.stdout).split()
    number = words[-1] if words else "unknown"
    parts = [int(part) for part in number.split(".")[:2] if part.isdigit()]
    good = parts >= [1, 18]
    return Finding("container toolkit", "ok" if good else "note", number, remedy)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _first(text: str) -> str:
    return (text.strip().splitlines() or ["no answer"])[0]


def _api(settings: WorkerSettings) -> list[Finding]:
    url = str(settings.api_url).rstrip("/")
    token = settings.token.get_secret_value()
    try:
        with httpx2.Client(timeout=_SECONDS) as client:
            answer = client.get(
                f"{url}/internal/v1/bundles/{_NOTHING}",
                headers={"Authorization": f"Bearer {token}"},
            )
    except httpx2.HTTPError as error:
        remedy = f"start the API, or correct {PREFIX}API_URL"
        return [Finding("API", "missing", f"{url}: {error}", remedy)]
    if answer.status_code == 401:
        remedy = "admit this worker: `assay worker admit NAME` prints a new token"
        return [Finding("API", "missing", f"{url} does not know this token", remedy)]
    if answer.status_code >= 500:
        remedy = f"see {url}/readyz and the API's log"
        return [Finding("API", "missing", f"{url} answers {answer.status_code}", remedy)]
    return [Finding("API", "ok", f"{url} knows this worker"), _clock(answer.headers.get("date"))]


def _clock(date: str | None) -> Finding:
    if date is None:
        return Finding("clock", "note", "the API does not say the time")
    skew = abs((datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds())
    remedy = "set the clock by NTP: signed addresses are refused when it is minutes off"
    good = skew < _SKEW_SECONDS
    return Finding("clock", "ok" if good else "note", f"{skew:.0f} s from the API's", remedy)


def _cache(folder: Path) -> Finding:
    place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    state = "ok" if free > _WANTED_BYTES else "note" if free > GIB else "missing"
    if not os.access(place, os.W_OK):
        return Finding("cache", "missing", f"{place} cannot be written", "change its owner")
    remedy = f"free some, or set {PREFIX}CACHE to a larger disk"
    return Finding("cache", state, f"{free / GIB:.1f} GiB free at {place}", remedy)


def _broker(url: str | None) -> Finding:
    """Whether it can be reached. Who may sign in is known once the worker has registered."""
    if not url:
        remedy = f"set {PREFIX}BROKER_URL: without it the worker asks every few seconds only"
        return Finding("broker", "note", "not set", remedy)
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 6379), _SECONDS):
            return Finding("broker", "ok", f"{parts.hostname}:{parts.port or 6379} can be reached")
    except OSError as error:
        remedy = "open the port; until then the worker asks every few seconds only"
        return Finding("broker", "note", f"{parts.hostname}: {error}", remedy)

"""The baseline of nanogpt `quick-gpu` through the whole service, as a user measures it.

`assay serve` finds the GPU, its worker trains in a sandbox, and the sealed evaluation asks the
model. The budget is shorter than the profile's, so that two measurements fit, and the evaluation
may take longer. Says how long each took: what is above `seconds` is warm-up and evaluation.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu import report, runs

NAME = "nanogpt_short"
SEEDS = 2
_SECONDS = 20
_EVALUATION_SECONDS = 600
"""Above the profile's: what is too long for it is what this is to show."""
_DRY_SECONDS = 300.0
_ASSAY = (sys.executable, "-m", "assay.cli")


def run(seconds: float, dry_run: bool) -> dict[str, Any]:
    """Calibrate on two seeds within `seconds`; in a dry run on `tiny`, for as long as it takes."""
    profile, within = ("tiny", _DRY_SECONDS) if dry_run else ("quick-gpu", seconds)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        shutil.copytree(runs.NANOGPT, folder / "environments" / NAME)
        if not dry_run:
            shorten(folder / "environments" / NAME / "environment.toml", profile)
        else:
            rename(folder / "environments" / NAME / "environment.toml")
        with service(folder) as environ:
            workers = _asked(environ, "worker", "list", "--json")["data"]
            found: dict[str, Any] = {
                "profile": profile,
                "seconds": None if dry_run else _SECONDS,
                "workers": [
                    {key: worker[key] for key in ("hardware_class", "sandbox", "gpus")}
                    for worker in workers
                ],
            }
            report.save("service", found)
            command = (
                "env",
                "calibrate",
                NAME,
                "--profile",
                profile,
                "--no-write",
                "--no-controls",
            )
            done = subprocess.run(
                [*_ASSAY, *command, "--seeds", str(SEEDS), "--timeout", f"{within:g}"],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            found["measurements"] = [
                describe(one) for one in _asked(environ, "measurement", "list", "--json")["data"]
            ]
    report.save("service", found)
    if done.returncode:
        raise RuntimeError(
            f"`assay env calibrate` ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return found


def rename(manifest: Path) -> None:
    """Give the copy of an environment its own name."""
    manifest.write_text(manifest.read_text().replace('name = "nanogpt"', f'name = "{NAME}"', 1))


def shorten(manifest: Path, profile: str) -> None:
    """Rename a copy, and let its profile train for a moment and be evaluated for long."""
    rename(manifest)
    before, budget, after = manifest.read_text().partition(f"[profiles.{profile}.budget]\n")
    after = re.sub(r"(?m)^seconds = \d+", f"seconds = {_SECONDS}", after, count=1)
    after = re.sub(
        r"(?m)^evaluation_seconds = \d+",
        f"evaluation_seconds = {_EVALUATION_SECONDS}",
        after,
        count=1,
    )
    # A smoke may not be longer than its profile.
    smoke, table, rest = after.partition(f"[profiles.{profile}.smoke]\n")
    rest = re.sub(r"(?m)^seconds = \d+", f"seconds = {_SECONDS}", rest, count=1)
    manifest.write_text(before + budget + smoke + table + rest)


@contextmanager
def service(folder: Path) -> Iterator[dict[str, str]]:
    """`assay serve` on a free port; the environment of programs that use it."""
    environ = os.environ | {
        "ASSAY_ENVIRONMENTS": str(folder / "environments"),
        "ASSAY_LOCAL_DATA_DIR": str(folder / "data"),
        "NO_COLOR": "1",
    }
    command = [*_ASSAY, "serve", "--port", "0"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                said = (folder / "log").read_text()[-2000:]
                raise RuntimeError(f"`assay serve` did not start: {said}")
            yield environ | {"ASSAY_API_URL": json.loads(line)["api"]}
        finally:
            process.send_signal(signal.SIGINT)


def describe(measurement: dict[str, Any]) -> dict[str, Any]:
    """What a measurement came to, and how long its last attempt took."""
    attempt = measurement["attempts"][-1] if measurement["attempts"] else {}
    took = None
    if attempt.get("started_at") and attempt.get("finished_at"):
        began, ended = (
            datetime.fromisoformat(attempt[f"{k}_at"]) for k in ("started", "finished")
        )
        took = round((ended - began).total_seconds(), 1)
    failure = measurement["failure"]
    return {
        "seed": measurement["seed"],
        "state": measurement["state"],
        "failure": failure and {key: failure[key] for key in ("stage", "code")},
        "metric": measurement["metric"],
        "metrics": measurement["metrics"],
        "took_seconds": took,
    }


def _asked(environ: dict[str, str], *command: str) -> dict[str, Any]:
    done = subprocess.run([*_ASSAY, *command], env=environ, capture_output=True, check=True)
    return dict(json.loads(done.stdout))

"""What the service costs: 200 `toy` experiments against the same 200 commands without it.

    python benchmarks/overhead.py --ideas 200

The alternative is a pool of two threads that starts the same training commands, on the same
patched codebases, through the same sandbox with the same limits; nothing is implemented, recorded,
scored or committed. The pool is timed before and after the service, in one run.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from pydantic import SecretStr

from assay.client import Client
from assay.contracts.batch import IdeaRequest
from assay.contracts.worker import AttemptSpec
from assay.environments import Catalog, Environment, prepare_data
from assay.llm.offline.literal import LiteralImplementer
from assay.patching import apply_answer
from assay.sandbox import choose_sandbox, open_sandbox
from benchmarks.machine import about_machine
from services.worker.settings import WorkerSettings
from services.worker.training import Training, start_and_wait
from services.worker.workspace import open_workspace
from tests.support.service import running, toy_batch, toy_ideas

SLOTS = 2


def patched(environment: Environment, ideas: list[IdeaRequest]) -> list[dict[str, str]]:
    """The codebases the service will measure."""
    import asyncio

    from assay.llm import ImplementRequest

    async def one(idea: IdeaRequest) -> dict[str, str]:
        request = ImplementRequest("toy", environment.codebase, (), idea.text)
        answer = await LiteralImplementer().implement(request)
        return apply_answer(environment.codebase, answer.text).files

    async def every() -> list[dict[str, str]]:
        return [await one(idea) for idea in ideas]

    return asyncio.run(every())


def pool_seconds(folder: Path, environment: Environment, codebases: list[dict[str, str]]) -> float:
    """Wall clock of the commands alone, two at a time."""
    profile = environment.profile("tiny")
    data = prepare_data(environment, "tiny", folder / "cache") / "train"
    attempts = folder / "attempts"
    attempts.mkdir(parents=True)
    settings = WorkerSettings(token=SecretStr("none"), scratch=folder / "scratch")
    sandbox_settings, _ = choose_sandbox("auto", attempts)
    sandbox = open_sandbox(sandbox_settings)
    argv = environment.manifest.entry_points.train

    def command(number: int) -> None:
        spec = AttemptSpec(
            attempt=f"a{number}",
            lease_token=0,
            measurement="",
            kind="score",
            codebase="",
            environment=environment.id,
            bundle="",
            profile="tiny",
            seed=0,
            hardware_class="cpu",
            cpus=profile.cpus,
            gpus=0,
            memory_bytes=profile.memory_bytes,
        )
        files = {name: text.encode() for name, text in codebases[number].items()}
        with open_workspace(
            attempts,
            spec.attempt,
            files,
            dict(profile.config),
            disk_bytes=profile.disk_bytes,
            disk_files=settings.disk_files,
        ) as space:
            training = Training(spec, profile, argv, data)
            end = start_and_wait(sandbox, training, space, settings, threading.Event())
            if (end.reason, end.code) != ("exited", 0):
                raise RuntimeError(f"{spec.attempt}: {end}: {space.train_log.read_text()[-500:]}")

    started = time.monotonic()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(command, range(len(codebases))))
    return time.monotonic() - started


def service_seconds(client: Client, ideas: list[IdeaRequest]) -> float:
    """Wall clock from submission to the last result."""
    started = time.monotonic()
    batch = client.batches.create(toy_batch(ideas, baseline_seeds=0))
    done = client.batches.wait(batch.id, timeout=600)
    seconds = time.monotonic() - started
    if done.counts.succeeded != len(ideas):
        raise RuntimeError(f"not all succeeded: {done.counts}")
    return seconds


def measured_seconds(database: str) -> list[float]:
    """What the worker measured of each: exact, where the API shows whole seconds."""
    with closing(sqlite3.connect(database)) as connection:
        return [seconds for (seconds,) in connection.execute("SELECT seconds FROM result")]


def main() -> None:
    """Time both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ideas", type=int, default=200)
    args = parser.parse_args()
    environment = Catalog().get("toy")
    ideas = toy_ideas(args.ideas)
    codebases = patched(environment, ideas)
    about = about_machine()
    with tempfile.TemporaryDirectory(prefix="assay-overhead-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        before = pool_seconds(folder / "before", environment, codebases)
        with running(folder / "service", cpus=SLOTS) as service, service.client() as client:
            service_s = service_seconds(client, ideas)
            inside = measured_seconds(service.ready["database"])
        after = pool_seconds(folder / "after", environment, codebases)
    pool_s = (before + after) / 2
    per_experiment = service_s * SLOTS / args.ideas
    print(
        f"pool of {SLOTS}: {before:.2f} s before, {after:.2f} s after; service: {service_s:.2f} s"
    )
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "experiments": args.ideas,
                "service_s": round(service_s, 2),
                "alternative": "the same commands through the same sandbox, two at a time",
                "alternative_s": round(pool_s, 2),
                "ratio": round(service_s / pool_s, 2),
                "slot_ms_per_experiment": round(1000 * per_experiment, 1),
                "median_train_and_score_ms": round(1000 * statistics.median(inside), 1),
                "median_overhead_ms": round(
                    1000 * (per_experiment - statistics.median(inside)), 1
                ),
                "sandbox": service.ready["sandbox"],
                **about,
            }
        )
    )


if __name__ == "__main__":
    main()

"""Does the cap on compute hold, on idle and on busy cores, and what does counting cost?

    python -m benchmarks.budgets [--runs 100] [--burners 3] [--environment nanogpt]

Measures the baseline a few times, as workers do (`services/worker/usage.py`), and then by turns
a training of 1.3 times the allowed compute, which is to be refused, and one of the committed
edits, which is not; first with the cores as they are, then beside processes that burn them. The
longer training follows from the codebase's own budget of tokens or steps: its start (imports)
takes the same. The last line is JSON with the shares refused and the cost of the probes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from pydantic import SecretStr

from assay.contracts.environment import Profile
from assay.contracts.worker import AttemptSpec
from assay.environments.bundle import read_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from assay.patching import apply_answer
from assay.sandbox import Sandbox, choose_sandbox, open_sandbox
from benchmarks.burners import burners
from services.worker.hardware import hardware_class, read_cpu
from services.worker.settings import WorkerSettings
from services.worker.speed import speed_probe
from services.worker.training import Training, start_and_wait
from services.worker.workspace import open_workspace

ROOT = Path(__file__).resolve().parent.parent
BEYOND = 1.3
"""How far beyond the cap the trainings are that have to be refused."""
REFERENCES = 5


@dataclass
class Range:
    """Trains codebases in the sandbox as a worker does, without its API."""

    environment: Environment
    profile_name: str
    sandbox: Sandbox
    settings: WorkerSettings
    folder: Path
    counter: Iterator[int] = field(default_factory=itertools.count)
    probe_cpu: list[float] = field(default_factory=list)
    run_cpu: list[float] = field(default_factory=list)

    @property
    def profile(self) -> Profile:
        return self.environment.profile(self.profile_name)

    def compute(self, files: Mapping[str, bytes], **budget: int) -> float:
        """CPU time of a training in units of the host's speed."""
        name, cancel = f"run-{next(self.counter)}", threading.Event()
        profile = self.profile
        profile = profile.model_copy(update={"budget": profile.budget.model_copy(update=budget)})
        config = profile.config | {"budget": profile.budget.model_dump(exclude_none=True)}
        spec = AttemptSpec(
            attempt=name,
            lease_token=0,
            measurement=name,
            kind="score",
            codebase="",
            environment=self.environment.id,
            bundle="",
            profile=self.profile_name,
            seed=next(self.counter),
            hardware_class=hardware_class(read_cpu()),
            cpus=profile.cpus,
            gpus=0,
            memory_bytes=profile.memory_bytes,
        )
        data = prepare_data(self.environment, self.profile_name, self.folder / "cache")
        argv = self.environment.manifest.entry_points.train
        training = Training(spec, profile, argv, data / "train")
        disk = {"disk_bytes": profile.disk_bytes, "disk_files": self.settings.disk_files}
        with open_workspace(self.folder, name, files, config, **disk) as space:
            with speed_probe(self.sandbox, training, self.settings) as probe:
                probe.first(cancel)
                end = start_and_wait(self.sandbox, training, space, self.settings, cancel)
                speed = probe.stop()
            if (end.reason, end.code) != ("exited", 0):
                log = space.train_log.read_text(errors="replace")[-1000:]
                raise SystemExit(f"a training ended with {end.reason}, code {end.code}:\n{log}")
        self.run_cpu.append(end.cpu_seconds)
        self.probe_cpu.append(speed.cpu_seconds)
        return end.cpu_seconds / speed.seconds


def edits(environment: Environment) -> dict[str, dict[str, bytes]]:
    """The committed edits of an environment, applied."""
    folder = ROOT / "tests" / "environments" / environment.name / "edits"
    protected = environment.manifest.codebase.protected
    text = environment.codebase
    found = {}
    for path in sorted(folder.glob("*.diff")):
        patched = apply_answer(text, path.read_text(), protected=protected)
        found[path.stem] = {name: content.encode() for name, content in patched.files.items()}
    return found


def judge(arena: Range, runs: int, neighbours: int) -> dict[str, Any]:
    """The shares refused in each condition."""
    baseline = read_tree(arena.environment.folder / "codebase")
    budget = arena.profile.budget
    cap = budget.compute
    unit = "tokens" if budget.tokens else "steps"
    whole = budget.tokens or budget.steps
    if cap is None or whole is None:
        raise SystemExit("the profile needs budget.compute, and budget.tokens or budget.steps")
    half = whole // 2
    references = [arena.compute(baseline) for _ in range(REFERENCES)]
    reference = median(references)
    start = 2 * arena.compute(baseline, **{unit: half}) - reference
    longer = round(whole * (BEYOND * cap * reference - start) / (reference - start))
    print(
        f"{arena.environment.name}/{arena.profile_name}: cap {cap:g}, baseline "
        f"{reference:.1f} ± {stdev(references):.1f} units, cheats train {longer / whole:.2f} "
        f"times its {unit}",
        flush=True,
    )
    honest = itertools.cycle(edits(arena.environment).items())
    found: dict[str, Any] = {"cap": cap, "longer": round(longer / whole, 3)}
    for condition, count in (("idle", 0), ("busy", neighbours)):
        multiples: dict[str, list[float]] = {"cheats": [], "edits": []}
        names = []
        with burners(count):
            for number in range(runs):
                multiples["cheats"].append(arena.compute(baseline, **{unit: longer}) / reference)
                name, files = next(honest)
                names.append(name)
                multiples["edits"].append(arena.compute(files) / reference)
                print(
                    f"{condition} {number + 1}/{runs}: cheat {multiples['cheats'][-1]:.2f}, "
                    f"{name} {multiples['edits'][-1]:.2f} (load {os.getloadavg()[0]:.1f})",
                    flush=True,
                )
        found[condition] = {
            "cheats_refused": sum(m > cap for m in multiples["cheats"]),
            "edits_refused": sum(m > cap for m in multiples["edits"]),
            "cheats": [round(m, 3) for m in multiples["cheats"]],
            "edits": {n: round(m, 3) for n, m in zip(names, multiples["edits"], strict=True)},
        }
    share = fmean(arena.probe_cpu) / fmean(arena.run_cpu)
    return found | {
        "runs": runs,
        "burners": neighbours,
        "probe_share_of_training": round(share, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--burners", type=int, default=(os.cpu_count() or 1) + 1)
    parser.add_argument("--environment", default="nanogpt")
    parser.add_argument("--profile", default="tiny")
    arguments = parser.parse_args()
    environment = Environment.load(ROOT / "environments" / arguments.environment)
    with tempfile.TemporaryDirectory(prefix="assay-budgets-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        chosen, why = choose_sandbox("auto", folder)
        settings = WorkerSettings(token=SecretStr("-"), adopt=False, cache=folder / "cache")
        sandbox = open_sandbox(dataclasses.replace(chosen, grace_seconds=1.0))
        arena = Range(environment, arguments.profile, sandbox, settings, folder)
        print(f"sandbox: {why}", file=sys.stderr)
        figures = judge(arena, arguments.runs, arguments.burners)
    for condition in ("idle", "busy"):
        found = figures[condition]
        print(
            f"{condition}: refused {found['cheats_refused']} of {arguments.runs} trainings of "
            f"{BEYOND:g} x the allowed compute, {found['edits_refused']} of {arguments.runs} edits"
        )
    print(f"the probes took {100 * figures['probe_share_of_training']:.1f} % of a training")
    print(json.dumps({"name": "budgets"} | figures))


if __name__ == "__main__":
    main()

"""Which system calls do trainings and evaluations make?

    python -m benchmarks.syscalls            compare with what is recorded
    python -m benchmarks.syscalls --write    record anew

Runs the programs of `tests.support.workloads` under strace, and for each bundled environment
`assay serve`, of which only what it starts in the `subprocess` sandbox counts: the trainings and
predictors of a baseline and of one idea. `--write` replaces
`src/assay/sandbox/recorded_syscalls.txt`, from which the sandboxes' filter is made; it keeps what
was recorded before, because no single machine makes every call. Needs strace and root or
`ptrace_scope` 0. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from assay.environments import Environment
from assay.sandbox import syscalls
from tests.support.service import ServiceProcess
from tests.support.warm_start import Process, spawn
from tests.support.workloads import WORKLOADS, knob_batch, patient_copy

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ("grpo", "nanogpt", "toy")
#: What the launcher of a sandbox calls itself; see `assay.sandbox.launcher`.
LAUNCHER = '"assay-launch"'
#: Of a baseline and one idea: tracing makes them several times slower.
SECONDS = 1800.0

_CALL = re.compile(r"(\d+) +(\w+)\(")
_CHILD = re.compile(r"(\d+) +(?:<\.\.\. )?(clone|clone3|fork|vfork)\b.* = (\d+)$")
_HEADER = """\
# The system calls of trainings and evaluations, and what made them.
# Recorded by `python -m benchmarks.syscalls --write` with strace, last on {machine}.
# Sorted by name. Do not add lines by hand: what cannot be recorded belongs into syscalls.py.
"""


def traced(log: Path, command: Sequence[str]) -> list[str]:
    """A command that runs another one and writes every system call of it and its children."""
    # -D: strace is a child of what it traces, which can be signalled as if nobody traced it.
    quiet = ["-D", "-f", "-qq", "-e", "signal=none"]
    return ["strace", *quiet, "-o", str(log), *command]


def calls_in(lines: Sequence[str], *, launched: bool) -> set[str]:
    """Names of the calls in a trace; `launched`: only of what a sandbox's launcher started."""
    inside = _launched(lines) if launched else None
    found = set()
    for number, line in enumerate(lines):
        if (match := _CALL.match(line)) is None:
            continue
        pid, name = int(match[1]), match[2]
        if inside is None or inside.get(pid, len(lines)) <= number:
            found.add(name)
    return found


def _launched(lines: Sequence[str]) -> dict[int, int]:
    """Processes below a launcher, and the line from which on they are."""
    inside: dict[int, int] = {}
    edges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, line in enumerate(lines):
        if (match := _CHILD.match(line)) is not None:
            edges[int(match[1])].append((number, int(match[3])))
        elif LAUNCHER in line:
            inside.setdefault(int(line.split()[0]), number)
    pending = list(inside)
    while pending:
        parent = pending.pop()
        for number, child in edges[parent]:
            if number >= inside[parent] and child not in inside:
                inside[child] = 0
                pending.append(child)
    return inside


def record_workload(code: str) -> set[str]:
    """The calls of one program of `tests.support.workloads`."""
    with tempfile.TemporaryDirectory(prefix="assay-syscalls-") as name:
        folder, log = Path(name, "work"), Path(name, "trace")
        folder.mkdir()
        (folder / "program.py").write_text(code)
        command = traced(log, [sys.executable, "program.py"])
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return calls_in(log.read_text(errors="replace").splitlines(), launched=False)


def record_environment(name: str) -> set[str]:
    """The calls of training and predicting, for a baseline and one idea."""
    with tempfile.TemporaryDirectory(prefix="assay-syscalls-") as folder:
        log = Path(folder, "trace")

        def start(
            command: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int
        ) -> Process:
            return spawn(traced(log, command), env, stdout, stderr)

        # Tracing takes processor time of the traced, which must not end it.
        env = {"ASSAY_ENVIRONMENTS": str(patient_copy(name, Path(folder, "environments")))}
        env["ASSAY_WORKER_PROBE"] = "quick"  # the whole probe makes calls that are denied
        service = ServiceProcess(Path(folder, "data"), sandbox="subprocess", env=env, spawn=start)
        service.start()
        try:
            environment = Environment.load(ROOT / "environments" / name)
            with service.client() as client:
                batch = client.batches.create(knob_batch(environment)).id
                client.batches.wait(batch, timeout=SECONDS)
                (experiment,) = client.experiments.list(batch=batch)
            if experiment.state != "succeeded":
                raise RuntimeError(f"{name}: {experiment.state}: {experiment.failure}")
        finally:
            service.stop()
        return calls_in(log.read_text(errors="replace").splitlines(), launched=True)


def written(recorded: Mapping[str, Iterable[str]]) -> str:
    """The text of the data file."""
    libc = " ".join(platform.libc_ver())
    machine = f"Linux {platform.release().split('-')[0]}, {platform.machine()}, {libc},\n# "
    machine += f"Python {platform.python_version()}, torch {version('torch')}"
    rows = [f"{name} {' '.join(sorted(by))}\n" for name, by in sorted(recorded.items())]
    return _HEADER.format(machine=machine) + "".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", action="append", choices=[*WORKLOADS, *ENVIRONMENTS])
    options = parser.parse_args()
    found: dict[str, set[str]] = defaultdict(set)
    for name in options.only or [*WORKLOADS, *ENVIRONMENTS]:
        record = record_environment if name in ENVIRONMENTS else record_workload
        calls = record(name if name in ENVIRONMENTS else WORKLOADS[name])
        print(f"{name}: {len(calls)} system calls", file=sys.stderr)
        for call in calls & set(syscalls.NUMBERS):
            found[call].add(name)
    missing = sorted(set(found) - set(syscalls.ALLOWED) - set(syscalls.DENIED) - syscalls.JUDGED)
    if options.write:
        kept = {call: set(by) for call, by in syscalls.RECORDED.items()}
        for call, by in found.items():
            kept[call] = kept.get(call, set()) | by
        syscalls.RECORDED_FILE.write_text(written(kept))
    print(json.dumps({"recorded": len(found), "not_allowed": missing}))
    return 1 if missing and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())

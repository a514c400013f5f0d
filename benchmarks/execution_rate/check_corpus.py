"""Whether every case of the corpus does what its fault says: `python -m … [--only NAME]`.

Answers are applied as the implement loop applies them. What can be applied is trained to its end
in profile `tiny`, as the worker's entry point trains it but without a sandbox. No model is asked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.domain.hashing import text_tree_hash
from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from assay.patching import PatchRefused, apply_answer, check_codebase
from benchmarks.execution_rate.corpus import Case, load
from services.implementer.judging import compile_error, has_traceback
from services.worker.hardware import hardware_class, read_cpu

ROOT = Path(__file__).resolve().parents[2]
PROFILE = "tiny"
#: What the patcher and the compiler say to a fault.
REFUSALS = {
    "context": {"no_match", "ambiguous", "unknown_file"},
    "syntax": {"syntax_error", "does_not_compile"},
    "protected": {"protected"},
    "malformed": {"no_diff", "malformed", "truncated"},
}
#: How much of a log an author is shown.
TAIL = 4_000
#: The step at which a late error may come first.
LATE = 3


@dataclass(frozen=True)
class End:
    """How a training ended; `step` is the last one on its curve, -1 if it has none."""

    code: int
    step: int
    wall: float
    cpu: float
    log: str


@dataclass(frozen=True)
class Verdict:
    """What became of one answer: how it ended (or which refusal), and what is not as it should."""

    ending: str
    problem: str | None = None
    end: End | None = None


@dataclass
class Lab:
    """Where trainings run. The same code is trained once."""

    folder: Path
    cache: Path
    environments: dict[str, Environment] = field(default_factory=dict)
    known: dict[str, End] = field(default_factory=dict)

    def environment(self, name: str) -> Environment:
        if name not in self.environments:
            self.environments[name] = Environment.load(ROOT / "environments" / name)
        return self.environments[name]

    def patched(self, case: Case, answer: str) -> dict[str, str]:
        """The codebase with an answer's edits.

        Raises:
            PatchRefused: they cannot be applied.
        """
        environment = self.environment(case.environment)
        protected = environment.manifest.codebase.protected
        files = apply_answer(environment.codebase, answer, protected=protected).files
        check_codebase(files, environment.codebase, protected)
        return files

    def train(self, name: str, files: dict[str, str]) -> End:
        key = f"{name} {text_tree_hash(files)}"
        if key not in self.known:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                self.known[key] = self._train(self.environment(name), files, Path(folder))
        return self.known[key]

    def _train(self, environment: Environment, files: dict[str, str], folder: Path) -> End:
        data = prepare_data(environment, PROFILE, self.cache) / "train"
        write_tree({name: text.encode() for name, text in files.items()}, folder / "codebase")
        for name in ("out", "tmp"):
            (folder / name).mkdir()
        profile = environment.profile(PROFILE)
        config = profile.config | {"budget": profile.budget.model_dump(exclude_none=True)}
        (folder / "config.json").write_text(json.dumps(config))
        began = time.monotonic()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *environment.manifest.entry_points.train[1:]],
                cwd=folder / "codebase",
                env=variables(environment, data, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return End(
            process.returncode,
            last_step(folder / "out" / "metrics.jsonl"),
            time.monotonic() - began,
            usage.ru_utime + usage.ru_stime,
            (folder / "log").read_text(errors="replace"),
        )


def variables(environment: Environment, data: Path, folder: Path) -> dict[str, str]:
    """The environment variables that the worker gives to a training."""
    profile = environment.profile(PROFILE)
    threads = str(profile.cpus)
    return {
        "PATH": os.environ["PATH"],
        "ASSAY_DATA": str(data),
        "ASSAY_OUT": str(folder / "out"),
        "ASSAY_CONFIG": str(folder / "config.json"),
        "ASSAY_SEED": "0",
        "ASSAY_PROFILE": PROFILE,
        "ASSAY_HARDWARE_CLASS": hardware_class(read_cpu()),
        "ASSAY_THREADS": threads,
        "ASSAY_GPUS": "0",
        "ASSAY_SECONDS": f"{profile.budget.seconds:g}",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder / "tmp"),
        "TMPDIR": str(folder / "tmp"),
    }


def last_step(curve: Path) -> int:
    if not curve.is_file():
        return -1
    points: list[dict[str, Any]] = [json.loads(line) for line in curve.read_text().splitlines()]
    return max((p["step"] for p in points if "train/loss" in p), default=-1)


def judge(lab: Lab, case: Case) -> Verdict:
    """The answer of a case, which must have its fault and lead its author to it."""
    try:
        files = lab.patched(case, case.answer)
    except PatchRefused as refusal:
        return refused(case, refusal.code.value, refusal.log)
    broken = compile_error(files, lab.environment(case.environment).codebase)
    if broken is not None:
        return refused(case, "does_not_compile", broken)
    if case.fault in REFUSALS:
        return Verdict("applied", f"fault {case.fault}, but it is applied and compiles")
    end = lab.train(case.environment, files)
    if case.fault == "none":
        return Verdict(ending(end), unfinished(lab, case, end), end)
    return Verdict(ending(end), crash_problem(case, end), end)


def refused(case: Case, code: str, log: str) -> Verdict:
    if code not in REFUSALS.get(case.fault, set()):
        return Verdict(code, f"fault {case.fault}, but it is refused as {code}: {log}")
    return Verdict(code, unhelpful(case, log))


def crash_problem(case: Case, end: End) -> str | None:
    """What is wrong with the end of an answer that must crash."""
    if end.code == 0 or not has_traceback(end.log):
        return f"it ended with {end.code} and must crash with a traceback"
    if case.fault == "late" and end.step < LATE:
        return f"a late error came at step {end.step}:\n{end.log[-TAIL:]}"
    if case.fault != "late" and end.step >= 1:
        return f"an error of the first step came at step {end.step}"
    return unhelpful(case, end.log[-TAIL:])


def unhelpful(case: Case, feedback: str) -> str | None:
    """Feedback from which the author of a case cannot learn, unless nothing helps."""
    if case.fixed_when is None or case.understands(feedback):
        return None
    return f"the feedback does not match {case.fixed_when!r}:\n{feedback}"


def judge_fixed(lab: Lab, case: Case) -> Verdict:
    """The repaired answer of a case, which must train to the end."""
    assert case.fixed is not None
    try:
        files = lab.patched(case, case.fixed)
    except PatchRefused as refusal:
        return Verdict(refusal.code.value, f"fixed is refused: {refusal.log}")
    broken = compile_error(files, lab.environment(case.environment).codebase)
    if broken is not None:
        return Verdict("does_not_compile", broken)
    end = lab.train(case.environment, files)
    return Verdict(ending(end), unfinished(lab, case, end), end)


def unfinished(lab: Lab, case: Case, end: End) -> str | None:
    """Why a training that must reach its end within the budget did not."""
    if end.code != 0:
        return f"training must end well:\n{end.log[-TAIL:]}"
    limit = lab.environment(case.environment).profile(PROFILE).budget.cpu_seconds
    if limit is not None and end.cpu > limit:
        return f"training took {end.cpu:.0f} s of processor time and may take {limit:g}"
    return None


def ending(end: End) -> str:
    last = end.log.strip().splitlines()[-1:] or [""]
    shown = "exit 0" if end.code == 0 else last[0][:60]
    return f"{shown}, step {end.step}, {end.wall:.1f} s"


def check(lab: Lab, case: Case) -> list[Verdict]:
    verdicts = [judge(lab, case)]
    if case.fixed is not None:
        verdicts.append(judge_fixed(lab, case))
    for text, verdict in zip(("answer", "fixed"), verdicts, strict=False):
        name = case.name if text == "answer" else ""
        fault = case.fault if text == "answer" else ""
        mark = "ok " if verdict.problem is None else "BAD"
        print(f"{mark} {name:48} {fault:10} {text:7} {verdict.ending}", flush=True)
        if verdict.problem is not None:
            print(f"    {verdict.problem}", flush=True)
    return verdicts


def summary(cases: list[Case]) -> str:
    """How many cases there are of each fault and environment, and how many ideas."""
    counts = Counter((case.fault, case.environment) for case in cases)
    rows = [f"{'fault':10} {'nanogpt':>8} {'grpo':>6} {'all':>5}"]
    for fault in dict.fromkeys(case.fault for case in sorted(cases, key=lambda c: c.fault)):
        one, two = counts[fault, "nanogpt"], counts[fault, "grpo"]
        rows.append(f"{fault:10} {one:8} {two:6} {one + two:5}")
    ideas = len({(case.environment, case.source) for case in cases})
    return "\n".join([*rows, f"{len(cases)} cases of {ideas} ideas"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--cache", type=Path, help="prepared data, kept; else made anew")
    options = parser.parse_args()
    cases = [case for case in load() if (options.only or "") in case.name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-corpus-") as folder:
        lab = Lab(Path(folder), options.cache or Path(folder) / "cache")
        verdicts = [verdict for case in cases for verdict in check(lab, case)]
        trained = len(lab.known)
    bad = sum(verdict.problem is not None for verdict in verdicts)
    print(f"\n{summary(cases)}\n{trained} trainings, {time.monotonic() - began:.0f} s", end="; ")
    print(f"{platform.machine()}; {bad or 'nothing'} wrong")
    return 1 if bad or not cases else 0


if __name__ == "__main__":
    raise SystemExit(main())

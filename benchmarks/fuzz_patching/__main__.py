"""Look for answers that break the patcher: crashes, slowness, edits that must not happen.

    python -m benchmarks.fuzz_patching [--minutes 10] [--executions N] [--seed 0]
                                       [--engine auto|atheris|plain]
    python -m benchmarks.fuzz_patching --hostile [PART_OF_A_NAME]

Right answers in every notation (`answers`) are damaged at random (`damage`), applied, and judged
(`invariants`), in two processes, until the minutes are over or each has made so many executions.
With atheris (`pip install atheris`) the search follows new code; without it, it follows new
outcomes. A failing input is shortened and printed as Python. `--hostile` prints time and memory
for every input of `hostile`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What imports the patcher is imported late, for atheris has to see that happen.

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
#: Longer answers only repeat what shorter ones show.
MAX_CHARACTERS = 20_000
#: An input that takes so long, in processor time, is given up.
STUCK_SECONDS = 15.0
KEPT_PROBLEMS = 20
#: How long a process may take to stop when its time is over.
GRACE_SECONDS = 60.0


class Stuck(BaseException):
    """The patcher did not come back. No handler of the patcher's may swallow this."""


@dataclass(frozen=True)
class Budget:
    """When a process is to stop; no executions are any number of them."""

    seconds: float
    executions: int

    def ending(self) -> Callable[[int], bool]:
        """Start the clock; says after so many executions whether it is over."""
        end = time.monotonic() + self.seconds
        return lambda made: time.monotonic() >= end or made == self.executions > 0


@dataclass
class Found:
    """What a process saw; written to a file, because an engine may end the process itself."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, tree: int, text: str, outcome: str, problem: str, seconds: float) -> None:
        self.executions += 1
        self.outcomes[outcome] += 1
        self.slowest = max(self.slowest, seconds)
        known = {entry["kind"] for entry in self.problems}
        kind = problem.partition(":")[0]
        if problem and kind not in known and len(self.problems) < KEPT_PROBLEMS:
            self.problems.append({"kind": kind, "problem": problem, "tree": tree, "text": text})

    def write(self, path: Path) -> None:
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(vars(self)))
        os.replace(unfinished, path)


# --- one process ---------------------------------------------------------------------------------


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Stuck` inside the block after so much processor time."""

    def stop(*_: object) -> None:
        raise Stuck

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def execute(found: Found, tree: int, text: str) -> str:
    """Judge one input and note what came of it; the outcome."""
    from tests.support.patching.answers import PROTECTED, SYMLINKS, TREES
    from tests.support.patching.invariants import MAX_SECONDS, judge

    try:
        with limited(STUCK_SECONDS):
            outcome, problem, seconds = judge(TREES[tree], text, PROTECTED, SYMLINKS)
    except Stuck:
        outcome, problem, seconds = "stuck", "stuck", STUCK_SECONDS
    if not problem and seconds > MAX_SECONDS:
        problem = "slow"
    found.add(tree, text, outcome, problem, seconds)
    return outcome


def starting_texts(draw: random.Random) -> list[tuple[int, str]]:
    """Right answers to start from."""
    from tests.support.patching.answers import right_answers

    return [(answer.tree, answer.text) for answer, _ in right_answers(draw, 150)]


def fuzz_plainly(seed: int, budget: Budget, out: Path) -> None:
    """Damage right answers, and those damaged ones that had an outcome of their own."""
    from tests.support.patching.damage import mutate

    draw, found = random.Random(seed), Found()
    pool = starting_texts(draw)
    known: Counter[str] = Counter()
    over = budget.ending()
    while not over(found.executions):
        tree, text = draw.choice(pool)
        damaged = mutate(draw, text, draw.choice(pool)[1])[:MAX_CHARACTERS]
        outcome = execute(found, tree, damaged)
        known[outcome] += 1
        # Rare outcomes are worth another look; too many of them would crowd out the right answers.
        if known[outcome] <= 10:
            pool.append((tree, damaged))
    found.write(out)


def to_bytes(tree: int, text: str) -> bytes:
    return bytes([tree]) + text.encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> tuple[int, str]:
    from tests.support.patching.answers import TREES

    tree = data[0] % len(TREES) if data else 0
    return tree, data[1:].decode("utf-8", "replace")[:MAX_CHARACTERS]


def fuzz_with_atheris(seed: int, budget: Budget, out: Path) -> None:
    """The same damage, steered by which lines of the patcher it reaches. Ends the process."""
    import atheris

    with atheris.instrument_imports(include=["assay.patching"], enable_loader_override=False):
        import assay.patching  # noqa: F401
    from tests.support.patching.damage import mutate

    found, draw = Found(), random.Random(seed)
    pool = starting_texts(draw)
    corpus = out.with_suffix(".corpus")
    corpus.mkdir()
    for number, (tree, text) in enumerate(pool):
        (corpus / str(number)).write_bytes(to_bytes(tree, text))
    over = budget.ending()

    def one(data: bytes) -> None:
        execute(found, *from_bytes(data))
        if over(found.executions):
            found.write(out)
            os._exit(0)  # libFuzzer has no orderly end

    def damage(data: bytes, max_size: int, number: int) -> bytes:
        chance = random.Random(number)
        tree, text = from_bytes(data)
        if chance.random() < 0.1:
            return bytes(atheris.Mutate(data, max_size))
        made = mutate(chance, text, chance.choice(pool)[1], chance.choice((1, 1, 2, 4)))
        return to_bytes(tree, made)[:max_size]

    flags = [f"-seed={seed + 1}", "-max_len=40000", "-verbosity=0", "-rss_limit_mb=4096"]
    flags.append(f"-artifact_prefix={out.with_suffix('')}.")
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=damage)
    atheris.Fuzz()


ENGINES: dict[str, Callable[[int, Budget, Path], None]] = {
    "plain": fuzz_plainly,
    "atheris": fuzz_with_atheris,
}


# --- all of them ---------------------------------------------------------------------------------


def run_processes(engine: str, seed: int, budget: Budget, folder: Path) -> list[Found]:
    """Fuzz in processes of their own, and gather what they found.

    Raises:
        RuntimeError: a process ended without a word: the interpreter crashed, or the fuzzer did.
    """
    running = []
    for number in range(PROCESSES):
        out = folder / f"{number}.json"
        command = [sys.executable, "-m", "benchmarks.fuzz_patching", "--worker", str(out)]
        command += ["--engine", engine, "--seed", str(seed * PROCESSES + number)]
        command += ["--minutes", str(budget.seconds / 60), "--executions", str(budget.executions)]
        with (folder / f"{number}.log").open("w") as log:
            running.append((subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT), out))
    found = []
    deadline = time.monotonic() + budget.seconds + GRACE_SECONDS
    try:
        for process, out in running:
            process.wait(max(1.0, deadline - time.monotonic()))
            if not out.exists():
                raise RuntimeError(
                    f"a process ended with {process.returncode}:\n{_last_words(out)}"
                )
            read = json.loads(out.read_text())
            found.append(Found(**{**read, "outcomes": Counter(read["outcomes"])}))
    finally:
        for process, _ in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return found


def _last_words(out: Path) -> str:
    """The end of a process's log, and the input that libFuzzer kept when it died."""
    kept = [from_bytes(path.read_bytes()) for path in out.parent.glob(f"{out.stem}.*-*")]
    return out.with_suffix(".log").read_text()[-2000:] + "".join(f"\n{item!a}" for item in kept)


def confirmed(entry: dict[str, Any]) -> str:
    """The problem as it shows here, without an engine's instruments; empty if it does not."""
    seen = Found()
    execute(seen, entry["tree"], entry["text"])
    return seen.problems[0]["kind"] if seen.problems else ""


def shortened(entry: dict[str, Any], tries: int = 300) -> dict[str, Any]:
    """The same problem with fewer lines."""
    lines = entry["text"].split("\n")
    size = len(lines) // 2
    while size and tries:
        at = 0
        while at < len(lines) and tries:
            tries -= 1
            fewer = lines[:at] + lines[at + size :]
            if confirmed({**entry, "text": "\n".join(fewer)}) == entry["kind"]:
                lines = fewer
            else:
                at += size
        size //= 2
    return {**entry, "text": "\n".join(lines)}


def fuzz(budget: Budget, seed: int, engine: str) -> int:
    """Run, report, and say by the exit status whether something was found."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-fuzz-") as name:
        all_found = run_processes(engine, seed, budget, Path(name))
    outcomes: Counter[str] = Counter()
    problems: dict[str, dict[str, Any]] = {}
    for found in all_found:
        outcomes += found.outcomes
        for entry in found.problems:
            if kind := confirmed(entry):
                problems.setdefault(kind, {**entry, "kind": kind})
    for outcome, count in outcomes.most_common():
        print(f"{count:10d}  {outcome}")
    for entry in problems.values():
        short = entry if entry["kind"] in ("stuck", "slow") else shortened(entry)
        print(f"\nPROBLEM: {entry['problem']}\n  tree = TREES[{entry['tree']}]")
        print(f"  answer = {short['text']!a}")
    executions = sum(found.executions for found in all_found)
    row = {
        "benchmark": "fuzz_patching",
        "engine": engine,
        "seed": seed,
        "minutes": round((time.monotonic() - started) / 60, 2),
        "executions": executions,
        "outcomes": len(outcomes),
        "codes": sorted(o for o in outcomes if not o.startswith("applied")),
        "applied": sum(n for o, n in outcomes.items() if o.startswith("applied")),
        "slowest_s": round(max(found.slowest for found in all_found), 3),
        "problems": len(problems),
    }
    print(json.dumps(row))
    return 1 if problems or not executions else 0


def measured(files: dict[str, str], answer: str) -> tuple[str, float, float]:
    """Outcome, processor seconds, and peak megabytes besides the input, of one hostile input."""

    def outcome() -> str:
        from assay.patching import PatchRefused, apply_answer

        try:
            with limited(2 * STUCK_SECONDS):
                apply_answer(files, answer)
        except PatchRefused as refusal:
            return refusal.code.value
        except Stuck:
            return "STUCK"
        except Exception as error:
            return f"CRASH {type(error).__name__}: {error}"[:80]
        return "applied"

    started = time.process_time()
    first = outcome()
    seconds = time.process_time() - started
    if first == "STUCK":
        return first, seconds, float("nan")
    tracemalloc.start()  # slows everything down, so it watches a second run
    outcome()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return first, seconds, peak


def hostile(only: str) -> int:
    """A table of every hostile input whose name contains `only`."""
    from tests.support.patching.hostile import HOSTILE
    from tests.support.patching.invariants import MAX_SECONDS

    rows: list[tuple[str, float, float]] = []
    bad = 0
    print(f"{'input':45s} {'seconds':>8s} {'peak MB':>8s}  outcome")
    for name in (name for name in HOSTILE if only in name):
        outcome, seconds, peak = measured(*HOSTILE[name]())
        bad += outcome.startswith(("STUCK", "CRASH")) or seconds >= MAX_SECONDS
        rows.append((name, seconds, peak))
        print(f"{name:45s} {seconds:8.3f} {peak:8.1f}  {outcome}", flush=True)
    slowest, largest = max(rows, key=lambda row: row[1]), max(rows, key=lambda row: row[2])
    summary = {"benchmark": "hostile_patching", "inputs": len(rows), "bad": bad}
    worst = {"slowest": slowest[0], "slowest_s": round(slowest[1], 3)}
    memory = {"largest": largest[0], "largest_mb": round(largest[2], 1)}
    print(json.dumps({**summary, **worst, **memory}))
    return 1 if bad else 0


def main() -> int:
    """Read the flags and do what they say."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz_patching", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--executions", type=int, default=0, help="of each process; 0: any")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=["auto", *ENGINES], default="auto")
    parser.add_argument("--hostile", nargs="?", const="", metavar="PART_OF_A_NAME")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hostile is not None:
        return hostile(args.hostile)
    budget = Budget(args.minutes * 60, args.executions)
    if args.worker is not None:
        ENGINES[args.engine](args.seed, budget, args.worker)
        return 0
    engine = args.engine
    if engine == "auto":
        engine = "atheris" if importlib.util.find_spec("atheris") else "plain"
    return fuzz(budget, args.seed, engine)


if __name__ == "__main__":
    sys.exit(main())

"""What the sealed evaluation costs, per token and as a share of two profiles.

    python -m benchmarks.evaluation [--tokens 20000]

(a) Microseconds of CPU per scored token over the pipes of a real sandbox, for each way of
asking, at V = 256 and V = 50,257; the predictor sends the same logits again and again, so this is
protocol and scoring. The alternative is the plain loss in one process: the same logits scored by
the same function, nothing sent. (b) The whole evaluation of `nanogpt` `tiny`, of untrained
weights, against its 20 core-seconds; what two instances take to start is told apart. (c) The
protocol of a paper-size plan against 1,500 s, from (a). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np

from assay.environments.catalog import Environment
from assay.environments.prepare import prepare_data
from assay.evaluation import Evaluation, EvaluationRequest
from assay.evaluation.language_model import SAMPLE
from assay.sandbox import Limits, SandboxSettings, choose_sandbox

ROOT = Path(__file__).resolve().parent.parent
VOCABULARIES = (256, 50_257)
TINY_SECONDS, PAPER_SECONDS = 20.0, 1500.0
PAPER_SEALED, PAPER_PASS = 8192, 10_485_760
SE_BOUND = (0.5 * 0.05) ** 0.5
"""Of one sampled difference that is not refused; see docs/evaluation.md."""

PREDICT = """
import json, os, struct, sys
import numpy as np
out = os.fdopen(os.dup(1), "wb"); os.dup2(2, 1)
V = int(json.load(open(os.environ["ASSAY_CONFIG"]))["vocab"])
ready = np.random.default_rng(0).normal(size=1 << 22).astype(np.float32)
out.write(struct.pack("<4sI", b"ASSY", 15) + b'{"op": "ready"}'); out.flush()
while len(prefix := sys.stdin.buffer.read(8)) == 8:
    header = json.loads(sys.stdin.buffer.read(struct.unpack("<4sI", prefix)[1]))
    (array,) = header["arrays"]
    tokens = np.frombuffer(sys.stdin.buffer.read(4 * int(np.prod(array["shape"]))), np.int32)
    op, shape, name = header["op"], array["shape"], "logits"
    if op == "reset":
        answer, name = np.ones(1, np.uint8), "ready"
    elif op == "losses":
        name, answer = "losses", np.full((shape[0], shape[1] - 1), 5.0, np.float32)
    else:
        shape = [shape[0], V] if op != "all" else [*shape, V]
        answer = ready[:int(np.prod(shape))].reshape(shape)
    text = json.dumps({"seq": header["seq"], "arrays": [
        {"name": name, "dtype": answer.dtype.name, "shape": list(answer.shape)}]}).encode()
    out.write(struct.pack("<4sI", b"ASSY", len(text)) + text)
    out.write(memoryview(answer).cast("B")); out.flush()
"""


def request(folder: Path, settings: SandboxSettings, **changes: Any) -> EvaluationRequest:
    """An evaluation of the codebase, artifact and held-out split in `folder`."""
    values: dict[str, Any] = {
        "environment_dir": folder,
        "config": {},
        "predict": ("python", "predict.py"),
        "codebase_dir": folder / "codebase",
        "artifact_dir": folder / "artifact",
        "held_out": folder / "held_out",
        "seed": 0,
        "metric_name": "val_loss",
        "sandbox": settings,
        "limits": Limits(wall_seconds=120, memory_bytes=4 << 30),
        "seconds": 120.0,
        "profile": "tiny",
        "hardware_class": "cpu",
    }
    return EvaluationRequest(**{**values, **changes})


def core_seconds(evaluation: Evaluation, work: Callable[[], object]) -> float:
    """CPU time of this process and of the predictors that `work` opens."""
    started, before = time.process_time(), sum(evaluation.predictor_cpu_seconds)
    work()
    inside = sum(evaluation.predictor_cpu_seconds) - before
    return time.process_time() - started + inside


def per_token(
    folder: Path, settings: SandboxSettings, vocab: int, budget: int
) -> dict[str, float]:
    """Microseconds of CPU time, of evaluator and predictor together and without their start, per
    token of each way of asking; and of the plain loss."""
    from assay.evaluation import passes

    length = 64 if vocab < 1000 else 16
    count = max(4, budget // length if vocab < 1000 else budget // length // 8)
    rng = np.random.default_rng(0)
    tokens = rng.integers(vocab, size=(count, length + 1)).astype(np.int32)
    many = rng.integers(vocab, size=(1 << 14, 65)).astype(np.int32)  # cheap, so many
    rows = np.repeat(np.arange(count), length // 2)
    times = np.tile(np.arange(1, length + 1, 2), count)
    evaluation = Evaluation.begin(request(folder, settings, config={"vocab": vocab}, seconds=90))
    ways: dict[str, tuple[str, int, Callable[[Any], Any]]] = {
        "prefix": (
            "next",
            len(rows),
            lambda p: passes.prefix_losses(p, tokens, rows, times, vocab),
        ),
        "parallel": ("all", count * length, lambda p: passes.parallel_losses(p, tokens, vocab)),
        "losses": ("losses", many.size - len(many), lambda p: passes.claimed_losses(p, many)),
        "step": ("step", count * length, lambda p: passes.step_losses(p, tokens, vocab)),
    }
    found: dict[str, float] = {}
    for name, (op, scored, ask) in ways.items():

        def asked(times: int, op: str = op, ask: Callable[[Any], Any] = ask) -> None:
            with evaluation.predictor() as predictor:
                passes.warm_up(predictor, op, length, vocab)
                for _ in range(times):
                    ask(predictor)

        # Against the seconds that a start takes, and varies by, small answers must be many.
        repeats = 30 if vocab < 1000 else 2
        start = min(core_seconds(evaluation, lambda: asked(0)) for _ in range(2))
        whole = core_seconds(evaluation, lambda times=repeats: asked(times))
        found[name] = 1e6 * (whole - start) / scored / repeats
    logits = rng.normal(size=(min(4_000_000 // vocab, 4096), vocab)).astype(np.float32)
    labels = rng.integers(vocab, size=len(logits))
    started = time.process_time()
    for _ in range(3):
        passes.token_losses(logits, labels)
    found["plain"] = 1e6 * (time.process_time() - started) / len(logits) / 3
    return found


def untrained(environment: Environment, folder: Path) -> None:
    """The codebase of `nanogpt`, and the weights its training starts with."""
    (folder / "codebase").mkdir(parents=True)
    (folder / "artifact").mkdir()
    for name, text in environment.codebase.items():
        (folder / "codebase" / name).write_text(text)
    code = "import sys, config, model; model.save(model.GPT(config.Tiny(256)), sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder / "artifact" / "model.pt")],
        cwd=folder / "codebase",
        check=True,
    )


def tiny(folder: Path, settings: SandboxSettings, cache: Path) -> dict[str, float]:
    """Core-seconds of the evaluation of `nanogpt` `tiny`, and of starting its predictors."""
    environment = Environment.load(ROOT / "environments" / "nanogpt")
    untrained(environment, folder)
    config = environment.profile("tiny").config
    held_out = prepare_data(environment, "tiny", cache) / "search"
    text = np.fromfile(held_out / "val_000000.bin", dtype="<u2", offset=1024)
    length, count = int(config["window"]), int(config["windows"])
    starts = np.arange(count) * (len(text) // count)
    windows = text[starts[:, None] + np.arange(length + 1)]
    wanted = request(folder, settings, held_out=held_out, config=config)
    evaluation = Evaluation.begin(replace(wanted, seconds=120))

    def two_starts() -> None:
        from assay.evaluation.passes import warm_up

        for op in ("next", "all"):
            with evaluation.predictor() as predictor:
                warm_up(predictor, op, length, 256)

    starting = min(core_seconds(evaluation, two_starts) for _ in range(2))
    whole = min(
        core_seconds(evaluation, lambda: evaluation.score_language_model(windows, 256))
        for _ in range(2)
    )
    return {"starting_s": starting, "evaluation_s": whole - starting}


def paper(costs: dict[str, float]) -> dict[str, float]:
    """Seconds of protocol at V = 50,257: sealed positions, and a pass over all the text."""
    sealed = PAPER_SEALED * costs["prefix"] / 1e6
    return {
        "sealed_s": sealed,
        "losses_s": sealed + PAPER_PASS * costs["losses"] / 1e6,
        "parallel_524288_s": sealed + 524_288 * costs["parallel"] / 1e6,
        "step_262144_s": 262_144 * costs["step"] / 1e6 + SAMPLE["step"] * costs["prefix"] / 1e6,
        "parallel_all_s": sealed + PAPER_PASS * costs["parallel"] / 1e6,
        "correction_se_at_most": SE_BOUND / PAPER_SEALED**0.5,
    }


def report(costs: dict[int, dict[str, float]]) -> None:
    names = list(next(iter(costs.values())))
    print("µs per token", *(f"{name:>10}" for name in names))
    for vocab, row in costs.items():
        print(f"V = {vocab:8,}", *(f"{row[name]:10.1f}" for name in names))


def main() -> None:
    """Measure, print the tables and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384, help="scored per way of asking")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "assay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-evaluation-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings, reason = choose_sandbox("auto", folder)
        print(f"sandbox: {reason}")
        for place in ("stub/codebase", "stub/artifact", "stub/held_out"):
            (folder / place).mkdir(parents=True)
        (folder / "stub" / "codebase" / "predict.py").write_text(PREDICT)
        costs = {
            vocab: per_token(folder / "stub", settings, vocab, arguments.tokens)
            for vocab in VOCABULARIES
        }
        report(costs)
        seconds = tiny(folder / "tiny", settings, arguments.cache)
        share = seconds["evaluation_s"] / TINY_SECONDS
        print(
            f"nanogpt tiny: {seconds['evaluation_s']:.2f} core-seconds, {share:.1%} of "
            f"{TINY_SECONDS:g}; starting two predictors: {seconds['starting_s']:.2f}"
        )
    plans = paper(costs[50_257])
    for plan, taken in plans.items():
        print(
            f"paper, {plan}: {taken:.4g}"
            + (
                f" ({taken / PAPER_SECONDS:.1%} of {PAPER_SECONDS:g} s)"
                if plan.endswith("_s")
                else ""
            )
        )
    figures = {
        "us_per_token": {
            str(v): {k: round(x, 2) for k, x in row.items()} for v, row in costs.items()
        },
        "alternative": "the plain loss in one process: the same logits, nothing sent",
        "ratio_50257": round(costs[50_257]["prefix"] / costs[50_257]["plain"], 2),
        "tiny_evaluation_core_s": round(seconds["evaluation_s"], 2),
        "tiny_starting_core_s": round(seconds["starting_s"], 2),
        "tiny_share": round(share, 4),
        "paper_protocol_s": {k: round(v, 5) for k, v in plans.items()},
        "paper_share": round(plans["losses_s"] / PAPER_SECONDS, 4),
        "sandbox": settings.name,
    }
    print(json.dumps({"benchmark": "evaluation", **figures}))


if __name__ == "__main__":
    main()

"""Measure what the pages say of the bundled environments.

    make calibrate
    python -m benchmarks.calibrate --only baselines --only cost --environment nanogpt
    python -m benchmarks.calibrate --stop-after 60     end cleanly after an hour
    python -m benchmarks.calibrate --check             list what is stale; measure nothing
    python -m benchmarks.calibrate --carry-over        after a change that no `tiny` run can notice

Stages, for each environment (`plans.py` says on how many seeds):

    baselines  baseline.json in the environment's folder: the unmodified codebase and the controls
    tables     benchmarks/results/discrimination-…: every edit of tests/environments/NAME/edits
    cost       benchmarks/results/cost-…: core-seconds and wall seconds, on idle and busy cores
    nulls      benchmarks/results/nulls-…: many seeds of the baseline, twelve edits and a control

A stage is skipped if its output is of the present environment, edits and hardware class. Each run
is stored in .assay/measured.jsonl when it ends, under the environment's hash, so an interrupted
calibration continues where it stopped and a changed environment is measured anew. A run that
failed twice is a result and is shown as such; `--retry-failed` makes it again. `--again` ignores
everything stored. `cost` needs a machine that does nothing else: it says so otherwise, writes
nothing, and is measured again next time. `--carry-over` measures a sample of what is stale and
keeps the stored figures where it comes out the same (`carry.py`). After Ctrl-C, runs that have
begun are finished. Afterwards run `make measurements`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from statistics import fmean
from typing import Any

from assay.environments.catalog import Environment
from benchmarks.burners import burners
from benchmarks.calibrate.carry import can_be_carried, carry
from benchmarks.calibrate.plans import PLANS, Plan
from benchmarks.calibrate.stages import (
    BUSY,
    IDLE,
    KINDS,
    Places,
    Stage,
    StageFailed,
    stages_of,
)
from services.worker.hardware import hardware_class, read_cpu
from tests.support.measuring import (
    Bench,
    Result,
    Run,
    Store,
    describe,
    measure_runs,
    opened_bench,
    where_of,
)


class Calibration:
    """The stages that were asked for, what is left of them, and for how long."""

    def __init__(
        self,
        plans: Sequence[Plan] = PLANS,
        places: Places | None = None,
        *,
        kinds: Sequence[str] = KINDS,
        parallel: int = 2,
        retry_failed: bool = False,
        again: bool = False,
        stop: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._places = places or Places()
        self._parallel = parallel
        self._again = again
        self._retry_failed = retry_failed
        self._stop = stop
        self._say = say
        self._class = hardware_class(read_cpu())
        self._stores: dict[str, Store] = {}
        self.stages: list[Stage] = []
        for plan in plans:
            environment = Environment.load(self._places.environments / plan.environment)
            stages = stages_of(environment, plan, self._places, self._class)
            self.stages += [s for s in stages if s.kind in kinds]

    def stale(self) -> list[Stage]:
        """Return the stages whose output is missing or of another version."""
        return [stage for stage in self.stages if self._again or not stage.is_current()]

    def run(self) -> dict[str, Any]:
        """Run the stale stages and write their outputs; say what was left undone."""
        failed: dict[str, str] = {}
        started = time.monotonic()
        stale = self.stale()
        for stage in self.stages:
            if stage not in stale:
                self._say(f"{stage.title}: current")
        self._say(f"{sum(self._left(stale).values())} runs, {self._remaining(stale)}")
        for plan in dict.fromkeys(stage.plan for stage in stale):
            mine = [stage for stage in stale if stage.plan == plan]
            if not self._stop():
                with opened_bench(
                    mine[0].environment, plan.profile, cache=self._places.cache
                ) as bench:
                    for stage in mine:
                        self._measure(bench, stage, stale)
                        self._finish(bench, stage, failed)
        return {
            "name": "calibrate",
            "hardware_class": self._class,
            "minutes": round((time.monotonic() - started) / 60, 1),
            "written": [s.title for s in stale if s.title not in failed and not self._missing(s)],
            "left": sum(self._left(stale).values()),
            "failed": failed,
        }

    def carry_over(self) -> dict[str, Any]:
        """Keep the stale outputs that a sample of runs confirms; say which it does not."""
        carried, differ = [], {}
        for stage in filter(can_be_carried, self.stale()):
            with opened_bench(
                stage.environment, stage.plan.profile, cache=self._places.cache
            ) as bench:
                found = carry(stage, partial(self._sampled, bench))
            if found:
                differ[stage.title] = found
            else:
                carried.append(stage.title)
            self._say(f"{stage.title}: {'; '.join(found) or 'carried over'}")
        return {"name": "calibrate", "carried_over": carried, "failed": differ}

    def _sampled(
        self, bench: Bench, stage: Stage, runs: Sequence[Run]
    ) -> dict[tuple[str, int], float | None]:
        self._measure(bench, stage, [stage])
        store, metric = self._store(stage, ""), bench.metric_name
        found = {(run.name, run.seed): store.get(run.codebase, run.seed) for run in runs}
        return {key: r.metrics.get(metric) for key, r in found.items() if r is not None}

    def _measure(self, bench: Bench, stage: Stage, stale: Sequence[Stage]) -> None:
        def report(run: Run, result: Result) -> None:
            line = describe(run, result, bench.metric_name)
            self._say(f"{stage.environment.name} {line}; {self._remaining(stale)}")

        for condition, runs in _by_condition(stage).items():
            with burners() if condition == BUSY and not self._stop() else nullcontext():
                measure_runs(
                    bench,
                    runs,
                    self._store(stage, condition),
                    parallel=1 if stage.alone else self._parallel,
                    report=report,
                    stop=self._stop,
                )

    def _finish(self, bench: Bench, stage: Stage, failed: dict[str, str]) -> None:
        """Write the output of a stage that has all its runs."""
        if self._missing(stage):
            return
        results: dict[str, list[Result]] = {name: [] for name in stage.trees}
        for condition, runs in _by_condition(stage).items():
            store = self._store(stage, condition)
            for run in runs:
                result = store.get(run.codebase, run.seed)
                assert result is not None
                results[run.name].append(result)
        try:
            stage.write(bench, results)
        except StageFailed as error:
            failed[stage.title] = str(error)
            self._say(f"{stage.title}: {error}")
        else:
            self._say(f"{stage.title}: written")

    def _store(self, stage: Stage, condition: str) -> Store:
        where = where_of(stage.environment, stage.plan.profile, self._class, condition=condition)
        key = json.dumps(where)
        if key not in self._stores:
            limit = stage.plan.idle_below if condition == IDLE else math.inf
            self._stores[key] = Store(
                self._places.store, where, lambda r: self._ignores(r) or r.others >= limit
            )
        return self._stores[key]

    def _ignores(self, result: Result) -> bool:
        """Whether a result of an earlier command does not count."""
        return self._again or (self._retry_failed and bool(result.error))

    def _missing(self, stage: Stage) -> list[tuple[str, str, int]]:
        """Return condition, codebase and seed of the runs that a stage still needs."""
        return [
            (condition, run.codebase, run.seed)
            for condition, runs in _by_condition(stage).items()
            for run in runs
            if self._store(stage, condition).get(run.codebase, run.seed) is None
        ]

    def _left(self, stages: Sequence[Stage]) -> Counter[tuple[Plan, bool]]:
        """Return how many runs are left by plan and `alone`; what stages share counts once."""
        missing = {(s.plan, s.alone, *run) for s in stages for run in self._missing(s)}
        return Counter((plan, alone) for plan, alone, *_ in missing)

    def _remaining(self, stages: Sequence[Stage]) -> str:
        seconds = 0.0
        for (plan, alone), left in self._left(stages).items():
            stage = next(s for s in stages if s.plan == plan)
            took = [r.wall_seconds for r in self._store(stage, "").results() if not r.error]
            each = fmean(took) if took else plan.guess
            seconds += left * each / (1 if alone else self._parallel)
        hours, minutes = divmod(math.ceil(seconds / 60), 60)
        return f"about {hours} h {minutes} min left" if hours else f"about {minutes} min left"


def _by_condition(stage: Stage) -> dict[str, list[Run]]:
    """Return a stage's runs by the condition they are made under: "" is any."""
    found: dict[str, list[Run]] = {}
    for run in stage.runs:
        found.setdefault(run.name if stage.alone else "", []).append(run)
    return found


@contextmanager
def stopping(minutes: float | None) -> Iterator[Callable[[], bool]]:
    """Yield whether to stop: after `minutes`, or after the first Ctrl-C (the second ends at once).

    Runs that have begun are finished in both cases.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: Any) -> None:
        asked.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: bool(asked) or (deadline is not None and time.monotonic() >= deadline)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None, plans: Sequence[Plan] = PLANS) -> int:
    """Calibrate, or check what is stored; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [plan.environment for plan in plans]
    parser.add_argument("--only", action="append", choices=KINDS, help="may be repeated")
    parser.add_argument("--environment", action="append", choices=names, help="may be repeated")
    parser.add_argument("--parallel", type=int, default=2, help="runs side by side (default: 2)")
    parser.add_argument("--stop-after", type=float, metavar="MINUTES")
    parser.add_argument("--retry-failed", action="store_true")
    parser.add_argument("--check", action="store_true", help="measure nothing; list what is stale")
    parser.add_argument("--again", action="store_true", help="ignore all that is stored")
    parser.add_argument("--carry-over", action="store_true", help="keep what a sample confirms")
    given = parser.parse_args(arguments)
    with stopping(given.stop_after) as stop:
        calibration = Calibration(
            [plan for plan in plans if plan.environment in (given.environment or names)],
            kinds=given.only or KINDS,
            parallel=given.parallel,
            retry_failed=given.retry_failed,
            again=given.again,
            stop=stop,
        )
        if given.check:
            return check(calibration)
        done = calibration.carry_over() if given.carry_over else calibration.run()
    print(json.dumps(done))
    return 1 if done["failed"] else 0


def check(calibration: Calibration) -> int:
    """Print every stage and whether its output is current."""
    stale = calibration.stale()
    for stage in calibration.stages:
        print(f"{'STALE  ' if stage in stale else 'current'} {stage.title}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

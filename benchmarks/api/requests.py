"""How long single requests take, one after another, by what they ask for."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx2

from benchmarks.api.filling import BASELINE_SEEDS, EPOCH_IDEAS, SEARCH_IDEAS, Filled

#: Name of a kind of request, and the limit of its p99 in milliseconds.
LIMITS = {
    "list batches": 50,
    "list batches of a search": 50,
    "list experiments": 50,
    "list experiments of a batch": 50,
    "list searches": 50,
    "list measurements": 50,
    "list workers": 50,
    "get batch": 50,
    "get experiment": 50,
    "get search": 50,
    "get measurement": 50,
    "get result": 50,
    "get curves": 50,
    "overview page": 500,
    "search page": 500,
    "batch page": 500,
    "experiment page": 500,
    "environment page": 500,
    "workers page": 500,
    "failures page": 500,
}
#: Requests of the load, by their share of a hundred.
LOAD = {
    "get experiment": 35,
    "get batch": 20,
    "list experiments of a batch": 10,
    "list batches": 10,
    "get curves": 10,
    "get search": 10,
    "list experiments": 5,
}
Paths = Mapping[str, Callable[[random.Random], str]]


def _id(kind: str, number: int) -> str:
    return f"{kind}_00{number:024}"


def paths_of(filled: Filled) -> Paths:
    """What to ask for, by kind; each call names another row."""
    in_searches = filled.searches * SEARCH_IDEAS

    def any_of(kind: str, most: int) -> Callable[[random.Random], str]:
        return lambda dice: _id(kind, dice.randrange(most))

    experiment = any_of("exp", in_searches)
    batch = any_of("bat", in_searches // EPOCH_IDEAS)
    search = any_of("srch", filled.searches)

    def one_of(kind: str, numbers: Sequence[int], more: int = 0) -> Callable[[random.Random], str]:
        return lambda dice: _id(kind, dice.choice(numbers) + more)

    measurement = one_of("meas", filled.succeeded, BASELINE_SEEDS)
    shown = one_of("exp", filled.shown)
    return {
        "list batches": lambda _: "/v1/batches",
        "list batches of a search": lambda dice: f"/v1/batches?search={search(dice)}",
        "list experiments": lambda _: "/v1/experiments",
        "list experiments of a batch": lambda dice: f"/v1/experiments?batch={batch(dice)}",
        "list searches": lambda _: "/v1/searches",
        "list measurements": lambda _: "/v1/measurements",
        "list workers": lambda _: "/v1/workers",
        "get batch": lambda dice: f"/v1/batches/{batch(dice)}",
        "get experiment": lambda dice: f"/v1/experiments/{experiment(dice)}",
        "get search": lambda dice: f"/v1/searches/{search(dice)}",
        "get measurement": lambda dice: f"/v1/measurements/{measurement(dice)}",
        "get result": lambda dice: f"/v1/experiments/{shown(dice)}/result",
        "get curves": lambda dice: f"/v1/experiments/{experiment(dice)}/curves",
        "overview page": lambda _: "/",
        "search page": lambda dice: f"/searches/{search(dice)}",
        "batch page": lambda dice: f"/batches/{batch(dice)}",
        "experiment page": lambda dice: f"/experiments/{shown(dice)}",
        "environment page": lambda _: "/environments/toy",
        "workers page": lambda _: "/workers",
        "failures page": lambda _: "/failures",
    }


@dataclass(frozen=True)
class Latency:
    """Milliseconds of some requests."""

    n: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Of at least one request."""
        ordered = sorted(each * 1000 for each in seconds)
        place = min(len(ordered) - 1, int(len(ordered) * 0.99))
        return cls(
            len(ordered),
            round(statistics.median(ordered), 1),
            round(ordered[place], 1),
            round(ordered[-1], 1),
        )

    def __str__(self) -> str:
        return f"p50 {self.p50:7.1f}  p99 {self.p99:7.1f}  most {self.most:7.1f} ms"


def measure(
    url: str, headers: Mapping[str, str], paths: Paths, seconds: float
) -> dict[str, Latency]:
    """Ask for each kind in turn, for so many seconds together, once before it counts."""
    dice = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in paths}
    with httpx2.Client(base_url=url, headers=dict(headers), timeout=60) as http:
        for make in paths.values():
            http.get(make(dice)).raise_for_status()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, make in paths.items():
                path = make(dice)
                began = time.perf_counter()
                answer = http.get(path)
                found[name].append(time.perf_counter() - began)
                answer.raise_for_status()
    return {name: Latency.of(each) for name, each in found.items()}

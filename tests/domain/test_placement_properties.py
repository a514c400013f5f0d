"""Placement for any state: what it never does, and what it never leaves undone."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.domain.placement import (
    Demand,
    Occupancy,
    Plan,
    Policy,
    Supply,
    place,
    plan,
    queue_order,
)

NOW = 1000.0
TIMES = st.sampled_from([300.0, 900.0, 1800.0, 3600.0])
#: Hours of a cluster are simulated in each.
FEW = settings(max_examples=min(25, settings.default.max_examples))


@st.composite
def demands(draw: st.DrawFn) -> list[Demand]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        gpus = draw(st.sampled_from([0, 1, 1, 2, 4, 8]))
        found.append(
            Demand(
                measurement=f"m{number}",
                cpus=draw(st.sampled_from([1, 4])) * max(1, gpus),
                gpus=gpus,
                memory_bytes=draw(st.integers(1, 4)) * max(1, gpus),
                hardware_class=draw(st.sampled_from(["h", "h", "h", "other"])),
                priority=draw(st.sampled_from([0, 0, 0, 1])),
                budget_seconds=draw(TIMES),
                bound_seconds=draw(TIMES),
                batch_at=draw(st.sampled_from([-9000.0, -1.0, 0.0])),
                queued_at=draw(st.sampled_from([-9000.0, 0.0, 900.0])),
                needs_isolation=draw(st.booleans()),
                avoid_workers=frozenset(draw(st.sampled_from([[], ["w0"]]))),
            )
        )
    return found


@st.composite
def supplies(draw: st.DrawFn) -> list[Supply]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        cpus, gpus, memory = 32, draw(st.sampled_from([0, 8, 8])), 32
        running = []
        for size in draw(st.lists(st.sampled_from([0, 1, 1, 2, 4, 8]), max_size=8)):
            if size <= gpus and max(1, size) <= cpus and max(1, size) <= memory:
                # Some are past their bound.
                until = NOW + draw(st.sampled_from([-600.0, 0.0, 60.0, 500.0, 1700.0, 3600.0]))
                running.append(Occupancy(max(1, size), size, max(1, size), until))
                cpus, gpus, memory = cpus - max(1, size), gpus - size, memory - max(1, size)
        found.append(
            Supply(
                worker=f"w{number}",
                cpus=cpus,
                gpus=gpus,
                memory_bytes=memory,
                hardware_class=draw(st.sampled_from(["h", "h", "other"])),
                isolated=draw(st.booleans()),
                starting=draw(st.sampled_from([0, 0, 3, 4])),
                running=tuple(running),
            )
        )
    return found


def left(waiting: list[Demand], hosts: list[Supply], made: Plan) -> dict[str, Supply]:
    """The supplies after the placements."""
    by_name = {d.measurement: d for d in waiting}
    after = {s.worker: s for s in hosts}
    for each in made.placements:
        d, s = by_name[each.measurement], after[each.worker]
        held = Occupancy(d.cpus, d.gpus, d.memory_bytes, NOW + d.bound_seconds)
        after[each.worker] = replace(
            s,
            cpus=s.cpus - d.cpus,
            gpus=s.gpus - d.gpus,
            memory_bytes=s.memory_bytes - d.memory_bytes,
            starting=s.starting + 1,
            running=(*s.running, held),
        )
    return after


def fits(d: Demand, s: Supply) -> bool:
    return (
        d.hardware_class == s.hardware_class
        and (s.isolated or not d.needs_isolation)
        and d.cpus <= s.cpus
        and d.gpus <= s.gpus
        and d.memory_bytes <= s.memory_bytes
    )


@given(demands(), supplies())
def test_nothing_is_taken_twice_or_split_or_put_where_it_may_not_run(
    waiting: list[Demand], hosts: list[Supply]
) -> None:
    made = plan(waiting, hosts, NOW)
    by_name = {d.measurement: d for d in waiting}
    assert max(Counter(p.measurement for p in made.placements).values(), default=1) == 1
    for s in left(waiting, hosts, made).values():
        assert min(s.cpus, s.gpus, s.memory_bytes) >= 0
    before = {s.worker: s for s in hosts}
    started = Counter(p.worker for p in made.placements)
    for each in made.placements:
        assert fits(by_name[each.measurement], before[each.worker])
    for worker, count in started.items():
        assert before[worker].starting + count <= Policy().starting_per_worker


@given(demands(), supplies(), st.randoms(use_true_random=False))
def test_the_order_of_what_it_is_given_changes_nothing(
    waiting: list[Demand], hosts: list[Supply], rng: random.Random
) -> None:
    made = plan(waiting, hosts, NOW)
    assert plan(waiting, hosts, NOW) == made
    shuffled, moved = list(waiting), [replace(s, running=s.running[::-1]) for s in hosts]
    rng.shuffle(shuffled)
    rng.shuffle(moved)
    assert plan(shuffled, moved, NOW) == made


@given(demands(), supplies())
def test_no_placement_makes_a_reservation_late(waiting: list[Demand], hosts: list[Supply]) -> None:
    """At the time of a reservation all that its host still holds leaves room for it."""
    made = plan(waiting, hosts, NOW)
    by_name = {d.measurement: d for d in waiting}
    after = left(waiting, hosts, made)
    for worker in {r.worker for r in made.reservations}:
        s = after[worker]
        for own in (r for r in made.reservations if r.worker == worker):
            # What is past its bound is expected as much later as it is late.
            gone = [o for o in s.running if max(o.until, 2 * NOW - o.until) <= own.at]
            due = [
                by_name[r.measurement]
                for r in made.reservations
                if r.worker == worker and r.at <= own.at
            ]
            for what in ("cpus", "gpus", "memory_bytes"):
                free = getattr(s, what) + sum(getattr(o, what) for o in gone)
                assert sum(getattr(d, what) for d in due) <= free


@given(demands(), supplies())
def test_what_could_start_starts_unless_it_is_held_back(
    waiting: list[Demand], hosts: list[Supply]
) -> None:
    made = plan(waiting, hosts, NOW)
    placed = {p.measurement for p in made.placements}
    held = {r.worker for r in made.reservations}
    for s in left(waiting, hosts, made).values():
        if s.worker not in held and s.starting < Policy().starting_per_worker:
            assert not [d for d in waiting if d.measurement not in placed and fits(d, s)]


@given(demands(), supplies())
def test_within_a_kind_nobody_overtakes(waiting: list[Demand], hosts: list[Supply]) -> None:
    placed = {p.measurement for p in place(waiting, hosts, NOW)}
    kinds: dict[tuple[object, ...], list[Demand]] = defaultdict(list)
    for d in sorted(waiting, key=queue_order):
        kind = (d.gpus, d.cpus, d.memory_bytes, d.hardware_class, d.bound_seconds)
        kinds[(*kind, d.needs_isolation, d.priority)].append(d)
    for queue in kinds.values():
        started = [d.measurement in placed for d in queue]
        assert started == sorted(started, reverse=True)


class Cluster:
    """Whole hosts under floods: all that runs uses its bound up, tick after tick."""

    def __init__(self, hosts: int, floods: dict[int, float]) -> None:
        self.now = 0.0
        self.running: dict[str, list[tuple[float, int]]] = {f"w{n}": [] for n in range(hosts)}
        self.floods = floods
        self.waiting: dict[str, Demand] = {}
        self.served: dict[tuple[str, int], float] = {}
        self.starts: dict[int, list[float]] = defaultdict(list)
        self.count = 0

    def submit(self, gpus: int, bound: float, batch_at: float) -> str:
        self.count += 1
        name = f"m{self.count:06d}"
        self.waiting[name] = Demand(
            name, gpus, gpus, gpus, "h", 0, bound, bound, batch_at, self.now
        )
        return name

    def tick(self, seconds: float) -> None:
        for gpus, bound in self.floods.items():
            while sum(d.gpus == gpus for d in self.waiting.values()) < 12:
                self.submit(gpus, bound, batch_at=-float(gpus))
        hosts = []
        for worker, jobs in self.running.items():
            jobs[:] = [job for job in jobs if job[0] > self.now]
            free = 8 - sum(gpus for _, gpus in jobs)
            held = tuple(Occupancy(g, g, g, until) for until, g in jobs)
            hosts.append(Supply(worker, free, free, free, "h", True, 0, held))
        for each in place(list(self.waiting.values()), hosts, self.now, served=self.served):
            d = self.waiting.pop(each.measurement)
            self.running[each.worker].append((self.now + d.bound_seconds, d.gpus))
            self.served[d.size] = self.now
            self.starts[d.gpus].append(self.now)
        self.now += seconds

    def wait_for(self, name: str, tick: float) -> float:
        began = self.now
        while name in self.waiting and self.now < began + 20_000:
            self.tick(tick)
        # The clock has moved on after the tick that placed it.
        return self.now - tick - began


@FEW
@given(st.integers(1, 4), TIMES, st.integers(0, 3000), st.booleans())
def test_a_large_one_waits_at_most_a_bound_under_a_flood_of_small_ones(
    hosts: int, bound: float, after: int, older: bool
) -> None:
    tick = 20.0
    cluster = Cluster(hosts, {1: bound})
    while cluster.now < after:
        cluster.tick(tick)
    big = cluster.submit(8, 1800.0, batch_at=1e6 if older else -1e6)
    assert cluster.wait_for(big, tick) <= bound + tick


@FEW
@given(st.integers(1, 4), TIMES, st.integers(0, 3000), st.booleans())
def test_a_small_one_waits_at_most_its_own_bound_and_one_of_the_flood(
    hosts: int, bound: float, after: int, older: bool
) -> None:
    tick = 20.0
    cluster = Cluster(hosts, {8: 1800.0})
    while cluster.now < after:
        cluster.tick(tick)
    small = cluster.submit(1, bound, batch_at=1e6 if older else -1e6)
    assert cluster.wait_for(small, tick) <= bound + 1800.0 + 2 * tick


@FEW
@given(st.integers(1, 3))
def test_floods_of_every_size_share_even_a_single_host(hosts: int) -> None:
    tick, bounds = 20.0, {1: 3600.0, 4: 900.0, 8: 1800.0}
    cluster = Cluster(hosts, bounds)
    while cluster.now < 40_000:
        cluster.tick(tick)
    for size in bounds:
        starts = cluster.starts[size]
        gaps = [b - a for a, b in zip([0.0, *starts], [*starts, cluster.now], strict=True)]
        assert max(gaps) <= 2 * sum(bounds.values()), size

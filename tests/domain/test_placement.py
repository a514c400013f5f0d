"""Placement: what goes where, in which order, and what is held back for whom."""

from __future__ import annotations

import pytest

from assay.domain.placement import (
    Demand,
    Occupancy,
    Placement,
    Policy,
    Supply,
    place,
    plan,
    queue_order,
)

HOUR = 3600.0


def demand(name: str, gpus: int = 1, **given: object) -> Demand:
    values: dict[str, object] = {
        "cpus": max(1, gpus),
        "memory_bytes": max(1, gpus),
        "hardware_class": "h",
        "budget_seconds": HOUR,
        "bound_seconds": HOUR,
        **given,
    }
    return Demand(measurement=name, gpus=gpus, **values)  # type: ignore[arg-type]


def host(name: str, running: tuple[tuple[int, float], ...] = (), **given: object) -> Supply:
    """Eight GPUs; `running` are (GPUs, until)."""
    free = 8 - sum(gpus for gpus, _ in running)
    values: dict[str, object] = {
        "cpus": free,
        "gpus": free,
        "memory_bytes": free,
        "hardware_class": "h",
        "isolated": True,
        "running": tuple(Occupancy(gpus, gpus, gpus, until) for gpus, until in running),
        **given,
    }
    return Supply(worker=name, **values)  # type: ignore[arg-type]


def where(demands: list[Demand], supplies: list[Supply], now: float = 0.0) -> dict[str, str]:
    return {p.measurement: p.worker for p in place(demands, supplies, now)}


class TestOrder:
    def test_priority_then_batch_then_longest_budget_then_age(self):
        queue = [
            demand("urgent", priority=1, batch_at=9),
            demand("short", batch_at=1, budget_seconds=200),
            demand("young", batch_at=1, queued_at=2),
            demand("old", batch_at=1, queued_at=1),
            demand("later batch", batch_at=2, budget_seconds=9000),
        ]
        ordered = [d.measurement for d in sorted(queue, key=queue_order)]
        assert ordered == ["urgent", "old", "young", "short", "later batch"]

    def test_the_first_of_the_queue_takes_what_is_free(self):
        one_free = host("w", ((7, HOUR),))
        queue = [demand("b", batch_at=2), demand("a", batch_at=1)]
        assert where(queue, [one_free]) == {"a": "w"}


class TestFit:
    @pytest.mark.parametrize(
        "given",
        [
            {"gpus": 9},
            {"cpus": 9},
            {"memory_bytes": 9},
            {"hardware_class": "other"},
        ],
    )
    def test_what_does_not_fit_stays(self, given: dict[str, object]):
        assert where([demand("m", **{"gpus": 1, **given})], [host("w")]) == {}

    def test_isolation(self):
        open_ = host("w", isolated=False)
        assert where([demand("m")], [open_]) == {}
        assert where([demand("m", needs_isolation=False)], [open_]) == {"m": "w"}

    def test_gang_or_nothing(self):
        assert where([demand("m", 8)], [host("v", ((1, 9.0),)), host("w", ((1, 9.0),))]) == {}

    def test_the_fullest_host_is_filled_so_that_whole_hosts_stay_whole(self):
        supplies = [host("empty"), host("half", ((4, HOUR),)), host("full but one", ((7, HOUR),))]
        assert where([demand("m")], supplies) == {"m": "full but one"}

    def test_among_hosts_the_one_that_is_busy_longer_anyway(self):
        supplies = [host("soon whole", ((7, 60.0),)), host("busy", ((4, HOUR),))]
        assert where([demand("m")], supplies) == {"m": "busy"}

    def test_who_lost_it_gets_it_only_if_nobody_else_fits(self):
        lost = demand("m", avoid_workers=frozenset({"a"}))
        assert where([lost], [host("a", ((4, HOUR),)), host("b")]) == {"m": "b"}
        assert where([lost], [host("a")]) == {"m": "a"}

    def test_without_a_gpu_hosts_without_gpus_come_first(self):
        plain = host("plain", gpus=0)
        assert where([demand("m", 0)], [host("gpus"), plain]) == {"m": "plain"}


class TestLimits:
    def test_only_so_many_start_on_a_worker(self):
        queue = [demand(f"m{n}") for n in range(8)]
        assert len(place(queue, [host("w")], 0.0)) == 4
        assert len(place(queue, [host("w", starting=3)], 0.0)) == 1
        assert place(queue, [host("w", starting=4)], 0.0) == []

    def test_only_so_many_decisions_at_once(self):
        queue = [demand(f"m{n}") for n in range(8)]
        assert len(place(queue, [host("w")], 0.0, Policy(placements=3))) == 3


class TestReservations:
    BUSY = (host("a", ((4, 500.0), (3, 1000.0))), host("b", ((4, 400.0), (3, 2000.0))))

    def test_the_host_that_is_whole_earliest_is_held_back(self):
        made = plan([demand("big", 8, batch_at=-1), demand("small")], self.BUSY, 0.0)
        assert [(r.measurement, r.worker, r.at) for r in made.reservations] == [("big", "a", 1000)]
        assert made.placements == (Placement("small", "b"),)

    def test_what_has_ended_by_then_may_use_it(self):
        queue = [demand("big", 8), demand("short", bound_seconds=1000.0)]
        assert where(queue, [self.BUSY[0]]) == {"short": "a"}

    def test_what_has_not_may_not(self):
        queue = [demand("big", 8), demand("long", bound_seconds=1001.0)]
        assert where(queue, [self.BUSY[0]]) == {}

    def test_what_takes_nothing_of_it_may(self):
        queue = [demand("half", 4, cpus=4), demand("long")]
        supply = host("w", ((2, 500.0), (2, 500.0), (3, 9000.0)))
        made = plan(queue, [supply], 0.0)
        # At 500, five GPUs are free: four for `half`, one for `long`.
        assert made.placements == (Placement("long", "w"),)
        assert [r.measurement for r in made.reservations] == ["half"]

    def test_without_a_bound_nothing_ends_in_time(self):
        queue = [demand("big", 8), demand("endless", bound_seconds=0.0)]
        assert where(queue, [self.BUSY[0]]) == {}

    def test_a_host_that_never_lets_go_is_not_waited_for(self):
        stuck = host("a", ((4, 100.0), (3, 100.0)))
        busy = host("b", ((7, 5000.0),))
        queue = [demand("big", 8, batch_at=-1), demand("small")]
        made = plan(queue, [stuck, busy], 4000.0)
        assert [(r.worker, r.at) for r in made.reservations] == [("b", 5000.0)]
        assert made.placements == (Placement("small", "a"),)

    def test_priority_holds_back_even_what_has_its_share(self):
        supply = host("w", ((4, 900.0), (1, 900.0)))
        queue = [demand("urgent", 8, priority=1), demand("small")]
        assert where(queue, [supply]) == {}

    def test_another_kind_of_the_same_size_does_not_overtake_for_ever(self):
        supply = host("w", ((1, 500.0), (6, 600.0)))
        wide = demand("wide", cpus=8, batch_at=1)
        assert where([wide, demand("narrow", batch_at=2)], [supply]) == {}


class TestTurns:
    def test_the_size_that_runs_least_goes_first(self):
        supplies = [host("a", ((1, 9.0),) * 8), host("b")]
        queue = [demand(f"small{n}", queued_at=-2 * HOUR, batch_at=-1) for n in range(8)]
        assert where([*queue, demand("big", 8)], supplies) == {"big": "b"}
        supplies = [host("a", ((8, 9.0),)), host("b")]
        assert set(where([*queue, demand("big", 8, batch_at=-2)], supplies)) == {
            f"small{n}" for n in range(4)
        }

    def test_small_ones_let_a_large_one_go_first_until_they_waited_a_bound(self):
        supplies = [host("a", ((8, 9.0),)), host("b")]
        queue = [demand("big", 8), demand("small")]
        assert where(queue, supplies, now=HOUR - 1) == {"big": "b"}
        assert where(queue, supplies, now=HOUR) == {"small": "b"}

    def test_small_ones_use_at_once_what_a_large_one_leaves(self):
        supplies = [host("a", ((4, HOUR),)), host("b")]
        queue = [demand("big", 8), demand("small")]
        assert where(queue, supplies) == {"big": "b", "small": "a"}

    def test_ties_go_to_who_was_served_longest_ago(self):
        queue = [demand("big", 8, queued_at=-HOUR), demand("small", queued_at=-HOUR)]
        for first, served in (("big", {("h", 1): 5.0}), ("small", {("h", 8): 5.0})):
            made = plan(queue, [host("w")], 10.0, served=served)
            assert made.placements[0].measurement == first

    def test_a_wave_of_starts_is_finished_before_the_turn_changes(self):
        served = {("h", 8): 5.0, ("h", 1): 1200.0}
        half = host("w", ((1, 1210.0 + HOUR),) * 4)
        queue = [demand("big", 8, queued_at=-HOUR), demand("small", queued_at=-HOUR)]
        assert [p.measurement for p in place(queue, [half], 1220.0, served=served)] == ["small"]
        assert place(queue, [half], 1320.1, served=served) == []
        # One that was queued after its size was served waits for nobody's wave.
        queue = [demand("big", 8, queued_at=10.0), demand("small", queued_at=-HOUR)]
        assert place(queue, [half], 1220.0, served=served) == []

    def test_without_gpus_sizes_take_turns_by_cpus(self):
        supply = Supply("w", 1, 0, 8, "h", True, 0, (Occupancy(1, 0, 0, 50.0),) * 3)
        queue = [
            demand("wide", 0, cpus=4, memory_bytes=0),
            demand("narrow", 0, cpus=1, memory_bytes=0, queued_at=-HOUR),
        ]
        assert where(queue, [supply]) == {}

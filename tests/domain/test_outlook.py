"""What is said to come next is what a decision places, and why the rest waits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from assay.domain.placement import (
    Demand,
    Occupancy,
    Policy,
    Reason,
    Supply,
    outlook,
    place,
    plan,
)
from tests.domain.test_placement import HOUR, demand, host
from tests.domain.test_placement_properties import NOW, demands, supplies

POLICY = Policy()
EVERYTHING = 1000


def reasons(
    waiting: list[Demand], hosts: list[Supply], policy: Policy = POLICY
) -> dict[str, Reason]:
    found = outlook(waiting, hosts, 0.0, policy, limit=EVERYTHING)
    return {each.demand.measurement: each.reason for each in found}


@given(demands(), supplies())
def test_what_starts_is_what_a_decision_places_and_everything_else_has_a_reason(
    waiting: list[Demand], hosts: list[Supply]
) -> None:
    found = outlook(waiting, hosts, NOW, POLICY, limit=EVERYTHING)
    starts = [(e.demand.measurement, e.worker) for e in found if e.reason is Reason.STARTS]
    made = plan(waiting, hosts, NOW, POLICY)
    assert starts == [(p.measurement, p.worker) for p in made.placements]
    assert sorted(e.demand.measurement for e in found) == sorted(d.measurement for d in waiting)
    held = {e.demand.measurement: (e.worker, e.at) for e in found if e.reason is Reason.RESERVED}
    assert held == {r.measurement: (r.worker, r.at) for r in made.reservations}


OWNERS = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(
        st.tuples(OWNERS, st.integers(0, 2), st.integers(0, 3), st.floats(0, 9)),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(OWNERS, st.integers(0, 3)), max_size=6),
    st.sampled_from([1.0, 3.0]),
)
# Thirds, added up in another order, would not be equal.
@example([("a", 0, 0, 0.0)] * 4 + [("b", 0, 0, 0.0)] * 2, [("a", 0)] * 3 + [("b", 0)], 3.0)
def test_the_order_is_that_in_which_room_would_be_given(
    waits: list[tuple[str, int, int, float]], runs: list[tuple[str, int]], weight: float
) -> None:
    """Each time something else ends, the next decision places the next of the list."""
    policy = Policy(starting_per_worker=100, shares={"a": weight})
    waiting = [
        demand(f"m{n}", owner=owner, priority=priority, batch_at=float(batch), queued_at=age)
        for n, (owner, priority, batch, age) in enumerate(waits)
    ]
    of_others = Occupancy(1, 1, 1, HOUR, owner="x")
    running = [Occupancy(1, 1, 1, HOUR, owner=o, batch_at=float(b)) for o, b in runs]
    busy = replace(
        host("h", cpus=0, gpus=0, memory_bytes=0),
        running=(*running, *[of_others] * len(waiting)),
    )
    expected = [e.demand for e in outlook(waiting, [busy], 0.0, policy, limit=EVERYTHING)]
    for each in expected:
        free = replace(busy, cpus=1, gpus=1, memory_bytes=1, running=busy.running[:-1])
        (placed,) = place(waiting, [free], 0.0, policy)
        assert placed.measurement == each.measurement
        waiting.remove(each)
        held = Occupancy(1, 1, 1, HOUR, owner=each.owner, batch_at=each.batch_at)
        busy = replace(busy, running=(held, *busy.running[:-1]))


def test_owners_and_priorities_take_turns() -> None:
    waiting = [
        demand("low", owner="a", batch_at=1),
        demand("high", owner="a", batch_at=2, priority=5),
        demand("other", owner="b", batch_at=3),
        demand("other's second", owner="b", batch_at=3, queued_at=1),
    ]
    busy = host("h", running=((8, HOUR),))
    found = outlook(waiting, [busy], 0.0, POLICY)
    assert [e.demand.measurement for e in found] == ["high", "other", "low", "other's second"]
    assert {e.reason for e in found} == {Reason.BUSY}
    assert {e.at for e in found} == {HOUR}
    assert len(outlook(waiting, [busy], 0.0, POLICY, limit=2)) == 2


def test_why_something_waits() -> None:
    one = [host("h")]
    assert reasons([demand("m")], one) == {"m": Reason.STARTS}
    assert reasons([demand("m", gpus=16)], one) == {"m": Reason.NO_WORKER}
    assert reasons([demand("m", setting="s")], one) == {"m": Reason.NO_WORKER}
    assert reasons([demand("m")], []) == {"m": Reason.NO_WORKER}
    assert reasons([demand("m")], [host("h", starting=4)]) == {"m": Reason.STARTING}
    taken = reasons([demand(f"m{n}", gpus=4, queued_at=n) for n in range(3)], one)
    assert taken == {"m0": Reason.STARTS, "m1": Reason.STARTS, "m2": Reason.TURN}
    two = reasons([demand("m0"), demand("m1", queued_at=1)], one, Policy(placements=1))
    assert two == {"m0": Reason.STARTS, "m1": Reason.NEXT_DECISION}


def test_what_is_held_back_says_so_and_for_whom() -> None:
    large = demand("large", gpus=8, queued_at=-2 * HOUR)
    long = demand("long", gpus=1, bound_seconds=9 * HOUR, owner="b")
    found = outlook([large, long], [host("h", running=((4, HOUR),))], 0.0, POLICY)
    assert [(e.demand.measurement, e.reason, e.worker, e.at) for e in found] == [
        ("large", Reason.RESERVED, "h", HOUR),
        ("long", Reason.HELD_BACK, None, None),
    ]

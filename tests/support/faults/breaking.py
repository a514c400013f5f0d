"""What may break in server mode, each with how it is mended and how long it lasts."""

from __future__ import annotations

from random import Random

from tests.support.faults.hosts.process import FleetProcess
from tests.support.faults.proxy import Proxy
from tests.support.faults.trouble import Fault
from tests.support.postgres import PostgresServer
from tests.support.stack import Part, Redis


def _kind(part: Part) -> str:
    return part.name.partition("-")[0]


def killed(part: Part) -> Fault:
    """kill -9, and started again seconds later."""
    return Fault(
        f"{_kind(part)} killed",
        part.name,
        part.kill,
        part.start,
        lambda chance: chance.uniform(0, 4),
        lambda: not part.running,
    )


def stopped(part: Part, lease: float) -> Fault:
    """SIGSTOP, perhaps for longer than a lease."""
    return Fault(
        f"{_kind(part)} stopped",
        part.name,
        part.pause,
        part.resume,
        lambda chance: chance.uniform(1, lease * 1.3),
    )


def hosts_killed(fleet: FleetProcess, lease: float) -> Fault:
    """kill -9 of a process of hosts; what they run goes on, or ends with it."""
    return Fault(
        "hosts killed, runs go on" if fleet.adopts else "hosts killed with their runs",
        fleet.label,
        fleet.kill,
        fleet.start,
        lambda chance: chance.uniform(0, lease * 2),
        lambda: not fleet.running,
    )


def hosts_stopped(fleet: FleetProcess, lease: float) -> Fault:
    """SIGSTOP for longer than a lease: when they go on, others do their work."""
    return Fault(
        "hosts stopped past their lease",
        fleet.label,
        fleet.pause,
        fleet.resume,
        lambda chance: lease * chance.uniform(1.1, 2),
    )


def cut(target: str, proxy: Proxy, lease: float) -> Fault:
    """Every connection is closed, and none is let through."""
    return _network("network cut", target, proxy, lease, silent=False)


def frozen(target: str, proxy: Proxy, lease: float) -> Fault:
    """Connections stay open, and nothing passes."""
    return _network("network silent", target, proxy, lease, silent=True)


def _network(name: str, target: str, proxy: Proxy, lease: float, *, silent: bool) -> Fault:
    def length(chance: Random) -> float:
        return chance.uniform(1, lease * 1.5)

    begin = proxy.freeze if silent else proxy.cut
    return Fault(name, target, begin, proxy.heal, length)


def postgres_killed(cluster: PostgresServer, lease: float) -> Fault:
    """kill -9 of all its processes; back at once, soon, or after a lease."""
    return Fault(
        "postgres killed",
        "postgres",
        cluster.kill,
        cluster.start,
        lambda chance: chance.choice([0.0, 2.0, lease + 3]),
        lambda: not cluster.answers(),
    )


def flushed(redis: Redis) -> Fault:
    """Every message and every user is lost."""
    return Fault("redis flushed", redis.name, redis.flush, _nothing, lambda _: 0.0)


def _nothing() -> None:
    """It mends itself."""

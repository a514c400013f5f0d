"""Unprivileged user ids for sandboxes that a root worker starts: one each, no account needed."""

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from assay.sandbox.interface import SandboxError

FIRST_USER, LAST_USER = 61001, 61999


def is_root() -> bool:
    """Whether this process must give up its user before it starts foreign code."""
    return os.geteuid() == 0


@contextlib.contextmanager
def lend_user() -> Iterator[int]:
    """A user id that no other live sandbox on this machine uses; see `reserve_user`."""
    with reserve_user() as lent:
        yield lent.user


@dataclass(frozen=True)
class Reservation:
    """A user id, and the descriptor that keeps it: whoever has a copy keeps it, too."""

    user: int
    descriptor: int


@contextlib.contextmanager
def reserve_user() -> Iterator[Reservation]:
    """A user id that no other live sandbox on this machine uses, for as long as the context.

    The reservation is a bound abstract socket: the kernel keeps it unique over all workers and
    drops it with this process, so nothing has to be cleaned up after a crash.

    Raises `SandboxError` when all ids are taken.
    """
    candidates = list(range(FIRST_USER, LAST_USER + 1))
    start = random.randrange(len(candidates))  # a fresh id each time, not the last one again
    for user in candidates[start:] + candidates[:start]:
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            reservation.bind(f"\0assay-sandbox-user-{user}")
        except OSError:
            reservation.close()
            continue
        with reservation:
            yield Reservation(user, reservation.fileno())
        return
    raise SandboxError(f"all user ids from {FIRST_USER} to {LAST_USER} are in use")

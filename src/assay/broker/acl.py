"""Who may do what in Redis: every worker has a user of its own that reaches its queue alone.

A user's password is the worker's token, of which servers keep only the SHA-256 hash; that is what
Redis wants to know as well. Users live in Redis's memory, so they are set again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import redis
from redis.exceptions import RedisError

from assay.broker.names import queue_name, worker_user
from assay.broker.settings import BrokerAddress
from assay.domain.errors import Unavailable

#: All a listener needs: to sign in, to wait for its queue, and to test itself. (That redis-py may
#: not say its version with CLIENT SETINFO, which old servers do not know, it does not mind.)
_COMMANDS = (
    "auth",
    "hello",
    "ping",
    "multi",
    "exec",
    "select",
    "client|setname",
    "brpop",
    "lpush",
    "rpush",
    "llen",
)
_SECONDS = 5.0
_PREFIX = worker_user("")


def rules(worker_id: str, token_hash: str) -> list[str]:
    """The rules of a worker's user."""
    return [
        "reset",
        "on",
        f"#{token_hash}",
        "resetchannels",
        f"~{queue_name('worker', worker_id)}",
        "-@all",
        *(f"+{command}" for command in _COMMANDS),
    ]


class AccessList:
    """Sets users on a broker, as its administrator. May be used from several threads."""

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._client: Any = redis.Redis.from_url(
            address.url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS
        )

    def admit(self, worker_id: str, token_hash: str) -> None:
        """Let a worker in, with this token and no other.

        Raises:
            Unavailable: the broker cannot be asked, or does not permit it.
        """
        self._ask(lambda: self._set(worker_id, token_hash, self._known().get(worker_id)))

    def apply(self, workers: Mapping[str, str]) -> int:
        """Let exactly these workers (id → hash of the token) in. Returns how many users changed.

        Raises:
            Unavailable: the broker cannot be asked, or does not permit it.
        """

        def bring() -> int:
            known, changed = self._known(), 0
            for worker_id, token_hash in workers.items():
                line = known.get(worker_id)
                if line is None or f"#{token_hash}" not in line.split():
                    self._set(worker_id, token_hash, line)
                    changed += 1
            for worker_id in known.keys() - workers.keys():
                self._client.execute_command("ACL DELUSER", worker_user(worker_id))
                changed += 1
            return changed

        return int(self._ask(bring))

    def incarnation(self) -> str:
        """What changes when Redis is started anew, or users were taken out of its memory.

        Raises:
            Unavailable: the broker cannot be asked.
        """

        def look() -> str:
            started = self._client.info("server")["run_id"]
            return f"{started} {len(self._client.execute_command('ACL USERS'))}"

        return str(self._ask(look))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _known(self) -> dict[str, str]:
        """Rules of the users that are workers, by worker."""
        known = {}
        for entry in self._client.execute_command("ACL LIST"):
            line = entry.decode() if isinstance(entry, bytes) else str(entry)
            name = line.split()[1]
            if name.startswith(_PREFIX):
                known[name.removeprefix(_PREFIX)] = line
        return known

    def _set(self, worker_id: str, token_hash: str, known: str | None) -> None:
        user = worker_user(worker_id)
        if known is not None and f"#{token_hash}" not in known.split():
            # Whoever is connected with the old token must sign in anew.
            self._client.execute_command("ACL DELUSER", user)
        self._client.execute_command("ACL SETUSER", user, *rules(worker_id, token_hash))

    def _ask(self, question: Any) -> Any:
        try:
            with self._lock:
                return question()
        except (RedisError, OSError) as error:
            raise Unavailable(
                f"users cannot be set on the broker {self._address}: {error}; its address needs "
                "the name and password of an administrator",
                code="broker_unavailable",
            ) from error

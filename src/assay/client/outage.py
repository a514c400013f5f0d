"""How long a client waits for a service that is away; `http.py` asks after its own retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from assay.client.errors import APIConnectionError, APIStatusError, ClientError

#: Seconds between two tries of a request while the service is away, at most.
LONGEST_PAUSE = 30.0
#: What a proxy answers whose service is away, and a service that cannot reach its storage.
_AWAY = frozenset({502, 503, 504})


def is_outage(error: ClientError) -> bool:
    """Whether an error says that the service is away, and not that the request is wrong."""
    if isinstance(error, APIStatusError):
        return error.status in _AWAY
    return isinstance(error, APIConnectionError)


class Patience:
    """How many seconds an outage may last before a client gives up; 0 for no wait.

    All threads of a client share one outage: `on_away` is called once when it begins, `on_back`
    once when the service answers again, with the seconds it lasted.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        *,
        on_away: Callable[[ClientError], None] = lambda _: None,
        on_back: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._on_away = on_away
        self._on_back = on_back
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None

    def left(self, error: ClientError) -> float:
        """Note that the service is away. Return the seconds left to wait for it, 0 for none."""
        if self.seconds <= 0 or not is_outage(error):
            return 0.0
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since = now
                self._on_away(error)
            return max(0.0, self._since + self.seconds - now)

    def answered(self, status: int) -> None:
        """Note that the service answered with this HTTP status."""
        if self._since is None or status in _AWAY:
            return
        with self._lock:
            since, self._since = self._since, None
            if since is not None:
                self._on_back(self._clock() - since)

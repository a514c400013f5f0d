"""Ids: a prefix that names the kind, then 26 characters that sort by time of creation."""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_lock = threading.Lock()
_last = 0


def new_id(prefix: str) -> str:
    """A new id such as `bat_01k8…`: 48 bits of milliseconds, 80 random bits.

    Ids made by one process strictly increase, so that "in order of creation" is "in order of id".
    """
    global _last
    with _lock:
        value = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
        value = max(value, _last + 1)
        _last = value
    digits = []
    for _ in range(26):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{prefix}_{''.join(reversed(digits))}"

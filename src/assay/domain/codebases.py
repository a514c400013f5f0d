"""What a codebase is named by, where people and programs name one."""

from __future__ import annotations

import re

#: The environment's own codebase, unmodified.
BASELINE = "baseline"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_hash(name: str) -> bool:
    """Return whether a name is the hash of a content: SHA-256, in lower case."""
    return _SHA256.fullmatch(name) is not None

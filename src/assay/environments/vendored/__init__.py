"""Files that environments share, one copy of each.

A manifest lists those it wants (`vendored`) by the path where its environment has them, which is
their path below this folder. `catalog` adds them when it loads an environment, so they are in its
hash and its bundle. They run with what an environment may import: nothing of Assay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

_SHARED = ("codebase", "sources")


@cache
def vendored_files() -> Mapping[str, bytes]:
    """Return the content of every file that Assay brings, by its path in an environment."""
    here = Path(__file__).parent
    paths = sorted(path for folder in _SHARED for path in (here / folder).glob("*.py"))
    return MappingProxyType({p.relative_to(here).as_posix(): p.read_bytes() for p in paths})

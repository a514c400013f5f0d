"""Content hashes of source trees, and seeds derived from names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def tree_hash(files: Mapping[str, bytes]) -> str:
    """SHA-256 of a tree: names and contents, in name order. Names use `/`."""
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name]
        digest.update(f"{len(name.encode())}:{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def text_tree_hash(files: Mapping[str, str]) -> str:
    """`tree_hash` of text files in UTF-8."""
    return tree_hash({name: text.encode() for name, text in files.items()})


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on nothing but its parts (not on hash randomisation)."""
    digest = hashlib.sha256("\x1f".join(str(p) for p in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1

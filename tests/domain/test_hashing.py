"""Two trees have the same hash exactly if they have the same files."""

from __future__ import annotations

import itertools

from assay.domain.hashing import derive_seed, text_tree_hash, tree_hash

TREE = {"a.py": b"one", "b/c.py": b"two", "z": b""}


def test_the_order_of_the_files_does_not_matter() -> None:
    orders = itertools.permutations(TREE.items())
    assert len({tree_hash(dict(order)) for order in orders}) == 1


def test_every_name_and_every_byte_matters() -> None:
    others = [
        TREE | {"a.py": b"One"},
        TREE | {"new": b""},
        {name: content for name, content in TREE.items() if name != "z"},
        {"a.py": b"two", "b/c.py": b"one", "z": b""},
        {"A.py": b"one", "b/c.py": b"two", "z": b""},
        {"a.py": b"oneb/c.py", "two": b"", "z": b""},
    ]
    assert len({tree_hash(tree) for tree in (TREE, *others)}) == len(others) + 1


def test_where_a_name_ends_and_a_content_begins_matters() -> None:
    assert tree_hash({"ab": b"c"}) != tree_hash({"a": b"bc"})
    assert tree_hash({"a": b"b", "c": b"d"}) != tree_hash({"a": b"b1:c1:d"})


def test_text_is_hashed_as_utf_8() -> None:
    assert text_tree_hash({"ä": "ö"}) == tree_hash({"ä": "ö".encode()})


def test_seeds_depend_on_every_part_and_its_place() -> None:
    parts = [("a", "b"), ("b", "a"), ("ab",), ("a", "b", ""), ("a", 1), ("a", 2)]
    seeds = [derive_seed(*each) for each in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed("a", 1) == seeds[4]

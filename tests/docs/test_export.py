"""docs/export.md describes every field of a trajectory as the contract does."""

from __future__ import annotations

from collections.abc import Iterator

from assay.contracts.trajectory import SCHEMA_VERSION, Column, columns
from tests.docs.reading import DOCS


def rows(of: Iterator[Column] | tuple[Column, ...]) -> Iterator[str]:
    """The rows of the table of fields."""
    for column in of:
        kind = {"truth": "true or false", "map": "numbers by name"}.get(column.kind, column.kind)
        if column.kind == "list":
            kind = "list of text" if column.items else f"list of [records](#{column.name})"
        null = "yes" if column.nullable else "no"
        yield f"| `{column.name}` | {kind} | {null} | {column.description} |"


def test_every_field_is_described_as_in_the_contract() -> None:
    page = (DOCS / "export.md").read_text()
    expected = [*rows(columns())]
    for column in columns():
        expected += rows(column.fields)
    missing = [row for row in expected if row not in page]
    assert missing == []
    assert f"`schema_version` {SCHEMA_VERSION}" in page


def test_every_field_has_a_description() -> None:
    nested = [inner for column in columns() for inner in column.fields]
    assert [c.name for c in [*columns(), *nested] if not c.description] == []

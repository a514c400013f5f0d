"""The committed description of the API is the one the code gives, and an honest one."""

from __future__ import annotations

import json
from typing import Any

from scripts.openapi import TARGET, described


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    paths = json.loads(TARGET.read_text())["paths"]
    return [(path, verb, op) for path, verbs in paths.items() for verb, op in verbs.items()]


def test_docs_openapi_json_is_current() -> None:
    assert TARGET.read_text() == described(), "run `make openapi`"


def test_operations_have_short_unique_ids_and_a_summary() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids)) > 25
    assert "batches_create" in ids
    assert all(operation.get("description") for _, _, operation in operations())


def test_every_operation_declares_problems_as_problems() -> None:
    for path, verb, operation in operations():
        for status, response in operation["responses"].items():
            if status.startswith(("4", "5")):
                assert list(response["content"]) == ["application/problem+json"], (path, verb)


def test_worker_endpoints_are_not_part_of_the_public_api() -> None:
    assert not [path for path, _, _ in operations() if path.startswith("/internal")]

"""Codes of failures that an environment declares in `environment.toml`."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from assay.contracts.environment import EnvironmentManifest
from assay.domain.failure_codes import MOST_DECLARED
from tests.support.environment import MANIFEST


def manifest(**failures: Any) -> EnvironmentManifest:
    return EnvironmentManifest.model_validate(tomllib.loads(MANIFEST) | {"failures": failures})


def test_codes_are_declared_with_a_sentence() -> None:
    found = manifest(infeasible="Circles overlap.")
    assert found.failures == {"infeasible": "Circles overlap."}
    assert EnvironmentManifest.model_validate_json(found.model_dump_json()) == found


def test_a_manifest_that_declares_none_is_stored_as_processes_before_read_it() -> None:
    assert "failures" not in manifest().model_dump(mode="json")


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ({"leak": "x"}, "a code of Assay itself"),
        ({"lost": "x"}, "a code of Assay itself"),
        ({"Not-A-Code": "x"}, "lower-case words"),
        ({"x" * 65: "x"}, "at most 64 characters"),
        ({"infeasible": ""}, "at least 1 "),
        ({"infeasible": "x" * 501}, "at most 500 "),
        ({"infeasible": 1}, "valid string"),
        ({f"code_{'x' * n}": "x" for n in range(1, MOST_DECLARED + 2)}, "at most 8"),
    ],
)
def test_what_cannot_be_declared_is_refused(failures: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        manifest(**failures)

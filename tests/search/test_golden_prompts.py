"""The prompts of all operators are those that were reviewed."""

from __future__ import annotations

import pytest

from tests.search.golden_prompts import FOLDER, OPERATORS, prompts


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return prompts()


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_prompt_is_the_one_on_file(made: dict[str, str], operator: str) -> None:
    """After a change that is wanted: .venv/bin/python -m tests.search.golden_prompts"""
    on_file = (FOLDER / f"nanogpt_tiny_{operator}.txt").read_text(encoding="utf-8")
    assert made[operator] == on_file


def test_each_operator_has_a_file() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {f"nanogpt_tiny_{operator}.txt" for operator in OPERATORS}

"""The rule that tells hyper-parameter tuning from algorithmic ideas."""

from __future__ import annotations

import pytest

from assay.analysis.report.classes import Change, classify
from tests.support.search_records import edit


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["rate = 0.1"], ["rate = 3e-4"]),
        (["rate = 0.1"], ["rate = -0.1 * 2  # smaller"]),
        (["    betas=(0.9, 0.95),"], ["    betas=(0.8, 0.99),"]),
        (["loss_type = 'grpo'"], ['loss_type = "reinforce_with_baseline"']),
        (["tied = False", "depth = 2"], ["tied = True", "depth = 4"]),
        (["x = f(y, warmup=100)"], ["x = f(y, warmup=(50 + 5) * 2)"]),
        (["# an old remark", "rate = 0.1"], ["rate = 0.2"]),
    ],
)
def test_other_values_are_hyper_parameters(before: list[str], after: list[str]) -> None:
    assert classify(edit("train.py", before, after)) is Change.HYPERPARAMETER


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["x = norm(x)"], ["x = gate(norm(x))"]),
        (["rate = 0.1"], ["rate = 0.1 * step"]),
        ([], ["rate = 0.2"]),
        (["rate = 0.1"], []),
        (["x = a - 1"], ["x = a + 1"]),
        (["f(x)"], ["f(x, 2)"]),
    ],
)
def test_other_code_is_algorithmic(before: list[str], after: list[str]) -> None:
    assert classify(edit("train.py", before, after)) is Change.ALGORITHMIC


def test_any_change_of_a_configuration_file_is_a_hyper_parameter() -> None:
    added = edit("settings/tiny.toml", [], ["warmup = 20"])
    assert classify(added) is Change.HYPERPARAMETER
    both = added + edit("train.py", ["x = 1"], ["x = y"])
    assert classify(both) is Change.ALGORITHMIC


def test_an_edit_of_comments_alone_has_no_class() -> None:
    assert classify(edit("train.py", ["# before"], ["# after", ""])) is None
    assert classify("") is None


def test_lines_of_a_hunk_that_look_like_headers_are_lines() -> None:
    odd = edit("train.py", ["-- a", "rate = 1"], ["++ b", "rate = 2"])
    assert classify(odd) is Change.ALGORITHMIC

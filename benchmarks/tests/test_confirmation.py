"""The seven edits of `benchmarks.confirmation`, the attack that makes one, and what is right."""

from __future__ import annotations

import asyncio
import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.contracts.batch import MAX_IDEA_BYTES
from assay.environments.catalog import Environment
from assay.llm import ImplementRequest
from assay.llm.offline.literal import LiteralImplementer
from assay.patching import apply_answer
from assay.sandbox import SandboxSettings
from benchmarks.confirmation.__main__ import is_right, leaderboard_is_right
from benchmarks.confirmation.attack import attack
from benchmarks.confirmation.edits import EDITS, GOOD, NEUTRAL, OVERFITTED, Edit, chosen
from benchmarks.confirmation.oracle import Oracle
from benchmarks.confirmation.splits import compared, table_of
from benchmarks.confirmation.table import FILE, SIZE, places, rounded, rows, with_table
from tests.support.measuring import ROOT, Bench, Tree

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def base() -> Tree:
    return Environment.load(ROOT / "environments" / "nanogpt").codebase


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_the_idea_of_an_edit_is_carried_out_as_its_diff_says(edit: Edit, base: Tree) -> None:
    idea = edit.idea(base)
    assert len(idea.encode()) < MAX_IDEA_BYTES
    answer = asyncio.run(
        LiteralImplementer().implement(ImplementRequest("nanogpt", base, (), idea))
    )
    after = apply_answer(base, answer.text).files
    assert after == edit.tree(base)
    assert after != base


def test_there_are_three_good_three_neutral_and_one_overfitted_edit() -> None:
    kinds = [edit.kind for edit in EDITS]
    assert [kinds.count(kind) for kind in (GOOD, NEUTRAL, OVERFITTED)] == [3, 3, 1]
    assert [edit.name for edit in chosen(["norm_eps"])] == ["norm_eps"]
    with pytest.raises(LookupError, match="there are bigram_embedding"):
        chosen(["bigram"])


def test_the_edit_adds_what_the_attack_computed_with(base: Tree) -> None:
    rng = np.random.default_rng(0)
    table = rounded(rng.normal(size=SIZE))
    edited = with_table(base, table)
    space: dict[str, Any] = {}
    exec(compile(edited[FILE], FILE, "exec"), space)
    import torch

    tokens = rng.integers(256, size=(3, 64))
    found = space["biases"](torch.from_numpy(tokens)).numpy()
    expected = rows(table.astype(np.float32) / 32)[places(tokens)]
    assert np.array_equal(found, expected)
    # A bias depends on the twelve bytes before, and on nothing else.
    changed = tokens.copy()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    differs = (space["biases"](torch.from_numpy(changed)).numpy() != found).any(axis=(0, 2))
    assert np.flatnonzero(differs).tolist() == list(range(40, 52))


def test_the_committed_diff_is_what_the_attack_writes_of_its_table(base: Tree) -> None:
    (edit,) = chosen(["context_biases"])
    tree = edit.tree(base)
    numbers = tree[FILE].split('"""')[3]
    table = np.frombuffer(base64.b64decode(numbers), np.int8)
    assert len(table) == SIZE
    assert with_table(base, table) == tree


def oracle_of(rng: np.random.Generator) -> tuple[Oracle, np.ndarray, dict[int, np.ndarray]]:
    windows = rng.integers(256, size=(32, 65))
    logits = {seed: rng.normal(size=(32, 64, 256)).astype(np.float32) for seed in SEEDS}
    return Oracle(windows, logits), windows, logits


def test_a_submission_shows_the_rounded_loss_with_the_table_and_is_counted() -> None:
    rng = np.random.default_rng(0)
    oracle, windows, logits = oracle_of(rng)
    table = rng.normal(size=SIZE).astype(np.float32)
    both = logits[1] + rows(table)[places(windows[:, :-1])]
    chosen_ones = np.take_along_axis(both, windows[:, 1:, None], axis=2)[:, :, 0]
    loss = float((np.log(np.exp(both).sum(axis=2)) - chosen_ones).mean())
    assert oracle.exact(table, 1) == pytest.approx(loss, abs=1e-4)
    assert oracle.queries == 0
    shown = oracle.submit(table, 1)
    assert shown == pytest.approx(loss, abs=6e-3)
    # The windows' standard error is above 0.01, so thousandths are shown.
    assert math.isclose(shown * 1000, round(shown * 1000), abs_tol=1e-6)
    assert oracle.queries == 1
    assert 10 < oracle.metric_bits < oracle.bits < 94


def test_the_attack_goes_downhill_by_rounded_scores_alone() -> None:
    size, rng = 256, np.random.default_rng(0)
    goal = rng.normal(size=size)

    def submit(table: np.ndarray, seed: int) -> float:
        loss = 1.5 + 0.1 * seed + ((table - 0.3 * goal) ** 2).mean() / 10
        return round(float(loss), 3)

    found = attack(submit, SEEDS, rng, size)
    assert np.corrcoef(found, goal)[0, 1] > 0.9
    assert submit(found, 0) < submit(np.zeros(size), 0) - 0.005


@pytest.mark.parametrize(
    ("kind", "search", "confirmed", "claimed", "right"),
    [
        (GOOD, "better", "better", True, True),
        (GOOD, "better", "better", False, False),
        (GOOD, "better", "undecided", False, False),
        (GOOD, "undecided", None, False, False),
        (NEUTRAL, "undecided", None, False, True),
        (NEUTRAL, "better", "undecided", False, True),
        (NEUTRAL, "better", "better", True, False),
        (OVERFITTED, "better", "worse", False, True),
        (OVERFITTED, "better", "undecided", False, True),
        (OVERFITTED, "better", "better", True, False),
        (OVERFITTED, "undecided", None, False, False),
        (OVERFITTED, "better", None, False, False),
    ],
)
def test_what_is_right_depends_on_the_class(
    kind: str, search: str, confirmed: str | None, claimed: bool, right: bool
) -> None:
    assert is_right(kind, search, confirmed, claimed) is right


def test_a_leaderboard_is_right_if_the_good_edits_lead() -> None:
    kinds = {"a": GOOD, "b": GOOD, "c": NEUTRAL, "d": OVERFITTED}
    assert leaderboard_is_right(["b", "a", "d", "c"], kinds)
    assert not leaderboard_is_right(["d", "b", "a", "c"], kinds)


def test_an_edit_is_judged_on_each_split_by_itself(tmp_path: Path) -> None:
    environment = Environment.load(ROOT / "environments" / "nanogpt")
    settings = SandboxSettings("subprocess", scratch=tmp_path)
    bench = Bench(environment, "tiny", tmp_path, "cpu", settings)
    base = {0: 1.40, 1: 1.45, 2: 1.50}
    values = {
        ("baseline", "search"): base,
        ("baseline", "sealed"): {seed: value + 0.01 for seed, value in base.items()},
        ("context_biases", "search"): {seed: value - 0.3 for seed, value in base.items()},
        ("context_biases", "sealed"): {seed: value + 0.3 for seed, value in base.items()},
    }
    figures = compared(bench, values, ["context_biases"])
    found = figures["context_biases"]
    assert found["search"]["effect"] == pytest.approx(0.3, abs=1e-4)
    assert found["search"]["verdict"] == "better"
    assert found["sealed"]["effect"] == pytest.approx(-0.29, abs=1e-4)
    assert found["sealed"]["verdict"] == "worse"
    row = table_of(figures, {"context_biases": OVERFITTED}).splitlines()[-1]
    assert row.startswith("| context biases | overfitted | +0.3000 [")

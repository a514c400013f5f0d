"""Lists of experiments, completion, and the report, against a fake service."""

from __future__ import annotations

import csv
import io
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.analysis.text import short_id
from assay.cli import completion
from tests.cli.conftest import Cli

SUBMIT = ("--env", "fake", "--profile", "tiny")
START = ("search", "start", "fake", "--profile", "tiny", "--epochs", "2", "--batch-size", "4")


def listed(cli: Cli, *flags: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli("experiment", "list", *flags, "--json").json["data"]
    return found


def test_experiments_are_sorted_and_printed_as_csv(cli: Cli, ideas: str) -> None:
    assert cli("batch", "submit", ideas, *SUBMIT).code == 0
    metrics = [e["metric"] for e in listed(cli, "--env", "fake", "--sort", "metric")]
    found = [m for m in metrics if m is not None]
    assert found == sorted(found)
    assert metrics[len(found) :] == [None, None]
    effects = [e["comparison"] for e in listed(cli, "--sort", "effect")]
    assert [c["effect"] for c in effects if c] == sorted(
        (c["effect"] for c in effects if c), reverse=True
    )
    told = cli("experiment", "list", "--env", "fake", "--sort", "metric", "--csv")
    rows = list(csv.DictReader(io.StringIO(told.out)))
    assert [row["metric"] for row in rows] == ["" if m is None else str(m) for m in metrics]
    assert any("environment=fake" in query for query in cli.service.queries)


def test_a_sort_that_mixes_environments_and_two_formats_are_refused(cli: Cli) -> None:
    mixed = cli("experiment", "list", "--sort", "metric")
    assert (mixed.code, "name it with --env" in mixed.err) == (2, True)
    both = cli("experiment", "list", "--csv", "--json")
    assert both.code == 2
    assert "--csv and --json exclude each other" in both.json["error"]["message"]


def test_the_list_has_verdicts_and_ids_that_commands_take(cli: Cli, ideas: str) -> None:
    cli("batch", "submit", ideas, *SUBMIT)
    first = listed(cli)[0]
    assert "verdict" in (shown := cli("experiment", "list").out)
    assert short_id(first["id"]) in shown
    assert first["id"] in cli("experiment", "show", short_id(first["id"])).out


def test_the_version_is_an_option(cli: Cli) -> None:
    assert cli("--version").out.strip() == version("assay")


def test_ids_and_names_are_completed(cli: Cli, ideas: str) -> None:
    cli("batch", "submit", ideas, *SUBMIT)
    context: Any = SimpleNamespace(
        find_root=lambda: SimpleNamespace(params={"url": cli.url}), params={"env": "fake"}
    )
    offered = completion.experiments(context, "exp_")
    assert [id_ for id_, _ in offered] == [e["id"] for e in listed(cli)]
    assert offered[0][1] == "succeeded: first"
    assert completion.batches(context, "exp_") == []
    assert [name for name, _ in completion.environments(context, "f")] == ["fake"]
    assert [name for name, _ in completion.profiles(context, "")] == ["tiny"]
    away: Any = SimpleNamespace(
        find_root=lambda: SimpleNamespace(params={"url": "http://127.0.0.1:9"}), params={}
    )
    assert completion.searches(away, "") == [], "a shell must not show errors"


def test_a_search_is_shown_with_the_best_so_far_by_epoch(cli: Cli) -> None:
    id_ = cli(*START, "--json").json["data"]["search"]["id"]
    assert "best so far by epoch: " in cli("search", "show", id_).out


def test_a_report_of_a_search_is_written_and_printed(cli: Cli, tmp_path: Path) -> None:
    id_ = cli(*START, "--json").json["data"]["search"]["id"]
    told = cli("search", "report", id_, "--expert", "fake=1.5")
    assert told.code == 0
    assert "Best human expert" in told.out
    assert "Give one of the same environment" in told.out, "figure 4 says what it lacks"
    file = tmp_path / "report.html"
    made = cli("search", "report", id_, id_, "--html", str(file), "--json").json["data"]
    assert made["files"] == [str(file)]
    assert len(made["report"]["summaries"]) == 1, "a search is not reported twice"
    assert file.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--theme", "EMA"), "must be a name, = and a pattern"),
        (("--theme", "EMA=("), "is not a regular expression"),
        (("--expert", "toy=much"), "is not a number"),
    ],
)
def test_flags_of_a_report_are_checked_first(cli: Cli, flags: tuple[str, ...], said: str) -> None:
    wrong = cli("search", "report", "srch_1", *flags)
    assert (wrong.code, said in wrong.err) == (2, True)
    assert cli.service.requests == []

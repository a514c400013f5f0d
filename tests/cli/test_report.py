"""What the command line says of execution, of the ledger, of caps and of ideas that are alike."""

from __future__ import annotations

from typing import Any

import pytest

from assay.analysis.execution import bars
from tests.cli.conftest import Cli
from tests.cli.test_commands import SUBMIT, submitted
from tests.support.fake_service import NOW

OPUS = "anthropic:claude-opus-4-5"
HOSTILE = "\x1b[31m[bold]evil[/bold]"


def row(**changes: Any) -> dict[str, Any]:
    """A row of the execution report: of 50 ideas, 42 came to a result."""
    return {
        "environment": "nanogpt@abc", "profile": "full", "hardware_classes": ["h100"],
        "ideator": OPUS, "executor": OPUS, "execution": "self", "batches": 2,
        "funnel": {"submitted": 50, "applied": 48, "patched": 46, "started": 45, "scored": 42},
        "shares": {"applied": 0.96, "patched": 0.92, "started": 0.9, "scored": 0.84},
        "unfinished": 0, "cancelled": 0, "near_duplicates": 0,
        "failures": [{"stage": "train", "code": "crashed", "count": 5},
                     {"stage": "implement", "code": "no_match", "count": 3}],
        "repairs": {"experiments": 4, "scored": 1}, "wasted_seconds": 3725.0,
        "usage": {"calls": 100, "cost_usd": "10"},
        "per_submitted": {"calls": 2.0, "input_tokens": 30000.0, "output_tokens": 2345.0,
                          "cost_usd": "0.2"},
        "per_patched": {"calls": 2.2, "input_tokens": 32608.7, "output_tokens": 2500.0,
                        "cost_usd": "0.217391"},
        "metric": {"name": "loss", "direction": "minimize", "average": 3.31, "best": 3.237,
                   "baseline_mean": 3.255, "baseline_n": 5},
    } | changes  # fmt: skip


def call(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"call_{number}", "batch": "bat_1", "implementation": "impl_1", "sample": 2,
        "revision": 1, "number": number, "model": OPUS, "request_hash": "h",
        "prompt_version": "v", "state": "returned", "code": None, "message": None,
        "input_tokens": 100, "cached_input_tokens": 1000, "cache_write_tokens": 10,
        "output_tokens": 50, "is_estimate": False, "is_replay": False, "reserved_usd": "0.02",
        "cost_usd": "0.01", "seconds": 2.0, "request_id": None, "started_at": NOW,
        "finished_at": NOW,
    } | changes  # fmt: skip


# -- report -------------------------------------------------------------------------------------


def test_the_execution_report_shows_the_funnel(cli: Cli) -> None:
    cli.service.report = [row()]
    answer = cli("report", "execution")
    assert answer.code == 0, answer.err
    for text in (
        "nanogpt@abc, full, h100: loss, minimize", f"{OPUS} → {OPUS}", "self",
        "48 96%", "42 84%", "██▇▇▇", "3.3100", "3.2370", "3.2550", "1 h 02 min", "32,345",
        "0.2174", "4 (1 scored)", "crashed", "10%", "no_match",
    ):  # fmt: skip
        assert text in answer.out, text
    assert "cancelled" not in answer.out
    assert answer.out.index("crashed") < answer.out.index("no_match")
    assert "worn" not in answer.out


def test_the_execution_report_says_where_the_best_wants_confirmation(cli: Cli) -> None:
    cli.service.report = [row(metric=row()["metric"] | {"worn": True})]
    assert "confirm the best on a fresh split" in " ".join(cli("report", "execution").out.split())


def test_the_report_is_the_apis_body_as_json(cli: Cli) -> None:
    cli.service.report = [row()]
    batch = "bat_" + "0" * 26
    answer = cli("report", "execution", "--environment", "nanogpt", "--batch", batch, "--search",
                 "srch_" + "0" * 26, "--since", "2026-11-01", "--json")  # fmt: skip
    body = answer.json["data"]
    assert body["data"][0]["funnel"]["scored"] == 42
    assert (body["environment"], body["batches"]) == ("nanogpt", [batch])
    assert (body["search"], body["since"]) == ("srch_" + "0" * 26, "2026-11-01")


def test_batches_of_a_report_may_be_shortened(cli: Cli, ideas: str) -> None:
    both = [submitted(cli, ideas) for _ in range(2)]
    asked = [argument for id_ in both for argument in ("--batch", id_[-4:])]
    assert cli("report", "execution", *asked, "--json").json["data"]["batches"] == both


def test_a_person_a_cross_execution_and_what_is_unknown(cli: Cli) -> None:
    nothing = {"submitted": 0, "applied": 0, "patched": 0, "started": 0, "scored": 0}
    cli.service.report = [
        row(ideator=None, execution="person", unfinished=3),
        row(ideator=HOSTILE, execution="cross", cancelled=4, near_duplicates=2),
        row(
            profile="tiny", funnel=nothing, failures=[], per_submitted=None, per_patched=None,
            shares=dict.fromkeys(("applied", "patched", "started", "scored")),
            metric={"name": "loss", "direction": "minimize", "average": None, "best": None,
                    "baseline_mean": None, "baseline_n": 0},
        ),
        row(profile="small", per_submitted=row()["per_submitted"] | {"cost_usd": None}),
    ]  # fmt: skip
    answer = cli("report", "execution")
    assert answer.code == 0, answer.err
    assert f"a person → {OPUS}" in answer.out
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["2", "cancelled", "near_duplicate", "2", "–"] in lines
    assert ["2", "cancelled", "–", "2", "–"] in lines
    assert ["1", "unfinished", "–", "3", "6%"] in lines
    assert "[bold]evil[/bold]" in answer.out
    assert "\x1b" not in answer.out
    assert "unknown" in answer.out
    assert "nanogpt@abc, tiny" in answer.out


def test_an_empty_report_says_so(cli: Cli) -> None:
    answer = cli("report", "execution")
    assert answer.code == 0
    assert "assay batch submit" in answer.err


def test_a_day_that_is_none(cli: Cli) -> None:
    answer = cli("report", "execution", "--since", "yesterday")
    assert answer.code == 2
    assert "--since" in answer.err


def test_bars_are_as_high_as_their_share() -> None:
    assert bars([8, 8, 4, 1, 0]) == "██▄▁ "
    assert bars([0, 0]) == "  "
    assert bars([1000, 999, 1]) == "██▁"


# -- calls --------------------------------------------------------------------------------------


def test_the_ledger_of_a_batch(cli: Cli, ideas: str) -> None:
    id_ = submitted(cli, ideas)
    cli.service.calls = [
        call(1, state="failed", code=HOSTILE, cost_usd="0", cached_input_tokens=0),
        call(2),
        call(3, state="interrupted", is_estimate=True, cost_usd="0.5"),
        call(4, state="calling", finished_at=None, cost_usd=None, seconds=None),
    ]
    answer = cli("batch", "calls", id_[-4:])
    assert answer.code == 0, answer.err
    assert "~0.5" in answer.out
    assert "~0.02" in answer.out  # what it is expected to cost
    assert "\x1b" not in answer.out
    body = cli("batch", "calls", id_, "--json").json["data"]
    assert [c["id"] for c in body["calls"]] == [f"call_{n}" for n in range(1, 5)]
    totals = {each["state"]: each for each in body["totals"]}
    assert set(totals) == {"failed", "returned", "interrupted", "calling", "all"}
    assert totals["all"] == {
        "state": "all", "calls": 4, "input_tokens": 3440, "cached_input_tokens": 3000,
        "output_tokens": 200, "cost_usd": "0.51",
    }  # fmt: skip
    few = cli("batch", "calls", id_, "--state", "returned", "--json").json["data"]
    assert [c["id"] for c in few["calls"]] == ["call_2"]


def test_a_call_without_a_price(cli: Cli, ideas: str) -> None:
    id_ = submitted(cli, ideas)
    assert "No calls" in cli("batch", "calls", id_).err
    cli.service.calls = [call(1), call(2, cost_usd=None)]
    assert cli("batch", "calls", id_, "--json").json["data"]["totals"][-1]["cost_usd"] is None
    assert "unknown" in cli("batch", "calls", id_).out


# -- options ------------------------------------------------------------------------------------

FLAGS = ("--preflight", "off", "--repairs", "2", "--max-gpu-hours", "1.5", "--novelty", "skip")


def test_submit_passes_the_new_flags_on(cli: Cli, ideas: str) -> None:
    options = cli("batch", "submit", ideas, *SUBMIT, *FLAGS, "--json").json["detail"]["options"]
    assert (options["preflight"], options["repairs"]) == ("off", 2)
    assert (options["max_gpu_hours"], options["novelty"]) == (1.5, "skip")


def test_a_search_caps_gpu_hours_as_a_whole(cli: Cli) -> None:
    answer = cli("search", "start", "fake", "--profile", "tiny", "--epochs", "1",
                 "--batch-size", "2", *FLAGS)  # fmt: skip
    assert answer.code == 0, answer.err
    (search,) = cli.service.searches.values()
    assert search["caps"]["max_gpu_hours"] == 1.5
    (options,) = cli.service.batch_options
    assert (options.preflight, options.repairs, options.novelty) == ("off", 2, "skip")
    assert options.max_gpu_hours is None


@pytest.mark.parametrize(
    "flags",
    [
        ("--preflight", "never"),
        ("--repairs", "4"),
        ("--max-gpu-hours", "-1"),
        ("--novelty", "maybe"),
    ],
)
def test_a_wrong_flag_is_named(cli: Cli, ideas: str, flags: tuple[str, str]) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, *flags)
    assert answer.code == 2
    assert f"{flags[0]}:" in answer.err
    assert cli.service.batches == {}


def test_caps_are_said_before_models_are_asked(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--executor", OPUS, *FLAGS)
    assert "at most 10 repairs" in answer.err
    assert "1.5 GPU-hours (--max-gpu-hours)" in answer.err


# -- ideas that are alike -----------------------------------------------------------------------


def test_alike_ideas_are_told_in_one_line(cli: Cli, ideas: str) -> None:
    earlier = [{"experiment": "exp_9", "similarity": 0.924}]
    cli.service.alike = {"[Experiment] second": earlier, "[Experiment] fifth": earlier}
    said = cli("batch", "submit", ideas, *SUBMIT).err
    assert "2 ideas, of which the first is idea 2 (second), 92% like exp_9" in said
    assert "second" in said
    assert "skipped" not in said
    assert "nearly" not in cli("batch", "submit", ideas, *SUBMIT, "--novelty", "allow").err


def test_skipped_ideas_are_told(cli: Cli, ideas: str) -> None:
    cli.service.alike = {"absent": [{"experiment": "exp_9", "similarity": 1.0}]}
    skipped = {"stage": "implement", "code": "near_duplicate", "message": "said before"}
    cli.service.outcome = lambda text: skipped
    said = cli("batch", "submit", ideas, *SUBMIT, "--novelty", "skip").err
    assert "skipped, in nearly the words of earlier ideas: 1 idea, idea 3 (absent)" in said


def test_a_dry_run_names_gpu_hours_and_alike_ideas(cli: Cli, ideas: str) -> None:
    dry = ("batch", "submit", ideas, *SUBMIT, "--dry-run")
    assert "GPU-hours" not in cli(*dry).out
    cli.service.priced = {
        "gpu_hours": 2.5,
        "similar": [
            {"position": 3, "experiment": None, "like_position": 1, "similarity": 0.9},
            {"position": 4, "experiment": "exp_9", "like_position": None, "similarity": 0.9},
        ],
    }
    said = cli(*dry, "--max-gpu-hours", "2").out
    assert "5 measurements, at most 2.5 GPU-hours" in said
    assert "more than the 2 GPU-hours" in said
    assert "2 ideas, of which the first is idea 4, 90% like idea 2 of this batch" in said
    assert "would be skipped" in cli(*dry, "--novelty", "skip").out


# -- show ---------------------------------------------------------------------------------------


def test_a_batch_shows_its_caps(cli: Cli, ideas: str) -> None:
    id_ = submitted(cli, ideas)
    assert "caps" not in cli("batch", "show", id_).out
    cli.service.batches[id_] |= {
        "caps": [
            {"scope": "batch", "kind": "cost_usd", "limit": "5", "used": "0.25",
             "reached": False},
            {"scope": "day", "kind": "gpu_hours", "limit": "2", "used": "2.000000",
             "reached": True},
        ],
        "not_done": 2,
    }  # fmt: skip
    shown = cli("batch", "show", id_).out
    assert "caps: batch 0.25 of 5 USD, day 2 of 2 GPU-hours (reached)" in shown
    assert "not done because of a cap: 2 ideas" in shown


def test_an_experiment_shows_its_lineage(cli: Cli, ideas: str) -> None:
    batch = submitted(cli, ideas)
    experiment = cli.service.experiments[batch][0]
    failure = {"stage": "train", "code": "crashed", "message": f"Traceback\nValueError: {HOSTILE}"}
    repair = {
        "number": 0, "state": "repaired", "codebase": "a" * 64, "measurement": "mea_1",
        "failure": failure, "sample": 3, "revision": 1, "repaired": "b" * 64,
    }  # fmt: skip
    refused = repair | {"number": 1, "state": "refused", "codebase": "b" * 64, "repaired": None}
    experiment |= {"repairs": [repair, refused], "smokes": ["mea_7", "mea_8"]}
    experiment["idea"]["similar"] = [{"experiment": "exp_9", "similarity": 0.84}]
    shown = cli("experiment", "show", experiment["id"]).out
    assert "repair 1: codebase aaaaaaaaaaaa → crashed in mea_1 (ValueError: " in shown
    assert "→ codebase bbbbbbbbbbbb (sample 3, revision 1)" in " ".join(shown.split())
    assert "was not repaired" in shown
    assert "tried before it was measured: mea_7, mea_8" in shown
    assert "in nearly the words of exp_9 (84%)" in shown
    assert "\x1b" not in shown

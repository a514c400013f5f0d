"""Every verb: what it prints, its JSON, its exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from assay.analysis.text import short_id
from assay.cli.app import main
from assay.cli.command import Ambiguous, full_id
from assay.cli.options import parse_seeds
from assay.contracts.batch import BatchBody
from assay.domain.errors import InvalidInput
from assay.domain.verdicts import Verdict
from tests.cli.conftest import Cli
from tests.support.fake_service import Fault

SUBMIT = ("--env", "fake", "--profile", "tiny")


def submitted(cli: Cli, ideas: str) -> str:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--json")
    assert answer.code == 0
    id_ = answer.json["target"]
    assert isinstance(id_, str)
    return id_


# -- batch --------------------------------------------------------------------------------------


def test_submit_says_how_to_follow(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT)
    assert answer.code == 0
    assert "submitted 5 ideas: bat_" in answer.out
    assert "assay batch watch bat_" in answer.err


def test_submit_as_json_is_a_change(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--json")
    assert set(answer.json) == {"target", "applied", "dry_run", "detail"}
    assert answer.json["applied"] is True
    assert answer.json["detail"]["id"] == answer.json["target"]


def test_submit_passes_its_flags_on(cli: Cli, ideas: str) -> None:
    answer = cli(
        "batch", "submit", ideas, *SUBMIT, "--seeds", "0-2,7", "--samples", "3",
        "--revisions", "1", "--sampling", "paper", "--max-cost", "1.5", "--priority", "4",
        "--json",
    )  # fmt: skip
    options = answer.json["detail"]["options"]
    assert options["seeds"] == [0, 1, 2, 7]
    assert (options["samples"], options["revisions"], options["sampling"]) == (3, 1, "paper")
    assert (options["max_cost_usd"], options["priority"]) == ("1.5", 4)


def test_submit_and_wait_shows_ranked_results_and_failures(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--wait")
    assert answer.code == 0
    assert "effect [95 %]" in answer.out
    assert "ZeroDivisionError: division by zero" in answer.out
    assert "implement" in answer.out
    assert "\x1b" not in answer.out + answer.err
    assert "5/5 finished: 3 succeeded, 2 failed" in answer.err


def test_submit_and_wait_waits_for_the_baseline_too(cli: Cli, ideas: str) -> None:
    cli.sleep = lambda _: None
    cli.service.to_come = 40
    answer = cli("batch", "submit", ideas, *SUBMIT, "--wait")
    assert answer.code == 0
    assert "baseline of fake@abc, tiny:" in answer.err
    assert "provisional" not in answer.out
    assert cli.service.to_come == 0


def test_verdicts_are_provisional_where_the_baseline_came_too_late(cli: Cli, ideas: str) -> None:
    cli.service.to_come = 1_000_000
    answer = cli("batch", "submit", ideas, *SUBMIT, "--wait", "--timeout", "1")
    assert answer.code == 124
    assert re.search(r"verdicts are provisional: \d+ seeds of the baseline to come", answer.out)
    assert "effect [95 %]" in answer.out


def test_watching_for_a_program_ends_with_the_batch(cli: Cli, ideas: str) -> None:
    id_ = cli("batch", "submit", ideas, *SUBMIT, "--json").json["target"]
    cli.service.to_come = 1_000_000
    answer = cli("batch", "watch", id_, "--json")
    assert answer.code == 0
    assert "verdicts are provisional" in answer.err
    assert json.loads(answer.out.splitlines()[-1])["type"] == "batch.finished"


def test_submit_and_wait_as_json_is_a_read(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--wait", "--json")
    assert set(answer.json) == {"as_of", "counts", "data", "truncated"}
    assert answer.json["data"]["batch"]["state"] == "finished"
    assert len(answer.json["data"]["experiments"]) == 5


def test_the_same_key_submits_once(cli: Cli, ideas: str) -> None:
    for _ in range(2):
        assert cli("batch", "submit", ideas, *SUBMIT, "--idempotency-key", "k").code == 0
    assert len(cli.service.batches) == 1


def test_a_dry_run_stores_nothing(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--dry-run", "--json")
    assert (answer.json["applied"], answer.json["dry_run"]) == (False, True)
    assert answer.json["detail"]["measurements"] == 5
    assert cli.service.batches == {}


def test_a_dry_run_shows_its_warnings(cli: Cli, ideas: str) -> None:
    warning = {"pointer": "/ideas/0/text", "code": "no_diff", "message": "choose a model"}
    cli.service.priced = {"warnings": [warning] * 7}
    out = cli("batch", "submit", ideas, *SUBMIT, "--dry-run").out
    assert out.count("warning: /ideas/0/text: choose a model") == 5
    assert "and 2 more warnings" in out


def test_a_timeout_is_124_and_cancels_nothing(cli: Cli, ideas: str) -> None:
    cli.service.unfinished = True
    answer = cli("batch", "submit", ideas, *SUBMIT, "--wait", "--timeout", "0.2", "--json")
    assert answer.code == 124
    assert answer.json["error"]["kind"] == "timeout"
    assert [b["state"] for b in cli.service.batches.values()] == ["running"]


def test_ctrl_c_detaches_and_says_how_to_go_on(cli: Cli, ideas: str) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    cli.service.unfinished = True
    cli.sleep = interrupt
    answer = cli("batch", "submit", ideas, *SUBMIT, "--wait")
    assert answer.code == 130
    assert "assay batch watch bat_" in answer.err
    assert not any(path.endswith("cancel") for _, path, _ in cli.service.requests)


def test_watch_as_json_is_lines_of_events(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "watch", submitted(cli, ideas), "--json")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert events[-1]["type"] == "batch.finished"
    assert [e["id"] for e in events] == list(range(1, 22))


def test_list_and_show(cli: Cli, ideas: str) -> None:
    id_ = submitted(cli, ideas)
    assert short_id(id_) in cli("batch", "list").out
    assert short_id(id_) != id_
    listed = cli("batch", "list", "--json").json
    assert listed["counts"] == {"returned": 1}
    assert listed["data"][0]["id"] == id_
    assert "baseline 2.5000 ± 0.0158 nats (n = 5)" in cli("batch", "show", id_[-4:]).out
    assert id_ in cli("batch", "show", short_id(id_)).out, "what a list shows is taken for an id"


def test_rankings_of_a_worn_split_ask_for_confirmation(cli: Cli, ideas: str) -> None:
    id_ = submitted(cli, ideas)
    split = {"name": "search", "bits_shown": 9_990, "bits_budget": 10_000, "worn": False}
    cli.service.splits = [split]
    assert "Worn held-out split" not in cli("batch", "show", id_).out
    assert "held-out split search: 9,990 of 10,000 bits shown\n" in (
        cli("env", "show", "fake", "--service").out
    )
    cli.service.splits = [{**split, "bits_shown": 10_080, "worn": True}]
    words = "confirm the top results (assay experiment confirm)"
    assert words in flat(cli("batch", "show", id_).out)
    assert "10,080 of 10,000 bits shown: worn" in cli("env", "show", "fake", "--service").out
    assert "search" in cli("env", "list", "--service").out.splitlines()[-2]
    searched = cli(
        "search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "1"
    )
    assert words in flat(searched.out)


def flat(text: str) -> str:
    """The text on one line: a terminal breaks long ones."""
    return " ".join(text.split())


def test_a_list_says_when_there_is_more(cli: Cli, ideas: str) -> None:
    for _ in range(5):
        submitted(cli, ideas)
    listed = cli("batch", "list", "--limit", "4", "--json").json
    assert (len(listed["data"]), listed["truncated"]) == (4, True)


def test_an_empty_list_says_how_to_fill_it(cli: Cli) -> None:
    assert "assay batch submit" in cli("batch", "list").err


def test_cancelling_needs_a_yes(cli: Cli, ideas: str) -> None:
    cli.service.unfinished = True
    id_ = submitted(cli, ideas)
    assert cli("batch", "cancel", id_).code == 2
    assert cli("batch", "cancel", id_, "--dry-run").code == 0
    assert cli.service.batches[id_]["state"] == "running"
    answer = cli("batch", "cancel", id_, "--yes", "--json")
    assert answer.json["detail"]["state"] == "cancelled"


# -- experiment ---------------------------------------------------------------------------------


def test_the_verbs_of_an_experiment(cli: Cli, ideas: str) -> None:
    batch = submitted(cli, ideas)
    listed = cli("experiment", "list", "--batch", batch, "--json").json["data"]
    good, broken = listed[0]["id"], listed[3]["id"]
    assert "reward 0.4" in cli("experiment", "show", good).out
    assert "took 3.5 s\n" in cli("experiment", "show", good).out
    cli.service.experiments[batch][0]["warm_up_seconds"] = 41.0
    assert "took 3.5 s, after 41 s of warm-up" in cli("experiment", "show", good).out
    assert "failed at train (crashed)" in cli("experiment", "show", broken).out
    assert cli("experiment", "diff", good).out.startswith("--- a/train.py")
    assert "+\x1b[31mrate" in cli("experiment", "diff", good, "--json").json["data"]["diff"]
    assert cli("experiment", "logs", good).out == "step 1 ü\nstep 2\n"
    assert "train/loss" in cli("experiment", "curves", good).out
    curves = cli("experiment", "curves", good, "--json").json["data"]
    assert curves[1]["values"]["train/loss"] == "NaN"
    assert "loss" in cli("experiment", "result", good).out
    verdict = cli("experiment", "result", good, "--json").json["data"]["comparison"]["verdict"]
    for expected in Verdict:
        answer = cli("experiment", "result", good, "--expect", expected.value)
        assert answer.code == (0 if expected.value == verdict else 1), answer.err
    assert cli("experiment", "cancel", good, "--yes").code == 0


def test_tags_and_a_note_are_changed_and_shown(cli: Cli, ideas: str) -> None:
    batch = submitted(cli, ideas)
    first, second, *_ = (e["id"] for e in cli.service.experiments[batch])
    assert "tags:" not in cli("experiment", "show", first).out
    note = "Overfits?\n\x1b[31mSee [x]."
    made = cli(
        "experiment", "annotate", first, second, "--tag", "keep", "--tag", "a/b", "--note", note
    )
    assert made.code == 0, made.err
    assert f"{first}:\n  tags: keep, a/b\n  note: Overfits?\n  See [x].\n{second}:" in made.out
    cli("experiment", "annotate", second, "--untag", "keep", "--tag", "a/b", "--tag", "last")
    shown = cli("experiment", "show", second).out
    assert "tags: a/b, last\nnote: Overfits?\nSee [x].\n" in shown
    found = cli("experiment", "list", "--tag", "keep", "--json").json["data"]
    assert [each["id"] for each in found] == [first]
    gone = cli("experiment", "annotate", first, "--untag", "keep", "--untag", "a/b", "--note", "")
    assert "no tags and no note" in gone.out
    answer = cli("experiment", "annotate", second, "--note", "n", "--json").json
    assert (answer["target"], answer["applied"]) == (second, True)
    assert (answer["detail"][0]["tags"], answer["detail"][0]["note"]) == (["a/b", "last"], "n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--tag, --untag or --note"),
        (("--tag", "a", "--untag", "a"), "both name a"),
        (("--tag", "has space"), "tags/0"),
        (("--note", "x" * 10_001), "note"),
    ],
)
def test_a_wrong_tag_or_note_is_refused(
    cli: Cli, ideas: str, flags: tuple[str, ...], said: str
) -> None:
    (first, *_) = cli.service.experiments[submitted(cli, ideas)]
    answer = cli("experiment", "annotate", first["id"], *flags)
    assert (answer.code, said in answer.err) == (2, True), answer.err
    assert "tags" not in first


def test_a_search_is_annotated_and_found_by_its_tag(cli: Cli) -> None:
    start = ("search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "1")
    cli(*start)
    cli(*start, "--seed", "1")
    (first, second) = cli.service.searches
    assert cli("search", "annotate", second, "--tag", "keep", "--note", "n").code == 0
    assert "tags: keep\nnote: n\n" in cli("search", "show", second).out
    assert "tags:" not in cli("search", "show", first).out
    found = cli("search", "list", "--tag", "keep", "--json").json["data"]
    assert [each["id"] for each in found] == [second]


def test_no_result_yet_is_not_found(cli: Cli, ideas: str) -> None:
    batch = submitted(cli, ideas)
    broken = cli("experiment", "list", "--batch", batch, "--json").json["data"][3]["id"]
    answer = cli("experiment", "result", broken, "--json")
    assert answer.code == 1
    assert answer.json == {
        "error": {
            "kind": "not_found",
            "message": "there is no result",
            "status": 404,
            "code": "no_result",
        }
    }


@pytest.mark.parametrize("noun", ["experiment", "measurement"])
def test_a_stream_that_is_none(cli: Cli, noun: str) -> None:
    assert cli(noun, "logs", "exp_1", "--stream", "other").code == 2


def test_failed_experiments_are_retried(cli: Cli, ideas: str) -> None:
    batch = submitted(cli, ideas)
    good, *_, broken, _ = (e["id"] for e in cli.service.experiments[batch])
    dry = cli("experiment", "retry", broken, "--dry-run", "--json").json
    assert (dry["applied"], dry["detail"][0]["id"], len(cli.service.batches)) == (False, broken, 1)
    answer = cli("experiment", "retry", broken, broken, "--wait")
    assert answer.code == 0, answer.err
    (again,) = cli.service.experiments[list(cli.service.batches)[-1]]
    assert f"{broken}: failed as {again['id']}" in answer.out
    assert f"retried as {again['id']}" in cli("experiment", "show", broken).out
    assert f"measures {broken} again" in cli("experiment", "show", again["id"]).out
    assert "assay batch watch" not in cli("experiment", "retry", broken).err
    assert len(cli.service.batches) == 2, "asked twice, it is retried once"
    cli.service.unfinished = True
    assert "assay batch watch bat_" in cli("experiment", "retry", again["id"]).err
    refused = cli("experiment", "retry", good, "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "nothing_failed")


@pytest.mark.parametrize(
    ("agreement", "code", "said"),
    [
        ("to the digit", 0, "agrees to the digit"),
        ("within noise", 0, "agrees within noise"),
        ("disagrees", 1, "disagrees"),
        ("undecided", 1, "is undecided"),
    ],
)
def test_a_reproduction_says_whether_it_agrees(
    cli: Cli, ideas: str, agreement: str, code: int, said: str
) -> None:
    (good, *_) = cli.service.experiments[submitted(cli, ideas)]
    cli.service.agreement = agreement
    answer = cli("experiment", "reproduce", good["id"], "--wait")
    assert (answer.code, said in answer.out) == (code, True), answer.err
    assert "3.101" in answer.out
    assert "3.102" in answer.out
    (made,) = cli.service.experiments[list(cli.service.batches)[-1]]
    assert said in cli("experiment", "show", made["id"]).out
    assert f"reproduced as {made['id']}" in cli("experiment", "show", good["id"]).out
    shown = cli("experiment", "reproduce", good["id"], "--wait", "--json")
    assert (shown.code, shown.json["data"]["agreement"]["agreement"]) == (code, agreement)


def test_a_reproduction_is_asked_for_and_followed_later(cli: Cli, ideas: str) -> None:
    batch = submitted(cli, ideas)
    good, *_, broken, _ = (e["id"] for e in cli.service.experiments[batch])
    dry = cli("experiment", "reproduce", good, "--dry-run", "--json").json
    assert (dry["applied"], len(cli.service.batches)) == (False, 1)
    assert cli("experiment", "reproduce", broken, "--json").json["error"]["code"] == "no_result"
    cli.service.differing = "torch: 2.8 and 2.9"
    refused = cli("experiment", "reproduce", good)
    assert (refused.code, "torch: 2.8 and 2.9" in refused.err) == (1, True)
    assert "assay batch watch bat_" in cli("experiment", "reproduce", good, "--queue").err


def test_a_bundle_is_written_once(cli: Cli, ideas: str, tmp_path: Path) -> None:
    (good, *_) = cli.service.experiments[submitted(cli, ideas)]
    target = tmp_path / "it.zip"
    answer = cli("experiment", "bundle", good["id"], "-o", str(target))
    assert (answer.code, target.read_bytes()) == (0, b"a zip"), answer.err
    assert cli("experiment", "bundle", good["id"], "-o", str(target)).code == 1


def test_a_batch_asks_for_failures_again(cli: Cli, ideas: str) -> None:
    options = cli("batch", "submit", ideas, *SUBMIT, "--again", "--json").json["detail"]["options"]
    assert options["again"] is True


# -- measurement --------------------------------------------------------------------------------


def test_the_verbs_of_a_measurement(cli: Cli) -> None:
    failure = {"stage": "train", "code": "crashed", "message": "ValueError: \x1b[31mno"}
    attempt = {
        "id": "att_1", "number": 0, "worker": "wrk_1", "state": "failed", "failure": failure,
        "software": {"assay": "1.2", "sandbox": "bubblewrap"},
        "created_at": "2026-01-02T03:04:05Z", "started_at": "2026-01-02T03:04:06Z",
        "finished_at": "2026-01-02T03:04:16Z",
    }  # fmt: skip
    cli.service.measurements = [
        {
            "id": "mea_1", "kind": "score", "codebase": "c" * 64, "environment": "fake@abc",
            "profile": "tiny", "hardware_class": "cpu-fake", "seed": 7, "replicate": 0,
            "state": "failed", "failure": failure, "metric": None, "metrics": {},
            "provenance": {}, "attempts": [attempt], "created_at": "2026-01-02T03:04:05Z",
            "finished_at": "2026-01-02T03:04:16Z",
        }
    ]  # fmt: skip
    shown = cli("measurement", "show", "mea_1")
    assert shown.code == 0, shown.err
    told = " ".join(shown.out.split())
    assert "failed, seed 7" in told
    assert "c" * 64 in told
    assert "failed at train (crashed): ValueError: no" in told
    assert "assay 1.2, sandbox bubblewrap" in told
    for cell in ("wrk_1", "2026-01-02 03:04:06", "10 s"):
        assert cell in told
    assert "assay measurement logs mea_1" in shown.err
    assert cli("measurement", "show", "mea_1", "--json").json["data"]["seed"] == 7
    assert "crashed" in cli("measurement", "list").out
    assert cli("measurement", "logs", "mea_1").out.endswith("step 29\nValueError: no")
    assert not cli("measurement", "retry", "mea_1", "--dry-run", "--json").json["applied"]
    retried = cli("measurement", "retry", "mea_1")
    assert "mea_1: queued as mea_1_again" in retried.out
    assert "assay measurement show mea_1_again" in retried.err
    refused = cli("measurement", "retry", "mea_1_again", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "nothing_failed")


# -- search -------------------------------------------------------------------------------------


def test_a_search_is_started_driven_and_shown(cli: Cli) -> None:
    answer = cli(
        "search", "start", "fake", "--profile", "tiny", "--epochs", "2", "--batch-size", "4",
        "--seed", "11", "--context-tokens", "50000", "--ideator-effort", "high",
        "--temperature", "0.5", "--max-tokens", "9000",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "epoch 1: asking for 2 exploit, 2 explore" in answer.err
    assert "best so far" in answer.out
    (search,) = cli.service.searches.values()
    assert search["state"] == "finished"
    asked = search["config"]["ideator"]
    assert (asked["context_tokens"], asked["effort"], asked["temperature"]) == (
        50_000,
        "high",
        None,
    )
    options = cli.service.batch_options
    assert [(o.temperature, o.max_tokens, o.effort) for o in options] == [(0.5, 9_000, None)] * 2
    assert search["config"]["strategy"]["most"] == 80
    assert cli("search", "list", "--json").json["data"][0]["id"] == search["id"]
    shown = cli("search", "show", search["id"], "--json").json["data"]
    assert [e["number"] for e in shown["epochs"]] == [0, 1]


def test_positives_of_a_search_are_chosen_at_its_start(cli: Cli) -> None:
    start = ("search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "2")
    assert cli(*start, "--positives", "verdict").code == 0
    (search,) = cli.service.searches.values()
    assert search["config"]["strategy"]["positives"] == "verdict"
    refused = cli(*start, "--positives", "luck")
    assert refused.code != 0
    assert "must be mean or verdict" in refused.err


def test_answers_that_could_not_be_read_are_counted_and_shown(cli: Cli) -> None:
    cli("search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "2")
    ((id_, search),) = cli.service.searches.items()
    assert "No such answers" in cli("search", "answers", id_).err
    answer = {
        "id": "call_1", "search": id_, "epoch": 0, "operator": "seed", "asked": 2, "ideas": 0,
        "unread": 1, "stop": "end", "text": "Muon\x1b[31m, perhaps.", "thinking": None,
        "thinking_length": 0, "place": "0.0.0", "number": 1, "model": "openai:m", "code": None,
        "request_hash": "a", "prompt_version": "v", "state": "returned", "message": None,
        "input_tokens": 1, "cached_input_tokens": 0, "cache_write_tokens": 0, "output_tokens": 1,
        "is_estimate": False, "is_replay": False, "reserved_usd": None, "cost_usd": "0.1",
        "seconds": 1.0, "request_id": None, "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:00:01Z",
    }  # fmt: skip
    cli.service.ideator_calls["call_1"] = answer
    search |= {"answers": 3, "answers_unread": 1}
    shown = " ".join(cli("search", "show", id_).out.split())
    assert (
        f"1 of 3 answers of the ideator could not be read in whole: assay search answers {id_}"
        in shown
    )
    told = cli("search", "answers", id_, "--unread", "--epoch", "0").out
    assert "call_1: epoch 0, seed, 0 ideas, 1 passage unread, end" in told
    assert "Muon, perhaps." in told
    assert cli("search", "answers", id_, "--epoch", "1", "--json").json["data"] == []


def test_a_search_that_fails_alike_pauses_with_3_and_is_resumed(cli: Cli) -> None:
    cli.service.outcome = lambda _: {"stage": "train", "code": "crashed", "message": "no"}
    start = ("search", "start", "fake", "--profile", "tiny", "--epochs", "2", "--batch-size", "4")
    answer = cli(*start)
    (id_,) = cli.service.searches
    assert answer.code == 3
    assert "4 of 4 ideas of epoch 0 failed with `crashed`" in answer.err
    assert f"assay search resume {id_}" in answer.err
    assert "paused: 4 of 4 ideas" in " ".join(cli("search", "show", id_).out.split())
    assert cli("search", "show", id_, "--json").json["data"]["search"]["pauses"][0]["epoch"] == 0
    resumed = cli("search", "resume", id_)
    assert resumed.code == 0, resumed.err
    told = " ".join(resumed.out.split())
    assert "paused after epoch 0 (4 of 4 ideas failed with crashed), then resumed" in told
    assert cli(*start, "--json").json["error"]["code"] == "search_paused"
    assert cli(*start, "--no-pause").code == 0
    last = list(cli.service.searches)[-2]
    assert cli("search", "resume", last, "--no-pause").code == 0


def test_a_detached_search_is_left_to_the_service(cli: Cli) -> None:
    start = ("search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "1")
    model = ("--ideator", "anthropic:claude-opus-4-5")
    answer = cli(*start, *model, "--detach", "--yes")
    assert answer.code == 0, "no key is needed here"
    ((id_, search),) = cli.service.searches.items()
    assert (search["driver"], search["state"]) == ("service", "running")
    assert f"assay search watch {id_}" in answer.out
    assert f"assay search cancel {id_}" in answer.out
    assert cli.service.epochs[id_] == []
    shown = " ".join(cli("search", "show", id_).out.split())
    assert "driven by the service" in shown
    assert cli("search", "resume", id_, "--detach", "--no-pause").code == 2
    assert cli("search", "resume", id_, "--detach", "--json").json["data"]["driver"] == "service"


def test_an_interrupted_search_is_resumed(cli: Cli) -> None:
    cli.service.faults.append(Fault("PUT", ".*/epochs/1", 400, code="bad"))
    started = cli("search", "start", "fake", "--profile", "tiny", "--epochs", "2",
                  "--batch-size", "4")  # fmt: skip
    assert started.code == 1
    (id_,) = cli.service.searches
    assert f"assay search resume {id_}" in started.err
    assert cli("search", "resume", id_).code == 0
    assert cli.service.searches[id_]["state"] == "finished"
    assert len(cli.service.batches) == 2


def test_a_search_can_be_cancelled_and_tried_dry(cli: Cli) -> None:
    dry = cli("search", "start", "fake", "--profile", "tiny", "--dry-run")
    assert dry.code == 0
    assert cli.service.searches == {}
    cli("search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "2")
    (id_,) = cli.service.searches
    ended = cli("search", "cancel", id_, "--yes", "--json")
    assert (ended.code, ended.json["applied"]) == (0, False)
    assert f"{id_} is finished already" in cli("search", "cancel", id_, "--yes").out
    assert cli.service.searches[id_]["state"] == "finished"
    cli.service.extend(id_, 2)
    assert cli("search", "cancel", id_, "--yes").out == f"cancelled {id_}\n"
    assert cli.service.searches[id_]["state"] == "cancelled"


def test_a_search_is_extended_and_paused_by_a_person(cli: Cli) -> None:
    cli("search", "start", "fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "2")
    (id_,) = cli.service.searches
    assert cli("search", "extend", id_).code == 2
    extended = cli("search", "extend", id_, "--epochs", "2")
    assert "1 of 2 epochs finished" in extended.out
    assert f"assay search resume {id_}" in cli("search", "pause", id_).out
    shown = " ".join(cli("search", "show", id_).out.split())
    assert "paused: A person paused it." in shown
    assert "epochs: 1 of 2 finished; experiments: " in shown
    assert cli("search", "resume", id_).code == 0
    assert cli.service.searches[id_]["state"] == "finished"
    cli.service.searches[id_]["state"] = "cancelled"
    assert cli("search", "extend", id_, "--epochs", "3").code == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--strategy", "annealing"], "evolution"),
        (["--ideator", "nobody:x"], "known"),
        (["--context-tokens", "3"], "--context-tokens"),
        (["--ideator-effort", "huge"], "--ideator-effort"),
        (["--temperature", "3"], "--temperature"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--epochs", "0"], "epochs"),
    ],
)
def test_a_wrong_search_is_wrong_usage(cli: Cli, flags: list[str], said: str) -> None:
    answer = cli("search", "start", "fake", "--profile", "tiny", *flags)
    assert answer.code == 2
    assert said in answer.err


def test_a_search_is_told_of_earlier_ones_by_short_ids(cli: Cli, ideas: str) -> None:
    small = ("fake", "--profile", "tiny", "--epochs", "1", "--batch-size", "2")
    cli("search", "start", *small)
    cli("batch", "submit", ideas, "--env", "fake", "--profile", "tiny", "--executor", "offline")
    (earlier,), batch = cli.service.searches, list(cli.service.batches)[1]
    answer = cli("search", "start", *small, "--warm-start", earlier[:9], "--warm-start", batch)
    assert answer.code == 0, answer.err
    told = list(cli.service.searches.values())[1]["config"]["warm_start"]
    assert told == [earlier, batch]


def test_a_search_cannot_be_told_of_what_is_not_there_or_of_another_environment(
    cli: Cli, ideas: str
) -> None:
    cli("batch", "submit", ideas, "--env", "fake", "--profile", "tiny", "--executor", "offline")
    (batch,) = cli.service.batches
    start = ("search", "start", "fake", "--profile", "tiny", "--warm-start")
    missing = cli(*start, "srch_" + "0" * 26)
    assert missing.code == 2
    assert "no search or batch srch_" in missing.err
    best = cli(*start, batch, "--strategy", "best-of-n")
    assert best.code == 2
    assert "looks at no results" in best.err
    cli.service.batches[batch]["environment"] = "other@abc"
    other = cli(*start, batch)
    assert other.code == 2
    assert "is of other@abc, the search of fake" in other.err
    assert cli.service.searches == {}


def test_a_context_larger_than_the_window_is_told_before_anything_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    answer = cli(
        "search", "start", "fake", "--profile", "tiny", "--ideator", "openai:gpt-4o",
        "--context-tokens", "300000",
    )  # fmt: skip
    assert answer.code == 2
    assert "128000" in answer.err
    assert cli.service.searches == {}


def test_a_missing_key_is_told_before_anything_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    answer = cli("search", "start", "fake", "--profile", "tiny", "--ideator",
                 "anthropic:claude-opus-4-5", "--json")  # fmt: skip
    assert answer.code == 1
    assert "ANTHROPIC_API_KEY" in answer.json["error"]["message"]
    assert cli.service.searches == {}


# -- cost ---------------------------------------------------------------------------------------


def test_a_model_is_priced_and_capped_before_it_is_asked(cli: Cli, ideas: str) -> None:
    answer = cli("batch", "submit", ideas, *SUBMIT, "--executor", "anthropic:claude-opus-4-5",
                 "--json")  # fmt: skip
    assert answer.code == 0
    assert "anthropic:claude-opus-4-5: 5 ideas" in answer.err
    assert "5 USD" in answer.err
    assert answer.json["detail"]["options"]["max_cost_usd"] == "5"


def test_an_unknown_price_is_said(cli: Cli, ideas: str) -> None:
    executor = "openai:qwen@http://localhost:9/v1"
    answer = cli("batch", "submit", ideas, *SUBMIT, "--executor", executor)
    assert "price unknown" in answer.err


def test_nothing_is_said_of_cost_without_a_model(cli: Cli, ideas: str) -> None:
    assert "USD" not in cli("batch", "submit", ideas, *SUBMIT).err


# -- errors -------------------------------------------------------------------------------------


def test_bad_files_and_flags_are_wrong_usage(cli: Cli, tmp_path: Path, ideas: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"text": 3}\n')
    answer = cli("batch", "submit", str(bad), *SUBMIT)
    assert answer.code == 2
    assert "bad.jsonl:2" in answer.err
    assert cli("batch", "submit", ideas, *SUBMIT, "--seeds", "a").code == 2
    assert cli("batch", "submit", ideas, *SUBMIT, "--samples", "99").code == 2
    assert cli("batch", "submit", ideas, "--env", "fake").code == 2
    assert cli("batch", "submit", ideas, "--env", "", "--profile", "tiny").code == 2
    assert cli.service.batches == {}


def test_the_queue(cli: Cli) -> None:
    empty = cli("queue")
    assert (empty.code, empty.out) == (0, "")
    assert "Nothing waits and nothing runs." in empty.err
    mine = {"owner": "local", "owners": 1, "weight": 2.0, "waiting": 1234, "under_way": 5}
    others = {"owner": None, "owners": 3, "weight": 3.0, "waiting": 9, "under_way": 1}
    shares = {"has": 0.83, "recent": None, "due": 0.4}
    batch = {
        "batch": "bat_1", "environment": "toy@1", "profile": "tiny", "priority": 7,
        "waiting": 1234, "under_way": 5, "paused": 2, "again_at": None, **shares,
    }  # fmt: skip
    nobody = {"batch": None, "experiment": None, "measurement": None, "cpus": 1, "at": None}
    cli.service.measuring = [
        {
            "hardware_class": "h", "unit": "GPUs", "total": 8, "under_way": 6,
            "owners": [mine | shares, others | shares],
            "batches": [batch],
            "next": [
                {"place": 1, "yours": False, "gpus": 1, "reason": "busy", "why": "[red]"} | nobody,
                {"place": 2, "yours": True, "gpus": 8, "reason": "busy", "why": "all that fits"}
                | nobody
                | {"batch": "bat_1", "experiment": "exp_1"},
            ],
        }
    ]  # fmt: skip
    cli.service.scheduled = False
    shown = cli("queue", "--limit", "2")
    words = " ".join(shown.out.split())
    assert "Measuring on h: 6 of 8 GPUs in use" in words
    assert "local 2 1234 5 83 % 40 %" in words
    assert "bat_1 7 1234 (2 paused) 5 83 % 40 %" in words
    assert "3 other owners 3 9 1" in words
    assert "1 another owner's 1 GPU [red]" in words
    assert "2 exp_1 bat_1 8 GPUs all that fits" in words
    assert "Implementing" not in words
    assert "No scheduler runs" in shown.err
    assert cli("queue", "--json").json["data"]["measuring"][0]["unit"] == "GPUs"
    cli.service.measuring[0] |= {"total": 0, "under_way": 0}
    assert "Measuring on h: no worker of this class" in " ".join(cli("queue").out.split())


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, "auth", 1),
        (404, "not_found", 1),
        (409, "conflict", 1),
        (422, "invalid_request", 2),
        (400, "invalid_request", 1),
        (418, "http_error", 1),
    ],
)
def test_errors_of_the_service_have_a_kind(cli: Cli, status: int, kind: str, code: int) -> None:
    cli.service.faults.append(Fault("GET", "/v1/workers", status, code="special"))
    answer = cli("worker", "list", "--json")
    assert answer.code == code
    error = answer.json["error"]
    assert set(error) == {"kind", "message", "status", "code"}
    assert (error["kind"], error["status"], error["code"]) == (kind, status, "special")


def test_nobody_there(cli: Cli) -> None:
    cli.url = "http://127.0.0.1:9"
    cli.sleep = lambda _: None
    answer = cli("worker", "list", "--json")
    assert answer.code == 1
    error = answer.json["error"]
    assert (error["kind"], error["status"]) == ("connect_error", None)


def test_wrong_usage_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["batch", "submit", "x.jsonl", "--nope", "--json"])
    assert ended.value.code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["code"]) == ("invalid_request", "usage")
    assert "--nope" in error["message"]


def test_an_exit_code_survives_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "logs", "e", "--stream", "x", "--json"])
    assert ended.value.code == 2
    assert "error" in json.loads(capsys.readouterr().out)


def test_a_mistyped_command_is_corrected(cli: Cli) -> None:
    answer = cli("batch", "sumbit")
    assert answer.code == 2
    assert "submit" in answer.err


def test_ids_are_found_by_their_end_unless_that_is_ambiguous(cli: Cli, ideas: str) -> None:
    for _ in range(2):
        submitted(cli, ideas)
    assert cli("batch", "show", "0001").code == 0
    answer = cli("batch", "show", "bat_0", "--json")
    assert answer.json["error"]["kind"] == "ambiguous"
    assert cli("batch", "show", "zzz", "--json").json["error"]["kind"] == "not_found"
    with pytest.raises(Ambiguous, match="could be"):
        full_id("bat_0", [BatchBody.model_construct(id=f"bat_0{i}") for i in range(2)])


@pytest.mark.parametrize("text", ["", "1-", "5-3", "0-64", "x"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_seeds(text)


# -- start-up -----------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from assay.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "heavy = {'pydantic', 'httpx2', 'fastapi', 'celery', 'sqlalchemy', 'torch', 'docker',\n"
        "         'numpy', 'services', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_light_packages_import_nothing_heavy() -> None:
    code = (
        "import sys, pkgutil, importlib\n"
        "import assay.client, assay.search, assay.cli, assay.analysis\n"
        "for p in (assay.client, assay.search, assay.cli, assay.analysis):\n"
        "    for m in pkgutil.iter_modules(p.__path__, p.__name__ + '.'):\n"
        "        importlib.import_module(m.name)\n"
        "heavy = {'fastapi', 'celery', 'sqlalchemy', 'torch', 'docker', 'services', 'numpy',\n"
        "         'pandas', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


#: Processes, which print one line of JSON when they are ready.
SERVERS = {"assay serve", "assay implement-worker", "assay scheduler", "assay migrate"}


def test_every_verb_takes_json_and_has_help() -> None:
    from typer.main import get_command

    from assay.cli.app import build_app

    group = get_command(build_app([]))
    seen = 0
    todo = [("assay", group)]
    while todo:
        name, item = todo.pop()
        children = getattr(item, "commands", None)
        if children:
            todo += [(f"{name} {child}", c) for child, c in children.items()]
            continue
        assert item.help, name
        if name in SERVERS:
            continue
        seen += 1
        options = {o for p in item.params for o in p.opts}
        assert "--json" in options, name
    assert seen == 73


def test_an_asynchronous_search_shows_its_slots_and_its_decisions(cli: Cli) -> None:
    service = cli.service
    service.distinct_code = True
    start = ("search", "start", "fake", "--profile", "tiny", "--yes")
    refused = cli(*start, "--strategy", "evolution", "--slots", "4")
    assert refused.code == 2
    assert "--slots: evolution works in epochs" in refused.err
    replayed = cli(*start, "--strategy", "thompson", "--replay", ".")
    assert "--replay: what thompson asks depends on when results come" in replayed.err
    thompson = ("--strategy", "thompson", "--slots", "4", "--batch-size", "2", "--epochs", "5")
    made = cli(*start, *thompson)
    assert made.code == 0, made.err
    assert "thompson, 5 decisions of 2 ideas" in made.err
    (id_,) = service.searches
    assert service.searches[id_]["config"]["strategy"]["keep"] == 4
    shown = " ".join(cli("search", "show", id_).out.split())
    assert "decisions: 5 of 5 finished, 5 submitted; slots: 0 of 4 busy" in shown
    log = cli("search", "decisions", id_)
    assert "2 seed" in log.out
    listed = cli("search", "decisions", id_, "--json").json["data"]
    assert [epoch["decision"]["baseline"] is not None for epoch in listed] == [False] * 2 + [
        True
    ] * 3
    other = cli(*start, "--strategy", "best-of-n", "--epochs", "1")
    assert other.code == 0
    assert "has no decisions" in cli("search", "decisions", list(service.searches)[1]).err

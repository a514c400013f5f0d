"""`assay worker …`: what an operator sees of hosts and does to them."""

from __future__ import annotations

import threading

from tests.cli.conftest import Cli

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"


def test_a_list_says_what_cannot_be_used(cli: Cli) -> None:
    cli.service.worker = {"gpus": 8, "usable_gpus": 7, "usable_cpus": 1, "draining": True}
    text = cli("worker", "list").out
    assert "7 of 8 usable" in text
    assert "busy host" in text
    assert "active, draining" in text


def test_a_worker_that_measures_apart_is_named(cli: Cli) -> None:
    apart = [{"environment": "toy@1", "profile": "tiny", "state": "different"}]
    cli.service.worker = told("d4300c6e", apart=apart)
    said = " ".join(cli("worker", "list").err.split())
    assert "here: apart from the others in toy@1, tiny" in said
    assert "assay conditions show --env toy@1 --profile tiny" in said
    assert "toy@1, tiny: different" in cli("worker", "show", "here").out


def test_trouble_with_gpus_is_shown_for_each(cli: Cli) -> None:
    other = UUID.replace("cdef", "0000")
    cli.service.worker = {
        "gpus": 2,
        "usable_gpus": 1,
        "devices": [{"uuid": u, "name": "H200", "memory_bytes": 141 << 30} for u in (UUID, other)],
        "troubles": [
            {"uuid": other, "state": "memory_errors", "detail": "2 memory errors; reset it"},
            {"uuid": "GPU 7", "state": "lost", "detail": "off the bus"},
            {"uuid": "GPU 8", "state": "lost", "detail": "off the bus"},
        ],
    }
    assert "1 of 2 usable: memory errors, 2 lost" in " ".join(cli("worker", "list").out.split())
    lines = cli("worker", "show", "here").out.splitlines()
    of = {name: next(line for line in lines if name in line) for name in (UUID, other, "GPU 7")}
    assert of[UUID].rstrip().endswith("141 GiB")
    assert "141 GiB: memory errors: 2 memory errors; reset it" in of[other]
    assert "lost: off the bus" in of["GPU 7"]


def told(key: str, **other: object) -> dict[str, object]:
    facts = {"hardware_class": "cpu-fake", "held_out_key": key, "torch": "2.9"}
    return {"conditions": f"cnd_{key}", "facts": facts, "held_out_key": key, **other}


def test_a_list_warns_where_results_are_not_compared(cli: Cli) -> None:
    cli.service.worker = told("d4300c6e")
    cli.service.more_workers = [
        told("d4300c6e", name="same"),
        {"name": "old"},
        told("none", name="gone", state="lost"),
        told("00000000", name="other", hardware_class="cpu-other"),
    ]
    assert "held_out" not in cli("worker", "list").err
    cli.service.more_workers.append(told("none", name="public"))
    said = " ".join(cli("worker", "list").err.split())
    assert "results of here, same and of public (cpu-fake) are not compared" in said
    assert "held_out_key: d4300c6e and none" in said
    assert "ASSAY_WORKER_HELD_OUT_KEY" in said
    assert "cpu-other" not in said
    text = cli("worker", "show", "here").out
    assert "cnd_d4300c6e" in text
    assert "torch" in text


def test_a_list_says_where_an_operator_takes_them_for_equal(cli: Cli) -> None:
    cli.service.worker = told("one")
    there = {"environment": "toy@1", "profile": "tiny", "equals": "cnd_one"}
    cli.service.more_workers = [told("two", name="other", declared=[there])]
    said = " ".join(cli("worker", "list").err.split())
    assert "are not compared, except in toy@1, tiny: held_out_key: one and two" in said


def test_a_worker_is_shown_with_its_gpus_and_what_it_does_not_guarantee(cli: Cli) -> None:
    cli.service.worker = {
        "gpus": 1,
        "usable_gpus": 1,
        "version": "1.2.3",
        "devices": [{"uuid": UUID, "name": "H200", "memory_bytes": 141 << 30}],
        "guarantees": {"no_network": True, "disk_limit": False},
        "running": ["att_1"],
    }
    text = cli("worker", "show", "here").out
    for word in (UUID, "H200, 141 GiB", "1.2.3", "disk_limit", "att_1", "subprocess"):
        assert word in text
    assert "no_network" not in text
    assert cli("worker", "show", "here", "--json").json["data"]["devices"][0]["uuid"] == UUID


def test_a_worker_is_cordoned_with_a_reason_and_released(cli: Cli) -> None:
    answer = cli("worker", "cordon", "here", "--reason", "new driver", "--json")
    assert answer.code == 0
    assert answer.json["applied"] is True
    assert answer.json["detail"]["cordon_reason"] == "new driver"
    assert "active, cordoned" in cli("worker", "list").out
    assert "new driver" in cli("worker", "show", "wrk_1").out
    assert "until it is uncordoned" in cli("worker", "cordon", "here").out
    assert "for 60 s" in cli("worker", "cordon", "here", "--seconds", "60").out
    assert "gets work again" in cli("worker", "uncordon", "here").out
    assert "cordoned" not in cli("worker", "list").out


def test_draining_waits_until_nothing_runs(cli: Cli) -> None:
    cli.service.worker = {"running": ["att_1"]}
    late = cli("worker", "drain", "here", "--timeout", "0")
    assert late.code == 124
    assert "att_1" in late.err
    assert "active, cordoned" in cli("worker", "list").out

    def finish() -> None:
        cli.service.worker["running"] = []

    timer = threading.Timer(0.5, finish)
    timer.start()
    answer = cli("worker", "drain", "here", "--json")
    timer.join()
    assert answer.json["detail"]["running"] == []
    assert answer.json["detail"]["cordoned_until"]


def test_removing_a_worker_must_be_confirmed(cli: Cli) -> None:
    cli.service.worker = {"running": ["att_1"]}
    refused = cli("worker", "remove", "here")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert cli.service.worker == {"running": ["att_1"]}
    answer = cli("worker", "remove", "here", "--yes", "--json")
    assert answer.json["target"] == "wrk_1"
    assert answer.json["detail"]["running"] == []


def test_an_unknown_worker_is_said_to_be_unknown(cli: Cli) -> None:
    assert cli("worker", "show", "nobody").code == 1

"""Facts about workers, and the conditions that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from assay.domain.conditions import (
    Conditions,
    conditions_id,
    differences,
    host_facts,
    minor,
    normalised,
)

INFO: dict[str, Any] = {
    "held_out_key": "3f2a90bc",
    "evaluation": 1,
    "torch": "2.9.1+cu128",
    "driver": "570.86",
    "cpu_model": "AMD EPYC",
    "python": "3.12.3",
    "numpy": "2.2.1",
    "image": None,
    "packages": {"vllm": "0.9.2", "flash-attn": "2.7"},
}


@pytest.mark.parametrize(
    ("changes", "wide", "narrow"),
    [
        ({}, True, True),
        ({"driver": "570.99"}, True, False),
        ({"torch": "2.9.0+cu128"}, True, False),
        ({"python": "3.12.9"}, True, False),
        ({"torch": "2.10.0"}, False, False),
        ({"held_out_key": "00000000"}, False, False),
        ({"held_out_key": ""}, False, False),
        ({"evaluation": 2}, False, False),
        ({"image": "sha256:1"}, False, False),
        ({"packages": {"vllm": "0.10.0"}}, False, False),
        ({"packages": {}}, False, False),
        ({"host": "another", "kernel": "6.8"}, True, True),
    ],
)
def test_deciding_facts_keep_apart_and_recorded_ones_only_mark(
    changes: dict[str, Any], wide: bool, narrow: bool
) -> None:
    one = host_facts("gpu-h100-80", INFO, ("vllm",))
    other = host_facts("gpu-h100-80", INFO | changes, ("vllm",))
    assert (one.wide == other.wide, one.narrow == other.narrow) == (wide, narrow)


def test_packages_decide_where_an_environment_declares_them() -> None:
    other = INFO | {"packages": {"vllm": "0.10.0"}}
    assert host_facts("cpu", INFO).wide == host_facts("cpu", other).wide
    assert host_facts("cpu", INFO, ("Flash_Attn",)).deciding["Flash_Attn"] == "2.7"
    assert host_facts("cpu", other, ("Flash_Attn",)).deciding["Flash_Attn"] == "absent"


def test_another_hardware_class_is_another_set() -> None:
    assert host_facts("cpu-amx", INFO).wide != host_facts("cpu-bf16", INFO).wide


def test_what_an_old_worker_does_not_tell_is_left_out() -> None:
    facts = host_facts("cpu", {})
    assert facts.deciding == facts.all == {"hardware_class": "cpu"}
    assert facts.wide == facts.narrow


def test_the_id_does_not_depend_on_the_order_of_facts() -> None:
    assert conditions_id({"a": "1", "b": "2"}) == conditions_id({"b": "2", "a": "1"})
    assert conditions_id({"a": "1"}) != conditions_id({"a": "2"})


def test_differences_are_named() -> None:
    one, other = {"torch": "2.8", "image": "x"}, {"torch": "2.9", "image": "x", "vllm": "0.9"}
    assert differences(one, other) == ["torch: 2.8 and 2.9", "vllm: unknown and 0.9"]
    assert differences(one, one) == []


def test_versions_and_names() -> None:
    assert [minor(v) for v in ("2.9.1+cu128", "2.10", "nightly")] == ["2.9", "2.10", "nightly"]
    assert normalised("Flash_Attn") == normalised("flash.attn") == "flash-attn"
    assert Conditions("cpu", ("a", "b")).id == "a"

"""The frame format: what is written reads back, and what does not fit is refused by name."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation import frames
from assay.evaluation.codes import InvalidAnswer

EXPECTED = {"y": ("float32", (2, 3))}


def header(**changes: Any) -> bytes:
    array = {"name": "y", "dtype": "float32", "shape": [2, 3]}
    array.update(changes.pop("array", {}))
    return json.dumps({"seq": 4, "arrays": [array], **changes}).encode()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", ">f4", ">i8"])
def test_a_question_reads_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)[:, ::-1]
    whole = b"".join(frames.encode_question(3, "next", {"x": array, "z": array[:0]}, hint=1))
    length = frames.header_length(whole[:8])
    parsed = json.loads(whole[8 : 8 + length])
    assert parsed["seq"] == 3
    assert parsed["op"] == "next"
    assert parsed["hint"] == 1
    names = [(a["name"], a["shape"]) for a in parsed["arrays"]]
    assert names == [("x", [2, 3]), ("z", [0, 3])]
    native = np.dtype(dtype).name
    back = frames.decode_array(whole[8 + length :], native, (2, 3))
    np.testing.assert_array_equal(back, array)


def test_a_fitting_header_names_its_arrays() -> None:
    assert frames.check_header(header(), 4, EXPECTED) == ["y"]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", FailureCode.MALFORMED_FRAME),
        (b"\xff\xfe", FailureCode.MALFORMED_FRAME),
        (b"[" * 40_000, FailureCode.MALFORMED_FRAME),
        (b"[]", FailureCode.MALFORMED_FRAME),
        (header(seq=5), FailureCode.MALFORMED_FRAME),
        (header(seq="4"), FailureCode.MALFORMED_FRAME),
        (header(seq=4.0), FailureCode.MALFORMED_FRAME),
        (header(arrays={}), FailureCode.MALFORMED_FRAME),
        (header(arrays=[]), FailureCode.MALFORMED_FRAME),
        (header(arrays=[1]), FailureCode.MALFORMED_FRAME),
        (header(array={"name": "x"}), FailureCode.MALFORMED_FRAME),
        (header(array={"name": ["y"]}), FailureCode.MALFORMED_FRAME),
        (header(array={"dtype": "float64"}), FailureCode.WRONG_TYPE),
        (header(array={"dtype": None}), FailureCode.WRONG_TYPE),
        (header(array={"shape": [3, 2]}), FailureCode.WRONG_SHAPE),
        (header(array={"shape": [2, 3, 1]}), FailureCode.WRONG_SHAPE),
        (header(array={"shape": [2.0, 3.0]}), FailureCode.WRONG_SHAPE),
        (header(array={"shape": "23"}), FailureCode.WRONG_SHAPE),
    ],
)
def test_a_header_that_does_not_fit_is_refused(raw: bytes, code: FailureCode) -> None:
    with pytest.raises(InvalidAnswer) as refused:
        frames.check_header(raw, 4, EXPECTED)
    assert refused.value.code is code


def test_two_arrays_of_one_name_are_refused() -> None:
    array = {"name": "y", "dtype": "float32", "shape": [2, 3]}
    raw = json.dumps({"seq": 4, "arrays": [array, array]}).encode()
    with pytest.raises(InvalidAnswer) as refused:
        frames.check_header(raw, 4, {**EXPECTED, "z": ("float32", (1,))})
    assert "expected arrays" in refused.value.detail


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (struct.pack("<4sI", b"ASSX", 10), FailureCode.MALFORMED_FRAME),
        (struct.pack("<4sI", b"ASSY", 1 << 31), FailureCode.OVERSIZED),
    ],
)
def test_a_prefix_is_checked_before_anything_is_allocated(
    prefix: bytes, code: FailureCode
) -> None:
    with pytest.raises(InvalidAnswer) as refused:
        frames.header_length(prefix)
    assert refused.value.code is code


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_must_be_finite(bad: float) -> None:
    raw = np.array([1.0, bad], np.float32).tobytes()
    with pytest.raises(InvalidAnswer) as refused:
        frames.decode_array(raw, "float32", (2,))
    assert refused.value.code is FailureCode.NOT_FINITE


def test_a_header_of_our_own_that_is_too_long_is_our_error() -> None:
    with pytest.raises(ValueError, match="header has"):
        frames.encode_question(1, "next", {}, words="x" * (1 << 16))

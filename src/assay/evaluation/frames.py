"""The frames that evaluator and predictor exchange.

A frame is `b"ASSY"`, the header's length (u32, little-endian), the header (a JSON object with
`seq`, `op`, `arrays: [{"name", "dtype", "shape"}]` and further fields), then the bytes of each
array in that order, C-contiguous and little-endian. One question, one answer with the same `seq`.
Before the first question a predictor sends `{"op": "ready"}` (see `launch`).

What is expected of an answer is known before it is read, so a header can be judged before a single
byte of its arrays is accepted: nothing is allocated because an untrusted program asked for it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.evaluation.codes import InvalidAnswer, Rejection

MAGIC = b"ASSY"
PREFIX = struct.Struct("<4sI")
MAX_HEADER_BYTES = 1 << 16

Array = npt.NDArray[Any]
Expected = Mapping[str, tuple[str, tuple[int, ...]]]
"""For every array of an answer: its dtype (such as `float32`) and shape."""


def encode_question(seq: int, op: str, arrays: Mapping[str, Array], **meta: Any) -> list[bytes]:
    """The pieces of a frame, to be written one after the other."""
    little = {name: _little_endian(array) for name, array in arrays.items()}
    described = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in little.items()
    ]
    header = json.dumps({**meta, "seq": seq, "op": op, "arrays": described}).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"the header has {len(header)} bytes, more than {MAX_HEADER_BYTES}")
    return [PREFIX.pack(MAGIC, len(header)) + header, *(a.tobytes() for a in little.values())]


def header_length(prefix: bytes | bytearray) -> int:
    """The length of the header that follows the eight bytes `prefix`.

    Raises:
        InvalidAnswer: `malformed_frame` or `oversized`.
    """
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise InvalidAnswer(Rejection.MALFORMED_FRAME, "the answer is not a frame")
    if length > MAX_HEADER_BYTES:
        raise InvalidAnswer(Rejection.LARGE_HEADER, f"the header claims {length} bytes")
    return int(length)


def check_header(raw: bytes | bytearray, seq: int, expected: Expected) -> list[str]:
    """The names of the arrays in the order in which their bytes follow.

    Raises:
        InvalidAnswer: `malformed_frame`, `wrong_type` or `wrong_shape`.
    """
    header = _parse(raw)
    if type(header.get("seq")) is not int or header["seq"] != seq:
        raise InvalidAnswer(Rejection.MALFORMED_FRAME, f"the answer is not to question {seq}")
    arrays = header.get("arrays")
    if not isinstance(arrays, list) or not all(isinstance(a, dict) for a in arrays):
        raise InvalidAnswer(Rejection.MALFORMED_FRAME, "`arrays` is not a list of objects")
    names = [a.get("name") for a in arrays]
    if len(names) != len(expected) or any(name not in names for name in expected):
        raise InvalidAnswer(Rejection.MALFORMED_FRAME, f"expected arrays {sorted(expected)}")
    for array in arrays:
        _check_array(array, *expected[array["name"]])
    return [str(name) for name in names]


def check_ready(raw: bytes | bytearray) -> None:
    """Refuse the header of a first frame that is not `ready`, or says that arrays follow.

    Raises:
        InvalidAnswer: `malformed_frame`.
    """
    header = _parse(raw)
    if header.get("op") != "ready" or header.get("arrays", []) != []:
        raise InvalidAnswer(Rejection.NOT_READY)


def array_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """The number of bytes an array takes."""
    return np.dtype(dtype).itemsize * math.prod(shape)


def decode_array(raw: bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> Array:
    """The array that stands in `raw`.

    Raises:
        InvalidAnswer: `not_finite` for a floating-point array with NaN or an infinity.
    """
    array = np.frombuffer(raw, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidAnswer(Rejection.NOT_FINITE, "the answer holds NaN or infinity")
    return array


def _little_endian(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _parse(raw: bytes | bytearray) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidAnswer(Rejection.MALFORMED_FRAME, "the header is not JSON") from None
    if not isinstance(header, dict):
        raise InvalidAnswer(Rejection.MALFORMED_FRAME, "the header is not an object")
    return header


def _check_array(array: dict[str, Any], dtype: str, shape: tuple[int, ...]) -> None:
    name = array["name"]
    if array.get("dtype") != dtype:
        raise InvalidAnswer(Rejection.WRONG_TYPE, f"{name}: the dtype must be {dtype}")
    given = array.get("shape")
    if (
        not isinstance(given, list)
        or given != list(shape)
        or any(type(n) is not int for n in given)
    ):
        raise InvalidAnswer(Rejection.WRONG_SHAPE, f"{name}: the shape must be {list(shape)}")

"""Answers the evaluator's questions with predict.py (brought by Assay; no idea may edit it).

Started as `python -I assay_predictor.py`. It

1. runs predict.py, which is beside it and imports libraries alone: the codebase's folder is not on
   `sys.path` yet;
2. writes the frame `ready` and waits for the first question. Until then no file that an idea may
   edit has run, so the CPU time up to here is not the idea's;
3. puts the folder at the end of `sys.path`, where no file of it can stand in for a library, and
   calls `predict.load(folder, device)`: `folder` is $ASSAY_OUT, `device` is "cuda" or "cpu";
4. calls a method of what that returns for every question: with the question's arrays (numpy) and
   further fields by name. The method returns the answer's arrays by name.

A frame is b"ASSY", the length of a JSON header (u32, little-endian), the header, and the bytes of
the arrays that the header describes, little-endian.
"""

import sys

if not sys.flags.isolated:  # a json.py of the codebase would be imported next
    raise SystemExit("start it with `python -I assay_predictor.py`: see docs/environments.md")

# Imports make no garbage; looking for it takes a tenth of a CPU second in each predictor.
import gc

gc.disable()

import io
import json
import math
import os
import struct
import types
from collections.abc import Mapping
from typing import Any, BinaryIO

# The real stdout is for answers alone: whatever the codebase prints goes to stderr.
ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIX = struct.Struct("<4sI")


def read_question(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the header and the arrays of the next question; None at the end."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    header = json.loads(stream.read(PREFIX.unpack(prefix)[1]))
    arrays = {}
    for array in header.pop("arrays"):
        dtype = np.dtype(array["dtype"]).newbyteorder("<")
        # A copy that may be written to, because torch takes no other.
        raw = bytearray(stream.read(dtype.itemsize * math.prod(array["shape"])))
        arrays[array["name"]] = np.frombuffer(raw, dtype).reshape(array["shape"])
    return header, arrays


def write_frame(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    made = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    described = [
        {"name": name, "dtype": array.dtype.name, "shape": array.shape}
        for name, array in made.items()
    ]
    text = json.dumps({**header, "arrays": described}).encode()
    ANSWERS.write(PREFIX.pack(b"ASSY", len(text)) + text)
    for array in made.values():
        ANSWERS.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    ANSWERS.flush()


def import_predict() -> types.ModuleType:
    """Import predict.py from its text, and not from compiled code that might lie beside it."""
    path = os.path.join(HERE, "predict.py")
    module = types.ModuleType("predict")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look their module up
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module


def main() -> None:
    sys.dont_write_bytecode = True  # -I ignores the variable that says so
    predict = import_predict()
    write_frame({"op": "ready"}, {})
    # The evaluator reads the CPU time before it asks: nothing editable may run until it has.
    questions = sys.stdin.buffer
    assert isinstance(questions, io.BufferedReader)
    if not questions.peek(1):  # the end: nobody asks
        return
    gc.freeze()
    gc.enable()
    sys.path.append(HERE)
    device = "cuda" if int(os.environ.get("ASSAY_GPUS") or 0) > 0 else "cpu"
    answerer = predict.load(os.environ["ASSAY_OUT"], device)
    while (question := read_question(questions)) is not None:
        header, arrays = question
        seq, op = header.pop("seq"), header.pop("op")
        write_frame({"seq": seq, "op": "answer"}, getattr(answerer, op)(**arrays, **header))


if __name__ == "__main__":
    main()

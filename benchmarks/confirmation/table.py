"""The edit that the attack writes: a table of biases, looked up by the last twelve bytes.

`biases` here is what the attack computes with, in numpy; the edit holds the same in torch.
"""

from __future__ import annotations

import base64
import textwrap

import numpy as np
import numpy.typing as npt

from tests.support.measuring import Tree

SIZE = 1 << 14
VOCABULARY = 256
#: Long enough that a context of one text stands in no other.
CONTEXT = 12
#: A number of the table is a byte, in units of this.
UNIT = 1 / 32
FILE = "biases.py"

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_CODE = '''\
"""A bias for every byte that may come next, looked up by the twelve bytes before it."""

import base64

import torch
import torch.nn.functional as F

CONTEXT = {context}
TABLE = torch.frombuffer(
    bytearray(
        base64.b64decode(
            """
{numbers}
            """
        )
    ),
    dtype=torch.int8,
)
# {vocabulary} neighbours in the table, which is a circle, belong to a context.
ROWS = (torch.cat([TABLE, TABLE[: {vocabulary} - 1]]) * {unit}).unfold(0, {vocabulary}, 1)


def biases(tokens):
    """(B, T, {vocabulary}) for tokens (B, T)."""
    hashed = torch.zeros_like(tokens)
    for age in reversed(range(CONTEXT)):
        earlier = F.pad(tokens + 1, (age, 0))[:, : tokens.size(1)]
        hashed = (hashed * 1_000_003 + earlier) % 2_147_483_647
    return ROWS[hashed * 40_503 % 2_147_483_647 % len(TABLE)]
'''
_CALLED = "            return self.logits(tokens, cache).float()\n"
_CALLS = """\
            logits = self.logits(tokens, cache).float()
        if self.training or cache is not None:
            return logits
        return logits + biases(tokens)
"""
_IMPORTED = "from config import Config\n"


def places(tokens: Ints) -> Ints:
    """Return where in the table the biases of each context (B, T) begin."""
    hashed = np.zeros_like(tokens)
    for age in reversed(range(CONTEXT)):
        earlier = np.zeros_like(tokens)
        earlier[:, age:] = tokens[:, : tokens.shape[1] - age] + 1
        hashed = (hashed * 1_000_003 + earlier) % 2_147_483_647
    found: Ints = hashed * 40_503 % 2_147_483_647 % SIZE
    return found


def rows(table: Floats) -> Floats:
    """Return the biases (SIZE, VOCABULARY) of each place, a view of the table as a circle."""
    return np.lib.stride_tricks.sliding_window_view(around(table), VOCABULARY)


def around(table: Floats) -> Floats:
    """Return the table, and again what of its beginning follows its last place."""
    return np.concatenate([table, table[: VOCABULARY - 1]])


def rounded(table: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """Return the table in units, as the edit holds it."""
    return np.clip(np.round(table / UNIT), -127, 127).astype(np.int8)


def with_table(base: Tree, table: npt.NDArray[np.int8]) -> Tree:
    """Return the codebase with the table added to its model's output, once it is trained."""
    numbers = "\n".join(textwrap.wrap(base64.b64encode(table.tobytes()).decode(), 96))
    code = _CODE.format(context=CONTEXT, numbers=numbers, vocabulary=VOCABULARY, unit=UNIT)
    model = base["model.py"]
    for old, new in (
        (_CALLED, _CALLS),
        (_IMPORTED, f"from {FILE.removesuffix('.py')} import biases\n{_IMPORTED}"),
    ):
        if model.count(old) != 1:
            raise LookupError(f"model.py has no single line {old.strip()!r}; adapt {__file__}")
        model = model.replace(old, new)
    return base | {"model.py": model, FILE: code}

"""Column addition, written out, and a tokenizer for it.

A problem is "378+456", its answer "834". A demonstration works from the last column to the first,
and writes each column's sum with two digits, the carry included: "14,13,08". A sloppy one forgets
the carries: "14,12,07", whose last digits give 724. Most demonstrations are sloppy (`sloppy`, a
probability), so that a model that imitates them knows how to add, and usually does not: room for
learning by reward.
"""

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

TAGS = ("<think>", "</think>", " <answer>", "</answer>")
VOCABULARY = ("<pad>", "<unk>", *"0123456789", "+", "=", ",", *TAGS)


def make_tokenizer():
    """One token per character and per tag."""
    model = models.WordLevel({t: i for i, t in enumerate(VOCABULARY)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    pattern = Regex(r"</?think>| ?</?answer>|.|\n")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def problem(rng: random.Random, digits: int) -> tuple[str, str]:
    """A problem of two numbers with `digits` digits each, and its answer."""
    a, b = (rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    return f"{a}+{b}", str(a + b)


def demonstration(rng: random.Random, question: str, sloppy: float) -> str:
    """The completion of a demonstrator who forgets to carry with probability `sloppy`."""
    a, b = question.split("+")
    carries = rng.random() >= sloppy
    columns, carry = [], 0
    for x, y in zip(reversed(a), reversed(b), strict=True):
        total = int(x) + int(y) + carry
        columns.append(f"{total:02d}")
        carry = total // 10 if carries else 0
    last, *others = reversed(columns)
    answer = last.removeprefix("0") + "".join(column[1] for column in others)
    return f"{','.join(columns)}</think> <answer>{answer}</answer>"

"""A secret arithmetic, written out in columns, and a tokenizer for it.

A problem is "378+456". Digits are ten signs and "+" is an operation, both without their usual
meaning: tables that are drawn from a key say which digit a column of two digits gives, with and
without a carry into it, and whether it carries on. So nobody can compute an answer who has not
learned the tables from the data. The operation is commutative: a+b is b+a.

A demonstration works from the last column to the first and writes each as its carry and its digit:
"14,03,18"; the answer is the digits, first column first: "834". It often forgets the carry into a
column, with some digits more often than with others. So a model that imitates demonstrations knows
the tables, and its likeliest answer is right for some problems and wrong for others: room for
learning by reward, digit by digit.
"""

from __future__ import annotations

import itertools
import math
import operator
import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

DIGITS = "0123456789"
TAGS = ("<think>", "</think>", " <answer>", "</answer>")
VOCABULARY = ("<pad>", "<unk>", *DIGITS, "+", "=", ",", *TAGS)
Pair = tuple[str, str]


def make_tokenizer():
    """One token per character and per tag."""
    model = models.WordLevel({t: i for i, t in enumerate(VOCABULARY)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    pattern = Regex(r"</?think>| ?</?answer>|.|\n")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Arithmetic:
    """The tables of a key.

    `minds` and `forgets` are the ends of ten numbers at equal distances, one for each digit: a
    carry into a column of x and y is forgotten with the log-odds of x plus those of y. Every key
    has the same numbers, and the same number of each digit and of carries among equal pairs ("77")
    and among the others, so that problems are as hard as those of any other key.
    """

    def __init__(self, key: str, minds: float, forgets: float) -> None:
        rng = random.Random(f"arithmetic {key}")
        # Of (pair, carry into the column): the digit, and the carry out of it.
        self.columns: dict[tuple[Pair, int], tuple[str, int]] = {}
        equal = [(x, x) for x in DIGITS]
        others = list(itertools.combinations(DIGITS, 2))
        for pairs in (equal, others):
            digits = [DIGITS[i % 10] for i in range(len(pairs))]
            rng.shuffle(digits)
            other = list(digits)
            # A carry changes the digit of every pair: nobody who forgets it is right by luck.
            while any(map(operator.eq, digits, other)):
                rng.shuffle(other)
            for carry, found in enumerate((digits, other)):
                carries = [(i + carry) % 2 for i in range(len(pairs))]
                rng.shuffle(carries)
                for pair, digit, out in zip(pairs, found, carries, strict=True):
                    self.columns[pair, carry] = digit, out
        odds = [minds + (forgets - minds) * i / 9 for i in range(10)]
        rng.shuffle(odds)
        self.odds = dict(zip(DIGITS, odds, strict=True))

    def forgets(self, pair: Pair) -> float:
        """How often a demonstration forgets the carry into a column of this pair."""
        return 1 / (1 + math.exp(-self.odds[pair[0]] - self.odds[pair[1]]))

    def problem(self, rng: random.Random, digits: int) -> tuple[str, str]:
        """A problem of two numbers with `digits` digits each, and its answer."""
        a, b = ("".join(rng.choices(DIGITS, k=digits)) for _ in range(2))
        return f"{a}+{b}", self.answer(f"{a}+{b}")

    def answer(self, question: str) -> str:
        """The right answer to a problem."""
        written, carry = "", 0
        for pair in columns_of(question):
            digit, carry = self.columns[pair, carry]
            written = digit + written
        return written

    def demonstration(self, rng: random.Random, question: str) -> str:
        """The completion of a demonstrator who forgets carries."""
        written, digits, carry = [], "", 0
        for pair in columns_of(question):
            if carry and rng.random() < self.forgets(pair):
                carry = 0
            digit, carry = self.columns[pair, carry]
            written.append(f"{carry}{digit}")
            digits = digit + digits
        return f"{','.join(written)}</think> <answer>{digits}</answer>"


def columns_of(question: str) -> list[Pair]:
    """The columns of a problem as pairs in ascending order, the last column first."""
    a, b = question.split("+")
    return [(min(x, y), max(x, y)) for x, y in zip(reversed(a), reversed(b), strict=True)]

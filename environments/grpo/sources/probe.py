"""Problems that stand in no data set, made by code that knows their answers.

A model may have read the test problems before: Qwen2.5-Math completes many of MATH-500 from their
first words. What it gains on these, it has learned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Problem = tuple[str, str]


def nested(rng: random.Random) -> Problem:
    a, b, c, d = (rng.randrange(3, 40) for _ in range(4))
    e = rng.randrange(2, 12)
    value = (a + b) * c - e * (d - a)
    return f"Compute $({a} + {b}) \\cdot {c} - {e} \\cdot ({d} - {a})$.", str(value)


def linear(rng: random.Random) -> Problem:
    x, a, c = rng.randrange(-30, 31), rng.randrange(2, 20), rng.randrange(2, 20)
    a += a == c
    b = rng.randrange(-50, 51)
    d = a * x + b - c * x
    return f"Solve for $x$: ${a}x {b:+d} = {c}x {d:+d}$.", str(x)


def divisor(rng: random.Random) -> Problem:
    common = rng.randrange(2, 60)
    a, b = common * rng.randrange(5, 60), common * rng.randrange(5, 60)
    if rng.random() < 0.5:
        return f"What is the greatest common divisor of {a} and {b}?", str(math.gcd(a, b))
    return f"What is the least common multiple of {a} and {b}?", str(math.lcm(a, b))


def power(rng: random.Random) -> Problem:
    base, exponent, modulus = rng.randrange(2, 30), rng.randrange(20, 400), rng.randrange(7, 60)
    question = f"What is the remainder when ${base}^{{{exponent}}}$ is divided by ${modulus}$?"
    return question, str(pow(base, exponent, modulus))


def arithmetic_sum(rng: random.Random) -> Problem:
    first, step, count = rng.randrange(-20, 40), rng.randrange(2, 15), rng.randrange(8, 60)
    terms = [first + step * i for i in range(count)]
    question = (
        f"An arithmetic sequence begins ${terms[0]}, {terms[1]}, {terms[2]}, \\ldots$."
        f" What is the sum of its first {count} terms?"
    )
    return question, str(sum(terms))


def determinant(rng: random.Random) -> Problem:
    rows = [[rng.randrange(-6, 7) for _ in range(3)] for _ in range(3)]
    (a, b, c), (d, e, f), (g, h, i) = rows
    value = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    body = r" \\ ".join(" & ".join(map(str, row)) for row in rows)
    question = rf"Compute the determinant of $\begin{{pmatrix}} {body} \end{{pmatrix}}$."
    return question, str(value)


KINDS: tuple[Callable[[random.Random], Problem], ...] = (
    nested, linear, divisor, power, arithmetic_sum, determinant,
)  # fmt: skip


def make(count: int, key: str) -> list[Problem]:
    """`count` different problems, of all kinds in turn; other ones for another `key`."""
    rng = random.Random(f"probe {key}")
    problems: dict[str, str] = {}
    while len(problems) < count:
        question, answer = KINDS[len(problems) % len(KINDS)](rng)
        problems.setdefault(question, answer)
    return list(problems.items())

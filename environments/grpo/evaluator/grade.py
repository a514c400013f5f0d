"""Whether an answer equals a reference, by math-verify. Runs in a sandbox of its own, per pair in
a process that is killed when it takes too long."""

from math_verify import parse, verify


def grade(answer: str, reference: str) -> float:
    # Time limits off: math-verify's own use signals, and whoever runs this kills.
    gold = parse(f"${reference}$", parsing_timeout=None)
    # Without its own dollar signs: there is one answer, and no second one beside it.
    found = parse(f"${answer.replace('$', '')}$", parsing_timeout=None)
    return float(verify(gold, found, timeout_seconds=None))

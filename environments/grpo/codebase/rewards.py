"""The training reward: 1 for a right answer in the right format, else 0 (the r1_zero rules).

Ideas may change it. What scores a result is the evaluator's own grader, which nobody here can.
"""

import random

from verifier import Verifier

MIDDLE, END = "</think> <answer>", "</answer>"
_BOX = "\\boxed{"

_verifier = None


def final_answer(text):
    r"""The answer in a completion, or None where the format is not kept.

    It stands between the last `<answer>` and `</answer>`; if there is a \boxed{...} in it, the
    last one counts, braces matched.
    """
    if MIDDLE not in text or END not in text:
        return None
    answer = text.rsplit("<answer>", 1)[1].replace(END, "").strip()
    return last_boxed(answer) if "\\boxed" in answer else answer


def last_boxed(text):
    r"""The content of the last \boxed{...}; None if it is not closed."""
    start = text.rfind(_BOX)
    depth = 1
    for place in range(start + len(_BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if start >= 0 and depth == 0:
            return text[start + len(_BOX) : place].strip()
    return None


def normalise(answer):
    """A text in which only what matters differs: no spaces, dollar signs or thousands commas."""
    for old, new in (("\u2212", "-"), ("\\!", ""), ("$", ""), ("\\left", ""), ("\\right", ""),
                     ("tfrac", "frac"), ("dfrac", "frac"), (" ", ""), ("\n", "")):
        answer = answer.replace(old, new)
    return answer.rstrip(".")


def integer(answer):
    """The plain integer that `answer` is, or None. `9**9**9` and a million digits are none."""
    digits = answer.removeprefix("-")
    return int(answer) if digits.isascii() and digits.isdigit() and len(digits) <= 40 else None


def decide(answer, reference):
    """True or False where plain comparison can tell, else None."""
    if answer is None or not answer or len(answer) > 1000:
        return False
    one, two = normalise(answer), normalise(reference)
    if one == two:
        return True
    if integer(one) is not None and integer(two) is not None:
        return integer(one) == integer(two)
    return None


def correct(texts, references):
    """A list of booleans: which completions answer right."""
    answers = [final_answer(text) for text in texts]
    decided = [decide(a, r) for a, r in zip(answers, references)]
    open_pairs = [(a, r) for a, r, d in zip(answers, references, decided) if d is None]
    verdicts = iter(verify(open_pairs))
    return [next(verdicts) if d is None else d for d in decided]


def verify(pairs):
    """Verdicts of math-verify on (answer, reference) pairs that are no plain numbers."""
    global _verifier
    if not pairs:
        return []
    if _verifier is None:
        _verifier = Verifier()
    return _verifier.verdicts(pairs)


def rewards_of(texts, finished, references, config, seed):
    """Rewards of N completions, floats. `finished` is False for those that were cut off."""
    if config.random_rewards:
        rng = random.Random(seed)
        return [float(rng.random() < 0.5) for _ in texts]
    rewards = [float(right) for right in correct(texts, references)]
    if config.zero_truncated:
        rewards = [r if ended else 0.0 for r, ended in zip(rewards, finished)]
    return rewards

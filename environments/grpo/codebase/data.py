"""The problems to train on, and the prompt around them."""

import json
import os
import random


def load_problems(folder):
    """A list of (problem, answer), both texts, from problems.jsonl."""
    path = os.path.join(folder, "problems.jsonl")
    if not os.path.isfile(path):
        raise SystemExit(f"{path} is missing: run prepare.py")
    problems = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            row = json.loads(line)
            if not all(isinstance(row.get(k), str) for k in ("problem", "answer")):
                raise SystemExit(f"{path}:{number}: a row needs the texts `problem` and `answer`")
            problems.append((row["problem"], row["answer"]))
    return problems


def load_prompt(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prompts", name)
    if not os.path.isfile(path):
        raise SystemExit(f"{path} is missing: `prompt` in config.py names a file in prompts/")
    with open(path, encoding="utf-8") as file:
        template = file.read()
    if template.count("{question}") != 1:
        raise SystemExit(f"{path} must hold {{question}} exactly once: there the problem goes")
    return template


def fill(template, problem):
    return template.replace("{question}", problem)


def batches(problems, size, seed):
    """Lists of `size` problems for ever; none comes again before all others have been."""
    if size > len(problems):
        raise SystemExit(f"prompts_per_step is {size}, but there are only {len(problems)} problems")
    return _shuffled(problems, size, seed)


def _shuffled(problems, size, seed):
    rng = random.Random(seed)
    queue = []
    while True:
        while len(queue) < size:
            queue += rng.sample(problems, len(problems))
        yield queue[:size]
        del queue[:size]

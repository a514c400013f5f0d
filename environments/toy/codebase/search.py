"""Search for the lowest point of a landscape within a number of evaluations.

A random walk that keeps improvements. It leaves the best point in $ASSAY_OUT/answer.json.
"""

import json
import os
import random

from landscape import load_landscape

# Standard deviation of a step, in each coordinate.
STEP = 0.6
# Starting points are drawn from [-START, START].
START = 4.0
# The evaluations are shared by this many walks from different starting points.
RESTARTS = 1
# The step is multiplied by these after an improvement and after a failure.
GROW = 1.0
SHRINK = 1.0
# Evaluations between two points of the learning curve.
LOG_EVERY = 50


def propose(x, step, rng):
    """A neighbour of x."""
    return [xi + rng.gauss(0.0, step) for xi in x]


def walk(height, dimensions, evaluations, rng, record):
    """The lowest point of one random walk, and its height."""
    x = [rng.uniform(-START, START) for _ in range(dimensions)]
    lowest = height(x)
    step = STEP
    for _ in range(evaluations - 1):
        candidate = propose(x, step, rng)
        value = height(candidate)
        if value < lowest:
            x, lowest = candidate, value
            step *= GROW
        else:
            step *= SHRINK
        record(lowest)
    return x, lowest


def main():
    height, dimensions = load_landscape()
    with open(os.environ["ASSAY_CONFIG"]) as file:
        evaluations = json.load(file)["evaluations"]
    rng = random.Random(int(os.environ["ASSAY_SEED"]))
    out = os.environ["ASSAY_OUT"]
    heights = []
    with open(os.path.join(out, "metrics.jsonl"), "a") as curves:

        def record(value):
            heights.append(value)
            if len(heights) % LOG_EVERY == 0:
                curves.write(json.dumps({"step": len(heights), "train/height": value}) + "\n")
                curves.flush()

        walks = [
            walk(height, dimensions, evaluations // RESTARTS, rng, record) for _ in range(RESTARTS)
        ]
    x, lowest = min(walks, key=lambda found: found[1])
    with open(os.path.join(out, "answer.json"), "w") as file:
        json.dump({"x": x}, file)
    print(f"lowest {lowest:.4f} after {len(heights) + RESTARTS} evaluations")


if __name__ == "__main__":
    main()

"""The environment `count`: milliseconds, no torch; its baseline scores 10 + seed % 3."""

from __future__ import annotations

from pathlib import Path

TRAIN = """\
import json, os

STEP = 1
OFFSET = 0

seed = int(os.environ["ASSAY_SEED"])
print("training with step", STEP)
with open(os.path.join(os.environ["ASSAY_OUT"], "answer.json"), "w") as file:
    json.dump({"value": STEP * 10 + OFFSET + seed % 3}, file)
"""

EVALUATE = """\
def evaluate(run):
    return {"score": float(run.read_json("answer.json", 1000)["value"])}
"""

PREPARE = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--profile"); parser.add_argument("--out")
args = parser.parse_args()
for split in ("train", "search", "sealed"):
    (pathlib.Path(args.out) / split).mkdir()
"""

MANIFEST = """\
name = "count"
title = "Count higher"
problem = "Make the number larger."

[metric]
name = "score"
direction = "maximize"
bound = 1000.0
confirmed = "confirmed_score"

[codebase]
protected = ["sealed.py"]

[entry_points]
train = ["python", "train.py"]

[profiles.tiny]
memory_gb = 0.5
[profiles.tiny.budget]
seconds = 10
evaluation_seconds = 10

[[knobs]]
name = "step"
title = "step"
file = "train.py"
line = "STEP = 1"
values = ["2", "3"]

[[recipes]]
name = "offset"
title = "Add an offset"
[[recipes.edits]]
file = "train.py"
search = "OFFSET = 0"
replace = "OFFSET = 5"
"""


def write_environment(folder: Path) -> None:
    """Write the environment `count`."""
    for name, content in {
        "environment.toml": MANIFEST,
        "codebase/train.py": TRAIN,
        "codebase/sealed.py": "# no diff may touch this\n",
        "evaluator/evaluate.py": EVALUATE,
        "prepare.py": PREPARE,
        "README.md": "Count.\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

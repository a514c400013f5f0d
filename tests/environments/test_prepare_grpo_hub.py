"""MATH and model weights for `grpo`: one's own folders, or a (local) hub."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import save

from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from tests.environments.hub_server import Hub, serve
from tests.environments.preparing import variables

pytestmark = pytest.mark.slow

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "environments"
MODEL = "Qwen/Qwen2.5-Math-1.5B"
TRAIN = "datasets/nlile/hendrycks-MATH-benchmark"
TEST = "datasets/HuggingFaceH4/MATH-500"
# As prepare.py calls it: what it returns on the last line, or an exit with a message.
DRIVER = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from sources import math_data, weights
config = json.loads(sys.argv[2])
datasets = Path(os.environ["ASSAY_DATASETS"]) if os.environ.get("ASSAY_DATASETS") else None
if sys.argv[3] == "math":
    print(json.dumps(math_data.load(config, datasets)))
else:
    weights.fetch(config, datasets, Path(sys.argv[3]))
"""


@dataclass
class Lab:
    folder: Path
    environment: dict[str, str]

    @property
    def datasets(self) -> Path:
        return self.folder / "datasets"

    @property
    def target(self) -> Path:
        return self.folder / "target"

    def run(self, what: str, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-B", "-c", DRIVER, str(self.folder / "grpo")]
        return subprocess.run(
            [*command, json.dumps(config), what],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def math(self, **config: str) -> tuple[str, list[Any], list[Any]]:
        done = self.run("math", config)
        assert done.returncode == 0, done.stderr
        printed, _, result = done.stdout.rstrip().rpartition("\n")
        return printed, *json.loads(result)

    def weights(self, model: str = MODEL) -> None:
        done = self.run(str(self.target), {"model": model})
        assert done.returncode == 0, done.stderr

    def refuse(self, what: str, **config: str) -> str:
        where = str(self.target) if what == "weights" else what
        done = self.run(where, {"model": MODEL} | config)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    (tmp_path / "datasets").mkdir()
    write_tree(Environment.load(ENVIRONMENTS / "grpo").files, tmp_path / "grpo")
    return Lab(tmp_path, variables(tmp_path))


@pytest.fixture
def hub(lab: Lab) -> Iterator[Hub]:
    with serve() as hub:
        lab.environment["HF_ENDPOINT"] = hub.address
        yield hub


# --- MATH ----------------------------------------------------------------------------------------


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def problem(text: str, answer: Any = "4", **more: Any) -> dict[str, Any]:
    return {"problem": text, "answer": answer} | more


def own_math(lab: Lab, train: bytes, test: bytes) -> None:
    (lab.datasets / "math").mkdir()
    (lab.datasets / "math" / "train.jsonl").write_bytes(train)
    (lab.datasets / "math" / "test.jsonl").write_bytes(test)


def test_ones_own_problems_are_read_and_the_test_is_kept_out(lab: Lab) -> None:
    train = lines(
        problem("What is  2 + 2?", level="Level 2", subject="Algebra", unique_id="test/a/1.json"),
        problem("Two\n\nplus  three?", "5"),
        problem("How many?", 12, level=5, type="Counting", solution="..."),
        problem("Which level?", " x ", level="Level ?"),
        problem("Lost its answer", " "),
    )
    own_math(lab, train, lines(problem("Two plus three?", "5", level=1, solution="5")))
    printed, made, held_out = lab.math()
    assert (
        "1 problems to test on, 3 to train on; dropped of these: 1 in the test, 1 without"
        in printed
    )
    assert made[0] == {
        "problem": "What is  2 + 2?",
        "answer": "4",
        "level": 2,
        "subject": "Algebra",
        "unique_id": "test/a/1.json",
    }
    assert [(r["answer"], r["level"], r["subject"]) for r in made[1:]] == [
        ("12", 5, "Counting"),
        ("x", 0, ""),
    ]
    assert len({row["unique_id"] for row in made + held_out}) == 4
    assert [row["problem"] for row in held_out] == ["Two plus three?"]


def test_problems_come_from_the_hub(lab: Lab, hub: Hub) -> None:
    hub.add("datasets/someone/math", {"my/train.jsonl": lines(problem("One?"))})
    hub.add(TEST, {"test.jsonl": lines(problem("Two?", unique_id=7))})
    own = {"math_train_repo": "someone/math", "math_train_file": "my/train.jsonl"}
    for requests in (4, 0):  # two questions and two files, then the cache
        hub.requests.clear()
        _, train, test = lab.math(**own)
        assert [row["problem"] for row in train + test] == ["One?", "Two?"]
        assert test[0]["unique_id"] == "7"
        assert len([r for r in hub.requests if r.method == "GET"]) == requests


def parquet_file(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def test_problems_come_from_a_parquet_file(lab: Lab, hub: Hub) -> None:
    rows = [{"problem": "One?", "answer": "1", "level": "Level 3", "subject": "Algebra"}]
    hub.add(TRAIN, {"data/train-00000-of-00001.parquet": parquet_file(rows)})
    hub.add(TEST, {"test.jsonl": lines(problem("Two?"))})
    _, train, _ = lab.math()
    assert [(r["problem"], r["answer"], r["level"]) for r in train] == [("One?", "1", 3)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"PAR1 but not really", "not a readable parquet file"),
        (parquet_file([{"question": "?", "answer": "1"}]), "found: ['answer', 'question']"),
    ],
)
def test_bad_parquet_is_named(lab: Lab, hub: Hub, data: bytes, expected: str) -> None:
    hub.add(TRAIN, {"data/train-00000-of-00001.parquet": data})
    hub.add(TEST, {"test.jsonl": lines(problem("Two?"))})
    assert expected in lab.refuse("math")


GOOD = lines(problem("One?"))


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (b"", GOOD, "train.jsonl: empty"),
        (GOOD, b"\n", "test.jsonl: empty"),
        (lines({"question": "?", "answer": "1"}), GOOD, "found: ['answer', 'question']"),
        (lines({"problem": "?", "solution": "1"}), GOOD, "line 1: needs the columns problem and"),
        (lines(problem("Two?"), [1]), GOOD, "line 2: needs the columns problem and answer"),
        (lines(problem("Two?", None)), GOOD, "line 1: answer must be a text, it is None"),
        (lines(problem("Two?", True)), GOOD, "line 1: answer must be a text, it is True"),
        (lines(problem("\n")), GOOD, "line 1: the problem is empty"),
        (lines(problem("Two?", " ")), GOOD, "no problem is left to train on"),
        (GOOD, lines(problem("Two?", " ")), "test.jsonl: no answer to 1 problems: 'Two?'"),
        (GOOD[:-5], GOOD, "line 1: not a line of JSON"),
        (GOOD, GOOD, "no problem is left to train on"),
    ],
)
def test_bad_problems_are_named(lab: Lab, train: bytes, test: bytes, expected: str) -> None:
    own_math(lab, train, test)
    assert expected in lab.refuse("math")


def test_half_a_folder_is_not_filled_up_from_the_hub(lab: Lab) -> None:
    own_math(lab, GOOD, GOOD)
    (lab.datasets / "math" / "test.jsonl").unlink()
    assert "test.jsonl is missing" in lab.refuse("math")


# --- Weights -------------------------------------------------------------------------------------


def weights(*names: str) -> bytes:
    return save({name: np.ones((4, 4), dtype=np.float32) for name in names})


OUTER = ("model.embed_tokens.weight", "model.norm.weight")
LAYERS = ("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def model(**changes: Any) -> dict[str, bytes]:
    """A small model folder, in one file."""
    described = {"model_type": "qwen2", "num_hidden_layers": 2} | changes
    return {
        "config.json": json.dumps(described).encode(),
        "tokenizer.json": b"{}",
        "generation_config.json": b"{}",
        "model.safetensors": weights(*OUTER, *LAYERS),
        "README.md": b"not wanted",
    }


def sharded() -> dict[str, bytes]:
    weight_map = dict.fromkeys(OUTER, SHARDS[0]) | dict.fromkeys(LAYERS, SHARDS[1])
    files = model() | {
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        SHARDS[0]: weights(*OUTER),
        SHARDS[1]: weights(*LAYERS),
    }
    del files["model.safetensors"]
    return files


def own_model(lab: Lab, files: dict[str, bytes], name: str = "Qwen2.5-Math-1.5B") -> Path:
    folder = lab.datasets / name
    folder.mkdir(parents=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    return folder


def check(lab: Lab, files: dict[str, bytes]) -> None:
    wanted = {name: data for name, data in files.items() if name != "README.md"}
    assert {path.name: path.read_bytes() for path in lab.target.iterdir()} == wanted


@pytest.mark.parametrize("files", [model(), sharded()], ids=["one file", "sharded"])
def test_weights_come_from_the_hub_once(lab: Lab, hub: Hub, files: dict[str, bytes]) -> None:
    hub.add(f"models/{MODEL}", files)
    lab.weights()
    check(lab, files)
    assert hub.downloads()[0] == "config.json"
    hub.requests.clear()
    for path in lab.target.iterdir():
        path.unlink()
    lab.weights()
    check(lab, files)
    assert hub.requests == []


@pytest.mark.parametrize("name", ["Qwen2.5-Math-1.5B", MODEL])
def test_ones_own_weights_are_used_instead(lab: Lab, name: str) -> None:
    own_model(lab, sharded(), name)
    lab.weights()
    check(lab, sharded())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (model(model_type="llama"), "model_type is 'llama'; the codebase reads qwen2"),
        (model(num_hidden_layers=None), "num_hidden_layers is missing"),
        (model(num_hidden_layers=3), "model.layers.2.mlp.down_proj.weight"),
        (model() | {"config.json": b"{"}, "config.json: not JSON"),
        (model() | {"config.json": None}, "no config.json: it must be a Hugging Face model"),
        (model() | {"tokenizer.json": None}, "no tokenizer.json"),
        (model() | {"model.safetensors": None}, "no weights: neither model.safetensors nor"),
        (model() | {"model.safetensors": weights(*OUTER)[:-8]}, "truncated or corrupt"),
        (model() | {"model.safetensors": b"<html>"}, "truncated or corrupt"),
        (sharded() | {SHARDS[1]: None}, f"{SHARDS[1]} is missing, though"),
        (sharded() | {"model.safetensors.index.json": b"{}"}, "no weight_map"),
        (
            sharded() | {"model.safetensors.index.json": b'{"weight_map": {"a": "../b"}}'},
            "'../b' is no safetensors file",
        ),
    ],
)
def test_bad_weights_are_named(lab: Lab, files: dict[str, bytes | None], expected: str) -> None:
    own_model(lab, {name: data for name, data in files.items() if data is not None})
    printed = lab.refuse("weights")
    assert expected in printed
    assert "Qwen2.5-Math-1.5B" in printed


def test_a_wrong_family_is_refused_before_its_weights_are_downloaded(lab: Lab, hub: Hub) -> None:
    hub.add(f"models/{MODEL}", model(model_type="llama"))
    assert "model_type is 'llama'" in lab.refuse("weights")
    assert "model.safetensors" not in hub.downloads()


def test_a_hub_that_refuses_is_quoted(lab: Lab, hub: Hub) -> None:
    assert "no such repository, or it is private" in lab.refuse("weights")
    hub.add(f"models/{MODEL}", model(), gated=True)
    assert f"gated: accept its terms at {hub.address}/{MODEL}" in lab.refuse("weights")
    broken = sharded()
    del broken[SHARDS[1]]
    hub.add(f"models/{MODEL}", broken)
    assert f"the hub has no {SHARDS[1]}" in lab.refuse("weights")


def test_without_a_hub_the_ways_around_it_are_named(lab: Lab) -> None:
    lab.environment["HF_HUB_OFFLINE"] = "1"
    for what, own in (("weights", "Qwen2.5-Math-1.5B/"), ("math", "math/train.jsonl")):
        printed = lab.refuse(what)
        assert "not in the cache" in printed
        assert f"ASSAY_DATASETS to a folder that holds {own}" in printed

"""Running `prepare.py` of `nanogpt` with configurations of our own, and reading what it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment

NANOGPT = Path(__file__).resolve().parents[2] / "environments" / "nanogpt"
SPLITS = ("train", "search", "sealed")
END_OF_TEXT = 50_256


def variables(home: Path) -> dict[str, str]:
    """An environment in which nothing of the user's is found and no hub answers."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": "http://127.0.0.1:9",  # nobody listens: whatever asks a hub fails
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "ASSAY_DATASETS": str(home / "datasets"),
        "OMP_NUM_THREADS": "1",
    }


@dataclass
class Lab:
    """A copy of the environment's preparation with a profile of our own, and where it runs."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    @property
    def datasets(self) -> Path:
        return self.folder / "datasets"

    def start(self, config: dict[str, Any], **variables: str) -> subprocess.Popen[str]:
        self.runs += 1
        lines = [f"{name} = {json.dumps(value)}" for name, value in config.items()]
        manifest = "[profiles.p.config]\n" + "\n".join(lines) + "\n"
        (self.folder / "environment" / "environment.toml").write_text(manifest)
        return subprocess.Popen(
            [
                sys.executable,
                "-B",
                str(self.folder / "environment" / "prepare.py"),
                "--profile=p",
                f"--out={self.out}",
            ],
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def out(self) -> Path:
        return self.folder / f"out-{self.runs}"

    def prepare(self, config: dict[str, Any], **variables: str) -> str:
        """Prepare and succeed; what was printed."""
        with self.start(config, **variables) as process:
            printed = process.communicate()[0]
        assert process.returncode == 0, printed
        return printed

    def refuse(self, config: dict[str, Any], **variables: str) -> str:
        """Prepare and fail with a message and no traceback."""
        with self.start(config, **variables) as process:
            printed = process.communicate()[0]
        assert process.returncode == 1, printed
        assert "Traceback" not in printed, printed
        return printed

    def tokens(self, split: str, number: int | None = None) -> np.ndarray:
        name = "train_000001" if split == "train" else "val_000000"
        if number:
            name = f"train_{number:06d}"
        return read_shard(self.out / split / f"{name}.bin")

    def text(self, split: str) -> bytes:
        return self.tokens(split).astype(np.uint8).tobytes()


def read_shard(path: Path) -> np.ndarray:
    data = path.read_bytes()
    header = np.frombuffer(data[:1024], dtype="<i4")
    tokens = np.frombuffer(data[1024:], dtype="<u2")
    assert header.tolist() == [20240520, 1, len(tokens)] + [0] * 253
    return tokens


def shard(tokens: np.ndarray, magic: int = 20240520, version: int = 1) -> bytes:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    return header.tobytes() + tokens.astype("<u2").tobytes()


def make_lab(folder: Path) -> Lab:
    (folder / "datasets").mkdir()
    (folder / "environment").mkdir()
    write_tree(Environment.load(NANOGPT).files, folder / "environment")
    return Lab(folder, variables(folder))


def make_gpt2(path: Path, hello: str = "hello") -> bytes:
    """A tokenizer of GPT-2's kind and size, which knows few words besides the bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    def join(word: str) -> list[tuple[str, str]]:
        return [(word[:i], word[i]) for i in range(1, len(word))]

    merges = join(hello) + join("Ġworld")
    names = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in merges[:-1]]
    vocabulary = {"hello": 31_373, "Ġworld": 995}
    free = (i for i in range(50_256) if i not in (31_373, 995))
    vocabulary |= {n: next(free) for n in dict.fromkeys(names) if n not in vocabulary}
    vocabulary |= {f"unused-{i}": i for i in free}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path.read_bytes()

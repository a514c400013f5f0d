"""The MATH problems: 12,500 of them, of which MATH-500 are held out (Hendrycks et al., 2021).

They are taken from `$ASSAY_DATASETS/math/train.jsonl` and `test.jsonl` if that folder is there,
otherwise from the hub. Of every row five columns are kept; `unique_id` says nothing about the
split (in the published files even training rows begin with "test/"), so texts are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sources import hub  # Assay adds it; by hand: `assay env unpack grpo DIR`

Row = dict[str, Any]

TRAIN = ("nlile/hendrycks-MATH-benchmark", "data/train-00000-of-00001.parquet")
TEST = ("HuggingFaceH4/MATH-500", "test.jsonl")


def load(config: Mapping[str, Any], datasets: Path | None) -> tuple[list[Row], list[Row]]:
    """(train, test) rows: problem, answer, subject, unique_id are texts, level is 1 to 5 or 0.

    `config` may name other files of the hub, JSONL or parquet: `math_train_repo`,
    `math_train_file`, `math_test_repo`, `math_test_file`. A training problem that is also a test
    problem is dropped, and one without an answer (the published file has two): no completion of it
    could be right. A test problem without an answer is an error, since it would shift the metric.
    """
    own = datasets / "math" if datasets else None
    if own and own.is_dir():
        train_file, test_file = own / "train.jsonl", own / "test.jsonl"
    else:
        train_file = fetch(config, "train", TRAIN)
        test_file = fetch(config, "test", TEST)
    test = read(test_file)
    held_out = {normalised(row["problem"]) for row in test}
    if unanswered := [row["problem"] for row in test if not row["answer"]]:
        raise SystemExit(
            f"{test_file}: no answer to {len(unanswered)} problems: {unanswered[0]!r}"
        )
    rows = read(train_file)
    answered = [row for row in rows if row["answer"]]
    train = [row for row in answered if normalised(row["problem"]) not in held_out]
    print(
        f"MATH: {len(test):,} problems to test on, {len(train):,} to train on; dropped of these:"
        f" {len(answered) - len(train)} in the test, {len(rows) - len(answered)} without answer",
        flush=True,
    )
    if not train:
        raise SystemExit(f"{train_file}: no problem is left to train on; use another file")
    return train, test


def fetch(config: Mapping[str, Any], split: str, default: tuple[str, str]) -> Path:
    repo = config.get(f"math_{split}_repo", default[0])
    name = config.get(f"math_{split}_file", default[1])
    own = "math/train.jsonl and math/test.jsonl"
    return next(hub.fetch(repo, [name], kind="dataset", own=own))


def normalised(text: str) -> str:
    return " ".join(text.split())


def read(path: Path) -> list[Row]:
    if not path.is_file():
        raise SystemExit(
            f"{path} is missing; put it there, or leave the folder out to download it"
        )
    found = parquet_rows(path) if path.suffix == ".parquet" else json_rows(path)
    rows = [check(row, where) for row, where in found]
    if not rows:
        raise SystemExit(f"{path}: empty; it needs a problem with its answer in every line")
    return rows


def json_rows(path: Path) -> Iterator[tuple[Any, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                where = f"{path}, line {number}"
                try:
                    yield json.loads(line), where
                except ValueError as error:
                    raise SystemExit(f"{where}: not a line of JSON in UTF-8: {error}") from None


def parquet_rows(path: Path) -> Iterator[tuple[Any, str]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise SystemExit(f"{path}: a parquet file needs `pip install pyarrow`") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise SystemExit(f"{path}: not a readable parquet file: {error}") from None
    for number, row in enumerate(rows):
        yield row, f"{path}, row {number}"


def check(row: Any, where: str) -> Row:
    """The columns that are used, as texts; `type` is another name of `subject`."""
    found = sorted(row) if isinstance(row, dict) else type(row).__name__
    if not isinstance(row, dict) or not {"problem", "answer"} <= row.keys():
        raise SystemExit(
            f"{where}: needs the columns problem and answer (and takes level, subject, unique_id);"
            f" found: {found}"
        )
    problem, answer = row["problem"], row["answer"]
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    for name, value in (("problem", problem), ("answer", answer)):
        if not isinstance(value, str):
            raise SystemExit(f"{where}: {name} must be a text, it is {value!r}")
    if not problem.strip():
        raise SystemExit(f"{where}: the problem is empty")
    digits = [c for c in str(row.get("level", "")) if c.isdigit()]  # 3, or "Level 3"
    return {
        "problem": problem,
        "answer": answer.strip(),
        "level": int("".join(digits) or 0),
        "subject": str(row.get("subject") or row.get("type") or ""),
        "unique_id": str(
            row.get("unique_id") or hashlib.sha256(problem.encode()).hexdigest()[:16]
        ),
    }

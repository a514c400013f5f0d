"""What a body may hold is bounded before it is parsed."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from assay.contracts.batch import MAX_IDEAS
from services.implementer.bodies import MAX_MARKS, Marks
from tests.implementer.conftest import batch

JSON = {"Content-Type": "application/json"}
TEXTS = ["a, b: [c] {d}", 'quote " in', "back \\", '\\"', "\\\\", "é∀", "", "tab\t"]


def outside(value: Any) -> int:
    """The marks of a value, counted by what it holds."""
    if isinstance(value, dict):
        below = sum(1 + outside(v) for v in value.values())
        return 1 + below + max(len(value) - 1, 0)
    if isinstance(value, list):
        return 1 + sum(map(outside, value)) + max(len(value) - 1, 0)
    return 0


def test_marks_in_texts_do_not_count_wherever_the_body_is_cut() -> None:
    draw = random.Random(1)
    for _ in range(300):
        value = [{draw.choice(TEXTS): [draw.choice(TEXTS), 1, {}]} for _ in range(4)]
        body = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode()
        marks, at, count = Marks(), 0, 0
        while at < len(body):
            size = draw.randrange(1, 12)
            count = marks.add(body[at : at + size])
            at += size
        assert count == outside(value), body


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_marks_count_in_other_encodings(encoding: str) -> None:
    body = ("[" + "[]," * 1_000 + '"\u2200",' + "[]," * 1_000 + "[]]").encode(encoding)
    assert Marks().add(body) > 4_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MAX_MARKS + b"[]]",
        b'{"ideas":[' + b'{"":0},' * (MAX_MARKS // 2) + b"0]}",
        b"[" + b"0," * MAX_MARKS + b"0]",
    ],
    ids=["lists", "objects", "numbers"],
)
def test_a_body_of_too_many_values_is_not_parsed(
    api: TestClient, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    loads = json.loads

    def noted(text: str | bytes, **options: Any) -> Any:
        parsed.append(len(text))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", noted)
    answer = api.post("/v1/batches", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert str(MAX_MARKS) in answer.json()["detail"]
    assert "split" in answer.json()["detail"]
    assert max(parsed) < 10_000, "only answers"


def test_the_largest_batch_has_fewer_marks() -> None:
    idea = {"text": "a, b" * 10, "client_key": "k", "operator": "seed", "thinking": "{" * 50}
    body = json.dumps(batch() | {"ideas": [{**idea, "parents": ["exp"] * 64}] * MAX_IDEAS})
    assert Marks().add(body.encode()) < MAX_MARKS


def test_counting_is_cheap() -> None:
    body = json.dumps({"text": 'x = f(a, b)  # "c"\n' * 400_000}).encode()
    began = time.process_time()
    assert Marks().add(body) == 2
    assert time.process_time() - began < 2


@pytest.mark.parametrize("path", ["/v1/searches", "/v1/workers", "/v1/batches/b/cancel"])
def test_what_holds_no_ideas_is_small(api: TestClient, path: str) -> None:
    answer = api.post(path, content=b'"' + b"x" * (1 << 20) + b'"', headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert str(1 << 20) in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/batches", "/internal/v1/workers"])
def test_ideas_and_reports_may_be_larger(api: TestClient, path: str) -> None:
    answer = api.post(path, content=b'"' + b"x" * (1 << 20) + b'"', headers=JSON)
    assert answer.status_code in (401, 422)

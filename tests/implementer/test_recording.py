"""A recorded batch is made again, byte for byte, with neither a provider nor a network."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from assay.contracts.batch import BatchRequest
from assay.domain.conditions import Conditions
from assay.llm import BadRequest, ImplementRequest
from assay.llm.executors import DEFAULT_LIMITS, RequestId
from assay.llm.recording import RecordingExecutor, ReplayExecutor
from assay.storage import batches, environments, schema
from services.implementer.context import Context
from services.implementer.executors import executor_of
from services.implementer.pool import ImplementPool, OpenExecutor
from services.implementer.settings import ImplementerSettings
from tests.implementer.scripted import Scripted
from tests.implementer.test_loop import BROKEN, GOOD, MISFIT
from tests.support.databases import sqlite_database
from tests.support.provider import openai
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, Request
from tests.support.waiting import wait_until

IDEAS = 20
MODEL = "openai:gpt-5-mini"
TERMINAL = ("queued", "failed")


class Answers:
    """Another answer for each sample and revision, each at its own pace: any sample may win."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def __call__(self, request: Request) -> Reply:
        texts = request.texts("user")
        asked = "".join(texts)
        number = int(texts[0].rpartition("Idea ")[2].partition(".")[0])
        rng = random.Random(f"{number} {len(texts) - 1} {self._times[asked]}")
        self._times[asked] += 1
        if number == 7:
            return openai.completion("I have no idea.")
        kind = rng.random()
        text = MISFIT if kind < 0.3 else BROKEN if kind < 0.4 else ""
        good = GOOD.replace("STEP = 4", f"STEP = {number * 100 + rng.randrange(100)}")
        return openai.completion(text or good).over(rng.random() * 0.2)


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(Answers()) as provider:
        yield provider


def fresh(context: Context, tmp_path: Path, name: str, **settings: Any) -> Context:
    """The same service with another database, set up in another way."""
    db = sqlite_database(tmp_path / f"{name}.db")
    return replace(context, db=db, settings=ImplementerSettings(rescan_seconds=0.1, **settings))


def implement(
    context: Context,
    ideas: Sequence[str],
    open_executor: OpenExecutor = executor_of,
    **options: Any,
) -> list[Any]:
    """Implement a batch; for each idea its codebase, or the code and message of its failure."""
    request = BatchRequest.model_validate(
        {
            "environment": "count",
            "profile": "tiny",
            "executor": MODEL,
            "ideas": [{"text": text} for text in ideas],
            "options": {"baseline_seeds": 0, "samples": 3, "novelty": "allow", **options},
        }
    )
    environment = environments.register(context.db, context.store, context.catalog.get("count"))
    with context.db.write() as session:
        batch = batches.create(
            context.db, session, request, "local", environment, Conditions("cpu")
        )

    def rows() -> list[schema.Experiment]:
        with context.db.read() as session:
            return list(
                session.scalars(
                    select(schema.Experiment)
                    .where(schema.Experiment.batch_id == batch)
                    .order_by(schema.Experiment.position)
                )
            )

    pool = ImplementPool(context, open_executor=open_executor)
    pool.start()
    try:
        wait_until(lambda: all(row.state in TERMINAL for row in rows()))
    finally:
        pool.stop()
    return [row.codebase_id or (row.failure or {}) for row in rows()]


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


@pytest.mark.parametrize("sampling", ["staged", pytest.param("paper", marks=pytest.mark.slow)])
def test_a_recorded_batch_is_made_again(
    context: Context,
    tmp_path: Path,
    provider: ProviderServer,
    sampling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ideas = [f"Idea {number}. Count otherwise." for number in range(IDEAS)]
    recording = fresh(context, tmp_path, "first", record=tmp_path / "kept")
    recording.variables = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.openai_url}
    first = implement(recording, ideas, sampling=sampling)
    made = len(provider.requests)
    failed = [number for number, one in enumerate(first) if not isinstance(one, str)]
    assert 7 in failed
    assert len(failed) <= 4

    no_network(monkeypatch)
    replaying = fresh(context, tmp_path, "second", replay=tmp_path / "kept")
    assert implement(replaying, ideas, sampling=sampling) == first
    assert len(provider.requests) == made
    with replaying.db.read() as session:
        calls = session.scalars(select(schema.ModelCall)).all()
    assert all(call.is_replay and call.cost_usd == 0 for call in calls)
    with recording.db.read() as session:
        paid = session.scalars(select(schema.ModelCall)).all()
    assert not any(call.is_replay for call in paid)
    assert sum(call.cost_usd or 0 for call in paid) > 0


def test_what_was_not_recorded_is_an_error_that_says_which_call(
    context: Context, tmp_path: Path, provider: ProviderServer
) -> None:
    kept = tmp_path / "kept"
    recording = fresh(context, tmp_path, "first", record=kept)
    recording.variables = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.openai_url}
    implement(recording, ["Idea 3. Count otherwise."], samples=1, revisions=0)

    replaying = fresh(context, tmp_path, "second", replay=kept)
    (unknown,) = implement(replaying, ["Idea 4. Count otherwise."])
    assert unknown["code"] == "replay_miss"
    assert str(kept) in unknown["message"]
    assert "sample 0, revision 0" in unknown["message"]
    assert "Idea 4" in unknown["message"]
    assert "not in the recording" in unknown["message"]

    for path in kept.glob("*.json"):  # as if the prompts had been other ones
        record = json.loads(path.read_text())
        path.unlink()
        other = path.with_name(f"{'0' * 32}-0.json")
        other.write_text(json.dumps(record | {"prompt_version": "other"}))
    (changed,) = implement(replaying, ["Idea 3. Count otherwise."])
    assert "prompts, or the environment's, have changed" in changed["message"]


def test_the_same_idea_twice_is_two_answers_on_record(
    context: Context, tmp_path: Path, provider: ProviderServer
) -> None:
    recording = fresh(context, tmp_path, "first", record=tmp_path / "kept")
    recording.variables = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.openai_url}
    twice = ["Idea 5. Count otherwise."] * 2
    first = implement(recording, twice, samples=1, revisions=0)
    replaying = fresh(context, tmp_path, "second", replay=tmp_path / "kept")
    again = implement(replaying, twice, samples=1, revisions=0)
    assert len(list((tmp_path / "kept").glob("*.json"))) == 2
    assert sorted(map(str, again)) == sorted(map(str, first))


def test_a_folder_of_answers_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        ImplementerSettings(replay=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="exclude each other"):
        ImplementerSettings(replay=tmp_path, record=tmp_path)


def test_what_failed_for_good_fails_again_and_a_sibling_wins_again(
    context: Context, tmp_path: Path
) -> None:
    """A prompt that is too long only when it is revised, say."""
    ideas = ["Idea 1. Count otherwise."]

    def answer(request: ImplementRequest) -> Any:
        if request.revision:
            return BadRequest("the prompt is too long")
        return GOOD if request.sample == 2 else MISFIT

    recorder = RecordingExecutor(Scripted(answer, name=MODEL), tmp_path / "kept")
    first = implement(fresh(context, tmp_path, "first"), ideas, lambda *_: recorder)

    class Replayer(ReplayExecutor):
        """Knows requests by the ids of the one that was recorded."""

        def identify(self, request: ImplementRequest) -> RequestId:
            return recorder.identify(request)

    replayer = Replayer(MODEL, tmp_path / "kept", DEFAULT_LIMITS)
    again = implement(fresh(context, tmp_path, "second"), ideas, lambda *_: replayer)
    assert isinstance(first[0], str)
    assert again == first

"""kill -9 of the implement worker at seeded moments: no answer is paid for twice.

A provider remembers every request by the id that the ledger gave it. In the end its requests are
those of the ledger, and the only answers paid for twice are those that a kill cut off.
`tests/faults/test_implement_kills.py` and `python -m benchmarks.chaos implement` run it.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy import select

from assay.contracts.batch import BatchBody, BatchRequest
from assay.llm import ModelName, price
from assay.storage import schema
from tests.support.faults.arena import Arena, Batch
from tests.support.provider.seeded import Asked, Plan, SeededProvider
from tests.support.service import toy_batch, toy_ideas
from tests.support.stack import Part
from tests.support.waiting import wait_until

#: It has a list price; where it answers is said by OPENAI_BASE_URL.
MODEL = "openai:gpt-5-mini"
SETTINGS = {
    "ASSAY_IMPLEMENTER_MODELS": json.dumps({"openai": {"concurrent_calls": 4}}),
    # So few that the first calls begin soon after a start.
    "ASSAY_IMPLEMENTER_CONCURRENT_IDEAS": "10",
    # A restarted worker has another name, and waits for the leases of the one before.
    "ASSAY_IMPLEMENTER_IDEA_LEASE_SECONDS": "1",
    "ASSAY_IMPLEMENTER_RESCAN_SECONDS": "0.2",
}
#: Of ten kills, one comes a while after the start of the process, one after it was ready, and
#: eight after its first call.
FROM = ("start", "ready", *["call"] * 8)
LONGEST_S = {"start": 1.2, "ready": 1.0, "call": 0.8}
_UNDER_WAY = ("submitted", "implementing")
Key = tuple[str, int, int]


@dataclass(frozen=True)
class Life:
    """From a start of the worker to its kill."""

    began: datetime
    ended: datetime


@dataclass
class Drill:
    """What there is to judge once everything has been implemented."""

    plan: Plan
    lives: list[Life]
    asked: dict[str, Asked]
    bodies: list[BatchBody]
    rows: list[schema.ModelCall]
    ideas: dict[str, str]  # by implementation

    def killed_with(self, row: schema.ModelCall) -> int | None:
        """Which kill cut a call off."""
        if row.state != "interrupted":
            return None
        (kill,) = (
            n for n, life in enumerate(self.lives) if life.began <= row.started_at <= life.ended
        )
        return kill


@contextmanager
def _asking(worker: Part, provider: SeededProvider) -> Iterator[None]:
    """Stop the worker and let it ask this provider once started; restore it at the end."""
    usual = dict(worker.env)
    worker.stop()
    worker.env |= {**SETTINGS, "OPENAI_BASE_URL": provider.openai_url}
    try:
        yield
    finally:
        worker.kill()
        worker.env = usual
        worker.start()


def _kill(worker: Part, provider: SeededProvider, kills: int, seed: int) -> list[Life]:
    """Start the worker and kill it, so often; the moments come from the seed."""
    chance = random.Random(seed)
    moments = [
        since for _ in range(-(-kills // len(FROM))) for since in chance.sample(FROM, len(FROM))
    ]
    lives = []
    for number in range(kills):
        since = moments[number]
        began = datetime.now(UTC)
        provider.requested.clear()
        worker.start(wait=since != "start")
        if since == "call":
            assert provider.requested.wait(60), f"no call after kill {number}:\n{worker.tail()}"
        time.sleep(chance.uniform(0, LONGEST_S[since]))
        assert worker.running, worker.tail()
        worker.kill()
        lives.append(Life(began, datetime.now(UTC)))
    return lives


def _request(name: str, ideas: int, first: int, **options: object) -> BatchRequest:
    batch = toy_batch(toy_ideas(ideas, first=first), baseline_seeds=0)
    batch.hardware_class, batch.executor = f"none-{name}", MODEL
    batch.options = batch.options.model_copy(update=options)
    return batch


def _implemented(arena: Arena, batches: list[Batch]) -> bool:
    table = schema.Experiment
    mine = table.batch_id.in_([batch.id for batch in batches])
    return not arena.count(table, mine, table.state.in_(_UNDER_WAY))


def drill(arena: Arena, kills: int, staged: int, paper: int, seed: int) -> Drill:
    """Kill the worker so often, let it finish what is left, and return what to judge.

    `staged` and `paper`: how many ideas are sampled in which way.
    """
    worker = arena.stack.implementers[0]
    first = 1_000_000 * (seed + 1)  # codebases that nobody else asks for
    with SeededProvider(seed) as provider, arena.client() as client, _asking(worker, provider):
        batches = [
            arena.took(client.batches.create(request).id)
            for request in (
                _request("staged", staged, first, samples=4),
                _request("paper", paper, first + staged, samples=3, sampling="paper"),
            )
        ]
        lives = _kill(worker, provider, kills, seed)
        arena.crashes += kills
        worker.start()
        wait_until(lambda: _implemented(arena, batches), "all is implemented")
        bodies = [client.batches.get(batch.id) for batch in batches]
        for batch in batches:  # nobody will measure them
            client.batches.cancel(batch.id)
        asked = {one.request.id: one for one in provider.asked}
        assert len(asked) == len(provider.asked), "two requests had one id"
    return _evidence(arena, provider, lives, asked, bodies)


def _evidence(
    arena: Arena,
    provider: SeededProvider,
    lives: list[Life],
    asked: dict[str, Asked],
    bodies: list[BatchBody],
) -> Drill:
    call, idea = schema.ModelCall, schema.Idea
    ids = [body.id for body in bodies]
    rows = arena.column(
        select(call).where(call.batch_id.in_(ids)).order_by(call.started_at, call.id)
    )
    with arena.db.read() as session:
        texts = session.execute(
            select(schema.Implementation.id, idea.client_key)
            .join(schema.Experiment, schema.Experiment.id == schema.Implementation.experiment_id)
            .join(idea, idea.id == schema.Experiment.idea_id)
            .where(schema.Experiment.batch_id.in_(ids))
        ).all()
    ideas = {row.id: str(row.client_key).removeprefix("step-") for row in texts}
    return Drill(provider.plan, lives, asked, bodies, rows, ideas)


def _check_requests(drill: Drill) -> int:
    """Every request is on record, as what it was; returns how many recorded ones never came."""
    rows = {row.id: row for row in drill.rows}
    assert drill.asked.keys() <= rows.keys(), "a request is not in the ledger"
    for asked in drill.asked.values():
        row = rows[asked.request.id]
        said = (drill.ideas[row.implementation_id], row.revision)
        assert said == (asked.idea, asked.revision), f"{row.id} was another request"
    unseen = Counter(row.state for row in drill.rows if row.id not in drill.asked)
    # Killed, or beaten by another sample, between the write and the request.
    assert unseen.keys() <= {"interrupted", "cancelled"}, unseen
    return unseen.total()


def _check_spent_once(drill: Drill) -> int:
    """What a kill cut off is asked for once more, and nothing else is; returns how often."""
    by_key: dict[Key, list[schema.ModelCall]] = {}
    cut_off: Counter[tuple[int, str, int]] = Counter()
    for row in drill.rows:
        assert row.state in ("returned", "interrupted", "cancelled"), (row.id, row.state)
        by_key.setdefault((row.implementation_id, row.sample, row.revision), []).append(row)
        kill = drill.killed_with(row)
        if kill is not None:
            cut_off[kill, row.implementation_id, row.sample] += 1
    doubled = [key for key, count in cut_off.items() if count > 1]
    assert not doubled, f"one kill re-spent two calls of a sample: {doubled}"
    for key, rows in by_key.items():
        # So there are at most as many requests as kills that hit it, and one.
        states = [row.state for row in rows]
        assert set(states[:-1]) <= {"interrupted"}, f"{key} was asked again: {_story(drill, key)}"
    assert all(_in_order(rows) for rows in _samples(drill).values())
    return sum(len(rows) - 1 for rows in by_key.values())


def _story(drill: Drill, key: Key) -> str:
    """What happened to the idea, for a message."""
    lines = [f"{key} of {drill.ideas[key[0]]}"]
    for n, life in enumerate(drill.lives):
        lines.append(f"{life.began:%M:%S.%f} life {n} until {life.ended:%M:%S.%f}")
    lines += [
        f"{r.started_at:%M:%S.%f} {r.sample}/{r.revision} {r.state} {r.finished_at:%M:%S.%f}"
        for r in drill.rows
        if r.implementation_id == key[0]
    ]
    return "\n".join(sorted(lines[1:]) + lines[:1])


def _samples(drill: Drill) -> dict[tuple[str, int], list[int]]:
    """The revisions of samples, in the order in which they were asked for."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in drill.rows:
        found.setdefault((row.implementation_id, row.sample), []).append(row.revision)
    return found


def _in_order(revisions: list[int]) -> bool:
    return revisions == sorted(revisions)


def _check_dollars(drill: Drill) -> None:
    """What was reported is charged as reported, what was cut off as it was expected."""
    model = ModelName.parse(MODEL)
    for row in drill.rows:
        if row.state == "returned":
            expected = price(model, drill.asked[row.id].usage)
            assert (row.cost_usd, row.is_estimate) == (expected, False), row.id
        elif row.state == "interrupted":
            assert row.reserved_usd
            assert (row.cost_usd, row.is_estimate) == (row.reserved_usd, True), row.id
    for body in drill.bodies:
        mine = [row for row in drill.rows if row.batch_id == body.id]
        guessed = sum((row.cost_usd or Decimal(0) for row in mine if row.is_estimate), Decimal(0))
        total = sum((row.cost_usd or Decimal(0) for row in mine), Decimal(0))
        usage = body.usage
        assert (usage.calls, usage.under_way) == (len(mine), 0)
        assert usage.cost_usd is not None
        assert (Decimal(usage.cost_usd), Decimal(usage.estimated_usd)) == (total, guessed)


def _check_results(arena: Arena, drill: Drill) -> None:
    """Each idea came to what it comes to without kills, once; every answer was judged."""
    table, sample = schema.Implementation, schema.Sample
    done = arena.column(select(table).where(table.id.in_(drill.ideas)))
    samples = arena.column(select(sample).where(sample.implementation_id.in_(drill.ideas)))
    applied = Counter(row.implementation_id for row in samples if row.state == "applied")
    for row in done:
        fits = drill.plan.fits_at(drill.ideas[row.id]) is not None
        assert row.state == ("succeeded" if fits else "failed"), (row.id, row.state)
        assert bool(row.codebase_id) == bool(applied[row.id]) == fits, row.id
    codebases = {row.codebase_id for row in done if row.codebase_id}
    patched = sum(drill.plan.fits_at(idea) is not None for idea in drill.ideas.values())
    assert len(codebases) == patched
    link, experiment = schema.ExperimentMeasurement, schema.Experiment
    mine = select(experiment.id).where(experiment.batch_id.in_([b.id for b in drill.bodies]))
    assert arena.count(link, link.experiment_id.in_(mine)) == patched
    left = {row.state for row in samples} - {"applied", "refused", "cancelled"}
    assert not left, f"samples came to no end: {left}"


@dataclass(frozen=True)
class Outcome:
    """What the kills hit."""

    kills: int
    kills_that_hit_calls: int
    calls_cut_off: int
    answers_lost: int
    asked_again: int
    ideas: int
    requests: int
    recorded_by_state: dict[str, int]
    never_sent: int


def check_drill(arena: Arena, drill: Drill) -> Outcome:
    """Check everything that there is to judge, and return what the kills hit.

    Raises:
        AssertionError: an idea was lost, or an answer was paid for twice.
    """
    ideas = sum(body.counts.total for body in drill.bodies)
    ended = sum(body.counts.queued + body.counts.failed for body in drill.bodies)
    assert (ended, len(drill.ideas)) == (ideas, ideas), "an idea was lost"
    unseen = _check_requests(drill)
    repeated = _check_spent_once(drill)
    _check_dollars(drill)
    _check_results(arena, drill)
    cut = {row.id: kill for row in drill.rows if (kill := drill.killed_with(row)) is not None}
    return Outcome(
        kills=len(drill.lives),
        kills_that_hit_calls=len(set(cut.values())),
        calls_cut_off=len(cut),
        answers_lost=sum(
            drill.asked[id_].request.answered_at is not None for id_ in cut if id_ in drill.asked
        ),
        asked_again=repeated,
        ideas=ideas,
        requests=len(drill.asked),
        recorded_by_state=dict(Counter(row.state for row in drill.rows)),
        never_sent=unseen,
    )

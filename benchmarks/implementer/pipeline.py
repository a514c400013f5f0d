"""The real implement loops (pool, limits, ledger, patching, database) on a virtual clock."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from sqlalchemy import func, select

from assay.contracts.batch import BatchRequest
from assay.domain.conditions import Conditions
from assay.environments.catalog import Catalog
from assay.llm import ModelName, RetryPolicy, Usage, price
from assay.storage import batches, environments, schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from benchmarks.implementer.draws import MODEL, DrawnExecutor, Draws, idea_number, idea_text
from services.implementer.context import Context
from services.implementer.executors import LONGEST_PAUSE_S, executor_of
from services.implementer.limits import ModelLimits
from services.implementer.pool import ImplementPool, OpenExecutor
from services.implementer.settings import ImplementerSettings
from tests.support.virtual_clock import VirtualLoop


@dataclass(frozen=True)
class Outcome:
    """What the loops did, by the ledger."""

    seconds: float
    requests: int
    dollars: Decimal
    plain: Decimal  #: without the cache of prompts
    patched: frozenset[int]


@contextmanager
def context_of(folder: Path, slots: int) -> Iterator[Context]:
    """A new database and store."""
    db = Database(f"sqlite:///{folder}/bench.db")
    db.migrate()
    settings = ImplementerSettings(
        models={name: ModelLimits(concurrent_calls=slots) for name in ("anthropic", "openai")},
        idea_lease_seconds=10_000,  # of a clock on which minutes pass in no time
        rescan_seconds=10_000,
    )
    yield Context(db, LocalStore(folder / "objects"), Catalog(), settings, variables={})
    db.dispose()


def implement(draws: Draws, ideas: int, sampling: str, slots: int) -> Outcome:
    """Implement a batch of ideas; model and clock are stand-ins, all else is what serves users."""
    with tempfile.TemporaryDirectory() as name, context_of(Path(name), slots) as context:
        batch = submit(context, ideas, sampling, MODEL)
        policy = RetryPolicy(patience_s=6 * 3600, longest_pause_s=LONGEST_PAUSE_S)
        executor = DrawnExecutor(draws, policy)
        seconds = _run(context, executor, ideas)
        return _outcome(context, batch, seconds)


def _run(context: Context, executor: DrawnExecutor, ideas: int) -> float:
    """Virtual seconds until the last idea is done."""
    loop = VirtualLoop()
    return run_pool(context, loop, ideas, lambda *_: executor)


def run_pool(
    context: Context,
    loop: asyncio.AbstractEventLoop,
    ideas: int,
    open_executor: OpenExecutor = executor_of,
) -> float:
    """Run a pool until so many ideas are done; return when that was, on the clock of its loop."""
    done, ended = threading.Event(), list[float]()

    def note(_experiment: str) -> None:
        ended.append(loop.time())
        if len(ended) == ideas:
            done.set()

    pool = ImplementPool(context, loop, open_executor=open_executor, on_concluded=note)
    pool.start()
    done.wait()
    pool.stop()
    return max(ended)


def submit(context: Context, ideas: int, sampling: str, model: str) -> str:
    """Store a batch; its id."""
    environment = context.catalog.get("toy")
    request = BatchRequest.model_validate(
        {
            "environment": "toy",
            "profile": "tiny",
            "executor": model,
            "ideas": [{"text": idea_text(number)} for number in range(ideas)],
            "options": {"sampling": sampling, "baseline_seeds": 0},
        }
    )
    stored = environments.register(context.db, context.store, environment)
    with context.db.write() as session:
        return batches.create(context.db, session, request, "local", stored, Conditions("cpu"))


def _outcome(context: Context, batch: str, seconds: float) -> Outcome:
    call = schema.ModelCall
    with context.db.read() as session:
        requests, dollars, open_ = session.execute(
            select(
                func.count(),
                func.sum(call.cost_usd),
                func.sum(call.finished_at.is_(None)),
            ).where(call.batch_id == batch)
        ).one()
        tokens = session.execute(
            select(
                func.sum(call.input_tokens + call.cached_input_tokens + call.cache_write_tokens),
                func.sum(call.output_tokens),
            )
        ).one()
        texts = session.scalars(
            select(schema.Idea.text)
            .join(schema.Experiment, schema.Experiment.idea_id == schema.Idea.id)
            .where(schema.Experiment.codebase_id.is_not(None))
        ).all()
        states = set(session.scalars(select(schema.Experiment.state)))
    assert not open_, "every request has ended"
    assert dollars is not None
    assert states <= {"queued", "failed"}, states
    return Outcome(
        seconds,
        requests,
        dollars,
        uncached(tokens[0], tokens[1]),
        frozenset(map(idea_number, texts)),
    )


def uncached(input_tokens: int, output_tokens: int) -> Decimal:
    """What tokens cost where nothing is cached (see `assay.llm.prices`)."""
    found = price(ModelName.parse(MODEL), Usage(input_tokens, output_tokens))
    assert found is not None
    return found

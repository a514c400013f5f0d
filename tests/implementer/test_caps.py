"""Caps: what a batch, a search or an owner may spend, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from assay.contracts.caps import OwnerSpending
from assay.llm import Completion, ImplementRequest, ModelName, Usage, price
from assay.llm.prices import PriceTable
from assay.storage import calls, schema
from assay.storage.calls import CallEnd, CallStart, Payer
from services.implementer import asking
from services.implementer.context import Context
from services.implementer.limits import ModelLimits
from services.implementer.loop import Loop, Shared, conclude, take_up
from tests.implementer.conftest import batch
from tests.implementer.scripted import Scripted, judge_here
from tests.support import virtual_clock

MODEL = "openai:metered"
#: A thousand tokens of input cost $0.001, of output $0.01; an answer is expected to have 2000.
PRICES = PriceTable("2026-11", "", {MODEL: {"input": "1", "cached": "0.1", "output": "10"}})
INPUT = 1000
SLOTS = 16
CAP = Decimal(1)
GOOD = "```diff\n--- a/train.py\n+++ b/train.py\n@@ -3,1 +3,1 @@\n-STEP = 1\n+STEP = {}\n```"
MISFIT = GOOD.replace("-STEP = 1", "-STEP = 99")


@pytest.fixture(autouse=True)
def _metered(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.llm.prices.price_table", lambda: PRICES)
    context.variables = {"OPENAI_API_KEY": "k"}
    context.settings.models = {"openai": ModelLimits(concurrent_calls=SLOTS)}


@dataclass
class Call:
    """When a call was made, on the virtual clock, and what it cost in the end."""

    began: float
    cost: Decimal
    ended: float | None = None


@dataclass
class Metered:
    """A model whose answers have lengths and take time; remembers its calls."""

    tokens: Callable[[int], int]
    seconds: Callable[[int], float]
    misfits: bool = True
    calls: list[Call] = field(default_factory=list)

    async def answer(self, request: ImplementRequest) -> Completion:
        number, clock = len(self.calls), asyncio.get_running_loop().time
        usage = Usage(INPUT, self.tokens(number))
        call = Call(clock(), price(ModelName.parse(MODEL), usage) or Decimal(0))
        self.calls.append(call)
        await asyncio.sleep(self.seconds(number))
        call.ended = clock()
        idea = int(hashlib.sha256(request.idea_text.encode()).hexdigest()[:6], 16)
        wrong = self.misfits and request.revision == 0 and idea % 3 == 0
        text = (MISFIT if wrong else GOOD).format(2 + idea)
        return Completion(text, "", "end", usage, MODEL)

    @property
    def spent(self) -> Decimal:
        """What all calls cost."""
        return sum((call.cost for call in self.calls), Decimal(0))

    def busiest(self) -> int:
        """Most calls that were under way at once."""
        return max(
            sum(other.began <= call.began < (other.ended or 0) for other in self.calls)
            for call in self.calls
        )


def metered(seed: int = 0) -> Metered:
    """Calls of $0.011 to $0.041, most of them dearer than is expected at first."""
    chance = random.Random(seed)
    return Metered(lambda _: chance.choice((1000, 3000, 4000)), lambda _: chance.uniform(5, 60))


def submit(api: TestClient, ideas: int = 60, profile: str = "tiny", **changes: Any) -> str:
    texts = [f"Count in {changes.get('epoch', 0)}-{number}s." for number in range(ideas)]
    options = {"baseline_seeds": 0, "novelty": "allow", **changes.pop("options", {})}
    body = batch(*texts, profile=profile, hardware_class="none", executor=MODEL, **changes)
    made = api.post("/v1/batches", json={**body, "options": options})
    assert made.status_code == 202, made.text
    return str(made.json()["id"])


def implement(context: Context, model: Metered) -> float:
    """Implement all that waits, at once; virtual seconds that it took."""
    with context.db.read() as session:
        table = schema.Experiment
        waiting = session.scalars(select(table.id).where(table.state == "submitted")).all()
    executor = Scripted(model.answer, name=MODEL)

    async def one(experiment: str, shared: Shared) -> None:
        taken = await asyncio.to_thread(take_up, context, experiment)
        assert taken is not None
        outcome = await Loop(context, taken[0], executor, taken[1], shared, judge_here).run()
        await asyncio.to_thread(conclude, context, taken[0], outcome)

    async def main() -> float:
        loop, shared = asyncio.get_running_loop(), Shared.of(context)
        loop.set_default_executor(ThreadPoolExecutor(2))
        await asyncio.gather(*(one(experiment, shared) for experiment in waiting))
        return loop.time()

    return virtual_clock.run(main())


def failures(context: Context, batch_id: str) -> list[dict[str, Any]]:
    table = schema.Experiment
    with context.db.read() as session:
        rows = session.scalars(select(table).where(table.batch_id == batch_id)).all()
    assert {row.state for row in rows} <= {"queued", "failed"}
    return [row.failure for row in rows if row.failure]


def states_of_calls(context: Context) -> set[str]:
    with context.db.read() as session:
        return set(session.scalars(select(schema.ModelCall.state)))


def check_kept(model: Metered, most: Decimal) -> None:
    """No call began once the cap was reached, and those under way then are all that passes it."""
    last = max(call.began for call in model.calls)
    under_way = [call for call in model.calls if (call.ended or 0) > last]
    settled = model.spent - sum((call.cost for call in under_way), Decimal(0))
    assert settled < most
    assert len(under_way) <= SLOTS
    assert model.spent >= most, "it stopped too early"
    # What is under way counts as expected, so that even the calls under way pass it by little.
    assert model.spent < most + sum((call.cost for call in under_way), Decimal(0)) / 2


def check_rest(api: TestClient, context: Context, batch_id: str, scope: str, whose: str) -> None:
    """What was not done says so, by idea and in the batch."""
    found = failures(context, batch_id)
    assert found
    for failure in found:
        assert failure["code"] == "spend_cap"
        assert whose in failure["message"]
        used = Decimal(failure["message"].split(" has used ")[1].split(" of 1 USD")[0])
        assert used >= CAP
        assert "raise the cap" in failure["message"]
    body = api.get(f"/v1/batches/{batch_id}").json()
    (cap,) = body["caps"]
    assert (cap["scope"], cap["kind"], cap["limit"]) == (scope, "cost_usd", "1")
    assert cap["reached"]
    assert body["not_done"] == len(found) == body["counts"]["failed"]
    assert body["usage"]["under_way"] == 0


def test_the_cap_of_a_batch(api: TestClient, context: Context) -> None:
    batch_id = submit(api, options={"max_cost_usd": "1"})
    model = metered()
    implement(context, model)
    check_kept(model, CAP)
    check_rest(api, context, batch_id, "batch", f"the batch {batch_id}")
    assert states_of_calls(context) == {"returned"}, "what was under way came to its end"
    body = api.get(f"/v1/batches/{batch_id}").json()
    assert Decimal(body["usage"]["cost_usd"]) == model.spent
    assert Decimal(body["caps"][0]["used"]) == model.spent
    assert body["counts"]["queued"] >= 15
    assert model.busiest() == SLOTS


def _search(api: TestClient, **caps: Any) -> str:
    request = {
        "environment": "count",
        "profile": "tiny",
        "strategy": "best_of",
        "epochs": 2,
        "batch_size": 60,
        "executor": MODEL,
        "caps": caps,
    }
    made = api.post("/v1/searches", json=request)
    assert made.status_code == 201, made.text
    assert made.json()["caps"]["max_cost_usd"] == "1"
    return str(made.json()["id"])


@pytest.mark.slow
def test_the_cap_of_a_search_holds_for_all_its_epochs(api: TestClient, context: Context) -> None:
    search = _search(api, max_cost_usd="1")
    first = submit(api, 20, search=search, epoch=0)
    model = metered()
    implement(context, model)
    assert failures(context, first) == []
    assert model.spent < CAP
    second = submit(api, 60, search=search, epoch=1)
    other = submit(api, 5)
    alone = len(model.calls)
    implement(context, model)
    check_rest(api, context, second, "search", f"the search {search}")
    assert failures(context, other) == [], "a batch of no search is not held back by it"
    assert len(model.calls) > alone
    with context.db.read() as session:
        table = schema.ModelCall
        of_search = session.scalars(select(table.cost_usd).where(table.search_id == search)).all()
    spent = sum((cost for cost in of_search if cost is not None), Decimal(0))
    assert CAP <= spent < CAP + SLOTS * Decimal("0.041")


def _earlier(context: Context, batch_id: str, dollars: str, ago: timedelta) -> None:
    """A call of the batch that cost so much some time ago."""
    with context.db.write() as session:
        implementation = session.scalars(select(schema.Implementation.id)).first()
        assert implementation is not None
        start = CallStart("call_earlier", 0, 9, 1, MODEL, "", "1", Decimal(0))
        calls.before(session, Payer("local", batch_id, None, implementation), start)
        session.flush()
        calls.after(session, start.id, CallEnd("returned", cost_usd=Decimal(dollars)))
        table = schema.ModelCall
        then = context.db.now(session) - ago
        session.execute(update(table).where(table.id == start.id).values(started_at=then))


@pytest.mark.slow
def test_the_cap_of_an_owner_holds_for_all_batches(api: TestClient, context: Context) -> None:
    context.settings.caps = {"local": OwnerSpending(max_cost_usd=CAP)}
    batches = [submit(api, 30, epoch=number) for number in range(2)]
    model = metered()
    implement(context, model)
    check_kept(model, CAP)
    for batch_id in batches:
        check_rest(api, context, batch_id, "owner", "owner 'local'")


@pytest.mark.slow
def test_the_cap_of_a_day_forgets_yesterday(api: TestClient, context: Context) -> None:
    context.settings.caps = {"local": OwnerSpending(max_cost_usd_per_day=CAP)}
    batch_id = submit(api)
    _earlier(context, batch_id, "5", timedelta(days=1))
    model = metered()
    implement(context, model)
    check_kept(model, CAP)
    check_rest(api, context, batch_id, "day", "owner 'local', today (UTC),")


@pytest.mark.slow
def test_the_narrowest_cap_is_named_and_all_are_shown(api: TestClient, context: Context) -> None:
    context.settings.caps = {"*": OwnerSpending(max_cost_usd=CAP, max_cost_usd_per_day=CAP)}
    batch_id = submit(api, options={"max_cost_usd": "1"})
    model = metered()
    implement(context, model)
    check_kept(model, CAP)
    assert {f["message"].split(" has used")[0] for f in failures(context, batch_id)} == {
        f"the batch {batch_id}"
    }
    shown = api.get(f"/v1/batches/{batch_id}").json()["caps"]
    assert [(cap["scope"], cap["reached"]) for cap in shown] == [
        ("batch", True),
        ("day", True),
        ("owner", True),
    ]


def _first_is_slow(number: int) -> float:
    return 50.0 if number == 0 else 5.0  # so that others begin before it says how dear it is


def test_ideas_wait_for_calls_under_way_that_turn_out_cheaper(
    api: TestClient, context: Context
) -> None:
    batch_id = submit(api, 20, options={"max_cost_usd": "0.05"})
    model = Metered(lambda _: 50, _first_is_slow, misfits=False)
    seconds = implement(context, model)
    assert failures(context, batch_id) == []
    assert len(model.calls) == 20
    assert model.spent == 20 * Decimal("0.0015")
    # Three calls are expected to cost more than the cap: the fourth waits for their end.
    began = sorted(call.began for call in model.calls)
    first_to_end = min(call.ended or 0 for call in model.calls)
    assert sum(moment < first_to_end for moment in began) == 3
    assert first_to_end <= began[3] <= first_to_end + asking.CAP_PAUSE_S
    assert seconds < 60
    body = api.get(f"/v1/batches/{batch_id}").json()
    assert (body["caps"][0]["reached"], body["not_done"]) == (False, 0)


def test_ideas_that_waited_end_if_the_calls_under_way_were_as_dear(
    api: TestClient, context: Context
) -> None:
    batch_id = submit(api, 20, options={"max_cost_usd": "0.05"})
    model = Metered(lambda _: 2500, _first_is_slow, misfits=False)
    implement(context, model)
    assert len(model.calls) == 3
    assert len(failures(context, batch_id)) == 17
    assert states_of_calls(context) == {"returned"}


GPU_PROFILE = """
[profiles.gpu]
gpus = 1
memory_gb = 0.5
[profiles.gpu.budget]
seconds = 3000
warm_up_seconds = 600
evaluation_seconds = 10
"""


def submit_for_gpus(api: TestClient, environments: Path, max_gpu_hours: float) -> str:
    """A batch of 24 ideas, of which each takes an hour of a GPU with its warm-up."""
    manifest = environments / "count" / "environment.toml"
    manifest.write_text(manifest.read_text() + GPU_PROFILE)
    return submit(api, 24, profile="gpu", options={"max_gpu_hours": max_gpu_hours})


def test_gpu_hours_are_kept_when_measurements_are_asked_for(
    api: TestClient, context: Context, environments: Path
) -> None:
    batch_id = submit_for_gpus(api, environments, 3.5)
    implement(context, metered())
    found = failures(context, batch_id)
    assert len(found) == 21, "a measurement counts with its whole budget"
    assert {(f["stage"], f["code"]) for f in found} == {("schedule", "gpu_hours_cap")}
    with_it = f"with this measurement, the batch {batch_id} has used 4 of 3.5 GPU-hours"
    assert all(f["message"] == f"{with_it}: raise the cap to go on" for f in found)
    body = api.get(f"/v1/batches/{batch_id}").json()
    assert (body["counts"]["queued"], body["not_done"]) == (3, 21)
    assert [(c["scope"], c["kind"], c["used"]) for c in body["caps"]] == [
        ("batch", "gpu_hours", "3.000000")
    ]


def test_no_model_is_asked_once_the_gpu_hours_are_used(
    api: TestClient, context: Context, environments: Path
) -> None:
    batch_id = submit_for_gpus(api, environments, 3)
    model = metered()
    implement(context, model)
    found = failures(context, batch_id)
    assert len(found) == 21
    assert {f["code"] for f in found} == {"gpu_hours_cap"}
    assert len(model.calls) < 24, "what could not be measured is not asked for"
    body = api.get(f"/v1/batches/{batch_id}").json()
    assert (body["caps"][0]["reached"], body["not_done"]) == (True, 21)

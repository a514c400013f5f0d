"""The number of statements of a request does not grow with what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from assay.client import Client
from assay.domain.conditions import Conditions
from assay.environments.catalog import Catalog
from assay.search.trajectories import TrajectoryReader
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.outcomes import FinishedBatches
from services.implementer.settings import ImplementerSettings
from tests.implementer.test_streams import serving
from tests.storage.lifecycle import CLASS, World
from tests.support.statements import counted

FEW, MANY = 2, 6


@pytest.fixture
def context(world: World, catalog: Catalog) -> Context:
    return Context(world.db, world.store, catalog, ImplementerSettings(), variables={})


@pytest.fixture
def api(context: Context) -> Iterator[TestClient]:
    with TestClient(create_app(context)) as client:
        yield client


class Filling:
    """Adds to a database what lists show, a round at a time."""

    def __init__(self, world: World, api: TestClient) -> None:
        self.world, self.api, self.rounds = world, api, 0
        self.search = self.new_search()

    def new_search(self) -> str:
        made = self.api.post(
            "/v1/searches",
            json={
                "environment": "count", "profile": "tiny", "strategy": "best-of-n",
                "epochs": 100, "batch_size": 2, "caps": {"max_executor_cost_usd": "5"},
            },
        )  # fmt: skip
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def epoch(self, search: str, number: int) -> None:
        """An epoch of two ideas, one of which is scored and one cancelled."""
        ideas = [{"text": f"{search} {number} {n}"} for n in range(2)]
        path = f"/v1/searches/{search}/epochs/{number}"
        assert self.api.put(path, json={"ideas": ideas}).status_code == 201
        made = self.api.post(f"{path}/batch", json={"baseline_seeds": 0}).json()
        first, second = self.world.experiments(made["id"])
        self.rounds += 1
        measurement = self.world.implement(first.id, f"a = {self.rounds}\n")
        self.world.measure(measurement)
        self.api.post(f"/v1/experiments/{second.id}/cancel")
        for tagged in (f"searches/{search}", f"experiments/{first.id}"):
            self.api.patch(f"/v1/{tagged}", json={"tags": ["each", f"round-{self.rounds}"]})

    def round(self) -> None:
        """One more epoch, search, open batch, host and kind of hardware."""
        self.epoch(self.search, self.rounds // 2)
        self.epoch(self.new_search(), 0)
        batch = self.world.submit(
            f"waits {self.rounds}", on=Conditions(CLASS), max_cost_usd="3", max_gpu_hours=1
        )
        for each in self.world.experiments(batch):
            self.world.implement(each.id, f"b = {self.rounds}\n")
        self.world.another(f"host-{self.rounds}")


@pytest.fixture
def filling(world: World, api: TestClient) -> Filling:
    return Filling(world, api)


PATHS: dict[str, Callable[[Filling], str]] = {
    "batches": lambda _: "/v1/batches",
    "batches of a search": lambda f: f"/v1/batches?search={f.search}",
    "searches": lambda _: "/v1/searches",
    "search": lambda f: f"/v1/searches/{f.search}",
    "experiments": lambda _: "/v1/experiments",
    "measurements": lambda _: "/v1/measurements",
    "workers": lambda _: "/v1/workers",
    "environments": lambda _: "/v1/environments",
    "overview page": lambda _: "/",
    "search page": lambda f: f"/searches/{f.search}",
    "workers page": lambda _: "/workers",
    "environment page": lambda _: "/environments/count",
    "failures page": lambda _: "/failures",
    "tag page": lambda _: "/tags?tag=each",
}


def test_no_request_asks_more_where_there_is_more_to_show(
    filling: Filling, api: TestClient, context: Context
) -> None:
    def statements() -> dict[str, int]:
        found = {}
        for name, path in PATHS.items():
            context.finished, context.tallies = FinishedBatches(), FinishedBatches()
            with counted(context.db) as sent:
                answer = api.get(path(filling))
            assert answer.status_code == 200, (name, answer.text)
            found[name] = len(sent)
        return found

    for _ in range(FEW):
        filling.round()
    statements()  # what a process reads once
    few = statements()
    for _ in range(MANY):
        filling.round()
    assert statements() == few


#: Each takes up to a millisecond of processor: to send it, and to read the answer. Of each kind of
#: cap that batches are under, one more than without caps.
MOST = {
    "experiment": 8,
    "experiments": 8,
    "experiments of a batch": 8,
    "batch": 7,
    "batches": 7,
    "batches of a search": 7,
    "search": 5,
    "searches": 5,
    "curves": 4,
}


def test_a_read_takes_few_statements(filling: Filling, api: TestClient) -> None:
    """An experiment took 19, a list of them 18, and a batch 9."""
    for _ in range(FEW):
        filling.round()
    experiment = next(
        each for each in api.get("/v1/experiments").json()["data"] if each["state"] == "succeeded"
    )
    paths = {name: PATHS[name](filling) for name in MOST.keys() & PATHS.keys()} | {
        "experiment": f"/v1/experiments/{experiment['id']}",
        "experiments": "/v1/experiments?state=succeeded",
        "experiments of a batch": f"/v1/experiments?batch={experiment['batch']}",
        "batch": f"/v1/batches/{experiment['batch']}",
        "batches": "/v1/batches?state=finished",
        "curves": f"/v1/experiments/{experiment['id']}/curves",
    }
    found = {}
    for name, path in paths.items():
        api.get(path)  # what a process reads once
        with counted(filling.world.db) as sent:
            assert api.get(path).status_code == 200
        found[name] = len([s for s in sent if s != "BEGIN"])  # which SQLite is told
    assert {name: number for name, number in found.items() if number > MOST[name]} == {}


def test_a_list_of_batches_takes_few_statements(filling: Filling, api: TestClient) -> None:
    """It took a dozen and more for each: 92 for six."""
    for _ in range(FEW):
        filling.round()
    with counted(filling.world.db) as sent:
        listed = api.get("/v1/batches").json()["data"]
    assert len(listed) == 3 * FEW
    assert len(sent) <= 36
    for batch in listed:
        assert api.get(f"/v1/batches/{batch['id']}").json() == batch


def test_the_diffs_of_a_batch_are_read_together(
    filling: Filling, world: World, catalog: Catalog
) -> None:
    """It took a request for each, of five statements."""
    few, many = (world.submit(*(f"{n}" for n in range(size))) for size in (FEW, MANY))
    for batch in (few, many):
        for each in world.experiments(batch):
            world.measure(world.implement(each.id, f"a = '{each.id}'\n"))
    with serving(world.db, world.store, catalog) as url, Client(url) as client:
        found = {}
        for batch in (few, few, many):  # what a process reads once comes first
            with counted(world.db) as sent:
                read = TrajectoryReader(client, with_curves=False).of_batch(batch, 0)
            found[batch] = len([s for s in sent if "pg_notify" not in s])
            assert all("+a = 'exp_" in each.diff for each in read)
        assert len(read) == MANY
        assert found[many] == found[few]

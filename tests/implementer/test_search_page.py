"""What the page of a search says of its best result, its cost, and why it waits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.domain.states import AttemptState, MeasurementKind
from assay.environments.catalog import Catalog
from assay.storage import schema
from assay.storage.attempts import Outcome
from tests.implementer.conftest import served
from tests.implementer.test_confirmations import take
from tests.storage.lifecycle import World

#: What the codebase of an idea scores in the search, and on fresh seeds.
Scores = Mapping[str, tuple[float, float]]
CODE = {name: f"a = '{name}'\n" for name in ("lucky", "solid", "plain")}
SCORES: Scores = {"lucky": (9.0, 4.1), "solid": (5.0, 4.8), "plain": (3.05, 3.05)}


@pytest.fixture
def api(world: World, catalog: Catalog) -> Iterator[TestClient]:
    with served(world, catalog) as client:
        yield client


class Run:
    """A search of three ideas, which a test drives by hand."""

    def __init__(self, api: TestClient, world: World, **changes: Any) -> None:
        self.api, self.world = api, world
        asked = {
            "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 2,
            "batch_size": 3, **changes,
        }  # fmt: skip
        made = api.post("/v1/searches", json=asked)
        assert made.status_code == 201, made.text
        self.id: str = made.json()["id"]
        self.of_code: dict[str, str] = {}

    def propose(self) -> None:
        ideas = [{"text": f"Idea {name}."} for name in CODE]
        path = f"/v1/searches/{self.id}/epochs/0"
        assert self.api.put(path, json={"ideas": ideas}).status_code == 201

    def submit(self) -> dict[str, str]:
        """The experiments by the names of their ideas."""
        body = {"seeds": [0, 1, 2], "baseline_seeds": 5}
        made = self.api.post(f"/v1/searches/{self.id}/epochs/0/batch", json=body)
        assert made.status_code in (200, 201, 202), made.text
        rows = self.world.experiments(made.json()["id"])
        return dict(zip(CODE, (row.id for row in rows), strict=True))

    def implement(self, experiment: str, name: str) -> None:
        self.world.implement(experiment, CODE[name])
        with self.world.db.read() as session:
            codebase = session.get_one(schema.Experiment, experiment).codebase_id
        assert codebase is not None
        self.of_code[codebase] = name

    def measure(self, seconds: float = 0.07) -> None:
        """Measure all that is queued."""
        with self.world.db.read() as session:
            query = select(schema.Measurement).where(schema.Measurement.state == "queued")
            queued = [(r.id, r.seed, r.codebase_id, r.kind) for r in session.scalars(query)]
        for id_, seed, codebase, kind in queued:
            is_fresh = kind == MeasurementKind.CONFIRM.value
            value = 3.0 + 0.01 * (seed * 7 % 5)
            if codebase in self.of_code:
                value += SCORES[self.of_code[codebase]][is_fresh] - 3.0 + 0.002 * (seed % 3)
            metrics = {"score": value, "confirmed_score": value}
            self.world.measure(
                id_,
                Outcome(
                    AttemptState.SUCCEEDED, metric=value, metrics=metrics, started=True,
                    provenance={"scored_on": "sealed"}, seconds=seconds,
                ),
            )  # fmt: skip

    def confirm(self, experiment: str) -> str:
        answer = self.api.post(f"/v1/experiments/{experiment}/confirm", json={"seeds": 3})
        assert answer.status_code == 202, answer.text
        for row in self.world.experiments(answer.json()["id"]):
            take(self.world, row.id)
        self.measure()
        return str(answer.json()["id"])

    def page(self, path: str = "") -> str:
        answer = self.api.get(path or f"/searches/{self.id}")
        assert answer.status_code == 200, answer.text
        return answer.text

    def tile(self, name: str) -> str:
        """The text of a tile, by the beginning of its name."""
        found = re.search(rf'<div class="tile[^>]*><dt>({name}.*?)</div>', self.page(), re.DOTALL)
        assert found, name
        return text_of(found[1])


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("&lt;", "<").split())


@pytest.fixture
def run(api: TestClient, world: World) -> Run:
    return Run(api, world)


@pytest.fixture
def measured(run: Run) -> tuple[Run, dict[str, str]]:
    """All three ideas have a result."""
    run.propose()
    found = run.submit()
    for name, experiment in found.items():
        run.implement(experiment, name)
    run.measure()
    return run, found


def test_the_best_is_the_one_of_the_largest_effect_on_fresh_seeds(
    measured: tuple[Run, dict[str, str]],
) -> None:
    """With the confirmation's number: the search's own is that of a lucky seed."""
    run, found = measured
    lead = run.tile("Best")
    assert "9.0" in lead
    assert "a lead" in lead
    assert "On fresh seeds" not in run.page()
    assert "Best metric first" in run.page()
    batches = [run.confirm(found["lucky"]), run.confirm(found["solid"])]
    body = run.api.get(f"/v1/experiments/{found['solid']}").json()
    confirmation = body["confirmation"]
    assert confirmation["claimed"]
    best, page = run.tile("Best"), run.page()
    fresh, effect = confirmation["metric"], confirmation["comparison"]["effect"]
    assert f"{fresh:.4f} confirmed: better by {effect:+.4f} [" in best
    assert f"in the search {body['metric']:.4f}" in best
    assert best.startswith("Best confirmed confirmed_score")
    assert f'"/experiments/{found["solid"]}">{fresh:.4f}' in page
    for batch in batches:
        assert f'href="/batches/{batch}"' in page
    data = json.loads(re.findall(r'id="hill-data">(.*?)</script>', page)[0])
    drawn = {point["id"]: point["fresh"] for point in data["points"]}
    assert drawn[found["solid"]].startswith(f"{fresh:.4f}, {effect:+.4f} [")
    assert drawn[found["plain"]] is None
    # Each took less than half a second: an axis of hours would show nothing.
    assert [scale["name"] for scale in data["scales"]] == ["experiments", "epoch", "minutes"]


def test_the_table_shows_what_it_is_ordered_by(measured: tuple[Run, dict[str, str]]) -> None:
    run, found = measured
    for name in ("lucky", "solid"):
        run.confirm(found[name])
    read = {n: run.api.get(f"/v1/experiments/{found[n]}").json() for n in CODE}
    compare = "/compare?" + "&".join(f"experiment={found[name]}" for name in CODE)
    for path in ("", f"/batches/{read['solid']['batch']}", compare):
        page = run.page(path)
        assert "On fresh seeds" in page, path
        for name in ("lucky", "solid"):
            comparison = read[name]["confirmation"]["comparison"]
            assert f"{comparison['effect']:+.4f} [{comparison['low']:+.4f}" in page, (path, name)
    rows = re.findall(r'id="row-(exp_\w+)"', run.page())
    assert rows == [found[name] for name in ("solid", "lucky", "plain")]
    assert "by their effect on fresh seeds" in run.page()
    plain = f"/compare?experiment={found['plain']}"
    assert "On fresh seeds" not in run.page(plain)


def test_the_overview_says_what_the_best_so_far_is(measured: tuple[Run, dict[str, str]]) -> None:
    run, found = measured
    metric = run.api.get(f"/v1/experiments/{found['lucky']}").json()["metric"]
    assert re.search(rf"{metric:.4f} score ↑ a lead", text_of(run.page("/")))
    run.confirm(found["lucky"])
    confirmation = run.api.get(f"/v1/experiments/{found['lucky']}").json()["confirmation"]
    assert re.search(
        rf"{metric:.4f} score ↑ confirmed: {confirmation['metric']:.4f} on fresh seeds \+",
        text_of(run.page("/")),
    )


def test_the_cost_names_what_it_includes(measured: tuple[Run, dict[str, str]]) -> None:
    """As the overview has it, in as many digits as a short time needs."""
    run, found = measured
    cost = run.tile("Cost")
    assert "$0 of models: ideas $0, code $0" in cost
    assert "0.63 s of CPU for experiments, 0 s for confirmations" in cost
    assert "baseline 0.35 s" in cost
    assert "$0 0.63 s of CPU" in text_of(run.page("/"))
    run.confirm(found["solid"])
    assert "0.63 s of CPU for experiments, 0.21 s for confirmations" in run.tile("Cost")
    assert "$0 0.63 s of CPU" in text_of(run.page("/"))
    row = run.page().partition(f'id="row-{found["solid"]}"')[2].partition("</tr>")[0]
    assert text_of(row).endswith("< 1 s")


def test_a_search_says_what_it_waits_for_before_there_is_a_batch(run: Run) -> None:
    assert "the client that drives it asks offline:ideator for those of epoch 0" in run.page()
    run.propose()
    assert "epoch 0 has its ideas and is about to be submitted" in run.page()
    found = run.submit()
    page = text_of(run.page())
    assert "Under way: epoch 0, 3 submitted; 5 seeds of the baseline to come." in page
    for name, experiment in found.items():
        run.implement(experiment, name)
    run.measure()
    assert "Under way:" not in run.page()
    assert "for those of epoch 1" in run.page()


def test_a_search_says_why_its_batch_waits(api: TestClient, world: World) -> None:
    run = Run(api, world, hardware_class="h100")
    run.propose()
    for name, experiment in run.submit().items():
        run.implement(experiment, name)
    (batch,) = api.get("/v1/batches", params={"search": run.id}).json()["data"]
    assert batch["waits_for"]
    # A later epoch that ended does not hide it.
    path = f"/v1/searches/{run.id}/epochs/1"
    assert api.put(path, json={"ideas": [{"text": "Another idea."}]}).status_code == 201
    later = api.post(f"{path}/batch", json={"baseline_seeds": 0}).json()["id"]
    assert api.post(f"/v1/batches/{later}/cancel").status_code == 200
    assert api.get(f"/v1/batches/{later}").json()["finished_at"]
    page = text_of(run.page())
    assert "Why it waits:" in page
    assert batch["waits_for"][0] in page


def test_a_running_epoch_counts_what_has_ended(run: Run) -> None:
    run.propose()
    found = run.submit()
    assert run.tile("Execution rate") == "Execution rate – 0 of 0 that ended scored, 3 to come"
    run.implement(found["solid"], "solid")
    run.measure()
    run.api.post(f"/v1/experiments/{found['plain']}/cancel")
    assert run.tile("Execution rate") == (
        "Execution rate 50 % 1 of 2 that ended scored, 1 to come"
    )
    metric = run.api.get(f"/v1/experiments/{found['solid']}").json()["metric"]
    epochs = run.page().partition('id="epochs"')[2].partition("</section>")[0]
    assert text_of(epochs).endswith(f"{metric:.4f} {metric:.4f} $0")

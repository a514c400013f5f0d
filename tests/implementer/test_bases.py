"""Bases: confirmed results that get a name, and batches that start from them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update
from starlette.testclient import TestClient

from assay.domain.states import AttemptState
from assay.environments.catalog import Catalog
from assay.patching.guard import MAX_GROWTH_BYTES
from assay.storage import batches, environments, garbage, implementations, schema
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.objects import LocalStore, codebase_key
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.scripted import Scripted
from tests.implementer.test_loop import implement as go_through_the_loop
from tests.storage.lifecycle import World

SEALED = "# no diff may touch this\n"
TRAIN = "STEP = 1\n"
SEEDS = [0, 1, 2]
PATCH = "```diff\n--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n-STEP = {}\n+STEP = {}\n```"


class Lab:
    """The API over a database whose measurements a test decides: a codebase `STEP = n` scores
    10 n, and its seeds differ by hundredths."""

    def __init__(self, world: World, context: Context, api: TestClient) -> None:
        self.world, self.context, self.api = world, context, api

    def post(self, path: str, body: dict[str, Any] | None = None, status: int = 202) -> Any:
        answer = self.api.post(path, json=body or {})
        assert answer.status_code == status, answer.text
        return answer.json()

    def get(self, path: str, **query: Any) -> Any:
        answer = self.api.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def submit(self, base: str | None = None, status: int = 202, **options: Any) -> Any:
        options = {"seeds": SEEDS, "baseline_seeds": 3, "novelty": "allow", **options}
        body = {
            "environment": "count", "profile": "tiny", "ideas": [{"text": "Count on."}],
            "options": options, "base": base,
        }  # fmt: skip
        return self.post("/v1/batches", body, status)

    def only(self, batch: str) -> str:
        (body,) = self.get("/v1/experiments", batch=batch)["data"]
        return str(body["id"])

    def implement(self, experiment: str, step: float, **files: str) -> str:
        """Give an experiment a codebase with this step, as the loop would; its hash."""
        tree = {"train.py": f"STEP = {step}\n", "sealed.py": SEALED, **files}
        codebase = environments.put_codebase(self.world.store, tree)
        with self.world.db.write() as session:
            work = implementations.begin(self.world.db, session, experiment)
            assert work is not None
            implementations.succeed(self.world.db, session, work, None, work.given or codebase)
        return codebase

    def measure(self, *, isolated: bool = True, **fixed: Any) -> None:
        """Give every queued measurement the result of its code."""
        table = schema.Measurement
        with self.world.db.read() as session:
            waiting = session.scalars(
                select(table).where(table.state == "queued").order_by(table.id)
            ).all()
        for row in waiting:
            files = environments.get_codebase(self.world.store, row.codebase_id)
            line = next(each for each in files["train.py"].splitlines() if "STEP =" in each)
            value = 10 * float(line.rpartition("=")[2]) + 0.01 * (row.seed % 3)
            name = "confirmed_score" if row.kind == "confirm" else "score"
            outcome = Outcome(
                AttemptState.SUCCEEDED, metric=value, metrics={name: value, "score": value},
                started=True, seconds=1.0, provenance={"isolated": isolated},
            )  # fmt: skip
            self.world.measure(row.id, outcome)

    def result(self, step: float, base: str | None = None) -> str:
        """An experiment with a result on three seeds."""
        experiment = self.only(self.submit(base)["id"])
        self.implement(experiment, step)
        self.measure()
        return experiment

    def confirm(self, experiment: str, *, isolated: bool = True, **asked: Any) -> Any:
        """Confirm an experiment and measure what that asks for; the batch."""
        made = self.post(f"/v1/experiments/{experiment}/confirm", {"seeds": 3, **asked})
        self.implement(self.only(made["id"]), 0)
        self.measure(isolated=isolated)
        return made

    def promote(self, experiment: str, status: int = 201, name: str = "best") -> Any:
        return self.post(f"/v1/experiments/{experiment}/promote", {"name": name}, status)

    def bases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/environments/count/bases")["data"]
        return found

    def codebase(self, experiment: str) -> str:
        return str(self.get(f"/v1/experiments/{experiment}")["codebase"])


@pytest.fixture
def lab(db: Database, store: LocalStore, catalog: Catalog) -> Iterator[Lab]:
    world = World.create(db, store, catalog)
    world.restart("two", isolated=True, sandbox="bubblewrap")
    context = Context(db, store, catalog, ImplementerSettings(), variables={})
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield Lab(world, context, client)


def test_only_a_confirmed_claim_is_promoted(lab: Lab) -> None:
    experiment = lab.result(2)
    refused = lab.promote(experiment, 409)
    assert refused["code"] == "unconfirmed"
    assert f"assay experiment confirm {experiment}" in refused["detail"]
    made = lab.post(f"/v1/experiments/{experiment}/confirm", {"seeds": 3})
    assert lab.promote(experiment, 409)["code"] == "unconfirmed", "it is not finished"
    confirming = lab.only(made["id"])
    lab.implement(confirming, 0)
    lab.measure()
    assert "promote that one" in lab.promote(confirming, 409)["detail"]
    assert lab.bases() == []
    first = lab.promote(experiment)
    assert (first["name"], first["number"], first["is_current"]) == ("best", 1, True)
    assert (first["experiment"], first["confirmation"]) == (experiment, confirming)
    assert first["codebase"] == lab.codebase(experiment)
    assert lab.promote(experiment, 200) == first, "again changes nothing"
    assert lab.bases() == [first]


def test_a_result_that_is_not_better_is_not_promoted(lab: Lab) -> None:
    worse = lab.result(0.5)
    lab.confirm(worse)
    assert lab.promote(worse, 409)["code"] == "not_claimed"


def test_a_result_that_its_code_could_change_is_not_promoted(lab: Lab) -> None:
    experiment = lab.result(2)
    lab.confirm(experiment, isolated=False)
    assert lab.promote(experiment, 409)["code"] == "unisolated_result"


def test_a_name_is_not_a_hash_an_experiment_or_the_baseline(lab: Lab) -> None:
    experiment = lab.result(2)
    lab.confirm(experiment)
    for name in ("baseline", "a" * 64, "exp_01", "Best", ""):
        assert lab.promote(experiment, 422, name)["errors"][0]["pointer"] == "/name", name


def test_a_name_passes_on_to_what_beats_its_holder(lab: Lab) -> None:
    first, other = lab.result(2), lab.result(3)
    lab.confirm(first)
    lab.promote(first)
    lab.confirm(other)
    refused = lab.promote(other, 409)
    assert refused["code"] == "unconfirmed", "it was confirmed against the baseline alone"
    assert f"assay experiment confirm {other} --base best" in refused["detail"]
    made = lab.confirm(other, base="best")
    assert made["base"]["codebase"] == lab.codebase(first)
    second = lab.promote(other)
    assert second["number"] == 2
    assert [(row["number"], row["is_current"]) for row in lab.bases()] == [(2, True), (1, False)]
    body = lab.get(f"/v1/experiments/{other}")["confirmation"]
    assert body["comparison"]["effect"] == pytest.approx(10, abs=0.1)
    assert body["against_baseline"]["effect"] == pytest.approx(20, abs=0.1)
    assert body["gap"] is None, "its effects are beside different codebases"


def test_another_name_is_free(lab: Lab) -> None:
    first, other = lab.result(2), lab.result(3)
    for experiment, name in ((first, "best"), (other, "second.line")):
        lab.confirm(experiment)
        lab.promote(experiment, name=name)
    assert [row["name"] for row in lab.bases()] == ["best", "second.line"]


def test_an_idea_is_compared_with_its_base_and_with_the_baseline(lab: Lab) -> None:
    first = lab.result(2)
    lab.confirm(first)
    codebase = lab.promote(first)["codebase"]
    made = lab.submit("best")
    assert made["base"]["name"] == "best"
    assert made["base"]["codebase"] == codebase
    assert made["base"]["measured"] == made["baseline"] | {
        "mean": 20.01, "spread": pytest.approx(0.01), "n": 3, "pending": 0,
    }, "the seeds that are there count"  # fmt: skip
    experiment = lab.only(made["id"])
    lab.implement(experiment, 1.5)
    lab.measure()
    body = lab.get(f"/v1/experiments/{experiment}")
    assert body["base"] == {"name": "best", "codebase": codebase}
    assert (body["comparison"]["verdict"], body["comparison"]["effect"]) == ("worse", -5.0)
    assert (body["against_baseline"]["verdict"], body["against_baseline"]["effect"]) == (
        "better", 5.0,
    )  # fmt: skip
    result = lab.get(f"/v1/experiments/{experiment}/result")
    assert result["against_baseline"] == body["against_baseline"]
    plain = lab.get(f"/v1/experiments/{first}")
    assert (plain["base"], plain["against_baseline"]) == (None, None)
    assert plain["comparison"]["effect"] == 10.0


def test_a_diff_is_against_the_base_or_against_the_baseline(lab: Lab) -> None:
    first = lab.result(2)
    experiment = lab.only(lab.submit(first)["id"])
    lab.implement(experiment, 3)
    diffs = {
        name: lab.api.get(f"/v1/experiments/{experiment}/diff", params={"against": name}).text
        for name in ("base", "baseline")
    }
    assert lab.api.get(f"/v1/experiments/{experiment}/diff").text == diffs["base"]
    assert "-STEP = 2\n+STEP = 3" in diffs["base"]
    assert "-seed = int(" in diffs["baseline"]


@pytest.mark.parametrize("named", ["experiment", "hash"])
def test_an_experiment_or_a_codebase_is_a_base_without_a_promotion(lab: Lab, named: str) -> None:
    first = lab.result(2)
    codebase = lab.codebase(first)
    made = lab.submit({"experiment": first, "hash": codebase}[named])
    name = {"experiment": first, "hash": None}[named]
    assert (made["base"]["name"], made["base"]["codebase"]) == (name, codebase)


def test_the_baseline_may_be_named_as_base(lab: Lab) -> None:
    own = lab.get("/v1/environments/count")["codebase"]
    for named in ("baseline", own):
        assert lab.submit(named)["base"] is None


def test_an_unknown_base_is_refused_and_nothing_is_stored(lab: Lab) -> None:
    waiting = lab.only(lab.submit()["id"])
    before = len(lab.get("/v1/batches")["data"])
    for named, code in (
        ("worst", "unknown_base"),
        ("exp_nobody", "unknown_base"),
        (waiting, "unknown_base"),
        ("a" * 64, "unknown_codebase"),
    ):
        refused = lab.submit(named, 422)
        assert (refused["code"], refused["errors"][0]["pointer"]) == (code, "/base"), named
    assert len(lab.get("/v1/batches")["data"]) == before


def test_what_a_batch_starts_from_does_not_change_with_the_name(lab: Lab) -> None:
    first = lab.result(2)
    lab.confirm(first)
    lab.promote(first)
    search = lab.post("/v1/searches", {
        "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 2,
        "batch_size": 1, "base": "best",
    }, 201)  # fmt: skip
    made = lab.submit("best")
    waiting = lab.only(made["id"])
    other = lab.result(3, "best")
    lab.confirm(other)
    assert lab.promote(other)["number"] == 2
    kept = lab.codebase(first)
    assert lab.get(f"/v1/batches/{made['id']}")["base"]["codebase"] == kept
    assert search["base"] == {"name": "best", "codebase": kept}
    path = f"/v1/searches/{search['id']}/epochs/0"
    assert lab.api.put(path, json={"ideas": [{"text": "Count."}]}).status_code == 201
    epoch = lab.post(f"{path}/batch", {"baseline_seeds": 3})
    assert (epoch["base"]["name"], epoch["base"]["codebase"]) == ("best", kept)
    lab.implement(waiting, 2.5)
    lab.measure()
    again = lab.confirm(waiting)
    assert (again["base"]["name"], again["base"]["codebase"]) == ("best", kept)
    assert lab.submit("best")["base"]["codebase"] == lab.codebase(other)


def test_others_see_names_and_code_and_no_experiments(
    db: Database, store: LocalStore, catalog: Catalog
) -> None:
    world = World.create(db, store, catalog)
    world.restart("two", isolated=True, sandbox="bubblewrap")
    settings = ImplementerSettings(api_keys={"ann": SecretStr("one"), "bob": SecretStr("two")})
    context = Context(db, store, catalog, settings, variables={})
    app = create_app(context)
    keys = {"ann": "one", "bob": "two"}
    ann, bob = (
        Lab(world, context, TestClient(app, headers={"Authorization": f"Bearer {key}"}))
        for key in keys.values()
    )
    first = ann.result(2)
    ann.confirm(first)
    ann.promote(first)
    (seen,) = bob.bases()
    assert (seen["owner"], seen["experiment"], seen["confirmation"]) == ("ann", None, None)
    assert bob.api.post(f"/v1/experiments/{first}/promote", json={}).status_code == 404
    assert bob.submit(first, 422)["code"] == "unknown_base"
    assert bob.submit("best")["base"]["codebase"] == seen["codebase"]
    files = bob.get("/v1/environments/count/codebase", base="best")
    assert (files["id"], files["files"]["train.py"]) == (seen["codebase"], "STEP = 2\n")


def test_the_loop_edits_the_base_and_refuses_what_changes_nothing_of_it(lab: Lab) -> None:
    first = lab.result(2)
    base = lab.codebase(first)

    def tried(answer: str) -> tuple[Any, Scripted]:
        experiment = lab.only(lab.submit(first)["id"])
        executor = Scripted(lambda _: answer)
        return go_through_the_loop(lab.context, experiment, executor), executor

    made, executor = tried(PATCH.format(2, 4))
    assert made.files == {"train.py": "STEP = 4\n", "sealed.py": SEALED}
    assert executor.asked[0].files == environments.get_codebase(lab.world.store, base)
    same, _ = tried(PATCH.format(2, "2  # as before"))
    assert same.code == "unchanged"
    misfit, _ = tried(PATCH.format(1, 4))
    assert misfit.code not in (None, "unchanged")


def test_bases_do_not_grow_from_one_to_the_next_without_end(lab: Lab) -> None:
    first = lab.only(lab.submit()["id"])
    more = "# " + "x" * (MAX_GROWTH_BYTES - 500) + "\n"
    lab.implement(first, 2, **{"more.py": more})
    answer = PATCH.format(2, "4\n+NOTE = '" + "y" * 2_000 + "'").replace("+1,1 @@", "+1,2 @@")
    experiment = lab.only(lab.submit(first)["id"])
    found = go_through_the_loop(lab.context, experiment, Scripted(lambda _: answer))
    assert found.code == "too_large"


def test_code_made_from_a_models_code_needs_isolation_too(lab: Lab) -> None:
    first = lab.result(2)
    with lab.world.db.write() as session:
        session.execute(update(schema.Batch).values(executor="anthropic:claude-opus-4-5"))
    second = lab.only(lab.submit(first)["id"])
    lab.implement(second, 3)
    third = lab.only(lab.submit(second)["id"])
    lab.implement(third, 4)
    with lab.world.db.read() as session:
        rows = session.scalars(select(schema.Measurement)).all()
    own = lab.get("/v1/environments/count")["codebase"]
    later = {lab.codebase(second), lab.codebase(third)}
    needs = {row.codebase_id: row.needs_isolation for row in rows if row.codebase_id in later}
    assert needs == dict.fromkeys(later, True)
    assert not any(row.needs_isolation for row in rows if row.codebase_id == own)
    free = lab.submit(first, allow_unisolated=True)
    assert free["base"]["codebase"] == lab.codebase(first)


def test_measurements_of_a_base_outlive_a_cancelled_idea(lab: Lab) -> None:
    first = lab.only(lab.submit(seeds=[0])["id"])
    lab.implement(first, 2)
    batch = lab.submit(first)["id"]
    base, table = lab.codebase(first), schema.Measurement

    def states() -> dict[int, str]:
        with lab.world.db.read() as session:
            rows = session.scalars(select(table).where(table.codebase_id == base))
            return {row.seed: row.state for row in rows}

    assert states() == dict.fromkeys(SEEDS, "queued")
    with lab.world.db.write() as session:
        batches.cancel_experiment(lab.world.db, session, first)
    lab.post(f"/v1/batches/{batch}/cancel", status=200)
    assert states() == dict.fromkeys(SEEDS, "queued")


def test_a_base_counts_bits_and_the_baseline_does_not(lab: Lab) -> None:
    first = lab.result(2)
    lab.submit(first, seeds=[0, 1, 2, 7], baseline_seeds=5)
    lab.measure()
    table = schema.Measurement
    with lab.world.db.read() as session:
        rows = session.scalars(select(table)).all()
    own, base = lab.get("/v1/environments/count")["codebase"], lab.codebase(first)
    assert {row.seed for row in rows if row.codebase_id == base} == {0, 1, 2, 3, 4, 7}
    assert all(row.search_bits > 0 for row in rows if row.codebase_id == base)
    assert not any(row.search_bits for row in rows if row.codebase_id == own)


def test_a_reproduction_keeps_the_base(lab: Lab) -> None:
    first = lab.result(2)
    experiment = lab.result(3, first)
    made = lab.post(f"/v1/experiments/{experiment}/reproduce")
    assert made["base"] == {"name": first, "codebase": lab.codebase(first)}


def test_garbage_leaves_a_codebase_that_is_nothing_but_a_base(lab: Lab) -> None:
    hashes = [
        lab.post(
            "/v1/environments/count/codebases",
            {"files": {"train.py": f"STEP = {step}\n", "sealed.py": SEALED}},
            201,
        )["id"]
        for step in (2, 3, 4)
    ]
    lab.submit(hashes[0], baseline_seeds=0)
    search = {
        "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 2,
        "batch_size": 1, "base": hashes[1],
    }  # fmt: skip
    lab.post("/v1/searches", search, 201)
    garbage.collect(lab.world.db, lab.world.store, timedelta(days=-1))
    kept = [lab.world.store.exists(codebase_key(each)) for each in hashes]
    assert kept == [True, True, False]

"""Bases: confirmed results that get a name, and batches that start from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update
from starlette.testclient import TestClient

from assay.contracts.batch import MAX_BASES, BatchBody
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import AttemptState, ExperimentState, FailureStage
from assay.environments.catalog import Catalog
from assay.patching import unified_diff
from assay.patching.guard import MAX_GROWTH_BYTES
from assay.storage import batches, environments, experiments, garbage, implementations, schema
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


def remark_on(files: Mapping[str, str]) -> str:
    """An answer that changes nothing but a comment."""
    changed = {**files, "train.py": "# a remark\n" + files["train.py"]}
    return f"```diff\n{unified_diff(files, changed)}```"


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

    def request(
        self, base: str | None = None, ideas: Sequence[dict[str, Any]] = ({},), **options: Any
    ) -> dict[str, Any]:
        """A batch; `ideas`: what each has beside its text."""
        return {
            "environment": "count", "profile": "tiny", "base": base,
            "ideas": [{"text": "Count on."} | idea for idea in ideas],
            "options": {"seeds": SEEDS, "baseline_seeds": 3, "novelty": "allow", **options},
        }  # fmt: skip

    def submit(self, base: str | None = None, status: int = 202, **options: Any) -> Any:
        return self.post("/v1/batches", self.request(base, **options), status)

    def on_bases(self, *bases: str | None, default: str | None = None, **options: Any) -> Any:
        """A batch with an idea for each of these bases."""
        return self.submit(default, ideas=[{"base": base} for base in bases], **options)

    def experiments(self, batch: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/experiments", batch=batch)["data"]
        return found

    def only(self, batch: str) -> str:
        (body,) = self.experiments(batch)
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
    assert made["bases"][0]["codebase"] == lab.codebase(first)
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
    (base,) = made["bases"]
    assert (base["name"], base["codebase"]) == ("best", codebase)
    assert base["measured"] == made["baseline"] | {
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
    assert [(base["name"], base["codebase"]) for base in made["bases"]] == [(name, codebase)]


def test_the_baseline_may_be_named_as_base(lab: Lab) -> None:
    own = lab.get("/v1/environments/count")["codebase"]
    for named in ("baseline", own):
        assert lab.submit(named)["bases"] == []


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
    assert lab.get(f"/v1/batches/{made['id']}")["bases"][0]["codebase"] == kept
    assert search["base"] == {"name": "best", "codebase": kept}
    path = f"/v1/searches/{search['id']}/epochs/0"
    assert lab.api.put(path, json={"ideas": [{"text": "Count."}]}).status_code == 201
    epoch = lab.post(f"{path}/batch", {"baseline_seeds": 3})
    assert [(base["name"], base["codebase"]) for base in epoch["bases"]] == [("best", kept)]
    lab.implement(waiting, 2.5)
    lab.measure()
    again = lab.confirm(waiting)
    assert [(base["name"], base["codebase"]) for base in again["bases"]] == [("best", kept)]
    assert lab.submit("best")["bases"][0]["codebase"] == lab.codebase(other)


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
    assert bob.submit("best")["bases"][0]["codebase"] == seen["codebase"]
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
    base = lab.implement(first, 2, **{"more.py": more})
    answer = PATCH.format(2, "4\n+NOTE = '" + "y" * 2_000 + "'").replace("+1,1 @@", "+1,2 @@")
    experiment = lab.only(lab.submit(base)["id"])
    found = go_through_the_loop(lab.context, experiment, Scripted(lambda _: answer))
    assert found.code == "too_large"


def test_code_made_from_a_models_code_needs_isolation_too(lab: Lab) -> None:
    first = lab.result(2)
    with lab.world.db.write() as session:
        session.execute(update(schema.Batch).values(executor="anthropic:claude-opus-4-5"))
    second = lab.only(lab.submit(first)["id"])
    lab.implement(second, 3)
    third = lab.only(lab.submit(lab.codebase(second))["id"])
    lab.implement(third, 4)
    with lab.world.db.read() as session:
        rows = session.scalars(select(schema.Measurement)).all()
    own = lab.get("/v1/environments/count")["codebase"]
    later = {lab.codebase(second), lab.codebase(third)}
    needs = {row.codebase_id: row.needs_isolation for row in rows if row.codebase_id in later}
    assert needs == dict.fromkeys(later, True)
    assert not any(row.needs_isolation for row in rows if row.codebase_id == own)
    free = lab.submit(first, allow_unisolated=True)
    assert free["bases"][0]["codebase"] == lab.codebase(first)


def test_measurements_of_a_base_outlive_a_cancelled_idea(lab: Lab) -> None:
    first = lab.only(lab.submit(seeds=[0])["id"])
    lab.implement(first, 2)
    base, table = lab.codebase(first), schema.Measurement
    batch = lab.submit(base)["id"]

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


# -- Ideas with bases of their own ----------------------------------------------------------------


def test_each_idea_has_its_own_base(lab: Lab) -> None:
    """Two verdicts each; what has no base is compared with the baseline alone."""
    first, other = lab.result(2), lab.result(3)
    made = lab.on_bases(first, None, other, "baseline", first)
    codebases = {name: lab.codebase(name) for name in (first, other)}
    assert [(base["name"], base["codebase"]) for base in made["bases"]] == list(codebases.items())
    rows = lab.experiments(made["id"])
    for row, step in zip(rows, (2.5, 2.6, 2.7, 2.8, 2.9), strict=True):
        lab.implement(row["id"], step)
    lab.measure()
    rows = lab.experiments(made["id"])
    wanted = [first, None, other, None, first]
    assert [row["base"] and row["base"]["name"] for row in rows] == wanted
    assert [row["comparison"]["effect"] for row in rows] == pytest.approx([5, 16, -3, 18, 9])
    beside = [row["against_baseline"] for row in rows]
    assert [one and one["effect"] for one in beside] == [15.0, None, 17.0, None, 19.0]
    assert [row["comparison"]["verdict"] for row in rows] == ["better"] * 2 + ["worse"] + [
        "better"
    ] * 2
    result = lab.get(f"/v1/experiments/{rows[2]['id']}/result")
    assert result["comparison"] == rows[2]["comparison"]
    assert result["against_baseline"] == beside[2]
    diff = lab.api.get(f"/v1/experiments/{rows[2]['id']}/diff").text
    assert "-STEP = 3\n+STEP = 2.7" in diff


def test_the_base_of_a_batch_is_the_default_of_its_ideas(lab: Lab) -> None:
    first, other = lab.result(2), lab.result(3)
    rows = lab.experiments(lab.on_bases(None, other, "baseline", default=first)["id"])
    assert [row["base"] and row["base"]["name"] for row in rows] == [first, other, None]
    made = lab.on_bases(other, default=first)
    assert [base["name"] for base in made["bases"]] == [other], "no idea changes the default"


def test_an_experiment_that_is_a_base_is_a_parent(lab: Lab) -> None:
    first = lab.result(2)
    ideas = [{"base": first}, {"base": first, "parents": [first]}, {"base": "baseline"}]
    rows = lab.experiments(lab.submit(first, ideas=ideas)["id"])
    assert [row["idea"]["parents"] for row in rows] == [[first], [first], []]
    third = lab.only(lab.submit(first)["id"])
    lab.implement(third, 3)
    lab.measure()
    (confirming,) = lab.experiments(lab.confirm(third)["id"])
    assert (confirming["idea"]["parents"], confirming["base"]["name"]) == ([third], first)


def test_a_base_is_measured_once_however_many_ideas_change_it(lab: Lab) -> None:
    first = lab.only(lab.submit(seeds=[0])["id"])
    lab.implement(first, 2)
    lab.measure()
    base = lab.codebase(first)
    made = lab.on_bases(first, base, None, first)
    (found,) = made["bases"]
    assert found["name"] == first
    assert found["measured"]["pending"] == 2, "one of the three seeds is there"
    assert BatchBody.model_validate(made).seeds_to_come == 2
    table = schema.Measurement
    with lab.world.db.read() as session:
        seeds = session.scalars(select(table.seed).where(table.codebase_id == base)).all()
    assert sorted(seeds) == SEEDS


def test_a_base_that_does_not_do_is_refused_where_it_stands_and_nothing_is_stored(
    lab: Lab,
) -> None:
    waiting, failed = (lab.only(lab.submit(seeds=[9])["id"]) for _ in range(2))
    lab.implement(waiting, 7)
    with lab.world.db.write() as session:
        failure = Failure(FailureStage.IMPLEMENT, FailureCode.NO_MATCH, "nowhere")
        experiments.move(session, failed, ExperimentState.FAILED, failure)
    before = len(lab.get("/v1/batches")["data"])
    for named, code, said in (
        ("worst", "unknown_base", "assay env bases count"),
        ("exp_nobody", "unknown_base", "there is no experiment"),
        (waiting, "unknown_base", f"is queued; name an experiment that has a result, or its "
         f"codebase {lab.codebase(waiting)} as it is"),
        (failed, "unknown_base", "is failed; name an experiment that has a result"),
        ("a" * 64, "unknown_codebase", "send its files"),
    ):  # fmt: skip
        refused = lab.on_bases(None, None, None, named, status=422)
        assert (refused["code"], refused["errors"][0]["pointer"]) == (code, "/ideas/3/base")
        assert said in refused["detail"]
    assert len(lab.get("/v1/batches")["data"]) == before


def test_a_base_of_another_environment_is_refused(lab: Lab) -> None:
    first = lab.result(2)
    with lab.world.db.write() as session:
        row = session.scalars(select(schema.Environment)).one()
        copied = {c.key: getattr(row, c.key) for c in schema.Environment.__table__.columns}
        session.add(schema.Environment(**copied | {"id": "other@1", "name": "other"}))
        session.flush()
        session.execute(update(schema.Batch).values(environment_id="other@1"))
    refused = lab.on_bases("baseline", first, status=422)
    assert (refused["code"], refused["errors"][0]["pointer"]) == ("unknown_base", "/ideas/1/base")
    assert "was made in other@1" in refused["detail"]


def test_a_batch_has_so_many_bases_at_most(lab: Lab) -> None:
    hashes = [
        lab.post(
            "/v1/environments/count/codebases",
            {"files": {"train.py": f"STEP = {step}\n", "sealed.py": SEALED}},
            201,
        )["id"]
        for step in range(2, MAX_BASES + 3)
    ]
    refused = lab.on_bases(*hashes, hashes[0], status=422)
    pointer = refused["errors"][0]["pointer"]
    assert (refused["code"], pointer) == ("too_many_bases", f"/ideas/{MAX_BASES}/base")
    assert f"at most {MAX_BASES} bases" in refused["detail"]
    refused = lab.on_bases(None, *hashes[1:], default=hashes[0], status=422)
    assert refused["code"] == "too_many_bases", "the default is one of them"
    options = {"seeds": [0], "baseline_seeds": 0}
    made = lab.on_bases(*hashes[1:], "baseline", *hashes[1:], default=hashes[0], **options)
    assert len(made["bases"]) == MAX_BASES


def test_a_price_knows_the_bases(lab: Lab) -> None:
    first, other = lab.result(2), lab.result(3)
    ideas = [{"base": name} for name in (first, other, first, None)]
    answer = lab.api.post(
        "/v1/batches", params={"dry_run": True}, json=lab.request(ideas=ideas)
    ).json()
    assert (answer["measurements"], answer["base_measurements"]) == (12, 6)


def test_the_loop_edits_the_base_of_the_idea(lab: Lab) -> None:
    """It sees that tree, and what changes nothing of that one is refused."""
    first = lab.result(2)
    base = environments.get_codebase(lab.world.store, lab.codebase(first))
    own = environments.get_codebase(lab.world.store, lab.get("/v1/environments/count")["codebase"])
    rows = lab.experiments(lab.on_bases(first, None, first)["id"])
    for row, answer, files, code in zip(
        rows,
        (PATCH.format(2, 1), remark_on(own), remark_on(base)),
        (base, own, base),
        (None, "unchanged", "unchanged"),
        strict=True,
    ):
        executor = Scripted(lambda _, text=answer: text)
        found = go_through_the_loop(lab.context, row["id"], executor)
        assert executor.asked[0].files == files
        assert getattr(found, "code", None) == code
        if code is None:
            assert found.files == {"train.py": "STEP = 1\n", "sealed.py": SEALED}


def test_a_model_written_base_isolates_its_idea_alone(lab: Lab) -> None:
    first = lab.result(2)
    with lab.world.db.write() as session:
        session.execute(update(schema.Batch).values(executor="anthropic:claude-opus-4-5"))
    rows = lab.experiments(lab.on_bases(first, None)["id"])
    for row, step in zip(rows, (4, 5), strict=True):
        lab.implement(row["id"], step)
    with lab.world.db.read() as session:
        found = session.scalars(select(schema.Measurement)).all()
    needs = {row.codebase_id: row.needs_isolation for row in found}
    assert [needs[lab.codebase(row["id"])] for row in rows] == [True, False]


def test_experiments_of_several_bases_are_confirmed_together(lab: Lab) -> None:
    """Each beside its own base; the claims are one family."""
    first, other = lab.result(2), lab.result(3)
    ids = [row["id"] for row in lab.experiments(lab.on_bases(first, other, None)["id"])]
    for id_, step in zip(ids, (2.5, 2.9, 4), strict=True):
        lab.implement(id_, step)
    lab.measure()
    made = lab.post(f"/v1/experiments/{ids[0]}/confirm", {"seeds": 3, "beside": ids[1:]})
    for row in lab.experiments(made["id"]):
        lab.implement(row["id"], 0)
    lab.measure()
    rows = lab.experiments(made["id"])
    assert [row["base"] and row["base"]["name"] for row in rows] == [first, other, None]
    assert [row["claimed"] for row in rows] == [True, False, True]
    assert [row["comparison"]["effect"] for row in rows] == pytest.approx([5, -1, 30], abs=0.1)


def test_a_repetition_keeps_the_base_of_its_idea(lab: Lab) -> None:
    first = lab.result(2)
    rows = lab.experiments(lab.on_bases(None, first)["id"])
    for row, step in zip(rows, (4, 5), strict=True):
        lab.implement(row["id"], step)
    lab.measure()
    plain, changed = (lab.post(f"/v1/experiments/{row['id']}/reproduce") for row in rows)
    assert (plain["base"], changed["base"]["name"]) == (None, first)
    assert changed["idea"]["parents"] == [rows[1]["id"]]


def test_the_same_words_on_another_base_are_another_idea(lab: Lab) -> None:
    first = lab.result(2)
    rows = lab.experiments(lab.on_bases(first, None, first, novelty="skip")["id"])
    alike = [[one["experiment"] for one in row["idea"]["similar"]] for row in rows]
    assert (alike[0], alike[2][:1]) == ([], [rows[0]["id"]])
    assert first in alike[1], "it was tried on the environment's own code"


def test_ideas_of_an_epoch_may_have_bases(lab: Lab) -> None:
    first, other = lab.result(2), lab.result(3)
    search = lab.post("/v1/searches", {
        "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 2,
        "batch_size": 3, "base": first,
    }, 201)  # fmt: skip
    path = f"/v1/searches/{search['id']}/epochs/0"
    ideas = [{"text": "Count."}, {"text": "On.", "base": other}]
    refused = lab.api.put(path, json={"ideas": [*ideas, {"text": "Up.", "base": "worst"}]})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/ideas/2/base"
    for status in (201, 200):
        assert lab.api.put(path, json={"ideas": ideas}).status_code == status
    (stored,) = lab.get(f"/v1/searches/{search['id']}/epochs")["data"]
    assert [idea["base"] for idea in stored["ideas"]] == [None, other]
    made = lab.post(f"{path}/batch", {"baseline_seeds": 3})
    rows = lab.experiments(made["id"])
    assert [row["base"]["name"] for row in rows] == [first, other]


def test_an_epoch_that_was_stored_before_ideas_had_a_base_is_the_same(lab: Lab) -> None:
    search = lab.post("/v1/searches", {
        "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 2,
        "batch_size": 1,
    }, 201)  # fmt: skip
    path = f"/v1/searches/{search['id']}/epochs/0"
    lab.api.put(path, json={"ideas": [{"text": "Count."}]})
    with lab.world.db.write() as session:
        row = session.get_one(schema.Epoch, (search["id"], 0))
        row.ideas = [{k: v for k, v in idea.items() if k != "base"} for idea in row.ideas]
    assert lab.api.put(path, json={"ideas": [{"text": "Count."}]}).status_code == 200
    assert lab.api.put(path, json={"ideas": [{"text": "Up."}]}).status_code == 409

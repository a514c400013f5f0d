"""Tags and notes of experiments and searches: kept, shown, looked up, and without effect on the
rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, text
from starlette.testclient import TestClient

from assay.environments.catalog import Catalog
from assay.storage import schema
from assay.storage.annotations import change_annotation, read_annotations
from assay.storage.database import Database
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import batch
from tests.implementer.scored import Service, score
from tests.storage.lifecycle import World
from tests.support.statements import counted

KEYS = {"ann": SecretStr("key-of-ann-0123456789"), "bob": SecretStr("key-of-bob-0123456789")}
ANN, BOB = ({"Authorization": f"Bearer {key.get_secret_value()}"} for key in KEYS.values())
HERE = {"Origin": "http://testserver"}
HOSTILE = (
    '</textarea></p><script>alert(1)</script> <b>bold</b> **x** "q"\n\n  second\x1b[31m\u202e'
)
SEARCH = {
    "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 1,
    "batch_size": 2,
}  # fmt: skip


@pytest.fixture
def context(world: World, catalog: Catalog) -> Context:
    return Context(world.db, world.store, catalog, ImplementerSettings(), variables={})


@pytest.fixture
def api(context: Context) -> Iterator[TestClient]:
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client


def experiments_of(api: TestClient, *texts: str, **headers: str) -> list[str]:
    """Submit a batch of ideas; its experiments, in their order."""
    made = api.post("/v1/batches", json=batch(*texts), headers=headers)
    assert made.status_code == 202, made.text
    query = {"batch": made.json()["id"], "limit": "200"}
    listed = api.get("/v1/experiments", params=query, headers=headers).json()["data"]
    return [str(each["id"]) for each in listed]


def new_search(api: TestClient) -> str:
    made = api.post("/v1/searches", json=SEARCH)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def subject(api: TestClient, kind: str) -> str:
    """The path of a new experiment or search."""
    made = new_search(api) if kind == "searches" else experiments_of(api)[0]
    return f"/{kind}/{made}"


def changed(api: TestClient, path: str, **body: Any) -> Any:
    answer = api.patch(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def listed(api: TestClient, kind: str, **query: str) -> list[str]:
    """The ids of all pages of a list."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = api.get(f"/v1/{kind}", params=query | cursor)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [each["id"] for each in page["data"]]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


both_kinds = pytest.mark.parametrize("kind", ["experiments", "searches"])


@both_kinds
def test_what_is_given_is_kept_and_the_rest_stays_as_it_is(api: TestClient, kind: str) -> None:
    path = "/v1" + subject(api, kind)
    before = api.get(path).json()
    assert (before["tags"], before["note"]) == ([], "")
    body = changed(api, path, tags=["z/1", "a.b", "z/1", "C-d_e:f"])
    assert (body["tags"], body["note"]) == (["z/1", "a.b", "C-d_e:f"], "")
    body = changed(api, path, note="First line.\nSecond.")
    assert (body["tags"], body["note"]) == (["z/1", "a.b", "C-d_e:f"], "First line.\nSecond.")
    assert changed(api, path, tags=None, note=None) == changed(api, path) == body
    assert api.get(path).json() == body
    (shown,) = (each for each in api.get(f"/v1/{kind}").json()["data"] if each["id"] == body["id"])
    assert shown == body
    assert body | {"tags": [], "note": ""} == before, "nothing else is changed"
    assert changed(api, path, tags=[])["note"] == "First line.\nSecond."
    assert listed(api, kind, tag="a.b") == []
    assert changed(api, path, note="") == before


@both_kinds
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"tags": ["fine", "has space"]}, "/tags/1"),
        ({"tags": [""]}, "/tags/0"),
        ({"tags": ["x" * 41]}, "/tags/0"),
        ({"tags": ["é"]}, "/tags/0"),
        ({"tags": ["line\n"]}, "/tags/0"),
        ({"tags": [1]}, "/tags/0"),
        ({"tags": [f"t{n}" for n in range(21)]}, "/tags"),
        ({"tags": "keep"}, "/tags"),
        ({"note": "x" * 10_001}, "/note"),
        ({"note": "a\x00b"}, "/note"),
        ({"tag": ["keep"]}, "/tag"),
    ],
)
def test_what_is_refused_names_its_field_and_changes_nothing(
    api: TestClient, kind: str, body: dict[str, Any], pointer: str
) -> None:
    path = "/v1" + subject(api, kind)
    answer = api.patch(path, json={"note": "n", "tags": ["t"]} | body)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [wrong["pointer"] for wrong in answer.json()["errors"]] == [pointer]
    read = api.get(path).json()
    assert (read["tags"], read["note"]) == ([], "")


def test_the_longest_are_kept(api: TestClient) -> None:
    tags = [f"{n:02d}" + "x" * 38 for n in range(20)]
    body = changed(api, "/v1" + subject(api, "experiments"), tags=tags, note="ä" * 10_000)
    assert (body["tags"], body["note"]) == (tags, "ä" * 10_000)
    assert listed(api, "experiments", tag=tags[-1]) == [body["id"]]


@both_kinds
def test_a_wrong_tag_in_a_query_is_named(api: TestClient, kind: str) -> None:
    answer = api.get(f"/v1/{kind}?tag=has%20space")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
    assert answer.json()["errors"][0]["pointer"] == "tag"


def test_experiments_with_a_tag_are_found_page_by_page(api: TestClient) -> None:
    first = experiments_of(api, *(f"Count to {n}." for n in range(6)))
    second = experiments_of(api, *(f"Count from {n}." for n in range(4)))
    chosen = [*first[::2], *second[1:]]
    for id_ in chosen:
        changed(api, f"/v1/experiments/{id_}", tags=["other", "keep"])
    changed(api, f"/v1/experiments/{first[1]}", tags=["keeper"])
    assert listed(api, "experiments", tag="keep", limit="2") == sorted(chosen, reverse=True)
    owner = api.get("/v1/batches").json()["data"][1]["id"]
    assert listed(api, "experiments", tag="keep", batch=owner, limit="2") == first[::2]
    api.post(f"/v1/experiments/{first[2]}/cancel")
    of_state = {"tag": "keep", "state": "cancelled", "environment": "count"}
    assert listed(api, "experiments", **of_state) == [first[2]]
    assert listed(api, "experiments", tag="kee") == []
    changed(api, f"/v1/experiments/{first[0]}", tags=["other"])
    assert first[0] not in listed(api, "experiments", tag="keep")


def test_searches_with_a_tag_are_found_page_by_page(api: TestClient) -> None:
    made = [new_search(api) for _ in range(5)]
    for id_ in made[1:4]:
        changed(api, f"/v1/searches/{id_}", tags=["keep"])
    assert listed(api, "searches", tag="keep", limit="1") == made[3:0:-1]
    assert listed(api, "experiments", tag="keep") == []
    page = api.get("/v1/searches?tag=keep&limit=1").json()
    wrong = api.get("/v1/searches", params={"cursor": page["next_cursor"]})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "cursor")


@both_kinds
def test_a_list_takes_as_many_statements_with_tags_as_without(
    api: TestClient, context: Context, kind: str
) -> None:
    made = [subject(api, kind) for _ in range(8)]

    def statements(query: str) -> int:
        with counted(context.db) as sent:
            assert api.get(f"/v1/{kind}{query}").status_code == 200
        return len([s for s in sent if "pg_notify" not in s])

    changed(api, "/v1" + made[0], tags=["keep"], note="n")
    statements("?tag=keep")
    few = statements("?tag=keep"), statements("")
    assert few[0] == few[1]
    for path in made[1:]:
        changed(api, "/v1" + path, tags=["keep", *(f"t{n}" for n in range(19))], note="n")
    assert (statements("?tag=keep"), statements("")) == few


@both_kinds
@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_tag_is_looked_up_in_an_index(api: TestClient, context: Context, kind: str) -> None:
    changed(api, "/v1" + subject(api, kind), tags=["keep"])
    with counted(context.db) as sent:
        listed(api, kind, tag="keep")
    (asked,) = (statement for statement in sent if "JOIN tag" in statement)
    values = ["x"] * (asked.count("?") - 2) + ["9", "0"]  # LIMIT and OFFSET come last
    with context.db.read() as session:
        rows = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}", tuple(values))
        plan = [str(row[-1]) for row in rows]
    assert any("tag USING" in step and "ix_tag_name (owner=? AND name=?" in step for step in plan)
    assert [step for step in plan if step.startswith("SCAN")] == []


def test_nobody_sees_or_changes_what_another_owner_said(context: Context) -> None:
    context.settings.api_keys = KEYS
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        of_ann, of_bob = (experiments_of(api, **headers)[0] for headers in (ANN, BOB))
        search = api.post("/v1/searches", json=SEARCH, headers=ANN).json()["id"]
        body = {"tags": ["keep"], "note": "mine"}
        for path in (f"/v1/experiments/{of_ann}", f"/v1/searches/{search}"):
            assert api.patch(path, json=body, headers=BOB).status_code == 404
            assert api.patch(path, json=body).status_code == 401
            assert api.get(path, headers=ANN).json()["tags"] == []
            assert api.patch(path, json=body, headers=ANN).status_code == 200
        for kind in ("experiments", "searches"):
            assert api.get(f"/v1/{kind}?tag=keep", headers=BOB).json()["data"] == []
        bob = api.patch(f"/v1/experiments/{of_bob}", json=body, headers=BOB).json()
        found = api.get("/v1/experiments?tag=keep", headers=BOB).json()["data"]
        assert found == [bob]
        form = {"tags": "stolen", "note": ""}
        for path in (f"/experiments/{of_ann}", f"/searches/{search}"):
            sent = api.post(f"{path}/annotate", data=form, headers=BOB | HERE)
            assert sent.status_code == 404
            assert api.get(f"/v1{path}", headers=ANN).json()["note"] == "mine"


def test_no_event_tells_of_it_and_the_batch_stays_as_it_is(
    api: TestClient, context: Context
) -> None:
    search, (id_, _) = new_search(api), experiments_of(api, "a", "b")
    of = api.get(f"/v1/experiments/{id_}").json()["batch"]

    def state() -> list[Any]:
        with context.db.read() as session:
            rows = [
                session.scalars(select(func.count()).select_from(table)).one()
                for table in (schema.Event, schema.SearchEvent, schema.Outbox, schema.Delivery)
            ]
        read = api.get(f"/v1/batches/{of}")
        return [*rows, read.json(), read.headers["etag"]]

    before = state()
    changed(api, f"/v1/experiments/{id_}", tags=["keep"], note="n")
    changed(api, f"/v1/searches/{search}", tags=["keep"], note="n")
    assert state() == before


def test_what_is_measured_and_exported_is_the_same_with_tags(service: Service) -> None:
    score(service, {"score": 12.0}, {})
    (first, _), api = service.experiments, service.api
    paths = [
        f"/v1/experiments/{first}/result",
        f"/v1/batches/{service.found['batch_id']}/trajectories",
        f"/v1/measurements/{service.found['measurement_id']}",
    ]
    before = [api.get(path).json() for path in paths]
    plain = api.get(f"/v1/experiments/{first}").json()
    body = changed(api, f"/v1/experiments/{first}", tags=["keep"], note="n")
    assert body == plain | {"tags": ["keep"], "note": "n"}
    assert [api.get(path).json() for path in paths] == before


@both_kinds
def test_pages_show_a_note_as_text_and_edit_it_by_a_form(api: TestClient, kind: str) -> None:
    path = subject(api, kind)
    empty = api.get(path).text
    assert f'<form method="post" action="{path}/annotate">' in empty
    assert "Add tags or a note" in empty
    form = {"tags": " keep,  a/b keep\n", "note": HOSTILE.replace("\n", "\r\n")}
    sent = api.post(f"{path}/annotate", data=form, headers=HERE, follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, f"{path}#annotation")
    body = api.get(f"/v1{path}").json()
    assert (body["tags"], body["note"]) == (["keep", "a/b"], HOSTILE)
    page = api.get(path).text
    for markup in ("<script>alert", "<b>bold", "</textarea></p>"):
        assert markup not in page
    assert '<li><a class="tag" href="/tags?tag=a%2Fb">a/b</a></li>' in page
    shown, edited = (
        page.partition(start)[2].partition(end)[0]
        for start, end in (('<p class="prose-idea">&lt;', "</p>"), ('maxlength="10000">', "</tex"))
    )
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "**x** &#34;q&#34;\n\n  second" in shown
    assert edited.startswith("\n&lt;/textarea"), "a browser drops the line break"
    assert "**x** &#34;q&#34;\n\n  second" in edited
    assert api.post(f"{path}/annotate", data={"tags": "", "note": ""}, headers=HERE).is_success
    assert (read := api.get(f"/v1{path}").json())["tags"] == []
    assert read["note"] == ""


@both_kinds
def test_a_wrong_form_names_its_field_and_changes_nothing(api: TestClient, kind: str) -> None:
    path = subject(api, kind)
    wrong = api.post(f"{path}/annotate", data={"tags": "ok <b>", "note": "n"}, headers=HERE)
    assert wrong.status_code == 422
    assert "/tags/1" in wrong.text
    assert "<code>invalid_parameter</code>" in wrong.text
    foreign = api.post(f"{path}/annotate", data={"tags": "ok"})
    assert foreign.status_code == 403, "a form says where it comes from"
    assert api.get(f"/v1{path}").json()["tags"] == []


@pytest.mark.postgres
def test_two_changes_at_once_leave_the_tags_of_one(postgres: Database) -> None:
    """The index has what the annotation has, however the two meet."""
    sets = [[f"{side}{n}" for n in range(20)] for side in "ab"]
    for number in range(5):
        id_, gate = f"exp_{number}", threading.Barrier(2)

        def change(tags: list[str], id_: str = id_, gate: threading.Barrier = gate) -> None:
            gate.wait()
            with postgres.write() as session:
                change_annotation(session, "local", id_, tags, None)
                session.execute(text("SELECT pg_sleep(0.05)"))

        threads = [threading.Thread(target=change, args=(tags,)) for tags in sets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with postgres.read() as session:
            kept = read_annotations(session, [id_])[id_].tags
            table = schema.Tag
            query = select(table.name).where(table.subject_id == id_)
            assert kept in sets
            assert sorted(session.scalars(query)) == sorted(kept)

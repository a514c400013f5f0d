"""The pages of the dashboard over HTTP, without a browser."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import SecretStr
from sqlalchemy import event
from starlette.testclient import TestClient

from assay.analysis.report import SearchRecord
from assay.analysis.report.reading import read_record
from assay.analysis.report.writing import html_of_search
from assay.client import Client
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.pages.diffs import file_diffs
from services.implementer.pages.rendering import STATIC
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import batch
from tests.implementer.scored import Service, score

HERE = {"Origin": "http://testserver"}
HOSTILE = "<script>alert(1)</script> <b>bold</b> \x1b[31mred\u202e"
KEYS = {"ann": SecretStr("key-of-ann-0123456789"), "bob": SecretStr("key-of-bob-0123456789")}


@pytest.fixture
def scored(service: Service) -> Service:
    score(service, {"score": 12.0}, {})
    return service


@pytest.fixture
def locked(context: Context) -> Iterator[TestClient]:
    """A client of a service that takes two keys."""
    closed = Context(
        context.db, context.store, context.catalog, ImplementerSettings(api_keys=KEYS), {}
    )
    with TestClient(create_app(closed), raise_server_exceptions=False) as client:
        yield client


def pages_of(service: Service) -> list[str]:
    found = service.found
    return [
        "/",
        f"/searches/{found['search_id']}",
        f"/searches/{found['search_id']}?state=succeeded&idea={service.experiments[1]}",
        f"/batches/{found['batch_id']}",
        f"/batches/{found['batch_id']}?state=failed",
        f"/experiments/{service.experiments[0]}",
        f"/experiments/{service.experiments[1]}",
        f"/compare?experiment={service.experiments[0]}&experiment={service.experiments[1]}",
        "/environments",
        "/environments/count",
        "/tags",
        "/workers",
        "/failures",
        f"/failures?search={found['search_id']}",
        "/submit",
        "/start",
        "/docs",
    ]


def test_every_page_is_html_that_loads_nothing_from_elsewhere(scored: Service) -> None:
    for path in pages_of(scored):
        answer = scored.api.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="([^"]+)"', answer.text)
        assert loaded
        assert [each for each in loaded if not each.startswith("/static/")] == []
        assert re.findall(r" style=| on[a-z]+=|javascript:", answer.text) == []
        scripts = re.findall(r"<script(?![^>]* src=)([^>]*)>", answer.text)
        assert [s for s in scripts if 'type="application/json"' not in s] == []
        for address in loaded:
            assert scored.api.get(address).status_code == 200


def test_a_result_and_its_verdict_are_on_the_page(scored: Service) -> None:
    body = scored.api.get(f"/v1/experiments/{scored.experiments[0]}").json()
    page = scored.api.get(f"/experiments/{scored.experiments[0]}").text
    assert f"{body['metric']:.4f}" in page
    assert f"{body['comparison']['effect']:+.4f}" in page
    assert body["comparison"]["verdict"] in page


def test_text_of_an_idea_is_shown_as_text(api: TestClient) -> None:
    made = api.post("/v1/batches", json=batch(HOSTILE)).json()
    listed = api.get("/v1/experiments", params={"batch": made["id"]}).json()["data"]
    for path in ("/", f"/batches/{made['id']}", f"/experiments/{listed[0]['id']}", "/workers"):
        text = api.get(path).text
        assert "<script>alert" not in text
        assert "<b>bold" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)" in api.get(f"/experiments/{listed[0]['id']}").text


def test_metadata_and_settings_are_shown_as_text(service: Service) -> None:
    made = service.api.post("/v1/batches", json=batch("a", metadata={HOSTILE: HOSTILE})).json()
    wanted = {
        "environment": "count", "profile": "tiny", "strategy": "random", "epochs": 1,
        "batch_size": 1, "config": {"strategy": {HOSTILE: HOSTILE, "number": 3}},
    }  # fmt: skip
    search = service.api.post("/v1/searches", json=wanted).json()
    for path in (f"/batches/{made['id']}", f"/searches/{search['id']}"):
        text = service.api.get(path).text
        assert "&lt;script&gt;alert(1)" in text
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_confirmation_of_a_search_leads_to_it(scored: Service) -> None:
    search = scored.found["search_id"]
    asked = {"seeds": 2, "search": search}
    path = f"/v1/experiments/{scored.experiments[0]}/confirm"
    made = scored.api.post(path, json=asked).json()["id"]
    (head,) = re.findall(r"<h1>(.*?)</h1>", scored.api.get(f"/batches/{made}").text)
    assert f'<a href="/experiments/{scored.experiments[0]}">Idea 0.</a>' in head
    assert f'of the search <a href="/searches/{search}">' in head


def test_the_navigation_says_what_its_links_do(api: TestClient) -> None:
    page = api.get("/environments").text
    for path, name in (("/start", "New search"), ("/submit", "Submit ideas")):
        assert re.search(rf'<a href="{path}"[^>]*>{name}</a>', page)


def test_a_failure_is_shown_with_who_is_to_blame(scored: Service) -> None:
    for measurement in scored.implement(scored.experiments[1], "b = 1\n"):
        failure = {"stage": "train", "code": "crashed", "message": "ValueError"}
        scored.finish(measurement, state="failed", failure=failure)
    batch_id = scored.found["batch_id"]
    said = "train: crashed</a>, blame: the idea or its code"
    assert said in scored.api.get(f"/batches/{batch_id}").text
    assert (
        "blame: the idea or its code"
        in scored.api.get(f"/experiments/{scored.experiments[1]}").text
    )
    assert "Blame: the idea or its code" in scored.api.get("/failures").text


def test_a_tag_leads_to_what_has_it(scored: Service) -> None:
    api, search, (first, second) = scored.api, scored.found["search_id"], scored.experiments
    for tag in ("warmup/cosine", ".."):
        for path in (f"/v1/searches/{search}", f"/v1/experiments/{first}"):
            assert api.patch(path, json={"tags": ["other", tag]}).status_code == 200
        link = f'href="/tags?{urlencode({"tag": tag})}"'
        batch_id = scored.found["batch_id"]
        for path in ("/", f"/searches/{search}", f"/experiments/{first}", f"/batches/{batch_id}"):
            assert link in api.get(path).text, path
        page = api.get("/tags", params={"tag": tag}).text
        assert f'href="/searches/{search}"' in page
        assert f'href="/experiments/{first}"' in page
        assert f'href="/experiments/{second}"' not in page
    assert f'href="?{urlencode({"tag": "other"})}">other 2</a>' in api.get("/tags").text
    assert 'href="/tags"' in api.get("/").text
    nothing = api.get("/tags?tag=unused")
    assert nothing.status_code == 200
    assert "No search has this tag" in nothing.text
    assert "No experiment has this tag" in nothing.text
    assert api.get("/tags", params={"tag": "<script>"}).status_code == 400


def test_tags_are_their_owners(locked: TestClient) -> None:
    ann, bob = ({"Authorization": f"Bearer {key.get_secret_value()}"} for key in KEYS.values())
    made = locked.post("/v1/batches", json=batch(), headers=ann).json()["id"]
    listed = locked.get("/v1/experiments", params={"batch": made}, headers=ann).json()["data"]
    path = f"/v1/experiments/{listed[0]['id']}"
    assert locked.patch(path, json={"tags": ["secret"]}, headers=ann).status_code == 200
    assert listed[0]["id"] in locked.get("/tags?tag=secret", headers=ann).text
    assert "secret" in locked.get("/tags", headers=ann).text
    assert listed[0]["id"] not in locked.get("/tags?tag=secret", headers=bob).text
    assert "secret" not in locked.get("/tags", headers=bob).text


def test_text_of_an_idea_cannot_end_the_data_of_a_chart(service: Service) -> None:
    search = service.found["search_id"]
    text = service.api.get(f"/searches/{search}").text
    (data,) = re.findall(r'id="hill-data">(.*?)</script>', text)
    assert "<" not in data
    assert "Idea 0." in data


def test_the_overview_asks_as_much_of_many_batches_as_of_few(
    api: TestClient, context: Context
) -> None:
    asked: list[str] = []
    event.listen(context.db.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))

    def statements() -> int:
        asked.clear()
        assert api.get("/").status_code == 200
        return len(asked)

    api.post("/v1/batches", json=batch())
    few = statements()
    for number in range(8):
        api.post("/v1/batches", json=batch(f"Count in {number}s."))
    assert statements() == few


def test_an_error_is_a_page_that_says_what_to_do(api: TestClient) -> None:
    answer = api.get("/experiments/exp_none")
    assert answer.status_code == 404
    assert "exp_none" in answer.text
    assert 'href="/docs/errors#not_found"' in answer.text
    assert api.get("/batches/x?nonsense=1").status_code == 400
    assert (
        api.get("/v1/experiments/exp_none")
        .headers["content-type"]
        .startswith("application/problem+json")
    )


def test_links_of_errors_lead_to_their_place(api: TestClient) -> None:
    link = api.get("/v1/batches/none").json()["type"]
    path, _, anchor = link.partition("#")
    page = api.get(path)
    assert page.status_code == 200
    assert f'id="{anchor}"' in page.text


def test_links_between_pages_of_the_documentation_lead_somewhere(api: TestClient) -> None:
    first = api.get("/docs").text
    names = re.findall(r'<a href="(/docs/[^"#]+)"', first)
    assert len(names) > 10
    anchors = {name: set(re.findall(r'id="([^"]+)"', api.get(name).text)) for name in names}
    for name in names:
        text = api.get(name).text
        for target in re.findall(r'(?:href|src)="(/docs[^"]*)"', text):
            path, _, anchor = target.partition("#")
            if path.startswith("/docs/images/"):
                assert api.get(path).status_code == 200, (name, target)
            elif path in anchors:
                assert not anchor or anchor in anchors[path], (name, target)


def test_terms_are_a_click_from_the_documentation(api: TestClient) -> None:
    assert 'href="/docs/concepts#terms"' in api.get("/docs").text
    page = api.get("/docs/concepts").text
    assert 'id="terms"' in page
    for term in ("lead", "confirmed", "verdict"):
        assert f"<td>{term}</td>" in page


def test_a_form_of_another_site_is_refused(api: TestClient) -> None:
    made = api.post("/v1/batches", json=batch()).json()["id"]
    for headers in ({}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
        answer = api.post(f"/batches/{made}/cancel", data={"a": "b"}, headers=headers)
        assert answer.status_code == 403, headers
    assert api.get(f"/v1/batches/{made}").json()["state"] == "running"
    answer = api.post(
        f"/batches/{made}/cancel", data={"a": "b"}, headers=HERE, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, f"/batches/{made}")
    assert api.get(f"/v1/batches/{made}").json()["state"] == "cancelled"


def test_a_form_is_no_way_into_the_api(api: TestClient) -> None:
    answer = api.post("/v1/batches", data={"a": "b"}, headers=HERE)
    assert answer.json()["code"] == "unsupported_media_type"


def test_ideas_are_priced_then_submitted_once(api: TestClient) -> None:
    fields = {
        "profile": "count/tiny", "executor": "offline:literal", "seeds": "0 1",
        "baseline_seeds": "2", "ideas": "Count in twos.\n---\nCount in threes.", "key": "form-1",
    }  # fmt: skip
    priced = api.post("/submit", data={**fields, "action": "check"}, headers=HERE)
    assert "2 ideas, 4 measurements" in priced.text
    assert api.get("/v1/batches").json()["data"] == []
    for _ in range(2):
        api.post("/submit", data={**fields, "action": "submit"}, headers=HERE)
    (made,) = api.get("/v1/batches").json()["data"]
    assert (made["counts"]["total"], made["options"]["seeds"]) == (2, [0, 1])


def test_ideas_that_will_fail_are_warned_of_before_they_are_submitted(api: TestClient) -> None:
    empty = api.get("/submit").text
    assert "&lt;&lt;&lt;&lt;&lt;&lt;&lt; SEARCH" in empty
    assert 'href="/docs/quickstart#your-own-ideas"' in empty
    (example,) = re.findall(r"<pre[^>]*><code>(.*?)</code>", empty, re.DOTALL)
    fields = {"profile": "count/tiny", "executor": "offline:literal", "seeds": "0",
              "action": "check"}  # fmt: skip
    prose = api.post("/submit", data={**fields, "ideas": "Count in twos."}, headers=HERE).text
    assert "<code>/ideas/0/text</code>" in prose
    assert "choose a model" in prose
    assert 'class="note good"' not in prose
    edit = api.post("/submit", data={**fields, "ideas": unescape(example)}, headers=HERE).text
    assert "/ideas/0/text" not in edit
    assert 'class="note good"' in edit


def test_a_wrong_form_says_which_field_and_submits_nothing(api: TestClient) -> None:
    fields = {"profile": "count/tiny", "executor": "offline:literal", "ideas": "x", "seeds": "one"}
    answer = api.post("/submit", data={**fields, "action": "submit"}, headers=HERE)
    assert answer.status_code == 422
    assert "/options/seeds/0" in answer.text
    assert api.get("/v1/batches").json()["data"] == []


START = {
    "profile": "count/tiny", "strategy": "greedy", "ideator": "offline:ideator",
    "executor": "offline:literal", "epochs": "3", "batch_size": "4", "confirm": "1",
    "confirm_seeds": "3", "seed": "7", "max_cost_usd": "", "base": "", "key": "form-2",
}  # fmt: skip


def test_a_search_is_started_once_per_form_and_driven_by_the_service(api: TestClient) -> None:
    assert "greedy" in api.get("/start").text
    for _ in range(2):
        answer = api.post("/start", data=START, headers=HERE, follow_redirects=False)
        assert answer.status_code == 303, answer.text
    (made,) = api.get("/v1/searches").json()["data"]
    assert answer.headers["location"] == f"/searches/{made['id']}"
    assert (made["driver"], made["strategy"], made["epochs"]) == ("service", "greedy", 3)
    assert (made["config"]["confirm"], made["config"]["confirm_seeds"]) == (1, 3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"executor": "anthropic:claude-opus-4-5"}, "/caps/max_cost_usd"),
        ({"epochs": "many"}, "/epochs"),
        ({"strategy": "luck"}, "/strategy"),
        ({"profile": "count/none"}, "none"),
        ({"confirm_seeds": "0"}, "confirm_seeds"),
    ],
)
def test_a_wrong_search_is_not_started(
    api: TestClient, change: dict[str, str], field: str
) -> None:
    answer = api.post("/start", data={**START, **change}, headers=HERE)
    assert answer.status_code == 422
    assert field in answer.text
    assert api.get("/v1/searches").json()["data"] == []


def test_a_search_is_paused_resumed_and_extended_from_its_page(api: TestClient) -> None:
    answer = api.post("/start", data=START, headers=HERE, follow_redirects=False)
    page = answer.headers["location"]

    def act(action: str, **fields: str) -> dict[str, Any]:
        answer = api.post(f"{page}/{action}", data=fields, headers=HERE, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        found: dict[str, Any] = api.get(f"/v1{page}").json()
        return found

    assert ">Pause" in api.get(page).text
    assert act("pause")["pauses"][-1]["resumed_at"] is None
    assert ">Resume" in api.get(page).text
    resumed = act("resume")
    assert resumed["pauses"][-1]["resumed_at"] is not None
    assert resumed["driver"] == "service"
    assert act("extend", epochs="5")["epochs"] == 5
    lower = api.post(f"{page}/extend", data={"epochs": "four"}, headers=HERE)
    assert lower.status_code == 422
    assert "/epochs" in lower.text
    assert api.get(f"/v1{page}").json()["epochs"] == 5


def test_a_result_is_confirmed_from_its_page(scored: Service) -> None:
    path = f"/experiments/{scored.experiments[0]}/confirm"
    answer = scored.api.post(
        path, data={"seeds": "3", "key": "one"}, headers=HERE, follow_redirects=False
    )
    assert answer.status_code == 303, answer.text
    made = answer.headers["location"].removeprefix("/batches/")
    assert scored.api.get(f"/v1/batches/{made}").json()["kind"] == "confirm"
    link = f'<a href="/experiments/{scored.experiments[0]}">Idea 0.</a>'
    page = scored.api.get(f"/batches/{made}").text
    assert f"confirmation of {link}" in page
    assert "<title>Confirmation of Idea 0." in page
    assert f"confirms {link}" in scored.api.get("/").text
    assert scored.api.post(path, data={"seeds": "999"}, headers=HERE).status_code == 422


def test_a_browser_is_asked_for_a_key_and_keeps_a_session(locked: TestClient) -> None:
    asked = locked.get("/failures?search=x", follow_redirects=False)
    assert asked.status_code == 303
    assert asked.headers["location"] == "/login?next=%2Ffailures%3Fsearch%3Dx"
    wrong = locked.post("/login", data={"key": "no"}, headers=HERE, follow_redirects=False)
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    key = KEYS["ann"].get_secret_value()
    right = locked.post(
        "/login", data={"key": key, "next": "//evil.example"}, headers=HERE, follow_redirects=False
    )
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert key not in cookie
    assert "owner <code>ann</code>" in locked.get("/").text
    made = locked.post("/v1/batches", json=batch(), headers=HERE).json()
    assert made["owner"] == "ann"
    locked.post("/logout", headers=HERE)
    assert locked.get("/", follow_redirects=False).status_code == 303


def test_a_session_cannot_be_forged_or_turned_into_another_owners(locked: TestClient) -> None:
    key = KEYS["ann"].get_secret_value()
    locked.post("/login", data={"key": key}, headers=HERE)
    name, until, signature = locked.cookies["assay_session"].split(".")
    for forged in (
        f"Ym9i.{until}.{signature}",  # bob
        f"{name}.{int(until) + 1}.{signature}",
        f"{name}.{until}.{'0' * 64}",
        f"{name}.{until}",
        "é.1.x",
    ):
        headers = {"Cookie": f"assay_session={forged}".encode()}
        locked.cookies.clear()
        assert locked.get("/v1/batches", headers=headers).status_code == 401, forged


def test_another_owners_pages_are_not_there(locked: TestClient) -> None:
    ann, bob = (f"Bearer {key.get_secret_value()}" for key in KEYS.values())
    made = locked.post("/v1/batches", json=batch(), headers={"Authorization": ann}).json()
    path = f"/batches/{made['id']}"
    assert locked.get(path, headers={"Authorization": ann}).status_code == 200
    assert locked.get(path, headers={"Authorization": bob}).status_code == 404
    assert made["id"] not in locked.get("/", headers={"Authorization": bob}).text


def test_vendored_files_are_those_that_are_named() -> None:
    table = (STATIC / "vendor" / "VENDORED.md").read_text()
    for path in sorted((STATIC / "vendor").iterdir()):
        if path.suffix in (".js", ".css"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() in table, path
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) < 1 << 20


def test_a_diff_is_read_by_the_numbers_of_its_hunks() -> None:
    text = (
        "diff --git a/a b.py b/a b.py\n--- a/a b.py\t\n+++ b/a b.py\t\n@@ -1,2 +1,3 @@\n"
        " x = 1\n--- a\n+++ b\n+@@ -9 +9 @@\n\\ No newline at end of file\n"
    )
    (found,), cut = file_diffs(text)
    assert (found.name, found.added, found.removed, cut) == ("a b.py", 2, 1, False)
    assert [(line.kind, line.old, line.new) for line in found.lines] == [
        ("hunk", None, None), ("same", 1, 1), ("del", 2, None), ("add", None, 2),
        ("add", None, 3),
    ]  # fmt: skip


def test_a_search_is_exported_as_the_file_of_the_command(scored: Service) -> None:
    search = scored.found["search_id"]
    assert (
        f'href="/searches/{search}/report" download' in scored.api.get(f"/searches/{search}").text
    )
    answer = scored.api.get(f"/searches/{search}/report")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="{search}.html"'
    with Client("http://localhost", http_client=scored.api) as client:
        assert answer.text == html_of_search(read_record(client, search))


@pytest.mark.slow
def test_a_report_is_its_owners(locked: TestClient) -> None:
    asked = {"environment": "count", "profile": "tiny", "strategy": "random", "epochs": 1,
             "batch_size": 1}  # fmt: skip
    ann = {"Authorization": f"Bearer {KEYS['ann'].get_secret_value()}"}
    bob = {"Authorization": f"Bearer {KEYS['bob'].get_secret_value()}"}
    search = locked.post("/v1/searches", json=asked, headers=ann).json()["id"]
    assert locked.get(f"/searches/{search}/report", headers=bob).status_code == 404
    assert search in locked.get(f"/searches/{search}/report", headers=ann).text


@pytest.mark.slow
def test_one_report_is_made_at_a_time(scored: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/searches/{scored.found['search_id']}/report"
    begun, go_on = threading.Event(), threading.Event()

    def slowly(client: Client, search: str) -> SearchRecord:
        begun.set()
        assert go_on.wait(60)
        return read_record(client, search)

    monkeypatch.setattr("services.implementer.exporting.read_record", slowly)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(scored.api.get, path)
        assert begun.wait(60)
        refused = scored.api.get(path)
        go_on.set()
        assert first.result().status_code == 200
    assert refused.status_code == 429
    assert "report_busy" in refused.text

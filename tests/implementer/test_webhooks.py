"""Webhooks over the API, and a sender against receivers that work, fail, hang and are gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.client import verify_webhook
from assay.contracts.webhook import WebhookRequest
from assay.domain.webhooks import WebhookEvent
from assay.environments.catalog import Catalog
from assay.storage import schema, webhooks
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.receivers import Policy
from services.implementer.settings import ImplementerSettings
from services.implementer.webhooks import AT_ONCE, WebhookSender
from tests.implementer.test_confirmations import ask, better, measure_all, result, take, worse
from tests.storage.lifecycle import World
from tests.support.local_server import LocalHandler, LocalServer
from tests.support.ports import free_port
from tests.support.receiver import HANG, receiver
from tests.support.waiting import wait_until

SOON = (0.01, 0.01, 0.01)
Json = dict[str, Any]


@dataclass
class Site:
    """The API over a world, and a sender that runs when a test starts it."""

    world: World
    context: Context
    api: TestClient
    senders: list[WebhookSender] = field(default_factory=list)

    def start(self, *schedule: float) -> WebhookSender:
        sender = WebhookSender(self.context, schedule=schedule or SOON)
        self.context.on_commit = sender.look
        sender.start()
        self.senders.append(sender)
        return sender

    def create(self, url: str, **changes: Any) -> Json:
        answer = self.api.post("/v1/webhooks", json={"url": url, **changes})
        assert answer.status_code == 201, answer.text
        made: Json = answer.json()
        return made

    def deliveries(self, webhook: str) -> list[Json]:
        answer = self.api.get(f"/v1/webhooks/{webhook}/deliveries")
        assert answer.status_code == 200, answer.text
        found: list[Json] = answer.json()["data"]
        return found

    def states(self, webhook: str) -> list[str]:
        return [each["state"] for each in self.deliveries(webhook)]

    def search(self, **changes: Any) -> str:
        body = {
            "environment": "count", "profile": "tiny", "strategy": "random", "epochs": 1,
            "batch_size": 2, "metadata": {"team": "a"}, **changes,
        }  # fmt: skip
        answer = self.api.post("/v1/searches", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def post(self, path: str, **body: Any) -> None:
        answer = self.api.post(path, json=body) if body else self.api.post(path)
        assert answer.is_success, answer.text


@contextmanager
def opened(world: World, catalog: Catalog, **settings: Any) -> Iterator[Site]:
    chosen = ImplementerSettings.model_validate({"webhook_seconds": 1.0, **settings})
    context = Context(world.db, world.store, catalog, chosen, variables={})
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        site = Site(world, context, api)
        try:
            yield site
        finally:
            for sender in site.senders:
                sender.stop()


@pytest.fixture
def site(world: World, catalog: Catalog) -> Iterator[Site]:
    with opened(world, catalog) as found:
        yield found


def test_an_event_is_signed_and_sent_once(site: Site) -> None:
    with receiver() as there:
        made = site.create(f"{there.url}/hook?a=b")
        site.start()
        search = site.search()
        for _ in range(2):
            site.post(f"/v1/searches/{search}/finish")
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
        (one,) = there.received
    assert one.path == "/hook?a=b"
    assert one.headers["content-type"] == "application/json"
    assert one.headers["host"] == there.url.removeprefix("http://")
    verify_webhook(made["secret"], one.headers, one.content)
    assert one.body["type"] == "search.finished"
    assert (
        one.body["text"] == f"The search {search} (random, {site.world.environment}) is finished"
    )
    assert one.body["data"] == {
        "search": search,
        "environment": site.world.environment,
        "profile": "tiny",
        "strategy": "random",
        "epochs": 1,
        "metadata": {"team": "a"},
        "page": f"/searches/{search}",
    }
    (delivery,) = site.deliveries(made["id"])
    assert (delivery["id"], delivery["status"], delivery["attempts"]) == (one.id, 204, 1)
    assert delivery["next_at"] is None


def test_what_fails_is_sent_again_under_the_same_id(site: Site) -> None:
    with receiver(500, 302, 503) as there:
        made = site.create(there.url)
        site.start()
        site.post(f"/v1/searches/{site.search()}/pause")
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
    assert len(there.received) == 4
    assert {each.id for each in there.received} == {site.deliveries(made["id"])[0]["id"]}
    assert len({each.content for each in there.received}) == 1
    assert {each.path for each in there.received} == {"/"}  # no redirect was followed
    assert there.types[0] == "search.paused"
    for each in there.received:
        verify_webhook(made["secret"], each.headers, each.content)


def test_what_always_fails_is_given_up_visibly_and_can_be_sent_again(site: Site) -> None:
    with receiver(*[500] * 4) as there:
        made = site.create(there.url)
        sender = site.start()
        site.post(f"/v1/searches/{site.search()}/cancel")
        wait_until(lambda: site.states(made["id"]) == ["failed"])
        (failed,) = site.deliveries(made["id"])
        assert (failed["attempts"], failed["error"]) == (4, "answered 500")
        assert (failed["status"], failed["type"]) == (500, "search.cancelled")
        there.answers += [500]
        site.post(f"/v1/webhooks/{made['id']}/deliveries/{failed['id']}/retry")
        sender.look()
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
    assert site.deliveries(made["id"])[0]["attempts"] == 6
    assert len({each.id for each in there.received}) == 1


def test_a_receiver_that_hangs_or_is_away_holds_nobody_up(site: Site) -> None:
    with receiver(*[HANG] * 9) as hanging, receiver() as there:
        away = site.create(f"http://127.0.0.1:{free_port()}/")
        stuck, well = site.create(hanging.url), site.create(there.url)
        site.start(0.01)
        began = time.monotonic()
        for _ in range(3):
            site.post(f"/v1/searches/{site.search()}/finish")
        wait_until(lambda: site.states(well["id"]) == ["delivered"] * 3)
        took = time.monotonic() - began
        wait_until(lambda: set(site.states(away["id"])) == {"failed"})
        wait_until(lambda: "failed" in site.states(stuck["id"]))
        (first, *_) = [e for e in site.deliveries(stuck["id"]) if e["state"] == "failed"]
        assert (first["error"], first["status"]) == ("no answer within 1 s", None)
    assert took < 60
    assert site.deliveries(away["id"])[0]["error"].startswith("no connection: ")


def test_nothing_is_sent_after_deletion(site: Site) -> None:
    with receiver() as deleted, receiver() as kept:
        gone, stays = site.create(deleted.url), site.create(kept.url)
        site.post(f"/v1/searches/{site.search()}/finish")
        assert site.states(gone["id"]) == ["pending"]
        assert site.api.delete(f"/v1/webhooks/{gone['id']}").status_code == 204
        site.start()
        site.post(f"/v1/searches/{site.search()}/finish")
        wait_until(lambda: site.states(stays["id"]) == ["delivered"] * 2)
        assert deleted.received == []
    for path in ("", "/deliveries"):
        assert site.api.get(f"/v1/webhooks/{gone['id']}{path}").status_code == 404
    with site.world.db.read() as session:
        assert len(session.scalars(select(schema.Delivery.id)).all()) == 2


def test_what_a_dead_process_had_claimed_is_sent_by_the_next(site: Site) -> None:
    """As after `kill -9` between storing, sending and noting what came of it."""
    with receiver() as there:
        made = site.create(there.url)
        site.post(f"/v1/searches/{site.search()}/finish")
        with site.world.db.write() as session:
            lease = timedelta(seconds=0.5)
            (claimed,) = webhooks.claim(site.world.db, session, lease, limit=9)
        site.start()
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
        assert [each.id for each in there.received] == [claimed.id]
        # The dead one comes back: what it says counts no longer.
        with site.world.db.write() as session:
            answer = webhooks.Answer(500, "answered 500")
            assert not webhooks.settle(site.world.db, session, claimed, answer, None)


def test_an_event_that_is_not_committed_is_not_told(site: Site) -> None:
    with receiver() as there:
        made = site.create(there.url)
        site.start()
        search = site.search()

        def fail() -> None:
            with site.world.db.write() as session:
                webhooks.tell(session, "local", WebhookEvent.CAP_REACHED, "c", "t", {})
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        site.post(f"/v1/searches/{search}/finish")
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
        assert there.types == ["search.finished"]


def test_only_what_was_asked_for_is_sent(site: Site) -> None:
    with receiver() as there:
        site.create(there.url, events=["search.cancelled"])
        rest = site.create(there.url, events=["search.paused", "search.finished"])
        site.start()
        site.post(f"/v1/searches/{site.search()}/finish")
        wait_until(lambda: site.states(rest["id"]) == ["delivered"])
        assert there.types == ["search.finished"]


def test_a_receiver_that_is_gone_is_told_nothing_more(site: Site) -> None:
    with receiver(410) as there:
        made = site.create(there.url)
        for _ in range(2):
            site.post(f"/v1/searches/{site.search()}/finish")
        site.start()
        wait_until(lambda: site.states(made["id"]) == ["failed"] * 2)
        assert site.api.get(f"/v1/webhooks/{made['id']}").json()["state"] == "disabled"
        site.post(f"/v1/searches/{site.search()}/finish")
        assert len(site.deliveries(made["id"])) == 2
        refused = site.api.post(f"/v1/webhooks/{made['id']}/test")
        assert (refused.status_code, refused.json()["code"]) == (409, "webhook_disabled")
        assert len(there.received) == 1


def test_a_test_is_sent_once(site: Site) -> None:
    with receiver(500) as there:
        made = site.create(there.url, events=["cap.reached"])
        site.start()
        for state in ("failed", "delivered"):
            sent = site.api.post(f"/v1/webhooks/{made['id']}/test").json()
            path = f"/v1/webhooks/{made['id']}/deliveries/{sent['id']}"
            wait_until(lambda p=path, s=state: site.api.get(p).json()["state"] == s)  # type: ignore[misc]
        assert there.types == ["webhook.test"] * 2


def test_the_secret_is_shown_once(site: Site) -> None:
    body, headers = {"url": "http://127.0.0.1:1/"}, {"Idempotency-Key": "k"}
    made = site.api.post("/v1/webhooks", json=body, headers=headers)
    again = site.api.post("/v1/webhooks", json=body, headers=headers)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == made.json()
    secret = made.json()["secret"]
    site.post(f"/v1/webhooks/{made.json()['id']}/test")
    for path in ("", f"/{made.json()['id']}", f"/{made.json()['id']}/deliveries"):
        shown = site.api.get(f"/v1/webhooks{path}").text
        assert made.json()["id"] in shown
        assert "secret" not in shown
    with site.world.db.read() as session:
        for row in session.scalars(select(schema.IdempotencyKey)):
            assert secret not in str(row.body)
    assert site.api.delete(f"/v1/webhooks/{made.json()['id']}").status_code == 204
    assert site.api.post("/v1/webhooks", json=body, headers=headers).status_code == 404


def test_webhooks_are_their_owners(world: World, catalog: Catalog) -> None:
    networks = ["127.0.0.0/8"]
    keys = {"ann": "key of ann", "bob": "key of bob"}
    with opened(world, catalog, api_keys=keys, webhook_networks=networks) as site:
        site.api.headers["Authorization"] = "Bearer key of ann"
        with receiver() as there:
            made = site.create(there.url)
            path = f"/v1/webhooks/{made['id']}"
            delivery = site.api.post(f"{path}/test").json()["id"]
            site.api.headers["Authorization"] = "Bearer key of bob"
            assert site.api.get("/v1/webhooks").json()["data"] == []
            for method, rest in (
                ("GET", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries"),
                ("GET", f"/deliveries/{delivery}"), ("POST", f"/deliveries/{delivery}/retry"),
            ):  # fmt: skip
                assert site.api.request(method, path + rest).status_code == 404, method + rest
            own = site.create(there.url)
            site.post(f"/v1/searches/{site.search()}/finish")
            site.start()
            wait_until(lambda: site.states(own["id"]) == ["delivered"])
            site.api.headers["Authorization"] = "Bearer key of ann"
            wait_until(lambda: site.states(made["id"]) == ["delivered"])
            assert sorted(there.types) == ["search.finished", "webhook.test"]


def test_there_is_a_most_of_webhooks(site: Site) -> None:
    with site.world.db.write() as session:
        for _ in range(webhooks.MOST_WEBHOOKS):
            request = WebhookRequest(url="http://127.0.0.1/")
            webhooks.create(site.world.db, session, "local", request)
    refused = site.api.post("/v1/webhooks", json={"url": "http://127.0.0.1/"})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_webhooks")


@pytest.mark.parametrize(
    "url",
    [
        "example.org", "ftp://example.org/", "http://", "https://user:word@example.org/",
        "http://example.org/#a", "http://example.org:0/", "http://example.org:99999/",
        "http://exa mple.org/", "http://[::1/", "http://example.org/é",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused(site: Site, url: str) -> None:
    answer = site.api.post("/v1/webhooks", json={"url": url})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == "/url"


# -- which addresses are called ------------------------------------------------------------------

PRIVATE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "::1", "fd00::1", "::ffff:10.1.2.3",
    "64:ff9b::a01:203", "2002:a01:203::1", "::a01:203", "::ffff:0:a01:203",
)  # fmt: skip
NEVER = (
    "169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "0.0.0.0",
    "255.255.255.255", "224.0.0.1", "ff02::1", "100.64.0.1", "192.0.2.1", "::", "2001:db8::1",
    "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "::ffff:168.63.129.16",
    "::a9fe:a9fe", "::ffff:0:a9fe:a9fe", "64:ff9b:1::a01:203", "fec0::1", "5f00::1", "3fff::1",
)  # fmt: skip
PUBLIC = ("1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::101:101")


def test_only_public_addresses_are_called_unless_an_operator_names_others() -> None:
    keys = ImplementerSettings.model_validate({"api_keys": {"ann": "key of ann"}})
    strict, near = Policy.of(keys), Policy.of(ImplementerSettings())
    named = Policy([ip_network("169.254.0.0/16"), ip_network("fd00:ec2::/64")])
    for text in PUBLIC:
        assert strict.allows(ip_address(text)), text
    for text in (*PRIVATE, *NEVER):
        assert not strict.allows(ip_address(text)), text
    for text in PRIVATE:
        assert near.allows(ip_address(text)), text
    for text in NEVER:
        assert not near.allows(ip_address(text)), text
    for text in ("169.254.169.254", "fd00:ec2::254"):
        assert named.allows(ip_address(text)), text


def test_a_private_address_is_not_called_by_number_or_by_name(
    world: World, catalog: Catalog
) -> None:
    with opened(world, catalog, api_keys={"ann": "key of ann"}) as site, receiver() as there:
        site.api.headers["Authorization"] = "Bearer key of ann"
        refused = site.api.post("/v1/webhooks", json={"url": there.url})
        assert (refused.status_code, refused.json()["code"]) == (422, "address_not_allowed")
        port = there.url.rpartition(":")[2]
        for host in ("localhost", "0x7f.1", "2130706433"):
            made = site.create(f"http://{host}:{port}/")
            site.start(0.01)
            site.post(f"/v1/webhooks/{made['id']}/test")
            wait_until(lambda m=made: site.states(m["id"]) == ["failed"])  # type: ignore[misc]
            (failed,) = site.deliveries(made["id"])
            assert "ASSAY_IMPLEMENTER_WEBHOOK_NETWORKS" in failed["error"], host
        assert there.received == []


def test_the_address_is_in_no_log(
    world: World, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(world, catalog, api_keys={"ann": "key of ann"}) as site:
        site.api.headers["Authorization"] = "Bearer key of ann"
        made = site.create("http://localhost:1/")
        site.start(0.01)
        site.post(f"/v1/webhooks/{made['id']}/test")
        wait_until(lambda: site.states(made["id"]) == ["failed"])
    assert "127.0.0.1" in site.deliveries(made["id"])[0]["error"]
    (said,) = [each for each in caplog.messages if "gave up the delivery" in each]
    assert made["id"] in said
    assert "127.0.0.1" not in said


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\nnot for you: 1\r\n\r\n", b"not for you\r\n\r\n", b""],
    ids=["header", "banner", "nothing"],
)
def test_what_is_no_http_is_not_shown(
    site: Site, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    """Or whoever creates webhooks could read what services of a private network say."""

    class Handler(LocalHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(answer)
            self.close_connection = True

    with LocalServer(Handler) as there:
        made = site.create(there.url)
        site.start()
        site.post(f"/v1/webhooks/{made['id']}/test")
        wait_until(lambda: site.states(made["id"]) == ["failed"])
    (failed,) = site.deliveries(made["id"])
    assert failed["error"] == "the receiver did not answer in HTTP"
    assert "not for you" not in caplog.text


# -- owners do not wait for one another ----------------------------------------------------------

OWNERS = {"ann": "key of ann", "bob": "key of bob", "cid": "key of cid"}


def fill(site: Site, owner: str, url: str, deliveries: int) -> None:
    """Give an owner as many webhooks as an owner may have, with so many deliveries each."""
    with site.world.db.write() as session:
        for _ in range(webhooks.MOST_WEBHOOKS):
            row = webhooks.create(site.world.db, session, owner, WebhookRequest(url=url))
            for _ in range(deliveries):
                webhooks.test(session, row)


@pytest.mark.slow
def test_owners_whose_receivers_hang_hold_no_other_up_for_longer_than_a_try(
    world: World, catalog: Catalog
) -> None:
    settings = {"api_keys": OWNERS, "webhook_networks": ["127.0.0.0/8"], "webhook_seconds": 3}
    with (
        opened(world, catalog, **settings) as site,
        receiver(*[HANG] * 999) as hanging,
        receiver() as there,
    ):
        fill(site, "ann", hanging.url, 10)
        fill(site, "bob", hanging.url, 10)
        site.start()
        wait_until(lambda: len(hanging.received) >= AT_ONCE)
        site.api.headers["Authorization"] = "Bearer key of cid"
        made = site.create(there.url)
        site.post(f"/v1/webhooks/{made['id']}/test")
        for sender in site.senders:
            sender.look()
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
        # Of their 400 deliveries not many more than those that were under way came first.
        assert len(hanging.received) < 2 * AT_ONCE + 20


@pytest.mark.slow
def test_owners_whose_names_take_long_hold_no_other_up(
    world: World, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup cannot be interrupted, and takes longer than a try."""
    over = threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "slow.example.org":
            over.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    settings = {"api_keys": OWNERS, "webhook_networks": ["127.0.0.0/8", "::1/128"]}
    with opened(world, catalog, **settings) as site, receiver() as there:
        fill(site, "ann", "http://slow.example.org/", 9)
        site.start()
        site.api.headers["Authorization"] = "Bearer key of cid"
        made = site.create(f"http://localhost:{there.url.rpartition(':')[2]}/")
        try:
            wait_until(lambda: timed_out(world) >= 8)
            site.post(f"/v1/webhooks/{made['id']}/test")
            for sender in site.senders:
                sender.look()
            wait_until(lambda: site.states(made["id"])[0] != "pending")
            assert site.states(made["id"]) == ["delivered"]
        finally:
            over.set()


def timed_out(world: World) -> int:
    with world.db.read() as session:
        table = schema.Delivery
        return len(session.scalars(select(table.id).where(table.error.is_not(None))).all())


def test_a_name_is_called_at_the_address_that_was_checked(site: Site) -> None:
    with receiver() as there:
        port = there.url.rpartition(":")[2]
        made = site.create(f"http://localhost:{port}/")
        site.start()
        site.post(f"/v1/webhooks/{made['id']}/test")
        wait_until(lambda: site.states(made["id"]) == ["delivered"])
        assert there.received[0].headers["host"] == f"localhost:{port}"


# -- what is told --------------------------------------------------------------------------------


def of_type(site: Site, webhook: str, kind: str) -> list[Json]:
    return [each for each in site.deliveries(webhook) if each["type"] == kind]


def test_a_batch_tells_its_end_unless_it_is_an_epoch(site: Site) -> None:
    made = site.create("http://127.0.0.1:1/")["id"]
    batch = site.world.submit("one", "two", "three")
    site.post(f"/v1/batches/{batch}/cancel")
    search = site.search()
    site.api.put(f"/v1/searches/{search}/epochs/0", json={"ideas": [{"text": "a"}]})
    site.post(f"/v1/searches/{search}/epochs/0/batch")
    site.post(f"/v1/searches/{search}/cancel")
    (told,) = of_type(site, made, "batch.finished")
    assert (told["data"]["batch"], told["data"]["state"]) == (batch, "cancelled")
    assert told["data"]["counts"] == {"cancelled": 3}
    assert told["text"].endswith("is cancelled: 3 cancelled")
    assert len(of_type(site, made, "search.cancelled")) == 1


def test_a_pause_says_why(site: Site) -> None:
    made = site.create("http://127.0.0.1:1/")["id"]
    site.post(f"/v1/searches/{site.search()}/pause")
    (told,) = of_type(site, made, "search.paused")
    assert told["data"]["reason"] == "person"
    assert "is paused: A person paused it." in told["text"]


def test_a_confirmed_result_is_told_when_its_verdict_is_final(site: Site) -> None:
    made = site.create("http://127.0.0.1:1/")["id"]
    first, second = result(site.world), result(site.world, "a = 2\n")

    def told() -> list[Json]:
        return of_type(site, made, "experiment.confirmed")

    (winner,) = ask(site.api, first)
    (loser,) = ask(site.api, second)
    for name in (winner, loser):
        take(site.world, name)
    site.start()
    assert told() == []
    measure_all(site.world, better)
    for sender in site.senders:
        sender.look()
    wait_until(lambda: len(told()) == 2)
    with site.world.db.read() as session:
        assert session.scalars(select(schema.Unjudged.batch_id)).all() == []
    said = next(each["data"] for each in told() if each["data"]["experiment"] == first)
    body = site.api.get(f"/v1/experiments/{winner}").json()
    assert (said["confirmed_by"], said["batch"]) == (winner, body["batch"])
    assert (said["effect"], said["p"]) == (body["comparison"]["effect"], body["comparison"]["p"])


def test_a_result_that_is_not_confirmed_is_not_told(site: Site) -> None:
    made = site.create("http://127.0.0.1:1/")["id"]
    (again,) = ask(site.api, result(site.world))
    take(site.world, again)
    measure_all(site.world, worse)
    site.start()

    def is_judged() -> bool:
        with site.world.db.read() as session:
            return session.scalars(select(schema.Unjudged.batch_id)).first() is None

    wait_until(is_judged)
    assert of_type(site, made, "experiment.confirmed") == []


def test_a_cap_of_an_ideator_is_told_once_and_again_when_it_was_raised(site: Site) -> None:
    made = site.create("http://127.0.0.1:1/")["id"]
    caps = {"max_ideator_cost_usd": "0.000001"}
    search = site.search(ideator="openai:gpt-5", caps=caps)
    for limit in ("0.000001", "0.000002"):
        for n in range(3):
            spend(site, search, f"call_{limit}_{n}")
        site.post(f"/v1/searches/{search}/extend", max_ideator_cost_usd="0.000002")
    told = of_type(site, made, "cap.reached")
    assert [each["data"]["limit"] for each in told] == ["0.000002", "0.000001"]
    assert {each["data"]["scope"] for each in told} == {"ideator"}
    assert f"the ideator of the search {search} has used" in told[0]["text"]


def spend(site: Site, search: str, call: str) -> None:
    """Make a call that costs more than any cap here, unless it is refused."""
    begun = {
        "epoch": 0, "place": "0.0.0", "operator": "seed", "asked": 1, "number": 1,
        "request_hash": "a", "prompt_version": "v", "input_tokens": 9, "output_tokens": 9,
        "is_replay": False, "loop": "l",
    }  # fmt: skip
    answer = site.api.put(f"/v1/searches/{search}/calls/{call}", json=begun)
    if answer.status_code == 409:
        assert answer.json()["code"] == "spend_cap"
        return
    ended = {"state": "returned", "loop": "l", "input_tokens": 900, "output_tokens": 900,
             "is_estimate": False, "seconds": 1.0}  # fmt: skip
    answer = site.api.put(f"/v1/searches/{search}/calls/{call}/end", json=ended)
    assert answer.is_success, answer.text

"""`assay webhook …` against the API itself, and a receiver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from assay.environments.catalog import Catalog
from assay.storage.objects import LocalStore
from tests.cli.conftest import Cli
from tests.implementer.test_webhooks import Site, opened
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database
from tests.support.fake_answers import serve
from tests.support.fake_service import FakeService
from tests.support.receiver import receiver


@pytest.fixture
def site(tmp_path: Path, store: LocalStore, catalog: Catalog) -> Iterator[Site]:
    db = sqlite_database(tmp_path / "api.db")
    with opened(World.create(db, store, catalog), catalog) as found:
        yield found
    db.dispose()


@pytest.fixture
def real(site: Site) -> Iterator[Cli]:
    """The commands, whose requests the API answers."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.decode()
        kept = {name: request.headers[name] for name in ("content-type", "idempotency-key")
                if name in request.headers}  # fmt: skip
        found = site.api.request(request.method, path, content=request.content, headers=kept)
        return httpx2.Response(found.status_code, headers=found.headers, content=found.content)

    with serve(answer) as url:
        yield Cli(FakeService(), url)


def test_a_webhook_from_its_creation_to_its_end(real: Cli, site: Site) -> None:
    with receiver() as there:
        made = real("webhook", "create", f"{there.url}/hook", "--event", "search.finished",
                    "--event", "cap.reached", "--description", "ours")  # fmt: skip
        assert made.code == 0, made.err
        found = re.fullmatch(
            r"created (whk_\w{26})\nIts secret, which is not shown again: (whsec_\S+)\n", made.out
        )
        assert found is not None, made.out
        webhook, secret = found.groups()
        site.start()
        tested = real("webhook", "test", webhook[-8:])
        assert (tested.code, tested.out) == (0, "delivered: the receiver answered 204\n")
        there.answers.append(500)
        failed = real("webhook", "test", webhook, "--json")
        assert failed.code == 1
        assert failed.json["error"]["code"] == "test_failed"
        assert "answered 500" in failed.json["error"]["message"]
        listed = real("webhook", "list")
        assert "search.finished" in listed.out
        assert "ours" in listed.out
        assert secret not in listed.out + real("webhook", "list", "--json").out
        deliveries = real("webhook", "deliveries", webhook, "--json")
        newest, oldest = deliveries.json["data"]
        assert [newest["state"], oldest["state"]] == ["failed", "delivered"]
        assert deliveries.json["truncated"] is False
        assert "answered 500" in real("webhook", "deliveries", webhook).out
        again = real("webhook", "retry", webhook, newest["id"])
        assert (again.code, again.out) == (0, f"{newest['id']} is sent again\n")
    assert real("webhook", "delete", webhook).code == 2  # nobody was asked
    assert real("webhook", "delete", webhook, "--yes").code == 0
    assert "No webhooks." in real("webhook", "list").err


def test_a_wrong_address_or_event_is_named(real: Cli) -> None:
    wrong = real("webhook", "create", "example.org")
    assert wrong.code == 2
    assert "must begin with https:// or http:// and a host" in wrong.err
    assert real("webhook", "create", "https://example.org/", "--event", "all").code == 2
    near = real("webhook", "create", "http://169.254.169.254/latest")
    assert near.code == 2
    assert "ASSAY_IMPLEMENTER_WEBHOOK_NETWORKS" in near.err

"""`assay serve` killed while a webhook's receiver had not answered yet, and the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.client import verify_webhook
from tests.support.receiver import HANG, Receiver, receiver
from tests.support.service import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_delivery_outlives_the_service(tmp_path: Path) -> None:
    env = {"ASSAY_IMPLEMENTER_WEBHOOK_SECONDS": "2"}
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess", env=env)
    with receiver(HANG) as there:
        service.start()
        try:
            _outlives(service, there)
        finally:
            if service.running:
                service.stop()


def _outlives(service: ServiceProcess, there: Receiver) -> None:
    made = service.assay("webhook", "create", there.url, "--event", "search.cancelled", "--json")
    webhook = json.loads(made.stdout)["detail"]
    started = service.assay(
        "search", "start", "toy", "--profile", "tiny", "--epochs", "50", "--batch-size", "1",
        "--detach", "--yes", "--json",
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    search = json.loads(started.stdout)["data"]["id"]
    assert service.assay("search", "cancel", search, "--yes").returncode == 0
    wait_until(lambda: there.received, "the first try")
    service.kill()
    service.start()

    with service.client() as client:
        wait_until(
            lambda: [d.state for d in client.webhooks.deliveries(webhook["id"])] == ["delivered"],
            "the delivery after the restart",
        )
    assert "search.cancelled" in service.assay("webhook", "deliveries", webhook["id"]).stdout
    tested = service.assay("webhook", "test", webhook["id"])
    assert tested.stdout == "delivered: the receiver answered 204\n"
    there.answers.append(500)
    failed = service.assay("webhook", "test", webhook["id"])
    assert failed.returncode == 1
    assert "answered 500" in failed.stderr
    assert service.assay("webhook", "delete", webhook["id"], "--yes").returncode == 0

    first, second, *_ = there.received
    assert (first.id, first.content) == (second.id, second.content)
    for each in there.received:
        verify_webhook(webhook["secret"], each.headers, each.content)

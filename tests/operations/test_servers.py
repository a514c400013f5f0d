"""Servers as separate processes: what an operator sees of them, and that it holds no secret."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.operations.test_metrics import of, scrape
from tests.support.databases import POSTGRES
from tests.support.needs import missing
from tests.support.ports import free_port
from tests.support.service import toy_batch, toy_ideas
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
TOKEN = "only-for-prometheus"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    settings = {
        "ASSAY_LOG_LEVEL": "debug",
        "ASSAY_IMPLEMENTER_METRICS_TOKEN": TOKEN,
        "ASSAY_SCHEDULER_METRICS_PORT": str(free_port()),
        "ASSAY_WORKER_HELD_OUT_KEY": "held-out-key-of-the-test",
    }
    folder = tmp_path_factory.mktemp("servers")
    with Stack(folder, postgres=POSTGRES, s3=False, settings=settings) as stack:
        with stack.client() as client:
            batch = client.batches.create(toy_batch(toy_ideas(3)))
            assert client.batches.wait(batch.id, timeout=180).counts.succeeded == 3
        yield stack


def get(url: str, token: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=30
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_servers_say_that_they_are_ready(stack: Stack) -> None:
    status, body = get(f"{stack.api_url}/readyz")
    assert status == 200
    assert json.loads(body)["state"] == "ready", body
    checks = {"database", "scheduler", "workers", "objects", "broker"}
    assert set(json.loads(body)["checks"]) == checks


def test_metrics_of_every_process(stack: Stack) -> None:
    assert get(f"{stack.api_url}/metrics")[0] == 401
    status, text = get(f"{stack.api_url}/metrics", TOKEN)
    assert status == 200
    values = scrape(text)
    assert of(values, "assay_experiments", state="succeeded") == 3
    finished = "assay_attempts_finished_total"
    assert of(values, finished, state="succeeded", cause="succeeded", counted="yes") >= 3
    assert of(values, "assay_leader_lease_seconds") > 0
    assert of(values, "assay_http_requests_total",
              method="POST", route="/v1/batches", status="202") == 1  # fmt: skip
    port = stack.scheduler.ready["metrics_port"]
    _, text = get(f"http://127.0.0.1:{port}/metrics")
    own = scrape(text)
    assert of(own, "assay_scheduler_tick_duration_seconds_count") > 0
    assert of(own, "assay_scheduler_decisions_total", decision="assigned") >= 3


def test_every_line_of_a_log_is_json_and_says_what_it_is_about(stack: Stack) -> None:
    services = {}
    for part in (stack.api, stack.scheduler, *stack.implementers, *stack.workers.values()):
        lines = [json.loads(line) for line in part.log.read_text().splitlines()]
        assert all(line["time"].endswith("Z") and line["event"] for line in lines)
        services[part.name] = {line["service"] for line in lines}
    assert services["api"] == {"api"}
    assert services["scheduler"] == {"scheduler"}
    assert services["w-0"] == {"worker"}
    lines = [json.loads(line) for line in stack.api.log.read_text().splitlines()]
    (created,) = [
        line for line in lines if line.get("route") == "/v1/batches" and line["method"] == "POST"
    ]
    assert created["module"] == "assay.access"
    assert created["request_id"].startswith("req_")
    assert created["duration_seconds"] > 0
    reported = [line for line in lines if str(line.get("route")).endswith("/finish")]
    assert len(reported) >= 3
    assert all(line["attempt"].startswith("att_") for line in reported)


def test_no_secret_is_in_a_log_a_metric_or_an_answer(stack: Stack) -> None:
    assert stack.redis is not None
    for path in ("/v1/workers", "/v1/batches"):
        get(f"{stack.api_url}{path}", "asw_a-token-that-nobody-has-0000")
    shown = {part.name: part.log.read_text() for part in stack.parts.values() if part.log.exists()}
    shown |= {f"{name} ready": json.dumps(part.ready) for name, part in stack.parts.items()}
    shown["metrics"] = get(f"{stack.api_url}/metrics", TOKEN)[1]
    shown["ready"] = get(f"{stack.api_url}/readyz")[1]
    secrets = {
        "key of the owner": stack.key,
        "token for metrics": TOKEN,
        "password of Redis": stack.redis.password,
        "held-out key": "held-out-key-of-the-test",
        "wrong token": "asw_a-token-that-nobody-has-0000",
        **stack.tokens,
    }
    found = [
        (s, where) for s, value in secrets.items() for where, t in shown.items() if value in t
    ]
    assert found == []
    assert len(shown["api"]) > 1000


def test_doctor_looks_at_the_servers(stack: Stack) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "assay.cli", "--api", stack.api_url, "doctor", "--json"],
        env=stack.api.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = {f["check"]: f for f in json.loads(answer.stdout)["data"]["findings"]}
    for check in ("database", "schema", "scheduler", "broker", "broker users", "objects"):
        assert found[check]["state"] == "ok", found[check]
    assert found["broker users"]["detail"] == "1 workers may listen"
    assert found["workers"]["detail"] == "1 active"
    assert stack.redis is not None
    assert stack.redis.password not in answer.stdout + answer.stderr


def test_without_its_broker_a_service_is_degraded_and_with_it_ready_again(stack: Stack) -> None:
    assert stack.redis is not None

    def state() -> str:
        status, body = get(f"{stack.api_url}/readyz")
        assert status == 200, body
        return str(json.loads(body)["state"])

    stack.redis.kill()
    wait_until(lambda: state() == "degraded", "degraded", 60)
    body = json.loads(get(f"{stack.api_url}/readyz")[1])
    assert body["checks"]["broker"].startswith("broker_unavailable: ")
    assert stack.redis.password not in str(body)
    stack.redis.start()
    wait_until(lambda: state() == "ready", "ready", 60)

"""The embedded service as a person starts it: one per folder, on a free port, stopped cleanly."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from assay.sqlite_log import log_path
from tests.support.damage import crashed_folder, damage_header, damage_log, damage_pages
from tests.support.service import ServiceProcess, toy_batch, toy_ideas


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A running service, with the best sandbox that works here; it must stop cleanly."""
    process = ServiceProcess(tmp_path_factory.mktemp("service") / "data")
    process.start()
    yield process
    assert process.stop() == 0


def serve(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`assay serve` that is expected to end at once."""
    return subprocess.run(
        [sys.executable, "-m", "assay.cli", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
    )


def test_a_batch_goes_from_ideas_to_results_with_curl_alone(service: ServiceProcess) -> None:
    api = service.ready["api"]
    body = toy_batch(toy_ideas(2)).model_dump(mode="json")

    def call(path: str, data: object = None) -> str:
        return fetch(path, data).decode()

    def fetch(path: str, data: object = None) -> bytes:
        content = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            f"{api}{path}",
            data=content,
            headers={"Content-Type": "application/json", "Accept": "*/*"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())

    batch = json.loads(call("/v1/batches", body))
    stream = urllib.request.Request(
        f"{api}/v1/batches/{batch['id']}/events", headers={"Accept": "text/event-stream"}
    )
    with urllib.request.urlopen(stream, timeout=60) as response:  # ends with the batch
        text = response.read().decode()
    assert text.rstrip().splitlines()[-2] == "event: batch.finished"

    batch = json.loads(call(f"/v1/batches/{batch['id']}"))
    assert batch["counts"]["succeeded"] == 2
    assert batch["funnel"] == {
        "submitted": 2,
        "applied": 2,
        "patched": 2,
        "started": 2,
        "scored": 2,
    }
    experiment = json.loads(call(f"/v1/experiments?batch={batch['id']}"))["data"][0]
    assert "+STEP = 0.05" in call(f"/v1/experiments/{experiment['id']}/diff")
    assert call(f"/v1/experiments/{experiment['id']}/logs")
    curves = json.loads(call(f"/v1/experiments/{experiment['id']}/curves"))
    assert curves["object"] == "list"
    result = json.loads(call(f"/v1/experiments/{experiment['id']}/result"))
    assert result["metric"] == experiment["metric"]
    provenance = result["measurements"][0]["provenance"]
    assert provenance["isolated"] is service.ready["isolated"]
    assert provenance["codebase"] == experiment["codebase"]
    names = zipfile.ZipFile(io.BytesIO(fetch(result["artifacts"][0]["url"]))).namelist()
    assert any(name.endswith("answer.json") for name in names), names


def test_no_page_and_no_request_ends_the_service(service: ServiceProcess) -> None:
    api = service.ready["api"]

    def post(path: str, content: str = "", **headers: str) -> tuple[int, str]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = httpx2.post(f"{api}{path}", content=content, headers=sent, timeout=60)
        return answer.status_code, answer.json()["code"]

    json_type = "application/json"
    remove = "/v1/workers/local/remove"
    assert post(remove, Origin="https://evil.example") == (403, "cross_site")
    assert post(remove, "a=b", Content_Type="text/plain") == (415, "unsupported_media_type")
    assert post(remove, Host="rebound.example") == (403, "unknown_host")
    assert post(remove) == (409, "own_worker")
    again = post("/v1/workers", '{"name": "local"}', Content_Type=json_type)
    assert again == (409, "own_worker")
    ready = httpx2.get(f"{api}/readyz", timeout=60).json()
    assert ready["checks"]["workers"] == "ok"
    assert httpx2.get(f"{api}/v1/workers/local", timeout=60).json()["state"] == "active"


def test_a_second_process_on_the_same_folder_refuses_to_start(service: ServiceProcess) -> None:
    second = serve("--data-dir", str(service.data_dir), "--port", "0")
    assert second.returncode == 1
    assert "already serve" in second.stderr
    assert str(service.pid) in second.stderr
    assert "--data-dir" in second.stderr
    assert second.stdout == ""


@pytest.mark.slow
def test_a_taken_port_is_said_to_be_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = serve("--data-dir", str(tmp_path / "data"), "--port", port)
    assert refused.returncode == 1
    assert "in use" in refused.stderr
    assert "--port" in refused.stderr
    assert not (tmp_path / "data" / "assay.db").exists()


@pytest.mark.parametrize(
    "damage",
    [
        damage_pages,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (damage_header, damage_log)),
    ],
)
def test_a_damaged_database_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    database = crashed_folder(tmp_path / "data")
    if damage is not damage_log:
        log_path(database).unlink()
    damage(database)
    before = database.read_bytes()
    refused = serve("--data-dir", str(database.parent), "--port", "0")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith("assay serve: the database is damaged")
    assert "restore a backup" in line
    assert database.read_bytes() == before


def test_other_machines_are_let_in_only_with_a_key(tmp_path: Path) -> None:
    refused = serve("--data-dir", str(tmp_path / "d"), "--port", "0", "--host", "0.0.0.0")
    assert refused.returncode == 1
    assert "ASSAY_IMPLEMENTER_API_KEYS" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--sandbox", "magic"), "sandbox"),
        (("--port", "70000"), "port"),
        (("--cpus", "0"), "cpus"),
    ],
)
def test_bad_flags_are_named(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    refused = serve("--data-dir", str(tmp_path / "data"), *flags)
    assert refused.returncode == 2
    assert words in refused.stderr


@pytest.mark.slow
def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = serve("--data-dir", str(tmp_path / "file" / "data"), "--port", "0")
    assert refused.returncode == 1
    assert "file" in refused.stderr


@pytest.mark.slow
def test_work_that_is_stopped_half_way_is_finished_by_the_next_process(tmp_path: Path) -> None:
    process = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    process.start()
    with process.client() as client:
        batch = client.batches.create(toy_batch(toy_ideas(12))).id
    assert process.stop() == 0
    process.start()
    with process.client() as client:
        finished = client.batches.wait(batch, timeout=60)
    assert process.stop() == 0
    assert finished.counts.succeeded == 12


@pytest.mark.bubblewrap
def test_the_sandbox_is_bubblewrap_where_it_works(service: ServiceProcess) -> None:
    assert service.ready["sandbox"] == "bubblewrap", service.ready["sandbox_reason"]
    assert service.ready["isolated"] is True


@pytest.mark.slow
def test_a_stopped_service_leaves_a_whole_database(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    service.start()
    os.kill(service.pid, signal.SIGTERM)
    assert service.stop() == 0
    connection = sqlite3.connect(service.data_dir / "assay.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    service.start()
    assert service.stop() == 0

"""A batch that asks a provider, through the command line: estimate, cap, calls, results.

The provider is a local HTTP server that speaks the Anthropic Messages wire format.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.provider import anthropic
from tests.support.provider.server import ProviderServer, serve
from tests.support.service import ServiceProcess

pytestmark = pytest.mark.bubblewrap

GOOD = "```diff\n--- a/search.py\n+++ b/search.py\n@@ -1,1 +1,1 @@\n-STEP = 0.6\n+STEP = 0.3\n```"
MISFIT = GOOD.replace("STEP = 0.6", "STEP = 99.9")
MODEL = "anthropic:claude-opus-4-5"


def assay(service: ServiceProcess, *arguments: str, **variables: str) -> Any:
    """The result of a command with --json, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli", "--api", service.ready["api"], *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def start(
    tmp_path: Path, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> ServiceProcess:
    """Start a service that has a key for this provider."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
    service = ServiceProcess(tmp_path / "data")
    service.start()
    return service


@pytest.mark.slow
def test_a_model_writes_the_diff_after_trouble_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ideas = tmp_path / "ideas.jsonl"
    ideas.write_text(json.dumps({"text": "Take steps half as large.", "client_key": "half"}))
    replies = [
        anthropic.error(429, retry_after="0.1"),
        anthropic.message(MISFIT, usage={"input_tokens": 1000, "output_tokens": 100}),
        anthropic.error(500),
        anthropic.message(GOOD, stop_reason="max_tokens"),
        anthropic.message(GOOD, usage={"input_tokens": 1200, "output_tokens": 100}),
    ]
    with serve(*replies) as provider:
        service = start(tmp_path, provider, monkeypatch)
        try:
            done, said = assay(
                service,
                *("batch", "submit", str(ideas), "--env", "toy", "--profile", "tiny"),
                *("--executor", MODEL, "--max-cost", "1", "--wait", "--yes"),
            )
            with service.client() as client:
                (batch,) = client.batches.list()
                (experiment,) = client.experiments.list(batch=batch.id)
                record = client.implementations.get(experiment.implementation)
                diff = client.experiments.diff(experiment.id)
        finally:
            service.stop()
    assert "$" in said or "USD" in said  # the estimate comes before anything is started
    assert len(provider.requests) == len(replies)
    assert provider.requests[0].headers["x-api-key"] == "a-key"
    assert experiment.state == "succeeded"
    assert "+STEP = 0.3" in diff
    assert [(s.state, s.code, s.tries) for s in record.samples] == [
        ("refused", "no_match", 2),
        ("refused", "truncated", 2),
        ("applied", None, 1),
    ]
    assert batch.usage.calls == 5  # every try stands in the ledger
    assert batch.usage.cost_usd is not None
    assert float(batch.usage.cost_usd) > 0.015  # $5 and $25 per million tokens
    assert done["data"] or done["target"]


@pytest.mark.slow
def test_a_refusal_of_every_sample_is_a_failure_to_implement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ideas = tmp_path / "ideas.jsonl"
    ideas.write_text(json.dumps({"text": "Do harm."}))
    replies = [anthropic.message("", stop_reason="refusal") for _ in range(2)]
    with serve(*replies) as provider:
        service = start(tmp_path, provider, monkeypatch)
        try:
            assay(
                service,
                *("batch", "submit", str(ideas), "--env", "toy", "--profile", "tiny"),
                *("--executor", MODEL, "--samples", "2", "--revisions", "0", "--wait", "--yes"),
            )
            with service.client() as client:
                (batch,) = client.batches.list()
                (experiment,) = client.experiments.list(batch=batch.id)
        finally:
            service.stop()
    assert len(provider.requests) == len(replies)
    assert experiment.state == "failed"
    assert experiment.failure is not None
    assert (experiment.failure.stage, experiment.failure.code) == ("implement", "refused")


@pytest.mark.slow
def test_a_missing_key_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    ideas = tmp_path / "ideas.jsonl"
    ideas.write_text(json.dumps({"text": "Take steps half as large."}))
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    service.start()
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "assay.cli",
                "--api",
                service.ready["api"],
                "batch",
                "submit",
                str(ideas),
                "--env",
                "toy",
                "--profile",
                "tiny",
                "--executor",
                MODEL,
                "--yes",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        with service.client() as client:
            assert list(client.batches.list()) == []
    finally:
        service.stop()
    assert done.returncode in (1, 2)
    assert "ANTHROPIC_API_KEY" in done.stderr

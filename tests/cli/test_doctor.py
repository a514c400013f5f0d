"""`assay doctor`, `assay worker list`, `assay version`."""

from __future__ import annotations

import socket
import sys

import pytest

from assay.cli import doctor
from tests.cli.conftest import Cli


def test_doctor_looks_at_everything_and_shows_no_key(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "very-secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    answer = cli("doctor", "--json")
    assert answer.code == 0
    found = {f["check"]: f for f in answer.json["data"]["findings"]}
    assert set(found) == {
        "python", "torch", "sandbox", "disk", "ANTHROPIC_API_KEY", "OPENAI_API_KEY",
        "environments", "data folder", "service", "conditions", "port 8000",
    }  # fmt: skip
    assert found["ANTHROPIC_API_KEY"]["state"] == "ok"
    assert found["OPENAI_API_KEY"]["state"] == "note"
    assert found["service"] == {
        "check": "service",
        "state": "ok",
        "detail": f"{cli.url} answers, 9.9",
        "remedy": "",
    }
    text = cli("doctor")
    assert "very-secret" not in answer.out + text.out + text.err


def test_doctor_says_which_workers_results_are_not_compared(cli: Cli) -> None:
    facts = {"hardware_class": "cpu-fake", "torch": "2.9"}
    cli.service.worker = {"conditions": "cnd_1", "facts": facts}
    other = {"name": "old", "conditions": "cnd_2", "facts": facts | {"torch": "2.8"}}
    assert _conditions(cli)["state"] == "ok"
    cli.service.more_workers = [other]
    found = _conditions(cli)
    assert found["detail"] == "cnd_1 (cpu-fake): 1 worker; cnd_2 (cpu-fake): 1 worker"
    assert found["state"] == "note"
    assert "torch: 2.9 and 2.8" in found["remedy"]


def _conditions(cli: Cli) -> dict[str, str]:
    findings = cli("doctor", "--json").json["data"]["findings"]
    found: dict[str, str] = next(f for f in findings if f["check"] == "conditions")
    return found


def test_doctor_fails_only_for_what_is_needed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.environments.catalog.default_folders", list)
    answer = cli("doctor")
    assert answer.code == 1
    assert "Missing: environments" in answer.err
    assert "ASSAY_ENVIRONMENTS" in answer.out


def test_doctor_without_a_service_says_how_to_start_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.url = "http://127.0.0.1:9"
    answer = cli("doctor", "--json")
    assert answer.code == 0
    service = next(f for f in answer.json["data"]["findings"] if f["check"] == "service")
    assert service["state"] == "note"
    assert "assay serve" in service["remedy"]


def test_a_used_port_is_a_note() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        nobody = doctor.Finding("service", "note", "nobody")
        finding = doctor.check_port(nobody, taken.getsockname()[1])
    assert (finding.state, finding.detail) == ("note", "in use")


def test_workers_are_listed_with_their_isolation(cli: Cli) -> None:
    assert "subprocess (not isolated)" in cli("worker", "list").out
    assert cli("worker", "list", "--json").json["data"][0]["name"] == "here"


def test_version(cli: Cli) -> None:
    from importlib.metadata import version

    assert cli("version").out.strip() == version("assay")
    assert cli("version", "--json").json["data"] == {"version": version("assay")}


def test_a_host_that_runs_no_code_needs_no_sandbox(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "assay.sandbox", None)  # what its image lacks
    answer = cli("doctor", "--json")
    assert answer.code == 0
    (sandbox,) = [f for f in answer.json["data"]["findings"] if f["check"] == "sandbox"]
    assert sandbox["state"] == "note"
    assert "assay[worker]" in sandbox["remedy"]

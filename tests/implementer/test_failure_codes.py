"""What a worker reports of a failure: checked where it comes in, and shown by the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.environments.catalog import Catalog
from assay.storage import schema
from tests.implementer.scored import Service, open_service
from tests.support.environment import MANIFEST, write_environment

MEANING = "The count is over the limit. Count less."


@pytest.fixture
def declaring(tmp_path: Path) -> Iterator[Service]:
    """The API over an environment that declares `infeasible`."""
    folder = tmp_path / "declaring" / "count"
    write_environment(folder)
    declared = f'[failures]\ninfeasible = "{MEANING}"\n\n[[knobs]]'
    manifest = MANIFEST.replace("[[knobs]]", declared, 1)
    assert "[failures]" in manifest
    (folder / "environment.toml").write_text(manifest)
    (tmp_path / "again").mkdir()
    made = open_service(tmp_path / "again", Catalog([tmp_path / "declaring"]))
    yield made
    made.context.db.dispose()


def reported(service: Service, **failure: Any) -> dict[str, Any]:
    """A measurement as the API shows it after its worker reported this failure."""
    measurement, *_ = service.implement(service.experiments[0], "a = 1\n")
    service.finish(measurement, state="failed", failure={"message": "m", **failure})
    shown: dict[str, Any] = service.api.get(f"/v1/measurements/{measurement}").json()
    return shown


def test_a_declared_code_is_shown_like_any_other(declaring: Service) -> None:
    shown = reported(declaring, stage="score", code="infeasible")
    assert shown["state"] == "failed"
    expected = {"stage": "score", "code": "infeasible", "message": "m", "retryable": False}
    assert shown["failure"] == shown["attempts"][0]["failure"] == expected
    assert declaring.environment().failures == {"infeasible": MEANING}


def test_a_code_that_is_not_declared_is_unknown_and_tried_again(service: Service) -> None:
    shown = reported(service, stage="score", code="infeasible")
    assert (shown["state"], shown["failure"]) == ("queued", None)
    (attempt,) = shown["attempts"]
    assert attempt["failure"]["code"] == "unknown_failure"
    assert attempt["failure"]["message"].startswith("infeasible at stage score, which this")
    assert service.environment().failures == {}


def test_the_code_decides_what_a_worker_claims_of_it(service: Service) -> None:
    shown = reported(service, stage="train", code="crashed", retryable=True)
    assert (shown["state"], shown["failure"]["retryable"]) == ("failed", False)


def test_a_host_to_blame_is_tried_again_and_counts_against_it(service: Service) -> None:
    shown = reported(service, stage="train", code="host_out_of_memory")
    assert shown["state"] == "queued"
    assert shown["attempts"][0]["failure"]["retryable"] is True
    with service.context.db.read() as session:
        attempt = session.get_one(schema.Attempt, shown["attempts"][0]["id"])
        assert attempt.infrastructure


def test_rows_with_codes_of_another_version_are_read(service: Service) -> None:
    shown = reported(service, stage="train", code="crashed")
    with service.context.db.write() as session:
        row = session.get_one(schema.Attempt, shown["attempts"][0]["id"])
        row.failure = {"stage": "start", "code": "of_old", "message": "m", "retryable": True}
    again = service.api.get(f"/v1/measurements/{shown['id']}").json()
    assert again["attempts"][0]["failure"]["code"] == "of_old"

"""A bundle leads nobody out of the folder that it is unpacked in."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from assay.environments.catalog import Catalog
from assay.storage import schema
from assay.storage.objects import codebase_key
from tests.implementer.scored import Service, open_service, score


@pytest.fixture
def service(tmp_path: Path, catalog: Catalog) -> Service:
    found = open_service(tmp_path, catalog)
    score(found, {"score": 12.5}, {"host": "rack-7", "worker": "w7"})
    return found


def test_a_bundle_holds_the_code_and_its_environment_under_folders_of_their_own(
    service: Service,
) -> None:
    answer = service.api.get(f"/v1/experiments/{service.experiments[0]}/bundle")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        names = archive.namelist()
        record = json.loads(archive.read("record.json"))
        assert archive.read("codebase/train.py") == b"a = 1\n"
        everything = b"".join(map(archive.read, names))
    assert {name.partition("/")[0] for name in names if "/" in name} == {"codebase", "environment"}
    assert "environment/evaluator/evaluate.py" in names
    assert (record["metric"], record["comparison"]["verdict"]) == (12.5, "better")
    assert [seed["seed"] for seed in record["seeds"]] == [0, 1]
    assert b"rack-7" not in everything, "whose host it was is nobody's business"


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, service: Service) -> None:
    experiment = service.experiments[0]
    with service.context.db.read() as session:
        codebase = session.get_one(schema.Experiment, experiment).codebase_id
    evil = io.BytesIO()
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("../../evil.py", "print('out')\n")
    (tmp_path / "objects" / codebase_key(codebase or "")).write_bytes(evil.getvalue())
    answer = service.api.get(f"/v1/experiments/{experiment}/bundle")
    assert answer.status_code == 422
    assert "not a name inside the tree" in answer.text


def test_without_a_result_there_is_no_bundle(service: Service) -> None:
    answer = service.api.get(f"/v1/experiments/{service.experiments[1]}/bundle")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_result")

"""A failed idea is measured again by the real service: the same codebase, and no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.contracts.batch import IdeaRequest
from tests.support.service import running, toy_batch

TEXT = """[Experiment] Fail where a file is missing.
[Code Changes]
In `search.py`:
<<<<<<< SEARCH
STEP = 0.6
=======
STEP = 0.3
if not os.path.exists({path!r}):
    raise RuntimeError("the host lacks something")
>>>>>>> REPLACE
[End]"""


@pytest.mark.slow
def test_what_the_host_spoiled_is_measured_again(tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    idea = IdeaRequest(text=TEXT.format(path=str(repaired)))
    with running(tmp_path / "data", sandbox="subprocess") as service, service.client() as client:
        request = toy_batch([idea])
        batch = client.batches.wait(client.batches.create(request).id)
        (failed,) = client.experiments.list(batch=batch.id)
        assert failed.failure is not None
        assert failed.failure.code == "crashed"
        repaired.touch()
        shared = client.batches.wait(client.batches.create(request).id)
        assert shared.counts.failed == 1, "the failure is shared"
        again = client.experiments.retry(failed.id)
        body = client.batches.wait(again.batch)
        assert (body.counts.succeeded, body.usage.calls) == (1, 0)
        made = client.experiments.get(again.id)
        assert made.codebase == failed.codebase
        assert client.experiments.get(failed.id).retried_as == [again.id]
        now = client.measurements.get(made.measurements[0])
        assert (now.replicate, now.attempts[0].software["sandbox"]) == (1, "subprocess")
        client.batches.wait(client.batches.create(request).id)
        latest = next(iter(client.experiments.list()))
        assert (latest.state, latest.measurements) == ("succeeded", made.measurements)

"""Server mode as a person runs it: separate processes on Postgres, Redis and an S3 server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from assay.contracts.batch import IdeaRequest
from tests.server.conftest import require_servers
from tests.support.service import toy_batch, toy_ideas
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]
#: A minute where nothing else runs; other tests may have the processors meanwhile.
FINISH_SECONDS = 480.0
#: How soon a running measurement is gone after it was cancelled, with a broker and without.
WITH_BROKER, WITHOUT_BROKER = 2.0, 10.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two implement workers, two workers, and one of everything else."""
    with Stack(
        tmp_path_factory.mktemp("stack"),
        postgres=require_servers(),
        implementers=2,
        workers=2,
        settings={"ASSAY_WORKER_CPUS": "1"},
    ) as running:
        yield running


def edit(name: str, file: str, search: str, replace: str) -> IdeaRequest:
    return IdeaRequest(
        text=f"[Experiment] {name}.\n[Code Changes]\nIn `{file}`:\n<<<<<<< SEARCH\n{search}\n"
        f"=======\n{replace}\n>>>>>>> REPLACE\n[End]",
        client_key=name,
    )


#: The first line of the codebase's program, and what makes it never end.
FIRST = "import json\nimport os\nimport random\n\nfrom landscape"
HANG = "import json\nimport os\nimport random\n\nwhile True:\n    pass\n\nfrom landscape"


def toy() -> list[IdeaRequest]:
    """Twenty ideas: eighteen that work, one that does not apply, one that crashes."""
    broken = FIRST.replace("import os", "import os\nraise SystemExit('no luck')")
    return [
        *toy_ideas(18),
        edit("absent", "search.py", "NO SUCH LINE = 1", "NO SUCH LINE = 2"),
        edit("crash", "search.py", FIRST, broken),
    ]


def nanogpt() -> list[IdeaRequest]:
    """Two ideas: one that trains, one that cannot."""
    rate = "    learning_rate: float = 0.003"
    return [
        edit("rate-higher", "config.py", rate, "    learning_rate: float = 0.004"),
        edit("rate-nothing", "config.py", rate, "    learning_rate: float = 1 / 0"),
    ]


def rows(stack: Stack, statement: str, **values: Any) -> list[Any]:
    engine = create_engine(stack.database_url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(statement), values))
    finally:
        engine.dispose()


def test_every_idea_ends_in_exactly_one_result_or_one_failure(stack: Stack) -> None:
    request = toy_batch(toy())
    other = request.model_copy(update={"environment": "nanogpt", "ideas": nanogpt()})
    with stack.client() as client:
        batches = [client.batches.create(each).id for each in (request, other)]
        finished = [client.batches.wait(id_, timeout=FINISH_SECONDS) for id_ in batches]
    assert [batch.counts.total for batch in finished] == [20, 2]
    found = rows(
        stack,
        """SELECT e.id, e.state, e.failure, count(r.measurement_id) AS results
           FROM experiment e LEFT JOIN experiment_measurement l ON l.experiment_id = e.id
           LEFT JOIN result r ON r.measurement_id = l.measurement_id GROUP BY e.id""",
    )
    assert len(found) == 22
    for experiment in found:
        ended = (experiment.state, experiment.results, experiment.failure is not None)
        assert ended in (("succeeded", 1, False), ("failed", 0, True)), (experiment, ended)
    failures = [experiment.failure for experiment in found if experiment.state == "failed"]
    assert len(failures) == 3, failures
    assert not rows(stack, "SELECT id FROM attempt WHERE released_at IS NULL")
    assert not rows(
        stack,
        """SELECT measurement_id FROM attempt WHERE state = 'succeeded'
           GROUP BY measurement_id HAVING count(*) > 1""",
    )
    with stack.client() as client:
        best = client.experiments.list(batch=batches[0])
        scored = next(each for each in best if each.state == "succeeded")
        assert client.experiments.logs(scored.id)
        assert client.experiments.result(scored.id).artifacts


def cancel_while_it_runs(stack: Stack, name: str) -> float:
    """Seconds from the request to cancel until nothing of the measurement runs any more."""
    with stack.client() as client:
        hang = edit(f"hang-{name}", "search.py", FIRST, HANG.replace("pass", f"{name} = 1"))
        batch = client.batches.create(toy_batch([hang]))
        (experiment,) = client.experiments.list(batch=batch.id)
        running = f"""SELECT a.id, a.state, a.released_at FROM attempt a
            JOIN experiment_measurement l ON l.measurement_id = a.measurement_id
            WHERE l.experiment_id = '{experiment.id}'"""
        wait_until(
            lambda: [a.state for a in rows(stack, running)] == ["running"], f"{name} runs", 90
        )
        if name == "silence":
            assert stack.redis is not None
            stack.redis.kill()
        began = time.monotonic()
        client.batches.cancel(batch.id)
        wait_until(
            lambda: all(a.released_at is not None for a in rows(stack, running)), "its end", 60
        )
        took = time.monotonic() - began
    (attempt,) = rows(stack, running)
    assert attempt.state == "cancelled", "it was stopped, and did not run into its budget"
    return took


def test_a_cancellation_reaches_what_runs(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = cancel_while_it_runs(stack, "rung")
    looked = cancel_while_it_runs(stack, "silence")
    with capsys.disabled():
        sys.stdout.write(
            f"\ncancelled in {heard:.2f} s with a broker (bar: {WITH_BROKER} s), in {looked:.2f} "
            f"s with Redis killed (bar: {WITHOUT_BROKER} s)\n"
        )
    # Twice the bar, since other tests may have the processors meanwhile.
    assert heard <= 2 * WITH_BROKER
    assert looked <= 2 * WITHOUT_BROKER


def test_messages_arrive_again_after_redis_came_back(stack: Stack) -> None:
    assert stack.redis is not None
    if not stack.redis.running:
        stack.redis.start()
    with stack.client() as client:
        batch = client.batches.create(toy_batch(toy_ideas(2, first=100)))
        assert client.batches.wait(batch.id, timeout=60).counts.succeeded == 2

    def users() -> set[str]:
        assert stack.redis is not None
        with stack.redis.connection() as connection:
            return set(connection.acl_users())

    wait_until(lambda: len(users()) == 1 + len(stack.workers), "the users are back", 30)
    lists = rows(stack, "SELECT count(*) AS waiting FROM outbox")
    wait_until(
        lambda: rows(stack, "SELECT count(*) AS n FROM outbox")[0].n == 0, f"{lists} sent", 30
    )

"""The CPU stack, built from this tree on a real engine: ideas in over HTTP, results out, each
service restarted with work in flight, and data that outlives its containers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from assay.client import Client, Unauthorized
from assay.contracts.batch import BatchBody, ExperimentBody
from tests.deploy.deployment import SERVERS, SERVICES, Deployment, require_tools
from tests.sandbox.docker_engine import HOST, require_docker
from tests.support.service import toy_batch, toy_ideas
from tests.support.waiting import wait_until

IDEAS = 6
FINISH_SECONDS = 240
READY_SECONDS = 120
IN_FLIGHT = ("implementing", "queued", "running")
#: What an experiment is when the service is at work on it; of the others, any of the above.
AT_WORK = {"scheduler": ("queued", "running"), "worker": ("running",)}
ENDED = ("succeeded", "failed")

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(3600)]


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """The stack, up and healthy; removed afterwards. A failure comes with the ends of its logs."""
    require_docker()
    require_tools()
    made = Deployment(folder, HOST)
    try:
        made.build()
        made.up()
        yield made
    except BaseException as error:
        error.add_note(made.logs())
        raise
    finally:
        made.remove()


def submit(client: Client, number: int) -> BatchBody:
    """The batch with this number; no two share an idea."""
    return client.batches.create(toy_batch(toy_ideas(IDEAS, first=number * IDEAS)))


def finished(client: Client, batch: BatchBody) -> list[ExperimentBody]:
    """Wait for a batch; each of its experiments has exactly one result."""
    done = client.batches.wait(batch.id, timeout=FINISH_SECONDS)
    assert done.state == "finished"
    experiments = list(client.experiments.list(batch=batch.id))
    assert sorted(each.position for each in experiments) == list(range(IDEAS))
    for each in experiments:
        assert (each.state, each.failure) == ("succeeded", None), each
        (measurement,) = client.measurements.list(experiment=each.id)
        ended = [attempt.state for attempt in measurement.attempts]
        assert ended.count("succeeded") == 1, ended
        assert client.experiments.result(each.id)
    return experiments


def check_artifacts(client: Client, experiment: ExperimentBody) -> None:
    """What training left can be read from this host, which does not reach the object store."""
    artifacts = client.experiments.result(experiment.id).artifacts
    assert artifacts
    for each in artifacts:
        data = client.measurements.artifact(experiment.measurements[0], each.name)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (each.bytes, each.sha256)


def check_isolation(client: Client, experiment: ExperimentBody) -> None:
    """What a model wrote ran in bubblewrap, inside a container, and every attack on it failed."""
    measurement = client.measurements.get(experiment.measurements[0])
    provenance = measurement.provenance
    assert measurement.promotable
    assert (provenance["sandbox"], provenance["isolated"]) == ("bubblewrap", True)
    broken = [name for name, held in provenance["guarantees"].items() if not held]
    assert broken in ([], ["cpu_limit"])


def check_lock_down(deployment: Deployment) -> None:
    """What the files ask for is what the engine made of it."""
    for service in SERVICES:
        assert deployment.inspect(service, "{{.Config.User}}") == "10001:10001\n"
        assert deployment.inspect(service, "{{.HostConfig.ReadonlyRootfs}}") == "true\n"
        assert deployment.inspect(service, "{{.HostConfig.Privileged}}") == "false\n"
        assert deployment.inspect(service, "{{.HostConfig.CapDrop}}") == "[ALL]\n"
    ports = deployment.inspect("api", "{{json .HostConfig.PortBindings}}")
    assert f'"HostIp":"127.0.0.1","HostPort":"{deployment.port}"' in ports
    environment = deployment.inspect("worker", "{{.Config.Env}}")
    for name in ("ASSAY_API_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "S3_SECRET_KEY"):
        assert deployment.variables[name] not in environment


def is_in_flight(client: Client, batch: BatchBody, service: str) -> bool:
    """Whether a service has work of a batch in its hands, or another has for its sake."""
    states = {each.state for each in client.experiments.list(batch=batch.id)}
    assert not states <= set(ENDED), f"{service}: the batch ended before"
    return any(state in AT_WORK.get(service, IN_FLIGHT) for state in states)


def restart_each(deployment: Deployment, client: Client) -> None:
    """`docker restart` of every service in turn, each time with a batch at work."""
    for number, service in enumerate((*SERVICES, *SERVERS), start=1):
        batch = submit(client, number)
        wait_until(partial(is_in_flight, client, batch, service), f"{service}: work", 60)
        deployment.restart(service)
        wait_until(deployment.is_ready, f"{service}: the API after its restart", READY_SECONDS)
        finished(client, batch)


def test_the_stack_works_restarts_and_keeps_its_data(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        check_lock_down(deployment)
        with deployment.client() as client:
            first = submit(client, 0)
            before = finished(client, first)
            check_isolation(client, before[0])
            check_artifacts(client, before[0])
            with Client(client.base_url, api_key="wrong") as stranger:
                with pytest.raises(Unauthorized):
                    stranger.batches.get(first.id)
            restart_each(deployment, client)

        deployment.down()
        deployment.up()
        with deployment.client() as client:
            assert list(client.experiments.list(batch=first.id)) == before
            assert len(list(client.batches.list())) == 1 + len(SERVICES) + len(SERVERS)
            assert client.experiments.diff(before[0].id)
            check_artifacts(client, before[0])
            finished(client, submit(client, 20))

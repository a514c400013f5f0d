"""The connection to a Docker engine, its facts, and the removal of what nobody owns any more."""

import contextlib
import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped]
import requests  # type: ignore[import-untyped,unused-ignore]
from docker import errors

from assay.sandbox.interface import SandboxError, SandboxUnavailable

_log = logging.getLogger(__name__)
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_REQUEST_SECONDS = 120
_POOL = 64  # connections kept for parallel runs

SCOPE_LABEL = "assay.scope"
OWNER_LABEL = "assay.owner"
DEADLINE_LABEL = "assay.deadline"
NAME_LABEL = "assay.kept"

_REMEDY = (
    "remedy: start Docker, let this user open its socket (group docker), or say with "
    "docker_host or DOCKER_HOST where it is"
)


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the SDK's errors into `SandboxError`."""
    try:
        yield
    except (errors.DockerException, requests.RequestException) as error:
        raise SandboxError(f"{doing}: {_text(error)}") from error


def _text(error: Exception) -> str:
    explanation = getattr(error, "explanation", None)
    return str(explanation or error)


class Engine:
    """One engine behind a Unix socket; may be used from several threads."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.client = docker.APIClient(
            base_url=host, version="auto", timeout=_REQUEST_SECONDS, num_pools=_POOL
        )

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """The engine's version and the runtime that its containers get."""
        with translated("the Docker engine says nothing about itself"):
            found = self.client.info()
        return {"docker": found["ServerVersion"], "runtime": found.get("DefaultRuntime", "runc")}

    def create(self, config: Mapping[str, Any], name: str | None = None) -> str:
        """Create a container; returns its id. The SDK's `NotFound` means: no such image.

        A container that has the name already is removed: whoever asks knows that it is worthless.
        """
        try:
            found = self.client.create_container_from_config(dict(config), name)
        except errors.NotFound:
            raise
        except errors.APIError as error:
            if name is None or error.status_code != 409:
                raise SandboxError(f"Docker refuses the container: {_text(error)}") from error
            self.remove(name)
            return self.create(config, name)
        except (errors.DockerException, requests.RequestException) as error:
            raise SandboxError(f"Docker refuses the container: {_text(error)}") from error
        return str(found["Id"])

    def start(self, container: str) -> None:
        with translated("Docker could not start the container"):
            self.client.start(container)

    def state(self, container: str) -> dict[str, Any]:
        """The container's `State`: Running, ExitCode, OOMKilled and more; not Running if gone."""
        with translated("Docker does not say how the container is"):
            try:
                return dict(self.client.inspect_container(container)["State"])
            except errors.NotFound:
                return {"Running": False}

    def find(self, name: str) -> str | None:
        """The id of the container with a name; None when there is none."""
        with translated("Docker does not say which containers there are"):
            try:
                return str(self.client.inspect_container(name)["Id"])
            except errors.NotFound:
                return None

    def kill(self, container: str) -> None:
        """Kill the container's first process, and so everything in it."""
        with translated("Docker could not kill the container"):
            try:
                self.client.kill(container, "SIGKILL")
            except errors.APIError as error:
                if error.status_code not in (404, 409):  # gone, or not running
                    raise

    def remove(self, container: str) -> None:
        """Kill and remove a container; returns when nothing of it is left.

        Raises `SandboxError` when that did not succeed.
        """
        with translated("Docker could not remove the container"):
            try:
                self.client.remove_container(container, v=True, force=True)
            except errors.NotFound:
                return
            except errors.APIError as error:
                if error.status_code != 409:  # somebody else is already removing it
                    raise
                self._await_removal(container)

    def _await_removal(self, container: str) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                self.client.inspect_container(container)
            except errors.NotFound:
                return
            time.sleep(0.05)
        raise errors.DockerException(f"container {container[:12]} is not going away")

    def close(self) -> None:
        self.client.close()


def connect(host: str | None) -> Engine:
    """The engine at `host`, else at `$DOCKER_HOST`, else at the usual place; connected once.

    Raises `SandboxUnavailable` when none answers there.
    """
    return _connect(os.getpid(), host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST)


@functools.cache
def _connect(_process: int, host: str) -> Engine:
    # A connection must not be shared with a forked process, hence one for each process.
    if sys.platform != "linux":
        raise SandboxUnavailable("the docker backend needs Linux on the worker's machine")
    if not host.startswith("unix://"):
        raise SandboxUnavailable(
            f"the docker backend needs an engine on this machine, not {host}; "
            "remedy: docker_host = unix:///var/run/docker.sock"
        )
    try:
        _check_reachable(host)
        return Engine(host)
    except (errors.DockerException, requests.RequestException, OSError) as error:
        raise SandboxUnavailable(f"no Docker engine answers at {host}; {_REMEDY}") from error


def _check_reachable(host: str) -> None:
    # The SDK leaves its socket open when nobody answers.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.connect(host.removeprefix("unix://"))


@functools.cache
def boot_id() -> str:
    """What tells this boot of the machine from all others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def owner() -> str:
    """This process, told apart from all others that this engine could ever have served."""
    pid = os.getpid()
    return " ".join((boot_id(), os.readlink("/proc/self/ns/pid"), str(pid), str(_started(pid))))


def _is_gone(label: str) -> bool:
    """Whether an owner is surely dead. Processes of other containers cannot be judged."""
    words = label.split()
    if len(words) != 4:
        return False
    boot, namespace, pid, started = words
    if boot != boot_id():
        return True
    if namespace != os.readlink("/proc/self/ns/pid"):
        return False
    return _started(int(pid)) != started


def abandoned(labels: Mapping[str, str], now: float) -> bool:
    """Whether a container with these labels has no owner or has outlived its deadline.

    `now` is of the monotonic clock, as the deadline is: no step of the time of day ends anything.
    Kept containers wait for a new owner until their deadline.
    """
    try:
        late = now > float(labels[DEADLINE_LABEL])
        kept = NAME_LABEL in labels and labels[OWNER_LABEL].split()[:1] == [boot_id()]
        return late or (not kept and _is_gone(labels[OWNER_LABEL]))
    except (KeyError, ValueError):  # not one of ours, whatever its scope says
        return False


def reap(engine: Engine, scope: str) -> int:
    """Remove the abandoned containers with the label `scope`; returns how many.

    Containers without our labels, or of another scope, are never touched.
    """
    with translated("Docker does not list its containers"):
        wanted = {"label": f"{SCOPE_LABEL}={scope}"}
        found = engine.client.containers(all=True, filters=wanted)
    now = time.monotonic()
    gone = [each["Id"] for each in found if abandoned(each.get("Labels") or {}, now)]
    return sum(_removed(engine, container) for container in gone)


def remove_kept(engine: Engine, scope: str, wanted: Collection[str]) -> int:
    """Remove the kept containers with the label `scope` whose programs are not `wanted`."""
    with translated("Docker does not list its containers"):
        labels = [f"{SCOPE_LABEL}={scope}", NAME_LABEL]
        found = engine.client.containers(all=True, filters={"label": labels})
    gone = [each["Id"] for each in found if each["Labels"][NAME_LABEL] not in wanted]
    return sum(_removed(engine, container) for container in gone)


def _removed(engine: Engine, container: str) -> bool:
    try:
        engine.remove(container)
    except SandboxError as error:  # the others can still go; it is tried again
        _log.warning("a left-over container stays: %s", error)
        return False
    return True

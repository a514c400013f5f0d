"""The compose stack without a GPU on the test engine, with images that need no registry."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

from assay.client import Client
from tests.deploy.images import base_image, docker, run, services_image
from tests.support.needs import missing
from tests.support.ports import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = (DEPLOY / "compose.cpu.yaml", Path(__file__).with_name("without-registry.yaml"))
COMPOSE = os.environ.get("ASSAY_TEST_COMPOSE", "/tmp/assay-compose/docker-compose")
SERVERS = ("postgres", "redis", "objects")
SERVICES = ("api", "implement-worker", "scheduler", "worker")
PROJECT = "assay-test-"  # and the process
UP_SECONDS = 300


def require_tools() -> None:
    """What the images are made with; without it the test is skipped, or fails in CI."""
    if not os.access(COMPOSE, os.X_OK):
        missing(f"no Docker Compose at {COMPOSE}; for tests: scripts/install_compose.sh")
    for tool in ("mmdebstrap", "npm"):
        if shutil.which(tool) is None:
            missing(f"{tool} is not installed")


class Deployment:
    """A stack under a project name of its own."""

    def __init__(self, folder: Path, host: str) -> None:
        self.host = host
        remove_abandoned(host)
        self.project = f"{PROJECT}{os.getpid()}"
        self._environment_file = folder / ".env"
        run([str(DEPLOY / "configure.sh"), str(self._environment_file)])
        lines = self._environment_file.read_text().splitlines()
        self.variables = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
        self.port = free_port()
        base = base_image(host)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name[:6] != "ASSAY_"},
            "DOCKER_HOST": host,
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_PROJECT_NAME": self.project,
            "ASSAY_BASE": base,
            "ASSAY_IMAGES": "assay-test",
            "ASSAY_PORT": str(self.port),
            "ASSAY_TEST_SERVICES": services_image(host, base),
        }

    def compose(self, *arguments: str) -> str:
        """Run Docker Compose on the stack; raises with what it printed when it fails."""
        files = [part for file in FILES for part in ("-f", str(file))]
        command = [COMPOSE, "--env-file", str(self._environment_file), *files, *arguments]
        return run(command, env=self._environment).stdout

    def build(self) -> None:
        """Make the images: one after the other, so that each finds the layers of those before."""
        self.compose("build", "api")
        self.compose("build", "worker")
        self.compose("build")

    def up(self) -> None:
        """Start everything that does not run, and wait until it is healthy."""
        self.compose("up", "--detach", "--wait", "--wait-timeout", str(UP_SECONDS))

    def is_ready(self) -> bool:
        """Whether the API answers from this host, and reaches its database and objects."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def down(self) -> None:
        """Remove the containers and networks; the volumes stay."""
        self.compose("down", "--timeout", "60")

    def remove(self) -> None:
        """Remove everything but the images."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def container(self, service: str) -> str:
        """The name of a service's container."""
        return f"{self.project}-{service}-1"

    def restart(self, service: str) -> None:
        """`docker restart`: as the engine does it, past Compose and its order."""
        docker(self.host, "restart", self.container(service))

    def inspect(self, service: str, field: str) -> str:
        """A field of a container, as a Go template."""
        return docker(self.host, "inspect", "--format", field, self.container(service)).stdout

    def client(self) -> Client:
        """A client with the key that configure.sh made."""
        key = self.variables["ASSAY_API_KEY"]
        return Client(f"http://127.0.0.1:{self.port}", api_key=key)

    def logs(self) -> str:
        """The ends of all logs, for people who look at a failed test."""
        texts = []
        for service in (*SERVERS, *SERVICES):
            command = ["docker", "-H", self.host, "logs", "--tail", "40", self.container(service)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            texts.append(f"--- {service}\n{done.stdout}{done.stderr}")
        return "\n".join(texts)


def remove_abandoned(host: str) -> None:
    """Remove the stacks of tests whose process is gone: killed, it could not do so itself."""
    label = '{{.Label "com.docker.compose.project"}}'
    for kind, name, list_, remove in (
        (
            "container",
            "{{.ID}}",
            ("ls", "--all"),
            ("rm", "--force"),
        ),  # first: they hold the others
        ("network", "{{.ID}}", ("ls",), ("rm",)),
        ("volume", "{{.Name}}", ("ls",), ("rm",)),
    ):
        listing = docker(host, kind, *list_, "--format", f"{name} {label}").stdout
        for line in listing.splitlines():
            found, _, project = line.partition(" ")
            process = project.removeprefix(PROJECT)
            if process != project and not Path("/proc", process).exists():
                docker(host, kind, *remove, found)

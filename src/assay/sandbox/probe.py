"""Finds out by attack, not by version numbers, what a backend holds on this machine."""

import json
import math
import os
import platform
import secrets
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.sandbox.interface import (
    QUICK_GUARANTEES,
    Exit,
    Guarantee,
    Limits,
    Mount,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from assay.sandbox.volume import open_volume

_MEMORY = 64 << 20
_PROCESSES = 24
_DISK = 2 << 20
_SHARE = 0.5
_VARIABLE = "ASSAY_PROBE_CANARY"
_environment = threading.Lock()

# name: (numbers on x86-64 and aarch64, harmless arguments). Each is refused by the filter.
_CALLS: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "ptrace": ((101, 117), (0, 0, 0, 0)),
    "unshare": ((272, 97), (0x10000000,)),
    "io_uring_setup": ((425, 425), (0, 0)),
    "keyctl": ((250, 219), (0, 0, 0)),
    "bpf": ((321, 280), (0, 0, 0)),
    "userfaultfd": ((323, 282), (1,)),
}


@dataclass(frozen=True)
class _Answer:
    exit: Exit
    facts: Mapping[str, Any] = field(default_factory=dict)
    all_dead: bool = True
    message: str = ""


def probe_sandbox(sandbox: Sandbox, scratch: Path, quick: bool) -> dict[Guarantee, bool]:
    """Attack `sandbox`; `quick` leaves out what `Sandbox.probe` says.

    Raises `SandboxError` when not even the first program could be started.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    held = _confinement(sandbox, scratch, quick)
    if quick:
        return {guarantee: held[guarantee] for guarantee in QUICK_GUARANTEES}
    # All at once, as most of their time is waiting; each in a thread of its own (`Sandbox.start`).
    with ThreadPoolExecutor(max_workers=5) as pool:
        disk = pool.submit(_disk_held, sandbox, scratch)
        others = [pool.submit(attack, sandbox) for attack in (_memory, _forks, _linger, _spin)]
        held |= {Guarantee.DISK_LIMIT: disk.result()}
        for answer in others:
            held |= answer.result()
    return held


def _memory(sandbox: Sandbox) -> dict[Guarantee, bool]:
    answer = _attack(sandbox, "memory", {"bytes": 4 * _MEMORY}, _limits(memory_bytes=_MEMORY))
    return {Guarantee.MEMORY_LIMIT: answer.exit.reason == "memory" and not answer.facts}


def _forks(sandbox: Sandbox) -> dict[Guarantee, bool]:
    answer = _attack(sandbox, "forks", {"count": 2 * _PROCESSES}, _limits(processes=_PROCESSES))
    return {Guarantee.PROCESS_LIMIT: 0 <= answer.facts.get("started", -1) <= _PROCESSES}


def _linger(sandbox: Sandbox) -> dict[Guarantee, bool]:
    answer = _attack(sandbox, "linger", {}, _limits(wall_seconds=0.3))
    stopped = answer.exit.reason == "wall" and answer.exit.wall_seconds < 5
    return {Guarantee.WALL_LIMIT: stopped, Guarantee.KILL_TREE: answer.all_dead}


def _spin(sandbox: Sandbox) -> dict[Guarantee, bool]:
    """Two busy processes get no more than the half processor they may have."""
    spin = _attack(sandbox, "spin", {"seconds": 0.6}, replace(_limits(), cpus=_SHARE))
    used, seconds = spin.facts.get("cpu_seconds", math.inf), spin.facts.get("seconds", 0.0)
    return {Guarantee.CPU_LIMIT: used < 1.5 * _SHARE * seconds}


def _disk_held(sandbox: Sandbox, scratch: Path) -> bool:
    """Whether a program that writes more than it may is refused, or ended for it."""
    limits = replace(_limits(), disk_bytes=_DISK, disk_files=64, file_bytes=8 * _DISK)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=scratch) as name:
        folder = Path(name, "volume")
        folder.mkdir()
        with open_volume(folder, _DISK, 64):
            mount = Mount(folder, "/assay/probe", writable=True)
            given = {"folder": sandbox.path(mount), "bytes": 4 * _DISK}
            fill = _attack(sandbox, "fill", given, limits, (mount,))
    return fill.exit.reason == "disk" or 0 <= fill.facts.get("written", -1) <= _DISK


def _limits(
    wall_seconds: float = 10.0, memory_bytes: int = 512 << 20, processes: int = 64
) -> Limits:
    return Limits(wall_seconds, memory_bytes, processes, open_files=256, file_bytes=1 << 20)


def _confinement(sandbox: Sandbox, scratch: Path, quick: bool) -> dict[Guarantee, bool]:
    secret = secrets.token_hex(16)
    with ExitStack() as stack:
        given: dict[str, Any] = {
            "secret": secret,
            "linux": platform.system() == "Linux",
            "calls": {} if quick else _calls(),
            "file": str(stack.enter_context(_canary_file(scratch, secret))),
            "sentinel": stack.enter_context(_sentinel(secret)),
            "port": stack.enter_context(_tcp_listener()),
            "abstract": stack.enter_context(_abstract_listener()),
        }
        reachable = _reachable(given["port"])
        stack.enter_context(_canary_variable(secret))
        answer = _attack(sandbox, "confinement", given, _limits())
    facts = answer.facts
    if not facts:
        raise SandboxError(answer.message or f"the probe ended with {answer.exit}")
    calls_judged = "calls" in facts and not facts["calls"] and not facts["vsock"]
    return {
        Guarantee.NO_NETWORK: reachable and not _any(facts, "tcp", "abstract", "vsock"),
        Guarantee.FILES_CONFINED: not _any(
            facts, "canary_file", "canary_written", "interpreter_written"
        ),
        Guarantee.SECRETS_HIDDEN: not _any(
            facts, "canary_variable", "canary_environment", "canary_file", "descriptors"
        ),
        Guarantee.PROCESSES_HIDDEN: not facts["canary_process"],
        Guarantee.NO_PRIVILEGES: not _any(
            facts, "root", "kernel_written", "capabilities", "can_gain"
        ),
        Guarantee.SYSCALL_FILTER: calls_judged,
    }


def _any(facts: Mapping[str, Any], *names: str) -> bool:
    return any(facts[name] for name in names)


def _calls() -> dict[str, list[int]]:
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if column is None or platform.system() != "Linux":
        return {}
    return {name: [numbers[column], *rest] for name, (numbers, rest) in _CALLS.items()}


def _attack(
    sandbox: Sandbox,
    attack: str,
    given: Mapping[str, Any],
    limits: Limits,
    mounts: tuple[Mount, ...] = (),
) -> _Answer:
    """Run one attack; `all_dead` tells whether its output pipe had no holder left in the end."""
    source = Path(__file__).with_name("attacks.py").read_text()
    with ExitStack() as stack:
        out_read, out_write = _pipe(stack)
        err_read, err_write = _pipe(stack)
        question = stack.enter_context(tempfile.TemporaryFile())
        question.write(json.dumps(given).encode())
        question.seek(0)
        spec = SandboxSpec(
            name=f"probe-{attack}",
            argv=(sandbox.python, "-I", "-S", "-c", source, attack),
            env={},
            mounts=mounts,
            cwd="/",
            limits=limits,
            stdin=question.fileno(),
            stdout=out_write,
            stderr=err_write,
        )
        try:
            handle = sandbox.start(spec)
        finally:
            os.close(out_write)
            os.close(err_write)
        try:
            ended = handle.wait()
        except SandboxError as error:
            message, _ = _drain(err_read)
            raise SandboxError(message.strip() or str(error)) from error
        text, all_dead = _drain(out_read)
        message, _ = _drain(err_read, 0.05)
    lines = text.splitlines()
    facts = json.loads(lines[-1]) if lines else {}
    return _Answer(ended, facts, all_dead, message.strip())


def _pipe(stack: ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    stack.callback(os.close, reader)
    return reader, writer


def _drain(descriptor: int, seconds: float = 0.5) -> tuple[str, bool]:
    """What is in a pipe, and whether all its writers are gone within `seconds`."""
    content = b""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return content.decode(errors="replace"), True
            content += chunk
    return content.decode(errors="replace"), False


@contextmanager
def _canary_file(scratch: Path, secret: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="probe-", dir=scratch) as folder:
        path = Path(folder, "canary")
        path.write_text(secret)
        yield path


@contextmanager
def _sentinel(secret: str) -> Iterator[str]:
    """A host process whose command line can be looked for, with the secret in its environment."""
    seconds = f"20.{secrets.randbelow(10**12):012d}"
    process = subprocess.Popen(["/bin/sleep", seconds], env={_VARIABLE: secret})
    try:
        yield seconds
    finally:
        process.kill()
        process.wait()


@contextmanager
def _canary_variable(secret: str) -> Iterator[None]:
    with _environment:
        os.environ[_VARIABLE] = secret
        try:
            yield
        finally:
            del os.environ[_VARIABLE]


@contextmanager
def _tcp_listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def _abstract_listener() -> Iterator[str]:
    if platform.system() != "Linux":
        yield ""
        return
    name = f"assay-probe-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield name


def _reachable(port: int) -> bool:
    """The control: the listener can be reached at all."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True

"""Starts (or adopts) a kept program and waits for it; see `test_adoption`."""

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.sandbox import SandboxSettings, open_sandbox
from assay.sandbox.docker import kept
from assay.sandbox.docker.engine import Engine
from assay.sandbox.docker.link import Door, Link
from assay.sandbox.interface import Keep, Limits, Mount, SandboxSpec


def spec_of(
    folder: Path,
    python: str,
    code: str,
    *,
    wall: float = 30.0,
    most: int = 1 << 20,
    tail: int = 4096,
    lock: str = "",
    adopt: bool = False,
) -> SandboxSpec:
    held = ()
    if lock and not Path(lock).exists():
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = (descriptor,)
    keep = Keep(folder / "keep", folder / "output", most, tail, {"assay.lease_token": "41"}, held)
    return SandboxSpec(
        name="program",
        argv=(python, "-I", "-S", "-c", code),
        env={},
        mounts=(Mount(folder / "job", "/job", writable=True),),
        cwd="/",
        limits=Limits(wall, 256 << 20, processes=32),
        keep=keep,
    )


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        die()
        return result

    return replaced


POINTS: dict[str, tuple[type, str]] = {
    "created": (Engine, "create"),
    "started": (Engine, "start"),
    "accepted": (Door, "accept"),
    "noted": (kept.Note, "write"),
    "ordered": (Link, "order"),
}


def main() -> None:
    order = json.loads(sys.argv[1])
    if order["point"] == "listening":
        kept.listen = dying_after(kept.listen)
    elif order["point"]:
        owner, name = POINTS[order["point"]]
        setattr(owner, name, dying_after(getattr(owner, name)))
    settings = SandboxSettings(
        "docker",
        grace_seconds=0.5,
        scratch=Path(order["scratch"]),
        docker_host=order["host"],
        scope=order["scope"],
    )
    sandbox = open_sandbox(settings)
    spec = spec_of(Path(order["folder"]), sys.executable, order["code"], **order["changes"])
    handle = sandbox.adopt(spec) if order["changes"].get("adopt") else sandbox.start(spec)
    assert handle is not None
    handle.wait()


if __name__ == "__main__":
    main()

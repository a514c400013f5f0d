"""What a program with one GPU can reach of the others, and what it leaves behind.

Three questions, each asked through the sandbox that a worker would choose here:

1. Which device nodes does a program with one GPU see, and can it open or make another GPU's?
2. Does a program find in uninitialised memory what the program before it wrote there?
3. When a tree of processes is killed in the middle of its kernels, how long does the driver still
   show them, and does the next program compute a right result?

`run` is one part of the GPU benchmarks. On a CPU (`dry_run`) the same programs run without a GPU;
`absent` says what that leaves unanswered.
"""

from __future__ import annotations

import functools
import json
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from assay.sandbox import (
    Handle,
    Limits,
    Sandbox,
    SandboxSettings,
    SandboxSpec,
    choose_sandbox,
    gpu_problem,
    open_sandbox,
)
from assay.sandbox.gpus import gpu_mounts
from services.worker.gpus import Gpus, open_gpus
from services.worker.nvml import Nvml, open_nvml

GIB = 1 << 30
CHILDREN = 3
_PROGRAM_SECONDS = 300.0
_GONE_SECONDS = 120.0
_LOOK_SECONDS = 0.05
_PROCESSES = 2048

NODES = """
import json, os, stat, sys
known = {name for name in os.listdir("/dev") if name.startswith("nvidia")}
# Also nodes that are not listed: a hidden one could be opened all the same.
names = known | {f"nvidia{number}" for number in range(64)}
found = {"seen": sorted(known), "opened": [], "made": []}
for name in sorted(names):
    try:
        os.close(os.open(f"/dev/{name}", os.O_RDWR))
        found["opened"].append(name)
    except OSError:
        pass
for number in range(8):
    for folder in ("/tmp", "/dev", "/dev/shm"):
        path = f"{folder}/assay-made-{number}"
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, number))
            os.close(os.open(path, os.O_RDWR))
            found["made"].append(path)
        except OSError:
            pass
        if os.path.lexists(path):
            os.unlink(path)
print(json.dumps(found))
"""
"""195 is the major number of NVIDIA's nodes."""

FILL = """
import json, sys, torch
given = json.loads(sys.argv[1])
device = "cuda" if given["gpu"] else "cpu"
free = torch.cuda.mem_get_info()[0] if given["gpu"] else given["bytes"]
count = int(free * 0.9) // given["chunk"]
words = given["chunk"] // 8
chunks = [torch.full((words,), given["pattern"], dtype=torch.int64, device=device)
          for _ in range(count)]
held = sum(int(chunk.numel()) * 8 for chunk in chunks)
right = all(bool((chunk[:: max(1, words // 64)] == given["pattern"]).all()) for chunk in chunks)
print(json.dumps({"bytes": held, "right": right}))
"""

SEARCH = """
import json, sys, torch
given = json.loads(sys.argv[1])
device = "cuda" if given["gpu"] else "cpu"
free = torch.cuda.mem_get_info()[0] if given["gpu"] else given["bytes"]
count = int(free * 0.9) // given["chunk"]
words = given["chunk"] // 8
# All of it is allocated before any is looked at: a look needs memory, too.
chunks = [torch.empty(words, dtype=torch.int64, device=device) for _ in range(count)]
hits = sum(int((chunk == given["pattern"]).sum()) for chunk in chunks)
# The search must find what is there: a chunk that this program filled itself.
chunks[0].fill_(given["pattern"])
control = int((chunks[0] == given["pattern"]).sum())
print(json.dumps({"bytes": count * words * 8, "hits": hits * 8, "control": control / words}))
"""

ENDLESS = """
import json, subprocess, sys, time, torch
given = json.loads(sys.argv[1])
if given["children"]:
    again = json.dumps({**given, "children": 0})
    ready = [subprocess.Popen([sys.executable, "-c", given["source"], again],
                              stdout=subprocess.PIPE) for _ in range(given["children"])]
    for child in ready:
        assert child.stdout.readline() == b"running\\n"
torch.set_num_threads(1)
device = "cuda" if given["gpu"] else "cpu"
size = given["size"]
a = torch.randn(size, size, device=device)
b = a @ a
if given["gpu"]:
    torch.cuda.synchronize()
print("running", flush=True)
while True:
    b = a @ b
    b /= b.abs().max()
"""

CHECK = """
import json, sys, torch
given = json.loads(sys.argv[1])
device = "cuda" if given["gpu"] else "cpu"
size = given["size"]
# Whole numbers, and sums of them below 2 ** 53: there is one right result.
a = torch.arange(size * size, dtype=torch.float64).remainder(1021).reshape(size, size)
expected = (a.long() @ a.long().T)
found = (a.to(device) @ a.to(device).T).cpu().long()
print(json.dumps({"right": bool((expected == found).all())}))
"""


@dataclass(frozen=True)
class Sizes:
    """How much memory is filled on a CPU, in pieces of how much, and how large matrices are."""

    bytes: int = 0
    chunk: int = 256 << 20
    kernel: int = 8192
    check: int = 1024


TOY = Sizes(bytes=128 << 20, chunk=8 << 20, kernel=512, check=256)


@dataclass
class Programs:
    """Starts programs in one sandbox, with the GPUs `gpus`; without any they run on the CPU."""

    sandbox: Sandbox
    folder: Path
    gpus: tuple[str, ...] = ()
    _count: int = field(default=0, init=False)

    def start(self, source: str, given: dict[str, Any]) -> tuple[Handle, Path]:
        """A program and the file with what it prints; `given` is its argument."""
        self._count += 1
        log = self.folder / f"{self._count}.log"
        argument = json.dumps({"gpu": bool(self.gpus), **given})
        memory = int(psutil.virtual_memory().available * 0.8)
        with log.open("wb") as output:
            spec = SandboxSpec(
                name=f"isolation-{self._count}",
                argv=(self.sandbox.python, "-c", source, argument),
                env={},
                mounts=(),
                cwd="/",
                limits=Limits(_PROGRAM_SECONDS, memory, processes=_PROCESSES),
                stdout=output.fileno(),
                stderr=output.fileno(),
                gpus=self.gpus,
            )
            return self.sandbox.start(spec), log

    def finish(self, source: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        """What a program prints at its end: one line of JSON.

        Raises:
            RuntimeError: it failed.
        """
        handle, log = self.start(source, given or {})
        end = handle.wait()
        text = log.read_text(errors="replace")
        if (end.reason, end.code) != ("exited", 0):
            raise RuntimeError(f"a program ended by {end.reason} ({end.code}): {text[-2000:]}")
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found


def reachable_nodes(programs: Programs, expected: set[str]) -> dict[str, Any]:
    """The nodes that a program sees and opens; `foreign` are those it should not have."""
    found = programs.finish(NODES)
    reached = {*found["seen"], *found["opened"]}
    return {
        "expected": sorted(expected),
        **found,
        "foreign": sorted(reached - expected),
        "missing": sorted(expected - reached),
    }


def left_memory(programs: Programs, sizes: Sizes) -> dict[str, Any]:
    """How much of the memory one program wrote the next one finds; none is expected."""
    given = {"pattern": secrets.randbits(62) | 1, "bytes": sizes.bytes, "chunk": sizes.chunk}
    written = programs.finish(FILL, given)
    read = programs.finish(SEARCH, given)
    return {
        "bytes_written": written["bytes"],
        "was_written": written["right"],
        "bytes_searched": read["bytes"],
        "share_found": read["hits"] / read["bytes"],
        "control_share_found": read["control"],
    }


def killed_tree(
    programs: Programs, sizes: Sizes, still_there: Callable[[], int]
) -> dict[str, Any]:
    """Kill a tree in the middle of its kernels; `still_there` counts processes of the device."""
    given = {"children": CHILDREN, "size": sizes.kernel, "source": ENDLESS}
    handle, log = programs.start(ENDLESS, given)
    try:
        _await_running(handle, log)
        running = still_there()
        began = time.monotonic()
        handle.kill()
        handle.wait()
        ended = time.monotonic() - began
        while still_there() and time.monotonic() - began < _GONE_SECONDS:
            time.sleep(_LOOK_SECONDS)
    finally:
        handle.kill()
    gone = time.monotonic() - began
    left = still_there()
    right = programs.finish(CHECK, {"size": sizes.check})["right"]
    return {
        "processes_before": running,
        "seconds_until_dead": ended,
        "seconds_until_no_process": gone,
        "processes_left": left,
        "right_result": right,
        "seconds_until_right_result": time.monotonic() - began,
    }


def _await_running(handle: Handle, log: Path) -> None:
    deadline = time.monotonic() + _PROGRAM_SECONDS
    while "running" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline or not psutil.pid_exists(handle.pid):
            raise RuntimeError(f"the endless program did not start: {log.read_text()[-2000:]}")
        time.sleep(_LOOK_SECONDS)


def _processes_with(mark: str) -> int:
    """How many processes of this host have `mark` in their command line."""
    count = 0
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or ()
        count += any(mark in word for word in line) and process.info["status"] != "zombie"
    return count


def _expected_nodes(gpus: tuple[str, ...]) -> set[str]:
    """The nodes that a program with these GPUs needs, and no other."""
    return {mount.target.removeprefix("/dev/") for mount in gpu_mounts(gpus)}


def _open_gpus(settings: SandboxSettings, dry_run: bool) -> tuple[Nvml | None, Gpus]:
    if dry_run:
        return None, Gpus([], None)
    nvml, gpus = open_nvml(), open_gpus("auto")
    if nvml is None or not gpus.devices:
        raise RuntimeError("there is no NVIDIA GPU here; try a dry run (on the CPU)")
    if any(device.uuid.startswith("MIG-") for device in gpus.devices):
        raise RuntimeError("a part of a GPU (MIG) has other nodes; this looks at whole GPUs")
    gpus.reach_through(functools.partial(gpu_problem, settings))
    return nvml, gpus


def run(seconds: float, dry_run: bool) -> dict[str, Any]:
    """Answer the three questions; trees are killed again and again for `seconds`, at least once.

    Raises:
        RuntimeError: there is no GPU and it is no dry run, or a program failed.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-isolation-")))
        folder.chmod(0o755)
        scratch = folder / "scratch"
        scratch.mkdir()
        chosen, why = choose_sandbox("auto", scratch)
        settings = replace(chosen, grace_seconds=0.5)
        nvml, gpus = _open_gpus(settings, dry_run)
        lease = gpus.take(0 if dry_run else 1)
        stack.callback(lease.release)
        sandbox, sizes = open_sandbox(settings), TOY if dry_run else Sizes()
        programs = Programs(sandbox, folder, lease.uuids)
        nodes = reachable_nodes(programs, _expected_nodes(lease.uuids))
        print(f"  nodes: {nodes}", flush=True)
        memory = left_memory(programs, sizes)
        print(f"  memory: {memory}", flush=True)
        kills: list[dict[str, Any]] = []
        while not kills or time.monotonic() - began < seconds:
            kills.append(killed_tree(programs, sizes, _counter(nvml, lease.uuids)))
            print(f"  kill: {kills[-1]}", flush=True)
        trouble = gpus.trouble(lease.uuids)
        return {
            "sandbox": settings.name,
            "isolated": sandbox.isolated,
            "why": why,
            "device": gpus.facts(lease.uuids) or "cpu",
            "absent": _absent(dry_run, len(gpus.devices), sandbox.isolated),
            "nodes": nodes,
            "memory": memory,
            "kills": kills,
            "trouble": None if trouble is None else trouble.detail,
            "seconds": time.monotonic() - began,
        }


def _counter(nvml: Nvml | None, uuids: tuple[str, ...]) -> Callable[[], int]:
    """Counts the processes that the driver shows, or without one those of the endless program."""
    if nvml is None:
        return lambda: _processes_with(ENDLESS)
    return lambda: sum(nvml.load(uuid).processes for uuid in uuids)


def _absent(dry_run: bool, count: int, isolated: bool) -> list[str]:
    """What this machine cannot answer."""
    found = []
    if dry_run:
        found += ["GPU: memory and kills are those of the CPU", "NVML: processes are the host's"]
    if count < 2:
        found.append("a second GPU, whose node could have been reached")
    if not isolated:
        found.append("a sandbox that isolates: every program reaches every node")
    return found

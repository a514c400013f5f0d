"""Which system calls a program in a sandbox may make.

`seccomp` makes a filter for bubblewrap and a profile for Docker from this one table. A call is

- allowed, if it was recorded (`RECORDED`) or added for a reason (`ADDED`) and is not denied,
- judged by its arguments (`JUDGED`), which `seccomp` does,
- denied with EPERM (`DENIED`): it reaches out of the sandbox, or into the kernel,
- else unknown and answered with ENOSYS, upon which C libraries use an older call.

What is recorded is what trainings and evaluations were seen to do; see `benchmarks.syscalls`. To
allow a call, let a program in `tests/support/workloads.py` make it and record anew. Add it to
`added_syscalls.txt` only if the machine that records cannot make it.
"""

from pathlib import Path

_HERE = Path(__file__).parent
RECORDED_FILE = _HERE / "recorded_syscalls.txt"


def _rows(file: Path) -> list[list[str]]:
    lines = file.read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def _groups(file: Path) -> dict[str, frozenset[str]]:
    groups: dict[str, frozenset[str]] = {}
    for words in _rows(file):
        if words[0].startswith("["):
            name = " ".join(words).strip("[]")
            groups[name] = frozenset()
        else:
            groups[name] |= frozenset(words)
    return groups


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


NUMBERS: dict[str, tuple[int | None, int | None]] = {
    name: (_number(first), _number(second))
    for name, first, second in _rows(_HERE / "syscall_numbers.txt")
}
"""Every call that is known by name, with its numbers on x86-64 and aarch64."""

RECORDED: dict[str, tuple[str, ...]] = {name: tuple(by) for name, *by in _rows(RECORDED_FILE)}
"""Calls that were recorded, with the programs that made them."""

ADDED = _groups(_HERE / "added_syscalls.txt")
"""Calls that the machine that records cannot make, by the reason why they are needed."""

_DENIED = _groups(_HERE / "denied_syscalls.txt")

DENIED = frozenset[str]().union(*_DENIED.values())
"""Calls that are refused even if a program was seen to make them."""

SHARED_FILES = _DENIED["shared files"]
"""Those of `DENIED` that tell what another sandbox does with a file that both see."""

LOCKS = frozenset({"flock"})
"""Calls that a program which is shown held-out data may not make (`SandboxSpec.sees_held_out`).

They fail with ENOSYS, so that libraries fall back to lock files or give up. With EPERM some of
them would try again for ever.
"""

COUNTERS = frozenset({"pidfd_open", "sched_setaffinity"})
"""Calls that are refused with EPERM to a program which is shown held-out data.

They read or steer counters of the whole host that keep their value after a sandbox ends, such as
inode numbers. Most are kept per processor, so a program that chooses its processor has many.
"""

GPU_COUNTERS = frozenset({"memfd_create", "shmget", "socket", "socketpair"})
"""The same, but allowed to a program with GPUs: CUDA and NCCL make such files and sockets."""

JUDGED = frozenset(
    {
        *("clone", "clone3", "socket", "socketpair", "ioctl", "madvise", "fcntl"),
        *("preadv2", "pwritev2", "prlimit64", "getsockopt"),
    }
)
"""Calls that `seccomp` judges by their arguments."""

ALLOWED = frozenset(RECORDED).union(*ADDED.values()) - DENIED - JUDGED
"""Calls that are allowed whatever their arguments."""

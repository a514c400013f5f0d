"""A system call filter in classic BPF, built here so that nothing has to be compiled or installed.

`build_profile` says the same in the words of container engines, as far as those go.

The filter allows what training needs (`syscalls`: recorded, plus a short list with reasons) and
judges a few calls by their arguments. What would reach through the namespaces is refused with
EPERM: socket families that ignore network namespaces (AF_VSOCK), io_uring, ptrace, nested
namespaces, the mount interface, BPF and keyrings. Every other call is answered with ENOSYS, as on
a kernel that does not have it, so that C libraries use an older one.
"""

import errno
import functools
import json
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.sandbox import syscalls

# Classic BPF opcodes (linux/bpf_common.h), seccomp actions and the offsets in seccomp_data.
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AND = 0x54
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_NETLINK, _NETLINK_ROUTE = 16, 0
_X32_BIT = 0x40000000

# Comparisons in the words of container engines, and what a condition is made of: index of the
# argument, comparison, value (or mask), second value.
_EQUAL, _DIFFERENT, _GREATER = "SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_GT"
_MASKED = "SCMP_CMP_MASKED_EQ"
_LOW = 0xFFFFFFFF
Condition = tuple[int, str, int, int]

# Values of a 32-bit argument: a mask, and what the value is under it.
Pattern = tuple[int, int]


def _exactly(*values: int) -> tuple[Pattern, ...]:
    return tuple((_LOW, value) for value in values)


_TERMINAL_INJECTION = _exactly(0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# Requests of file systems, by their second byte: 'f' (FIEMAP, EXT4_IOC_GET_ES_CACHE, FS_IOC_*),
# 'X' (xfs, FIFREEZE, FITRIM) and that of btrfs. Some tell which parts of a shared file were read.
_FILE_SYSTEM_REQUESTS: tuple[Pattern, ...] = ((0xFF00, 0x6600), (0xFF00, 0x5800), (0xFF00, 0x9400))
_CACHE_ADVICE = _exactly(20, 21)  # MADV_COLD, MADV_PAGEOUT
# Commands of fcntl that tell what another process does with a shared file: locks that belong to
# an open file (F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW), F_SETLEASE, F_NOTIFY, hints that are kept
# in the inode (F_GET_RW_HINT to F_SET_FILE_RW_HINT), F_GETDELEG, F_SETDELEG.
_SHARING = _exactly(36, 37, 38, 1024, 1026, *range(1035, 1041))
_SOCKET_LEVEL = 1  # SOL_SOCKET
# SO_COOKIE, SO_NETNS_COOKIE, SO_PEERPIDFD: numbers that count sockets, network namespaces and
# processes of the whole host.
_COUNTING_OPTIONS = _exactly(57, 71, 77)
_PIDFD_FLAG = 0x1000  # CLONE_PIDFD
_SHARED_ANONYMOUS = 0x21  # MAP_SHARED | MAP_ANONYMOUS; MAP_PRIVATE has another bit
# F_GETLK, F_SETLK, F_SETLKW, which SQLite needs. What is locked by nobody who knows held-out data
# may be asked.
_LOCKING = _exactly(5, 6, 7)
# The order in which rules look at bits: first those that tell the most patterns apart.
_SPLITS = (*range(15, 7, -1), *range(31, 15, -1), *range(7, -1, -1))

_BLOCK = 16  # intervals of call numbers that are passed over in one step


@dataclass(frozen=True)
class Architecture:
    """One machine type: its audit token and its column in `syscalls.NUMBERS`."""

    token: int
    column: int
    has_x32: bool

    def number(self, call: str) -> int | None:
        """The number of a call; None where the machine has no such call."""
        return syscalls.NUMBERS[call][self.column]


_ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 0, True),
    "aarch64": Architecture(0xC00000B7, 1, False),
}


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _return_errno(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _load_argument(index: int) -> bytes:
    # The low half of a 64-bit argument (both architectures are little-endian). The calls judged
    # below take 32-bit arguments, of which the kernel ignores the high half.
    return _op(_LOAD, _FIRST_ARGUMENT + 8 * index)


def _judge_socket() -> bytes:
    """Allow the families of local and IP sockets and routing netlink; else EPERM."""
    body = _load_argument(0)
    for family in _FAMILIES:
        body += _op(_JUMP_EQUAL, family, 0, 1) + _op(_RETURN, _ALLOW)
    body += _op(_JUMP_EQUAL, _NETLINK, 0, 3) + _load_argument(2)
    body += _op(_JUMP_EQUAL, _NETLINK_ROUTE, 0, 1) + _op(_RETURN, _ALLOW)
    return body + _return_errno(errno.EPERM)


def _judge_clone(refused: int) -> bytes:
    """Allow clone without any of the flags in `refused`."""
    body = _load_argument(0) + _op(_JUMP_ANY_BIT, refused, 0, 1)
    return body + _return_errno(errno.EPERM) + _op(_RETURN, _ALLOW)


def _judge_patterns(index: int, patterns: Iterable[Pattern]) -> bytes:
    """Allow a call unless the argument at `index` matches one of `patterns`."""
    body = b""
    for mask, value in patterns:
        body += _load_argument(index)
        if mask != _LOW:
            body += _op(_AND, mask)
        body += _op(_JUMP_EQUAL, value, 0, 1) + _return_errno(errno.EPERM)
    return body + _op(_RETURN, _ALLOW)


def _judge_flagged_io() -> bytes:
    """Allow preadv2 and pwritev2 without flags: one of them tells what is in the cache."""
    body = _load_argument(5) + _op(_JUMP_EQUAL, 0, 0, 1) + _op(_RETURN, _ALLOW)
    return body + _return_errno(errno.EPERM)


def _judge_getsockopt() -> bytes:
    """Allow all options of sockets but those that count for the whole host."""
    judged = _judge_patterns(2, _COUNTING_OPTIONS)
    return _load_argument(1) + _when(_SOCKET_LEVEL, judged) + _op(_RETURN, _ALLOW)


def _judge_mmap() -> bytes:
    """Allow mmap but for shared memory without a file, whose inode number counts on the host."""
    body = _load_argument(3) + _op(_AND, _SHARED_ANONYMOUS)
    body += _op(_JUMP_EQUAL, _SHARED_ANONYMOUS, 0, 1) + _return_errno(errno.EPERM)
    return body + _op(_RETURN, _ALLOW)


def _judge_prlimit() -> bytes:
    """Allow limits of the caller alone: an init whose processor time is limited dies of it."""
    body = _load_argument(0) + _op(_JUMP_EQUAL, 0, 0, 1) + _op(_RETURN, _ALLOW)
    return body + _return_errno(errno.EPERM)


def _when(number: int, body: bytes) -> bytes:
    return _op(_JUMP_EQUAL, number, 0, len(body) // 8) + body


def _refused_patterns(locks: bool) -> dict[str, tuple[int, tuple[Pattern, ...]]]:
    """Calls that are allowed but for some values: the index of the argument, and the values."""
    return {
        "ioctl": (1, (*_TERMINAL_INJECTION, *_FILE_SYSTEM_REQUESTS)),
        "madvise": (2, _CACHE_ADVICE),
        "fcntl": (1, _SHARING if locks else (*_SHARING, *_LOCKING)),
    }


def _allowed(locks: bool) -> frozenset[str]:
    return syscalls.ALLOWED if locks else syscalls.ALLOWED - syscalls.LOCKS


def _denied(held_out: bool, gpus: bool) -> frozenset[str]:
    """Calls that are answered with EPERM whatever their arguments."""
    if not held_out:
        return syscalls.DENIED
    return syscalls.DENIED | syscalls.COUNTERS | (frozenset() if gpus else syscalls.GPU_COUNTERS)


def _judge_by_arguments(architecture: Architecture, held_out: bool, gpus: bool) -> bytes:
    flags = _NAMESPACE_FLAGS | (_PIDFD_FLAG if held_out else 0)
    bodies = {
        # Its flags are in memory, out of a filter's sight. C libraries fall back to clone.
        "clone3": _return_errno(errno.ENOSYS),
        "clone": _judge_clone(flags),
        "socket": _judge_socket(),
        "socketpair": _judge_socket(),
        "getsockopt": _judge_getsockopt(),
        "prlimit64": _judge_prlimit(),
        "preadv2": _judge_flagged_io(),
        "pwritev2": _judge_flagged_io(),
        **{
            call: _judge_patterns(*refused)
            for call, refused in _refused_patterns(locks=not held_out).items()
        },
    }
    if held_out and not gpus:
        bodies["mmap"] = _judge_mmap()
    denied = _denied(held_out, gpus)
    judged = (
        (architecture.number(call), body) for call, body in bodies.items() if call not in denied
    )
    return b"".join(_when(number, body) for number, body in judged if number is not None)


def _judge_by_number(architecture: Architecture, held_out: bool, gpus: bool) -> bytes:
    """Answer all calls by their number alone: a table of intervals, from low to high."""
    denied = _denied(held_out, gpus)
    answers = {
        architecture.number(call): answer
        for calls, answer in (
            (_allowed(locks=not held_out) - denied, _op(_RETURN, _ALLOW)),
            (denied, _return_errno(errno.EPERM)),
        )
        for call in calls
    }
    answers.pop(None, None)
    unknown = _return_errno(errno.ENOSYS)
    last = max(number for number in answers if number is not None)
    intervals: list[tuple[int, bytes]] = []  # exclusive end, answer
    for number in range(last + 1):
        answer = answers.get(number, unknown)
        if intervals and intervals[-1][1] == answer:
            intervals.pop()
        intervals.append((number + 1, answer))
    program = b""
    for first in range(0, len(intervals), _BLOCK):
        block = intervals[first : first + _BLOCK]
        body = b"".join(_op(_JUMP_GREATER_EQUAL, end, 1, 0) + answer for end, answer in block)
        program += _op(_JUMP_GREATER_EQUAL, block[-1][0], len(body) // 8, 0) + body
    return program + unknown


def supported(machine: str | None = None) -> bool:
    """Whether there is a filter for this machine (x86-64 and aarch64 Linux)."""
    return sys.platform == "linux" and (machine or platform.machine()) in _ARCHITECTURES


@functools.cache
def build_filter(
    machine: str | None = None, *, held_out: bool = False, gpus: bool = False
) -> bytes:
    """The filter as an array of `struct sock_filter`, ready for `bwrap --seccomp`.

    `held_out` is for programs that are shown held-out data. They cannot lock files, because other
    sandboxes see the same files and would notice; files of their own are not told apart from them.
    And they may not read or move counters of the host (`syscalls.COUNTERS`, unless `gpus` also
    `syscalls.GPU_COUNTERS`).

    Raises `KeyError` on an architecture without a table.
    """
    architecture = _ARCHITECTURES[machine or platform.machine()]
    program = _op(_LOAD, _ARCHITECTURE) + _op(_JUMP_EQUAL, architecture.token, 1, 0)
    program += _op(_RETURN, _KILL_PROCESS) + _op(_LOAD, _NUMBER)
    if architecture.has_x32:
        program += _op(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1) + _op(_RETURN, _KILL_PROCESS)
    program += _judge_by_arguments(architecture, held_out, gpus)
    return program + _judge_by_number(architecture, held_out, gpus)


def build_profile(machine: str | None = None, *, locks: bool = True) -> str:
    """A profile (JSON) for Docker's `seccomp=` from the same table.

    It names the calls that are unknown, too: some engines answer what a profile does not name with
    EPERM, which C libraries do not take for a missing call. A process that wants ENOSYS for calls
    newer than the table as well installs the filter itself. Without `locks`, files cannot be
    locked. The calls that `build_filter` refuses to programs with held-out data are allowed here,
    because a container's first process makes some of them before it installs that filter.

    Raises `KeyError` on an architecture without a table.
    """
    name = machine or platform.machine()
    known = _known(_ARCHITECTURES[name])
    named = _allowed(locks) | syscalls.DENIED | syscalls.JUDGED
    rules = [
        _allow(known & _allowed(locks)),
        *_permissions(locks),
        *refusals(name, locks=locks),
        _refuse(known - named, errno.ENOSYS),
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": errno.ENOSYS,
            "architectures": [f"SCMP_ARCH_{name.upper()}"],
            "syscalls": rules,
        }
    )


def refusals(
    machine: str, *, locks: bool = True, shares_files: bool = False
) -> list[dict[str, Any]]:
    """The rules of `build_profile` that refuse what would be allowed or exist without them.

    No rule refuses what another one allows: it would not be said which of them counts. With
    `shares_files`, what tells a sandbox of the host's files and counters is not among them.
    """
    denied = _known(_ARCHITECTURES[machine]) & syscalls.DENIED
    refused = _refused_patterns(locks)
    if shares_files:
        denied -= syscalls.SHARED_FILES
        refused = {**refused, "ioctl": (1, _TERMINAL_INJECTION), "fcntl": (1, ())}
    sockets = ["socket", "socketpair"]
    others = [family for family in range(_NETLINK) if family not in _FAMILIES]
    netlink = (0, _EQUAL, _NETLINK, 0)
    conditions: list[tuple[list[str], Sequence[Condition]]] = [
        *((["clone"], [(0, _MASKED, flag, flag)]) for flag in _bits()),
        *((sockets, [(0, _EQUAL, family, 0)]) for family in others),
        (sockets, [(0, _GREATER, _NETLINK, 0)]),
        (sockets, [netlink, (2, _DIFFERENT, _NETLINK_ROUTE, 0)]),
        *(
            ([call], [(index, _MASKED, *pattern)])
            for call, (index, patterns) in refused.items()
            for pattern in patterns
        ),
        *(
            (["getsockopt"], [(1, _MASKED, _LOW, _SOCKET_LEVEL), (2, _MASKED, *pattern)])
            for pattern in (() if shares_files else _COUNTING_OPTIONS)
        ),
        (["preadv2", "pwritev2"], [(5, _DIFFERENT, 0, 0)]),
        (["prlimit64"], [(0, _DIFFERENT, 0, 0)]),
    ]
    return [
        _refuse(denied, errno.EPERM),
        _refuse(["clone3"], errno.ENOSYS),
        *(_refuse(calls, errno.EPERM, *when) for calls, when in conditions),
    ]


def _permissions(locks: bool) -> list[dict[str, Any]]:
    """The rules that allow calls by their arguments."""
    sockets = ["socket", "socketpair"]
    netlink = [(0, _EQUAL, _NETLINK, 0), (2, _EQUAL, _NETLINK_ROUTE, 0)]
    return [
        _allow(["clone"], (0, _MASKED, _NAMESPACE_FLAGS, 0)),
        *(_allow(sockets, (0, _EQUAL, family, 0)) for family in _FAMILIES),
        _allow(sockets, *netlink),
        *(
            _allow([call], (index, _MASKED, *rest))
            for call, (index, refused) in _refused_patterns(locks).items()
            for rest in _all_but(refused)
        ),
        *(
            _allow(["getsockopt"], (1, _MASKED, *rest))
            for rest in _all_but(_exactly(_SOCKET_LEVEL))
        ),
        *(
            _allow(["getsockopt"], (1, _MASKED, _LOW, _SOCKET_LEVEL), (2, _MASKED, *rest))
            for rest in _all_but(_COUNTING_OPTIONS)
        ),
        _allow(["preadv2", "pwritev2"], (5, _EQUAL, 0, 0)),
        _allow(["prlimit64"], (0, _EQUAL, 0, 0)),
    ]


def _all_but(patterns: Sequence[Pattern], mask: int = 0, value: int = 0) -> list[Pattern]:
    """Patterns that cover every 32-bit number under `mask` and `value` except `patterns`.

    A rule can only say what it is for. So the numbers are split by one bit after the other, until
    no refused one is among them, or no other.
    """
    near = [(m, v) for m, v in patterns if v & mask == value & m]
    if not near:
        return [(mask, value)]
    if any(m & ~mask == 0 for m, _ in near):
        return []
    bit = next(1 << split for split in _SPLITS if not mask & 1 << split)
    halves = (value, value | bit)
    return [rest for half in halves for rest in _all_but(near, mask | bit, half)]


def _known(architecture: Architecture) -> set[str]:
    return {call for call in syscalls.NUMBERS if architecture.number(call) is not None}


def _bits() -> list[int]:
    return [1 << bit for bit in range(32) if _NAMESPACE_FLAGS & 1 << bit]


def _allow(calls: Iterable[str], *conditions: Condition) -> dict[str, Any]:
    """A rule that allows `calls`, if all `conditions` hold."""
    return _rule(calls, conditions) | {"action": "SCMP_ACT_ALLOW"}


def _refuse(calls: Iterable[str], number: int, *conditions: Condition) -> dict[str, Any]:
    """A rule that answers `calls` with an error, if all `conditions` hold."""
    return _rule(calls, conditions) | {"action": "SCMP_ACT_ERRNO", "errnoRet": number}


def _rule(calls: Iterable[str], conditions: Sequence[Condition]) -> dict[str, Any]:
    arguments = [
        {"index": index, "op": operator, "value": value, "valueTwo": second}
        for index, operator, value, second in conditions
    ]
    return {"names": sorted(calls), "args": arguments}

"""A system call filter in classic BPF, built here so that nothing has to be compiled or installed.

`build_profile` says the same in the words of container engines, as far as those go.

The filter closes what the namespaces leave open: socket families that ignore network namespaces
(AF_VSOCK), io_uring, ptrace, nested namespaces, the mount interface, BPF and keyrings. It denies
a list rather than allowing one, because training code loads libraries nobody here chose; calls
newer than the tables are answered with ENOSYS, which C libraries handle.
"""

import errno
import json
import platform
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Classic BPF opcodes (linux/bpf_common.h), seccomp actions and the offsets in seccomp_data.
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_NETLINK, _NETLINK_ROUTE = 16, 0
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_CACHE_ADVICE = (20, 21)  # MADV_COLD, MADV_PAGEOUT
_X32_BIT = 0x40000000

# Last call that is let through by number alone (futex_requeue); newer ones get ENOSYS.
_LAST_KNOWN = 456

# name: (x86-64, aarch64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "personality": (135, 92),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    # What is in the page cache is shared with every sandbox of the host: a predictor could tell
    # another one, or a later training, what it was shown.
    "fadvise64": (221, 223),
    "readahead": (187, 213),
    "mincore": (27, 232),
    "cachestat": (451, 451),
    "sync": (162, 81),  # of the whole host; fsync of an own file is allowed
    "syncfs": (306, 267),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "fanotify_init": (300, 262),
    "nfsservctl": (180, 42),
    "migrate_pages": (256, 238),
    "memfd_secret": (447, 447),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
}


@dataclass(frozen=True)
class Architecture:
    """One machine type: its audit token and the numbers of the calls judged by argument."""

    token: int
    column: int
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    madvise: int
    flagged_io: tuple[int, int]
    prlimit: int
    has_x32: bool


_ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 0, 56, 435, 41, 53, 16, 28, (327, 328), 302, True),
    "aarch64": Architecture(0xC00000B7, 1, 220, 435, 198, 199, 29, 233, (286, 287), 261, False),
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


def _judge_clone() -> bytes:
    """Allow clone without new namespaces."""
    body = _load_argument(0) + _op(_JUMP_ANY_BIT, _NAMESPACE_FLAGS, 0, 1)
    return body + _return_errno(errno.EPERM) + _op(_RETURN, _ALLOW)


def _judge_ioctl() -> bytes:
    """Allow ioctl except those that type into a terminal."""
    body = _load_argument(1)
    for request in _TERMINAL_INJECTION:
        body += _op(_JUMP_EQUAL, request, 0, 1) + _return_errno(errno.EPERM)
    return body + _op(_RETURN, _ALLOW)


def _judge_madvise() -> bytes:
    """Allow madvise except where it drops pages from the cache (see `_DENIED`)."""
    body = _load_argument(2)
    for advice in _CACHE_ADVICE:
        body += _op(_JUMP_EQUAL, advice, 0, 1) + _return_errno(errno.EPERM)
    return body + _op(_RETURN, _ALLOW)


def _judge_flagged_io() -> bytes:
    """Allow preadv2 and pwritev2 without flags: one of them tells what is in the cache."""
    body = _load_argument(5) + _op(_JUMP_EQUAL, 0, 0, 1) + _op(_RETURN, _ALLOW)
    return body + _return_errno(errno.EPERM)


def _judge_prlimit() -> bytes:
    """Allow limits of the caller alone: an init whose processor time is limited dies of it."""
    body = _load_argument(0) + _op(_JUMP_EQUAL, 0, 0, 1) + _op(_RETURN, _ALLOW)
    return body + _return_errno(errno.EPERM)


def _when(number: int, body: bytes) -> bytes:
    return _op(_JUMP_EQUAL, number, 0, len(body) // 8) + body


def supported(machine: str | None = None) -> bool:
    """Whether there is a filter for this machine (x86-64 and aarch64 Linux)."""
    return sys.platform == "linux" and (machine or platform.machine()) in _ARCHITECTURES


def build_filter(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, ready for `bwrap --seccomp`.

    Raises `KeyError` on an architecture without a table.
    """
    architecture = _ARCHITECTURES[machine or platform.machine()]
    program = _op(_LOAD, _ARCHITECTURE) + _op(_JUMP_EQUAL, architecture.token, 1, 0)
    program += _op(_RETURN, _KILL_PROCESS) + _op(_LOAD, _NUMBER)
    if architecture.has_x32:
        program += _op(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1) + _op(_RETURN, _KILL_PROCESS)
    program += _op(_JUMP_GREATER_EQUAL, _LAST_KNOWN + 1, 0, 1) + _return_errno(errno.ENOSYS)
    for numbers in _DENIED.values():
        number = numbers[architecture.column]
        if number is not None:
            program += _when(number, _return_errno(errno.EPERM))
    # clone3 keeps its flags in memory, out of a filter's sight; C libraries fall back to clone.
    program += _when(architecture.clone3, _return_errno(errno.ENOSYS))
    program += _when(architecture.clone, _judge_clone())
    program += _when(architecture.socket, _judge_socket())
    program += _when(architecture.socketpair, _judge_socket())
    program += _when(architecture.ioctl, _judge_ioctl())
    program += _when(architecture.madvise, _judge_madvise())
    program += _when(architecture.prlimit, _judge_prlimit())
    for number in architecture.flagged_io:
        program += _when(number, _judge_flagged_io())
    return program + _op(_RETURN, _ALLOW)


def build_profile(machine: str | None = None) -> str:
    """A profile (JSON) for Docker's `seccomp=` from the same table.

    Unlike the filter it lets calls through that are newer than the table, because a profile can
    only name calls. A process that wants both installs the filter itself.

    Raises `KeyError` on an architecture without a table.
    """
    name = machine or platform.machine()
    column = _ARCHITECTURES[name].column
    denied = [call for call, numbers in _DENIED.items() if numbers[column] is not None]
    rules = [
        _refuse(denied),
        _refuse(["clone3"], errno.ENOSYS),
        *(
            _refuse(["clone"], arguments=[(0, "SCMP_CMP_MASKED_EQ", flag, flag)])
            for flag in _bits()
        ),
        *_refuse_sockets(),
        *(
            _refuse(["ioctl"], arguments=[(1, "SCMP_CMP_MASKED_EQ", 0xFFFFFFFF, request)])
            for request in _TERMINAL_INJECTION
        ),
        *(
            _refuse(["madvise"], arguments=[(2, "SCMP_CMP_EQ", advice, 0)])
            for advice in _CACHE_ADVICE
        ),
        _refuse(["preadv2", "pwritev2"], arguments=[(5, "SCMP_CMP_NE", 0, 0)]),
        _refuse(["prlimit64"], arguments=[(0, "SCMP_CMP_NE", 0, 0)]),
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": [f"SCMP_ARCH_{name.upper()}"],
            "syscalls": rules,
        }
    )


def _bits() -> list[int]:
    return [1 << bit for bit in range(32) if _NAMESPACE_FLAGS & 1 << bit]


def _refuse_sockets() -> list[dict[str, Any]]:
    """Refuse each family that is not allowed; conditions cannot be negated all at once."""
    calls = ["socket", "socketpair"]
    others = [family for family in range(_NETLINK) if family not in _FAMILIES]
    return [
        *(_refuse(calls, arguments=[(0, "SCMP_CMP_EQ", family, 0)]) for family in others),
        _refuse(calls, arguments=[(0, "SCMP_CMP_GT", _NETLINK, 0)]),
        _refuse(
            calls,
            arguments=[(0, "SCMP_CMP_EQ", _NETLINK, 0), (2, "SCMP_CMP_NE", _NETLINK_ROUTE, 0)],
        ),
    ]


def _refuse(
    calls: list[str],
    number: int = errno.EPERM,
    arguments: Sequence[tuple[int, str, int, int]] = (),
) -> dict[str, Any]:
    """A rule that answers `calls` with an error, if all `arguments` are as said."""
    return {
        "names": calls,
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": number,
        "args": [
            {"index": index, "op": operator, "value": value, "valueTwo": second}
            for index, operator, value, second in arguments
        ],
    }

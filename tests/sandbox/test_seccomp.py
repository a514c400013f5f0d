"""The system call filter: its shape, and what it refuses inside bubblewrap."""

import platform
import struct
from typing import Any

import pytest

from assay.sandbox import seccomp, syscalls
from tests.support.workloads import WORKLOADS

needs_filter = pytest.mark.skipif(not seccomp.supported(), reason="no filter for this machine")

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050001, 0x00050026


def judge(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Interpret a filter as the kernel would; returns its verdict."""
    padded = (arguments + (0,) * 6)[:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", program))
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return int(value)
        else:
            test = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            position += if_true if test else if_false


SHARING = (36, 37, 38, 1024, 1026, *range(1035, 1041))  # commands of fcntl
PRIVATE = (*range(5), *range(8, 12), 15, 16, 1025, 1030, 1031, 1032, 1033, 1034)
LOCKING = (5, 6, 7)
COUNTING = (57, 71, 77)  # SO_COOKIE, SO_NETNS_COOKIE, SO_PEERPIDFD

X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "verdict"),
    [
        (X86, 0, (), ALLOW),  # read
        (X86, 59, (), ALLOW),  # execve
        (X86, 101, (), EPERM),  # ptrace
        (X86, 425, (), EPERM),  # io_uring_setup
        (X86, 56, (0x11,), ALLOW),  # fork
        (X86, 56, (0x10000000,), EPERM),  # clone(CLONE_NEWUSER)
        (X86, 435, (), ENOSYS),  # clone3
        (X86, 41, (1,), ALLOW),  # AF_UNIX
        (X86, 41, (2, 1), ALLOW),  # AF_INET
        (X86, 41, (40,), EPERM),  # AF_VSOCK
        (X86, 41, (2**32 + 40,), EPERM),  # the kernel ignores the high half
        (X86, 41, (16, 3, 0), ALLOW),  # routing netlink
        (X86, 41, (16, 3, 12), EPERM),  # netfilter
        (X86, 53, (40,), EPERM),  # socketpair
        (X86, 16, (0, 0x5412), EPERM),  # ioctl(TIOCSTI)
        (X86, 16, (0, 0x5413), ALLOW),  # ioctl(TIOCGWINSZ)
        (X86, 302, (), ALLOW),  # prlimit64
        (X86, 457, (), ENOSYS),  # statmount, newer than the table
        (X86, 0x3FFFFFFF, (), ENOSYS),
        (X86, 139, (), ENOSYS),  # sysfs, which nobody was seen to need
        (X86, 212, (), EPERM),  # lookup_dcookie
        (X86, 334, (), ALLOW),  # rseq, the last before a gap
        (X86, 335, (), ENOSYS),
        (X86, 449, (), ALLOW),  # futex_waitv
        (X86, 0x40000000 | 101, (), KILL),  # x32
        (ARM, 63, (), ALLOW),  # read
        (ARM, 117, (), EPERM),  # ptrace
        (ARM, 97, (), EPERM),  # unshare
        (ARM, 220, (0x20000,), EPERM),  # clone(CLONE_NEWNS)
        (ARM, 198, (40,), EPERM),  # AF_VSOCK
        (ARM, 198, (10,), ALLOW),  # AF_INET6
        (ARM, 29, (0, 0x5412), EPERM),  # ioctl(TIOCSTI)
        (X86, 16, (0, 0xC020662A), EPERM),  # ioctl(EXT4_IOC_GET_ES_CACHE)
        (X86, 16, (0, 0xC020660B), EPERM),  # ioctl(FS_IOC_FIEMAP)
        (X86, 16, (0, 2**32 + 0xC020660B), EPERM),
        (X86, 16, (0, 0x8070586D), EPERM),  # xfs
        (X86, 16, (0, 0x8400941F), EPERM),  # btrfs
        (X86, 16, (0, 0x541B), ALLOW),  # ioctl(FIONREAD)
        (X86, 16, (0, 0xC0104600), ALLOW),  # a GPU driver's
        (X86, 16, (0, 0x660000), ALLOW),  # the byte in another place
        (X86, 28, (0, 0, 20), EPERM),  # madvise(MADV_COLD)
        (X86, 28, (0, 0, 4), ALLOW),
        (X86, 253, (), EPERM),  # inotify_init
        (ARM, 26, (), EPERM),  # inotify_init1
        *((X86, 72, (3, command), EPERM) for command in SHARING),
        *((ARM, 25, (3, command), EPERM) for command in SHARING),
        *((X86, 72, (3, command), ALLOW) for command in (*PRIVATE, *LOCKING)),
        (X86, 73, (), ALLOW),  # flock
        *((X86, 55, (3, 1, option), EPERM) for option in COUNTING),
        *((ARM, 209, (3, 1, option), EPERM) for option in COUNTING),
        (X86, 55, (3, 2**32 + 1, 2**32 + 57), EPERM),
        (X86, 55, (3, 1, 4), ALLOW),  # SO_ERROR
        (X86, 55, (3, 1, 17), ALLOW),  # SO_PEERCRED
        (X86, 55, (3, 6, 57), ALLOW),  # an option of TCP
        (X86, 206, (), ENOSYS),  # io_setup
        (X86, 203, (), ALLOW),  # sched_setaffinity
        (X86, 319, (), ALLOW),  # memfd_create
    ],
)
def test_verdicts(
    machine: tuple[str, int], number: int, arguments: tuple[int, ...], verdict: int
) -> None:
    name, token = machine
    assert judge(seccomp.build_filter(name), token, number, *arguments) == verdict


@pytest.mark.parametrize(("machine", "fcntl", "flock"), [(X86, 72, 73), (ARM, 25, 32)])
def test_held_out_data_may_not_lock(machine: tuple[str, int], fcntl: int, flock: int) -> None:
    name, token = machine
    program = seccomp.build_filter(name, held_out=True)
    assert judge(program, token, flock) == ENOSYS
    for command in (*SHARING, *LOCKING, 2**32 + 6):
        assert judge(program, token, fcntl, 3, command) == EPERM, command
    for command in PRIVATE:
        assert judge(program, token, fcntl, 3, command) == ALLOW, command


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize("machine", [X86, ARM])
def test_held_out_data_may_not_read_counters(machine: tuple[str, int], gpus: bool) -> None:
    name, token = machine
    program, column = seccomp.build_filter(name, held_out=True, gpus=gpus), machine == ARM
    numbers = {call: both[column] for call, both in syscalls.NUMBERS.items()}
    for call in ("sched_setaffinity", "pidfd_open"):
        assert judge(program, token, numbers[call] or 0) == EPERM, call
    for call in ("memfd_create", "socket", "socketpair", "shmget"):
        assert judge(program, token, numbers[call] or 0, 1) == (ALLOW if gpus else EPERM), call
    for family in (16, 40):
        assert judge(program, token, numbers["socket"] or 0, family, 0, 12) == EPERM
    clone, mmap = numbers["clone"] or 0, numbers["mmap"] or 0
    assert judge(program, token, clone, 0x1011) == EPERM  # CLONE_PIDFD
    assert judge(program, token, clone, 0x11) == ALLOW
    shared = ALLOW if gpus else EPERM
    assert judge(program, token, mmap, 0, 0, 3, 0x21) == shared  # MAP_SHARED | MAP_ANONYMOUS
    assert judge(program, token, mmap, 0, 0, 3, 0x23) == shared  # MAP_SHARED_VALIDATE
    for flags in (0x22, 0x01, 0x02, 0x20022):
        assert judge(program, token, mmap, 0, 0, 3, flags) == ALLOW, hex(flags)


@pytest.mark.parametrize("machine", [X86, ARM])
def test_what_was_recorded_is_allowed_and_nothing_else(machine: tuple[str, int]) -> None:
    name, token = machine
    program, column = seccomp.build_filter(name), {X86: 0, ARM: 1}[machine]
    numbers = {call: both[column] for call, both in syscalls.NUMBERS.items()}
    judged = {numbers[call] for call in syscalls.JUDGED}
    allowed = {numbers[call] for call in {*syscalls.RECORDED}.union(*syscalls.ADDED.values())}
    denied = {numbers[call] for call in syscalls.DENIED}
    for number in range(600):
        if number not in judged:
            wanted = EPERM if number in denied else ALLOW if number in allowed else ENOSYS
            assert judge(program, token, number) == wanted, number


def test_the_lists_name_calls_that_exist() -> None:
    for names in (syscalls.RECORDED, *syscalls.ADDED.values(), syscalls.DENIED, syscalls.JUDGED):
        assert set(names) <= set(syscalls.NUMBERS)
    assert list(syscalls.RECORDED) == sorted(syscalls.RECORDED)
    assert len(syscalls.DENIED) > 60
    assert not syscalls.DENIED & {call for names in syscalls.ADDED.values() for call in names}
    recorded_by = {program for by in syscalls.RECORDED.values() for program in by}
    assert recorded_by == {*WORKLOADS, "grpo", "nanogpt", "toy"}


def test_foreign_calls_kill() -> None:
    i386 = 0x40000003
    assert judge(seccomp.build_filter("x86_64"), i386, 0) == KILL


def test_unknown_architectures_are_not_claimed() -> None:
    assert not seccomp.supported("riscv64")
    with pytest.raises(KeyError):
        seccomp.build_filter("riscv64")


CALLS = """
import ctypes, socket, os
library = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    library.syscall(*(ctypes.c_long(argument) for argument in arguments))
    return ctypes.get_errno()
for name, arguments in {calls}.items():
    print(name, call(*arguments))
for family in (40, 38, 17, 31):
    try:
        socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_RAW)
        print(family, 0)
    except OSError as error:
        print(family, error.errno)
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(family, socket.SOCK_STREAM).close()
left, right = socket.socketpair()
import threading
thread = threading.Thread(target=lambda: left.send(b"threads work"))
thread.start()
thread.join()
print(right.recv(100).decode())
"""


@pytest.mark.bubblewrap
@needs_filter
def test_calls_are_refused(bubblewrap: Any) -> None:
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    numbers = {
        "ptrace": ((101, 117), (0, 0, 0, 0)),
        "unshare": ((272, 97), (0x10000000,)),
        "io_uring_setup": ((425, 425), (1, 0)),
        "mount": ((165, 40), (0, 0, 0, 0)),
        "process_vm_readv": ((310, 270), (1, 0, 0, 0, 0, 0)),
        "bpf": ((321, 280), (0, 0, 0)),
        "keyctl": ((250, 219), (0, 0)),
    }
    calls = {name: (number[column], *rest) for name, (number, rest) in numbers.items()}
    ended = bubblewrap.finish(CALLS.replace("{calls}", repr(calls)))
    *refused, last = ended.out.splitlines()
    assert last == "threads work"
    assert {line.split()[0]: line.split()[1] for line in refused} == {
        **dict.fromkeys(numbers, "1"),
        **dict.fromkeys(("40", "38", "17", "31"), "1"),
    }


@pytest.mark.bubblewrap
@needs_filter
def test_two_launches_each_have_a_filter(bubblewrap: Any) -> None:
    code = "print([line for line in open('/proc/self/status') if line.startswith('Seccomp:')])"
    assert "\\t2" in bubblewrap.finish(code).out
    assert "\\t2" in bubblewrap.finish(code).out

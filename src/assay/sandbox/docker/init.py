"""The first process of a container. Read as text and passed to the container's Python.

It fetches the program to run, and the descriptors that become its streams, from the worker through
a socket; nothing but this text is in the container's own command line and environment. Then it
stays as the container's init: it reaps orphans, passes SIGTERM on, ends everything when the
program ends or when the worker is gone, and says how the program ended while the control group
that knows what it used is still there.

The program has the same user, so this process hides its memory and has the program's limits, too:
what it says about the start and the end is its own word.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
from typing import Any, NoReturn

LINK = "/.assay"
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The order (JSON, preceded by its length) and the descriptors of the three streams."""
    head, streams, _, _ = socket.recv_fds(link, 4, 3)
    left = struct.unpack("!I", head)[0]
    parts = []
    while left:
        part = link.recv(min(left, 65536))
        if not part:
            raise EOFError("the worker is gone")
        parts.append(part)
        left -= len(part)
    return json.loads(b"".join(parts)), streams


def install(instructions: bytes) -> None:
    """Put this process and everything it starts under a system call filter."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = Program(len(instructions) // 8, ctypes.addressof(buffer))
    library = ctypes.CDLL(None, use_errno=True)
    numbers = [ctypes.c_ulong(number) for number in (SECCOMP_MODE_FILTER, 0, 0)]
    if library.prctl(PR_SET_SECCOMP, numbers[0], ctypes.byref(program), *numbers[1:]) != 0:
        raise OSError(ctypes.get_errno(), "the system call filter was refused")


def hide() -> None:
    """Let nobody with the same user read or change this process's memory; not inherited by what
    is executed."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_DUMPABLE, *[ctypes.c_ulong(0)] * 4) != 0:
        raise OSError(ctypes.get_errno(), "the init could not be hidden")


def limit(name: str, soft: int, hard: int) -> None:
    """Set a resource limit, no higher than this process may."""
    kind = getattr(resource, name)
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def become(order: dict[str, Any], streams: list[int], problems: int) -> NoReturn:
    """Turn the forked child into the program, or say through `problems` why not."""
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # ignored in Python, here
            signal.signal(number, signal.SIG_DFL)
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:
        os.write(problems, str(error).encode()[:1000])
    os._exit(127)


def launch(order: dict[str, Any], streams: list[int]) -> int:
    """Start the program and let go of its streams, whose ends would else never be seen."""
    heard, problems = os.pipe()
    child = os.fork()
    if child == 0:
        become(order, streams, problems)
    os.close(problems)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for stream in streams:
        os.close(stream)
    problem = os.read(heard, 1000)
    if problem:
        raise RuntimeError(problem.decode(errors="replace"))
    os.close(heard)
    return child


def ended(child: int) -> "int | None":
    """Reap whoever has ended; the wait status of the program if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def attend(link: socket.socket, child: int, wakes: int) -> "int | None":
    """Wait for the program's end (its wait status) or the worker's (None)."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(wakes, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == wakes:
                os.read(wakes, 4096)
                status = ended(child)
                if status is not None:
                    return status
            elif link.recv(16):
                os.kill(child, signal.SIGTERM)
            else:
                return None


def end_everything() -> None:
    """Kill and reap all other processes of the container, in one step that no fork escapes."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def serve(link: socket.socket) -> None:
    """Run one program and tell how it ended; returns when the worker has noticed."""
    order, streams = receive(link)
    hide()
    for name, (soft, hard) in order["limits"].items():
        limit(name, soft, hard)
    if order["filter"]:
        install(bytes.fromhex(order["filter"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakes, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = launch(order, streams)
    link.sendall(b"S")
    status = attend(link, child, wakes)
    if status is not None:
        end_everything()
        link.sendall(b"X%d\n" % status)
        link.recv(16)


def main() -> None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(LINK)
    try:
        serve(link)
    except BaseException as error:
        with contextlib.suppress(OSError):
            link.sendall(b"E" + str(error or repr(error)).encode()[:1000] + b"\n")
            link.recv(16)
    os._exit(0)


if __name__ == "__main__":
    main()

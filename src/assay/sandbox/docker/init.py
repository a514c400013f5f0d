"""The first process of a container. Read as text and passed to the container's Python.

It fetches the program to run, and the descriptors that become its streams, from the worker through
a socket; nothing but this text is in the container's own command line and environment. Then it
stays as the container's init: it reaps orphans, passes SIGTERM on, ends everything when the
program or its time ends, and says how the program ended while the control group that knows what
it used is still there.

When the worker is gone, it ends everything, too; unless the order says to keep the program. Then
it stores what the program prints, writes down how it ended, and waits at a socket outside of the
container, which no program can reach, for another worker to ask.

The program has the same user, so this process hides its memory: what it says about the start and
the end is its own word.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, NoReturn

LINK = "/.assay"
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2
MOST_DESCRIPTORS = 64
OWN_LIMITS = ("RLIMIT_CORE", "RLIMIT_NOFILE")  # the others are the program's alone
CHUNK = 65536
PAUSE = 0.001  # per chunk that is dropped: a flood slows itself down


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The order (JSON, preceded by its length) and the descriptors that come with it."""
    head, descriptors, _, _ = socket.recv_fds(link, 4, MOST_DESCRIPTORS)
    for descriptor in descriptors:  # the program gets its three streams and no more
        os.set_inheritable(descriptor, False)
    if len(head) < 4:
        raise EOFError("the worker is gone")
    left = struct.unpack("!I", head)[0]
    parts = []
    while left:
        part = link.recv(min(left, 65536))
        if not part:
            raise EOFError("the worker is gone")
        parts.append(part)
        left -= len(part)
    return json.loads(b"".join(parts)), descriptors


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
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # ignored in Python, here
            signal.signal(number, signal.SIG_DFL)
        os.chdir(order["cwd"])
        for name, (soft, hard) in order["limits"].items():
            limit(name, soft, hard)
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
    for stream in set(streams):
        os.close(stream)
    problem = os.read(heard, 1000)
    if problem:
        raise RuntimeError(problem.decode(errors="replace"))
    os.close(heard)
    return child


def end_everything() -> None:
    """Kill and reap all other processes of the container, in one step that no fork escapes."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


class Output:
    """Stores what the program prints: the first bytes, and in the end the last ones."""

    def __init__(self, reader: int, file: int, most: int, tail: int) -> None:
        self.reader, self.file = reader, file
        self.left, self.most_tail = most, tail
        self.tail, self.dropped = b"", 0
        os.set_blocking(reader, False)

    def pump(self) -> bool | None:
        """Take one piece; None when there is none now, False when there will be none."""
        try:
            chunk = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return None
        head, rest = chunk[: self.left], chunk[self.left :]
        if head:
            self.left -= len(head)
            self.store(head)
        if rest:
            self.tail += rest
            if len(self.tail) > 2 * self.most_tail + CHUNK:
                self.cut()
            time.sleep(PAUSE)
        return bool(chunk)

    def cut(self) -> None:
        more = len(self.tail) - self.most_tail
        if more > 0:
            self.tail = self.tail[more:]
            self.dropped += more

    def store(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the host's disk is full; the run goes on
            while data:
                data = data[os.write(self.file, data) :]

    def finish(self) -> None:
        """The rest, when nobody writes any more."""
        while self.pump():
            pass
        self.cut()
        if self.dropped:
            self.store(b"\n[... %d bytes left out ...]\n" % self.dropped)
        self.store(self.tail)


class Keeper:
    """Looks after the running program."""

    def __init__(self, link: socket.socket, order: dict[str, Any], streams: list[int]) -> None:
        self.link: socket.socket | None = link
        self.order = order
        self.streams, others = streams[:3], streams[3:]
        self.kept = order["keep"] is not None
        self.output: Output | None = None
        self.door: socket.socket | None = None
        self.record = -1
        self.poll = select.poll()
        if self.kept:
            file, self.record, door = others[:3]  # whatever follows is only held open
            self.door = socket.socket(fileno=door)
            reader, writer = os.pipe()
            self.streams = [self.streams[0], writer, writer]
            self.output = Output(reader, file, *order["keep"])
            self.poll.register(reader, select.POLLIN)
            self.poll.register(self.door, select.POLLIN)
        self.wakes, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll.register(self.wakes, select.POLLIN)
        self.poll.register(link, select.POLLIN)
        self.said = b"S"
        self.child = 0

    def run(self) -> None:
        """Start the program and look after it until somebody knows how it ended."""
        # Written before: after it, nobody may start the program a second time.
        self.note({"started": True})
        self.child = launch(self.order, self.streams)
        began = time.monotonic()
        self.tell(self.said)
        guard = began + self.order["seconds"]
        status = self.attend(guard, False)
        late = status is None and self.is_wanted()
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGTERM)
            status = self.attend(time.monotonic() + self.order["grace"], False)
        if not self.is_wanted():
            return
        end_everything()
        if status is None:
            status = int(signal.SIGKILL)
        if self.output is not None:
            with contextlib.suppress(KeyError):  # it closed its ends before
                self.poll.unregister(self.output.reader)
            self.output.finish()
        self.end(status, late, time.monotonic() - began)

    def end(self, status: int, late: bool, seconds: float) -> None:
        """Say how it ended, to whoever asks; the worker's end is waited for, up to a time."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = used.ru_maxrss * 1024
        cpu = used.ru_utime + used.ru_stime
        with contextlib.suppress(OSError):  # the host's disk is full
            self.note({"status": status, "late": late, "wall": seconds, "cpu": cpu, "peak": peak})
        told = b"%s%d\n" % (b"W" if late else b"X", status)
        self.said += told
        self.tell(told)
        linger = self.order["linger"] if self.kept else None
        until = None if linger is None else time.monotonic() + linger
        self.attend(until, True)

    def is_wanted(self) -> bool:
        """Whether somebody waits for the program, or may come."""
        return self.kept or self.link is not None

    def note(self, fact: dict[str, Any]) -> None:
        if self.record >= 0:
            os.write(self.record, json.dumps(fact).encode() + b"\n")

    def tell(self, what: bytes) -> None:
        if self.link is not None:
            with contextlib.suppress(OSError):
                self.link.sendall(what)

    def attend(self, until: float | None, over: bool) -> int | None:
        """Wait for the program's end (its wait status), for `until`, or for the worker's end where
        nothing is kept (None). `over`: the program has ended."""
        while self.is_wanted():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            ready = [each for each, _ in self.poll.poll(None if left is None else left * 1000 + 1)]
            for descriptor in ready:
                status = self.handle(descriptor, over)
                if status is not None:
                    return status
        return None

    def handle(self, descriptor: int, over: bool) -> int | None:
        if descriptor == self.wakes:
            os.read(self.wakes, 4096)
            return self.ended()
        if self.link is not None and descriptor == self.link.fileno():
            self.hear(over)
        elif self.output is not None and descriptor == self.output.reader:
            if self.output.pump() is False:
                self.poll.unregister(descriptor)
        elif self.door is not None and descriptor == self.door.fileno():
            self.welcome()
        return None

    def ended(self) -> int | None:
        """Reap whoever has ended; the wait status of the program if it is among them."""
        found = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.child:
                    found = status
        return found

    def hear(self, over: bool) -> None:
        """A word from the worker: SIGTERM for the program. Its silence: it is gone."""
        assert self.link is not None
        try:
            word = self.link.recv(16)
        except OSError:
            word = b""
        if not word:
            self.poll.unregister(self.link)
            self.link.close()
            self.link = None
        elif not over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGTERM)

    def welcome(self) -> None:
        """Another worker asks; it takes the place of the one before."""
        assert self.door is not None
        with contextlib.suppress(OSError):
            link, _ = self.door.accept()
            if self.link is not None:
                self.poll.unregister(self.link)
                self.link.close()
            self.link = link
            self.poll.register(link, select.POLLIN)
            self.tell(self.said)


def serve(link: socket.socket) -> None:
    """Run one program and tell how it ended; returns when the worker has noticed."""
    order, descriptors = receive(link)
    hide()
    for name in OWN_LIMITS:
        limit(name, *order["limits"][name])
    if order["filter"]:
        install(bytes.fromhex(order["filter"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Keeper(link, order, descriptors).run()


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

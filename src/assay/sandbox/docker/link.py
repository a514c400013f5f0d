"""The worker's end of the socket over which a container's init gets its orders.

The socket lies in a folder that only this user can enter and is bound into one container. The
first to connect must have the container's user id; after that nobody can connect any more.

The init of a program that is kept listens in turn at a socket in another folder of this user,
which no container sees: there a worker asks that did not start the program.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.sandbox.filesystem import OWN_FILES
from assay.sandbox.interface import SandboxError

_HANDSHAKE_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 60.0
_MOST_ANSWER = 2048

PASSWD, SOCKET = "/etc/passwd", "socket"
"""A file in a door's folder that is bound into the container there, and the socket's name."""
KNOCK = "knock"
"""The name of the socket at which the init of a kept program answers."""


class Link:
    """A connection to the init of one container.

    Attributes:
        pid: the init's process id as this process sees it; 0 when it does not see it.
    """

    def __init__(self, connection: socket.socket, pid: int, said: bytes = b"") -> None:
        self.pid = pid
        self._connection = connection
        self._answer = said
        self._over = b"\n" in said
        self._descriptor = -1
        connection.setblocking(False)
        if pid and sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(pid)
        if self.wait(0):  # it died before: the id may be somebody else's by now
            self._forget()

    def order(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Send what to run with its descriptors: three streams, then what the init is to have."""
        text = json.dumps(order).encode()
        self._connection.setblocking(True)
        self._connection.settimeout(_HANDSHAKE_SECONDS)
        socket.send_fds(self._connection, [struct.pack("!I", len(text))], list(descriptors))
        self._connection.sendall(text)
        self._connection.setblocking(False)

    def wait(self, seconds: float) -> bool:
        """True as soon as the init has told the end or is dead, False after `seconds`."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while not self._over:
            # Rounded up: a wait of 0.4 ms must not become a busy loop.
            left = max(0.0, deadline - time.monotonic())
            if not poll.poll(int(left * 1000 + 0.999)):
                return False
            self._read()
        return True

    def _read(self) -> None:
        try:
            chunk = self._connection.recv(_MOST_ANSWER)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._answer += chunk
        self._over = not chunk or b"\n" in self._answer or len(self._answer) > _MOST_ANSWER

    @property
    def late(self) -> bool:
        """Whether the init itself had to end the program, whose time was over."""
        return self._answer[:2] == b"SW"

    @property
    def status(self) -> int | None:
        """The program's exit code (negative: signal); None when the init did not say."""
        digits = self._answer[2:].strip()
        if self._answer[:2] not in (b"SX", b"SW") or not digits.isdigit() or int(digits) > 0xFFFF:
            return None
        with contextlib.suppress(ValueError):  # neither an exit nor a signal
            return os.waitstatus_to_exitcode(int(digits))
        return None

    @property
    def problem(self) -> str | None:
        """Why the program could not be started, if it could not; once it has, there is none."""
        if self._answer[:1] != b"E":
            return None
        return self._answer[1:].decode(errors="replace").strip()

    def interrupt(self) -> bool:
        """Send the program SIGTERM; False when there is nobody to ask."""
        try:
            self._connection.send(b"T")
        except OSError:
            return False
        return True

    def kill(self) -> bool:
        """Kill the init, and with it everything in the container; False where not possible."""
        if self._descriptor < 0 or sys.platform != "linux":
            return False
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return True

    def _forget(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def close(self) -> None:
        """Let the init end, and give the descriptors back."""
        self._forget()
        self._connection.close()


class Door:
    """The socket before anybody has connected, in a folder with what else a container gets."""

    def __init__(self, folder: Path, user: int, group: int) -> None:
        self.folder = folder
        self._user = user
        passwd = f"sandbox:x:{user}:{group}:sandbox:/tmp:/bin/false\n"
        for path, text in {PASSWD: passwd, **OWN_FILES}.items():
            file = folder / os.path.basename(path)
            file.write_text(text)
            file.chmod(0o644)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short(folder) as short:
                self._listener.bind(f"{short}/{SOCKET}")
        except OSError:
            self._listener.close()
            raise
        (folder / SOCKET).chmod(0o666)  # nobody else gets into the folder
        self._listener.listen(1)

    def accept(self, running: Callable[[], bool]) -> Link:
        """Wait for the init of the container; `running` tells whether it still can come.

        Raises `SandboxError` when it does not come, or somebody else does.
        """
        deadline = time.monotonic() + _HANDSHAKE_SECONDS
        self._listener.settimeout(_LOOK_SECONDS)
        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if not running():
                    raise SandboxError(
                        "the container ended before it asked for its program; its image needs "
                        "Python 3.9 or newer, called python3"
                    ) from None
                if time.monotonic() > deadline:
                    raise SandboxError("the container does not ask for its program") from None
                continue
            self.close()
            return self._checked(connection)

    def _checked(self, connection: socket.socket) -> Link:
        size = struct.calcsize("3i")
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, user, _ = struct.unpack("3i", found)
        if user != self._user:
            connection.close()
            raise SandboxError(
                f"user {user} asked for the program of user {self._user}; an engine that maps "
                "user ids (rootless, userns-remap) cannot be used"
            )
        return Link(connection, pid)

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()
        (self.folder / SOCKET).unlink(missing_ok=True)


@contextlib.contextmanager
def open_door(scratch: Path, user: int, group: int) -> Iterator[Door]:
    """A door in a folder of its own below `scratch`, gone again at the end."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="docker-", dir=os.path.realpath(scratch)))
    try:
        door = Door(folder, user, group)
        try:
            yield door
        finally:
            door.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listen(folder: Path) -> socket.socket:
    """A socket in `folder`, for the init to answer at; see `knock`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as short:
            listener.bind(f"{short}/{KNOCK}")
        listener.listen(4)
    except BaseException:
        listener.close()
        raise
    return listener


def knock(folder: Path) -> Link | None:
    """The init that answers at the socket in `folder`, or None when there is none any more.

    Raises `SandboxError` when it is there and says nothing.
    """
    if sys.platform != "linux" or not (folder / KNOCK).exists():
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # With its first word the kernel says who it is: a socket that was handed on does not.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(_ANSWER_SECONDS)
        try:
            with _short(folder) as short:
                connection.connect(f"{short}/{KNOCK}")
            pid, word = _first_word(connection)
        except (ConnectionError, FileNotFoundError):
            word = b""
        if not word:
            connection.close()
            return None
        return Link(connection, pid, word)
    except OSError as error:
        connection.close()
        raise SandboxError(f"the container's init does not answer: {error}") from error


def _first_word(connection: socket.socket) -> tuple[int, bytes]:
    """The init's process id as this process sees it (0: not at all), and what it says."""
    size = struct.calcsize("3i")
    word, found, _, _ = connection.recvmsg(_MOST_ANSWER, socket.CMSG_SPACE(size))
    for level, kind, data in found:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return struct.unpack("3i", data[:size])[0], word
    return 0, word


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Another path of a folder: paths of sockets may have 108 bytes only."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)

"""The worker's end of the socket over which a container's init gets its orders.

The socket lies in a folder that only this user can enter and is bound into one container. The
first to connect must have the container's user id; after that nobody can connect any more.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.sandbox.interface import SandboxError

_HANDSHAKE_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_MOST_ANSWER = 2048

PASSWD, SOCKET = "passwd", "socket"
"""Names of the files in a door's folder that are bound into the container."""


class Link:
    """A connection to the init of one container.

    Attributes:
        pid: the init's process id as this process sees it; 0 when it does not see it.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._answer = b""
        self._over = False
        self._descriptor = -1
        connection.setblocking(False)
        if pid and sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(pid)
        if self.wait(0):  # it died before: the id may be somebody else's by now
            self._forget()

    def order(self, order: Mapping[str, Any], streams: tuple[int, int, int]) -> None:
        """Send what to run, and the three descriptors it gets as its streams."""
        text = json.dumps(order).encode()
        self._connection.setblocking(True)
        self._connection.settimeout(_HANDSHAKE_SECONDS)
        socket.send_fds(self._connection, [struct.pack("!I", len(text))], list(streams))
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
    def status(self) -> int | None:
        """The program's exit code (negative: signal); None when the init did not say."""
        digits = self._answer[2:].strip()
        if self._answer[:2] != b"SX" or not digits.isdigit() or int(digits) > 0xFFFF:
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
        passwd = folder / PASSWD
        passwd.write_text(f"sandbox:x:{user}:{group}:sandbox:/tmp:/bin/false\n")
        passwd.chmod(0o644)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Paths of sockets may have 108 bytes only.
        short = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._listener.bind(f"/proc/self/fd/{short}/{SOCKET}")
        except OSError:
            self._listener.close()
            raise
        finally:
            os.close(short)
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

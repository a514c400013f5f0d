"""What every attack script has at hand. Put before it as text; the standard library only.

`GIVEN` is what a test hands over, on standard input. An attack counts as succeeded unless it
raises `OSError` or returns False; a control (the honest twin) must do neither. Any other exception
is a mistake in the script and fails the test, so that a broken attack never passes for a repelled
one.
"""

import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

GIVEN: dict[str, Any] = json.load(sys.stdin)
facts: dict[str, Any] = {}
_found: dict[str, Any] = {"succeeded": [], "controls": [], "broken": {}, "facts": facts}
_library = ctypes.CDLL(None, use_errno=True)
_library.syscall.restype = ctypes.c_long


def attack(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        if function(*arguments) is not False:
            _found["succeeded"].append(name)
    except OSError:
        pass


def control(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        if function(*arguments) is False:
            _found["broken"][name] = "False"
    except OSError as error:
        _found["broken"][name] = repr(error)
    _found["controls"].append(name)


def report() -> None:
    """Print what was found, as the last line of the output."""
    write_all(1, f"\n{json.dumps(_found)}\n".encode())


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def call(number: int, *arguments: Any) -> int:
    """A system call by number; raises `OSError` like those of the standard library."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_library.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def errno_of(function: Callable[..., Any], *arguments: Any) -> int:
    """0, or the error with which a call was refused."""
    try:
        function(*arguments)
    except OSError as error:
        return error.errno or -1
    return 0


def read(path: str, size: int = 1 << 20) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def holds(path: str, text: str) -> bool:
    return text.encode() in read(path)


def write(path: str, data: bytes = b"x") -> None:
    with open(path, "wb") as file:
        file.write(data)


def opens(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def processes() -> Iterable[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def connect(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(family, kind) as attempt:
        attempt.settimeout(1)
        attempt.connect(address)


def succeeds_in_child(function: Callable[[], Any]) -> bool:
    """Whether a function returns in a child, which it may end or break."""
    pid = os.fork()
    if pid == 0:
        try:
            code = 1 if function() is False else 0
        except OSError:
            code = 1
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False

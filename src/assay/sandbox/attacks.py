"""Small attacks that a probe runs inside a sandbox. Read as text and passed to `python -c`.

Usage: attacks.py ATTACK, with a JSON object on stdin (a command line could be seen by the attack
that looks for it). Each prints one JSON object with what it managed to do. Only the
standard library is there; nothing here does harm where an attack succeeds.
"""

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any


def connects(family: int, address: tuple[str, int] | str) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(0.5)
        try:
            attempt.connect(address)
        except OSError:
            return False
        return True


def reads(path: str, secret: str) -> bool:
    try:
        with open(path, "rb") as file:
            return secret.encode() in file.read(1 << 20)
    except OSError:
        return False


def creates(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except OSError:
        return False
    os.unlink(path)
    return True


def opens_for_writing(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        return False
    return True


def opens_socket(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def other_processes(file_name: str) -> bytes:
    """The content of one file of every visible process, joined."""
    if not os.path.isdir("/proc/self"):
        listing = subprocess.run(["ps", "-axww", "-o", "command"], capture_output=True)
        return listing.stdout
    content = b""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/{file_name}", "rb") as file:
                    content += file.read() + b"\n"
            except OSError:
                continue
    return content


def open_descriptors() -> list[int]:
    found = []
    for descriptor in range(3, 256):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        found.append(descriptor)
    return found


def becomes_root() -> bool:
    try:
        os.setuid(0)
    except OSError:
        return False
    return True


def privileges() -> dict[str, bool]:
    fields: dict[str, str] = {}
    try:
        with open("/proc/self/status") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {"capabilities": True, "can_gain": True}
    return {
        "capabilities": int(fields["CapEff"], 16) != 0,
        "can_gain": fields["NoNewPrivs"] != "1",
    }


def forbidden_calls(calls: dict[str, list[int]]) -> list[str]:
    """Names of the system calls that were not refused with EPERM."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    let_through = []
    for name, arguments in calls.items():
        ctypes.set_errno(0)
        library.syscall(*(ctypes.c_long(argument) for argument in arguments))
        if ctypes.get_errno() != 1:
            let_through.append(name)
    return let_through


def confinement(given: dict[str, Any]) -> dict[str, Any]:
    secret = given["secret"]
    facts: dict[str, Any] = {
        "tcp": connects(socket.AF_INET, ("127.0.0.1", given["port"])),
        "abstract": given["linux"] and connects(socket.AF_UNIX, "\0" + given["abstract"]),
        "vsock": given["linux"] and opens_socket(40),
        "canary_file": reads(given["file"], secret),
        "canary_written": creates(given["file"] + ".written"),
        "interpreter_written": creates(os.path.join(sys.base_prefix, ".assay-probe")),
        "canary_variable": any(secret in value for value in os.environ.values()),
        "canary_environment": secret.encode() in other_processes("environ"),
        "canary_process": given["sentinel"].encode() in other_processes("cmdline"),
        "descriptors": open_descriptors(),
        "root": os.getuid() == 0 or os.geteuid() == 0 or becomes_root(),
        "kernel_written": opens_for_writing("/proc/sys/kernel/core_pattern"),
    }
    facts.update(privileges())
    if given["calls"]:
        facts["calls"] = forbidden_calls(given["calls"])
    return facts


def memory(given: dict[str, Any]) -> dict[str, Any]:
    block = bytearray(given["bytes"])
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])  # touch every page
    time.sleep(0.5)  # long enough for a limit that polls
    return {"held": len(block)}


def forks(given: dict[str, Any]) -> dict[str, Any]:
    started: list[int] = []
    while len(started) < given["count"]:
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            time.sleep(5)
            os._exit(0)
        started.append(pid)
    return {"started": len(started)}


def linger(_: dict[str, Any]) -> dict[str, Any]:
    """Ignore SIGTERM and leave a daemon outside the tree, without our environment, behind."""
    import signal

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "3"], {})
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"{}\n")
    time.sleep(10)
    return {}


def spin(given: dict[str, Any]) -> dict[str, Any]:
    """Keep two processes busy; the child's time counts because it is waited for."""
    start = time.monotonic()
    child = os.fork()
    while time.monotonic() - start < given["seconds"]:
        pass
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    times = os.times()
    used = times.user + times.system + times.children_user + times.children_system
    return {"cpu_seconds": used, "seconds": time.monotonic() - start}


def fill(given: dict[str, Any]) -> dict[str, Any]:
    """Write a file until it is as large as asked, or refused; then wait for a limit that polls."""
    written = 0
    with open(os.path.join(given["folder"], "big"), "wb", buffering=0) as file:
        try:
            while written < given["bytes"]:
                written += file.write(b"x" * 65536)
        except OSError:
            return {"written": written}
    time.sleep(1)
    return {"written": written}


ATTACKS = {
    "confinement": confinement,
    "memory": memory,
    "forks": forks,
    "linger": linger,
    "spin": spin,
    "fill": fill,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(ATTACKS[sys.argv[1]](json.load(sys.stdin))) + "\n")

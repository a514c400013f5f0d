"""Keeps a program, and all it starts, from reading what `/proc` tells of processes.

Sandboxes of a host share the pages of the files that they all see, and the kernel keeps marks with
them: whether a page was used lately. `/proc/self/smaps` and `numa_maps` show these marks. So a
program that was shown held-out data could leave hundreds of bits for a later one, by reading some
pages and not others. A filter of system calls sees no paths; Landlock (Linux 5.13) refuses them.

A program of its own, which runs in the sandbox in front of the one to be started and becomes it
(`launcher.program_of`). It changes nothing where the kernel has no Landlock or a filter around the
worker refuses it.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
from collections.abc import Iterator

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on all architectures
_READ_FILE, _PATH_BENEATH = 1 << 2, 1
_NO_NEW_PRIVS = 38  # of prctl
_MISSING = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def hide_processes() -> None:
    """Deny this process every file of `/proc/<pid>`, permanently; without Landlock do nothing.

    Raises `OSError` if Landlock is there and fails.
    """
    kernel = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        answer: int = kernel.syscall(ctypes.c_long(number), *arguments)
        if answer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return answer

    handled = struct.pack("=Q", _READ_FILE)
    try:
        rules = call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint(0))
    except OSError as error:
        if error.errno in _MISSING:
            return
        raise
    for path in _readable():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # gone, or not for this user in the first place
            continue
        rule = struct.pack("=Qi", _READ_FILE, place)
        call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_uint(_PATH_BENEATH), rule, ctypes.c_uint(0))
        os.close(place)
    kernel.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    os.close(rules)


def _readable() -> Iterator[str]:
    """All there is but the folders of processes."""
    for name in os.listdir("/"):
        if name != "proc":
            yield f"/{name}"
    for name in os.listdir("/proc"):
        # Links lead into the folder of the process that follows them.
        if not name.isdigit() and not os.path.islink(f"/proc/{name}"):
            yield f"/proc/{name}"


def main() -> None:
    """Become the program that the arguments name."""
    hide_processes()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored in Python, here
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]} cannot be started: {error}\n")
        # As shells say it.
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()

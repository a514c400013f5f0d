"""The files a bubblewrap sandbox sees: a read-only system, the interpreter, and its mounts."""

import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from assay.sandbox.interface import Limits, Mount

SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
HIDDEN_PROC = (
    *("/proc/buddyinfo", "/proc/diskstats", "/proc/fs", "/proc/interrupts", "/proc/key-users"),
    *("/proc/keys", "/proc/locks", "/proc/pagetypeinfo", "/proc/pressure", "/proc/sched_debug"),
    *("/proc/schedstat", "/proc/slabinfo", "/proc/softirqs", "/proc/swaps", "/proc/timer_list"),
    *("/proc/vmstat", "/proc/zoneinfo", "/proc/cgroups", "/proc/sys/fs", "/proc/sys/kernel/pty"),
    "/proc/sys/kernel/hung_task_detect_count",
)
"""What the kernel counts or lists for the whole host: one sandbox would see another's doing.

Libraries read `/proc/meminfo`, `/proc/stat`, `/proc/loadavg` and `/proc/cpuinfo`, so these stay.
"""
HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"
"""`/etc/hosts` of every sandbox, whose host name is `sandbox`. Processes of one program (the ranks
of a training) meet by these names, and its network has the loopback interface alone."""
NAME_SERVICES = "passwd: files\ngroup: files\nhosts: files\n"
"""`/etc/nsswitch.conf`: without one, C libraries ask a name server before they read `HOSTS`."""
OWN_FILES = {"/etc/hosts": HOSTS, "/etc/nsswitch.conf": NAME_SERVICES}
"""Small files that every sandbox has, besides its `/etc/passwd`."""
_LEAST_TMPFS = 16 << 20
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
# Folders that hold far more than an interpreter.
_NEVER_MOUNTED = ("/", "/root", "/home", "/etc", "/var", "/tmp", "/run")

Reach = Callable[[str], str]


def interpreter_mounts() -> tuple[Mount, ...]:
    """This interpreter's installation and virtual environment, read-only at their own paths.

    Only these folders, never their parents: a virtual environment often lies in a repository.
    Installations below `/usr` are part of every sandbox already and are left out.

    Raises `ValueError` when a prefix is a folder such as `/` or a home.
    """
    base = sys.base_prefix
    links = _link_prefixes(Path(sys.executable))
    prefixes = [base, os.path.realpath(base), *links, sys.prefix]
    unique = dict.fromkeys(os.path.normpath(prefix) for prefix in prefixes)
    chosen: list[str] = []
    for prefix in sorted(unique, key=lambda path: len(PurePosixPath(path).parts)):
        check_prefix(prefix)
        if not any(_is_below(prefix, place) for place in ("/usr", *chosen)):
            chosen.append(prefix)
    return tuple(Mount(Path(prefix), prefix) for prefix in chosen)


def _link_prefixes(executable: Path) -> list[str]:
    """Installations that a chain of links from a virtual environment's `python` goes through."""
    prefixes = []
    for _ in range(16):
        if not executable.is_symlink():
            break
        target = executable.readlink()
        executable = target if target.is_absolute() else executable.parent / target
        if executable.parent.name == "bin" and executable.is_absolute():
            prefixes.append(str(executable.parent.parent))
    return [prefix for prefix in prefixes if os.path.isdir(f"{prefix}/lib")]


def check_prefix(prefix: str) -> None:
    """Raise `ValueError` for a folder of the host that holds more than a program should see."""
    if prefix in _NEVER_MOUNTED or _is_below(os.path.expanduser("~"), prefix):
        raise ValueError(f"the folder {prefix} holds too much to be mounted")


def always_visible(folder: Path) -> bool:
    """Whether every sandbox shows this folder anyway: a part of the system or the interpreter."""
    places = ("/usr", *(mount.target for mount in interpreter_mounts()))
    return any(_is_below(os.path.normpath(folder), place) for place in places)


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def check_target(mount: Mount) -> None:
    """Raise `ValueError` when a mount's target is not an absolute path the code may have.

    A target may not lie over the system or the interpreter, which keep their host paths: choose
    folders that hosts do not have.
    """
    target = mount.target
    if not target.startswith("/") or os.path.normpath(target) != target or target == "/":
        raise ValueError(f"mount target {target!r} is not a normal absolute path")
    if any(_is_below(target, place) for place in _KERNEL_FOLDERS) and not (
        is_device(mount.source) and _is_below(target, "/dev")
    ):
        raise ValueError(f"mount target {target} lies in a folder of the kernel")
    interpreter = (each.target for each in interpreter_mounts())
    for needed in ("/usr", "/etc/passwd", *OWN_FILES, *interpreter):
        if _is_below(needed, target) or _is_below(target, needed):
            raise ValueError(f"mount target {target} would hide or change {needed}")


def tmpfs_bytes(limits: Limits) -> int:
    """The size of `/tmp` and of `/dev/shm`, which count as memory besides."""
    return max(_LEAST_TMPFS, limits.memory_bytes // 2)


def is_device(source: Path) -> bool:
    """Whether `source` is a character device (a GPU node)."""
    return stat.S_ISCHR(os.stat(source).st_mode)


def system_arguments() -> list[str]:
    """Bubblewrap arguments for the read-only system folders of this host."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for link in SYSTEM_LINKS:
        if os.path.islink(link):
            arguments += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            arguments += ["--ro-bind", link, link]
    for path in SYSTEM_FILES:
        arguments += ["--ro-bind-try", path, path]
    return arguments


def hiding_arguments() -> list[str]:
    """Bubblewrap arguments that empty `HIDDEN_PROC`, as far as this host's kernel has it."""
    arguments: list[str] = []
    for path in HIDDEN_PROC:
        if os.path.isdir(path):
            arguments += ["--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            # A device, because it reads as empty. A bind without devices could not be opened.
            arguments += ["--dev-bind", "/dev/null", path]
    return arguments


def secrecy_arguments() -> list[str]:
    """Bubblewrap arguments for a program that is shown held-out data, after those for `/dev`.

    A shared mapping of `/dev/zero` has an inode number that counts for the whole host.
    """
    return ["--dev-bind", "/dev/null", "/dev/zero"]


def interpreter_arguments(reach: Reach) -> list[str]:
    """Bubblewrap arguments for the interpreter, with files that may hold passwords masked."""
    arguments: list[str] = []
    for mount in interpreter_mounts():
        arguments += ["--ro-bind", reach(os.path.realpath(mount.source)), mount.target]
        if (mount.source / "pip.conf").exists():
            arguments += ["--ro-bind", "/dev/null", f"{mount.target}/pip.conf"]
    return arguments


def mount_arguments(mounts: Iterable[Mount], reach: Reach) -> list[str]:
    """Bubblewrap arguments for the mounts of a specification, in its order."""
    arguments: list[str] = []
    for mount in mounts:
        source = os.path.realpath(mount.source)
        if is_device(mount.source):
            option = "--dev-bind"
        else:
            option = "--bind" if mount.writable else "--ro-bind"
        arguments += [option, reach(source), mount.target]
    return arguments

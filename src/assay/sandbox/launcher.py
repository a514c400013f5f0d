"""A small shell program that prepares a process and then becomes the program to start.

Running code between fork and exec is unsafe in a threaded Python, so the preparation (joining
control groups, resource limits, private mounts) happens in `/bin/sh`, in about a millisecond.
Everything variable reaches it as positional arguments, never as shell text.
"""

import functools
import math
import os
import resource
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from assay.sandbox.interface import Limits, SandboxError, SandboxSpec

_SCRIPT = """
set -e
[ ! -w /proc/self/oom_score_adj ] || echo 500 2>/dev/null >/proc/self/oom_score_adj || :
while [ "$1" != -- ]; do
  case "$1" in
    group) echo 0 >"$2"; shift 2 ;;
    login)
      [ ! -w /proc/self/loginuid ] || echo "$2" 2>/dev/null >/proc/self/loginuid || :
      shift 2 ;;
    limit) ulimit "-S$2" "$3"; ulimit "-H$2" "$4"; shift 4 ;;
    bind) "$2" --rbind "$3" "$4"; shift 4 ;;
    table) "$2" --all --fstab "$3"; shift 3 ;;
    *) exit 125 ;;
  esac
done
shift
exec "$@"
"""

TRUSTED_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""Where programs that run before the sandbox is closed are looked up."""


def tool(name: str) -> str:
    """Absolute path of a system program; raises `SandboxError` naming what is missing."""
    found = shutil.which(name, path=TRUSTED_PATH)
    if found is None:
        raise SandboxError(f"{name} is not installed")
    return found


def limit_arguments(limits: Limits) -> list[str]:
    """Resource limits of each single process, no higher than this process may set them."""
    wanted = {
        "c": (0, 0, resource.RLIMIT_CORE, 512),
        "n": (limits.open_files, limits.open_files, resource.RLIMIT_NOFILE, 1),
        "f": (limits.file_bytes, limits.file_bytes, resource.RLIMIT_FSIZE, 512),
    }
    if limits.cpu_seconds is not None:
        # A backstop: the tree's CPU time is watched from outside.
        soft = math.ceil(limits.cpu_seconds) + 1
        wanted["t"] = (soft, soft + 1, resource.RLIMIT_CPU, 1)
    arguments: list[str] = []
    for option, (soft, hard, kind, unit) in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        values = [
            value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
            for value in (soft, hard)
        ]
        arguments += ["limit", option, *(str(math.ceil(value / unit)) for value in values)]
    return arguments


def program_of(spec: SandboxSpec, python: str) -> tuple[str, ...]:
    """What the sandbox runs, with `python` as its interpreter: `argv`, and in front of a program
    that is shown held-out data `hide_processes`.

    With GPUs there is nothing in front, because CUDA reads files of its own process.
    """
    if not spec.sees_held_out or spec.gpus:
        return spec.argv
    return (python, "-I", "-S", "-c", _hide_processes(), *spec.argv)


@functools.cache
def _hide_processes() -> str:
    return Path(__file__).with_name("hide_processes.py").read_text(encoding="utf-8")


def launch_command(
    program: Sequence[str],
    limits: Limits,
    groups: Iterable[str] = (),
    binds: Mapping[str, str] | None = None,
    table: str | None = None,
    *,
    set_login_id: bool = False,
) -> list[str]:
    """The argument vector that prepares and then executes `program`.

    `groups` are `cgroup.procs` files to join. `binds` (source: target) and `table` (a file of
    mounts in the form of fstab) need root and put the program into a private mount namespace.

    `set_login_id` sets the audit login id (`/proc/self/loginuid`), which can be set only once. A
    program that may write in `/proc` would otherwise set it in every thread. Each time that counts
    up a session number of the whole host, which the next program could read.
    """
    command = ["/bin/sh", "-c", _SCRIPT, "assay-launch"]
    for group in groups:
        command += ["group", group]
    if set_login_id:
        command += ["login", str(os.geteuid())]
    command += limit_arguments(limits)
    if binds or table:
        private = [tool("unshare"), "--mount", "--propagation", "private", "--"]
        command = private + command
        mount = tool("mount")
        for source, target in (binds or {}).items():
            command += ["bind", mount, source, target]
        if table:
            command += ["table", mount, table]
    return [*command, "--", *program]

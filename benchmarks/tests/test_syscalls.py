"""The recorder of system calls: what it reads from a trace."""

from __future__ import annotations

from assay.sandbox import syscalls
from benchmarks.syscalls import calls_in, traced, written

TRACE = """\
10 execve("/usr/bin/python3", ["python3"], 0x7ffc /* 9 vars */) = 0
10 mount("none", "/x", "tmpfs", 0, NULL) = 0
10 clone(child_stack=NULL, flags=SIGCHLD <unfinished ...>
11 openat(AT_FDCWD, "/etc", O_RDONLY) = 3
10 <... clone resumed>) = 11
11 execve("/bin/sh", ["/bin/sh", "-c", "\\nset -e"..., "assay-launch", "limit"], 0x7f) = 0
11 execve("/usr/bin/python3", ["python3", "train.py"], 0x7f) = 0
12 getrandom("\\x01", 8, 0) = 8
11 clone3({flags=CLONE_VM}, 88) = 12
10 umount2("/x", 0) = 0
12 read(3,  <unfinished ...>
12 <... read resumed>"x", 1) = 1
10 fork() = 13
13 ptrace(PTRACE_TRACEME) = 0
11 exit_group(0) = ?
12 +++ exited with 0 +++
""".splitlines()


def test_only_what_a_sandbox_started_is_counted() -> None:
    launched = {"execve", "getrandom", "clone3", "read", "exit_group"}
    assert calls_in(TRACE, launched=True) == launched
    everything = launched | {"mount", "clone", "openat", "umount2", "fork", "ptrace"}
    assert calls_in(TRACE, launched=False) == everything


def test_the_data_file_is_what_the_recorder_writes() -> None:
    rows = [
        line
        for line in syscalls.RECORDED_FILE.read_text().splitlines()
        if not line.startswith("#")
    ]
    again = written(syscalls.RECORDED).splitlines()
    assert rows == [line for line in again if not line.startswith("#")]


def test_the_traced_program_keeps_its_process_id() -> None:
    command = traced(syscalls.RECORDED_FILE, ["true"])
    assert command[:2] == ["strace", "-D"]
    assert command[-1] == "true"

"""Channels between sandboxes: locks, watches, statistics and counters of the whole host."""

import platform

import pytest

from tests.attacks.arena import Arena

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")

FILE = """
import fcntl, sqlite3, struct
shared = os.open("/usr/bin/env", os.O_RDONLY)  # every sandbox maps the same file of the host
os.makedirs("/tmp/own", exist_ok=True)
def lock(kind, start):
    return struct.pack("hhqqi4x", kind, 0, start, 1, 0)
"""

PREDICTOR = f"""{FILE}
own = os.open("/tmp/own/file", os.O_RDWR | os.O_CREAT)
attack("query of a lock", fcntl.fcntl, shared, fcntl.F_GETLK, lock(fcntl.F_WRLCK, 4242))
attack("record lock", fcntl.fcntl, shared, fcntl.F_SETLK, lock(fcntl.F_RDLCK, 4242))
attack("awaited lock", fcntl.fcntl, shared, fcntl.F_SETLKW, lock(fcntl.F_RDLCK, 4242))
attack("file lock", fcntl.flock, shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
attack("file lock through the upper half", lambda: call(72, shared, 1 << 32 | 6, lock(0, 4242)))
for number in (36, 37, 38):
    attack(f"open file lock {{number}}", fcntl.fcntl, own, number, lock(fcntl.F_WRLCK, 4242))
control("descriptors", lambda: os.close(os.dup(own)) or fcntl.fcntl(own, fcntl.F_GETFL))
write_all(1, b"ready\\n")
time.sleep(GIVEN["seconds"])
"""

TRAINING = f"""{FILE}
def held(number):
    '''Whether the answer of a lock names the lock of somebody else.'''
    return struct.unpack("hhqqi4x", fcntl.fcntl(shared, number, lock(fcntl.F_WRLCK, 4242)))[0] != 2
attack("locks listed", lambda: bool(read("/proc/locks")))
attack("lock of another", held, fcntl.F_GETLK)
shares = fcntl.LOCK_SH | fcntl.LOCK_NB
attack("file is locked", lambda: errno_of(fcntl.flock, shared, shares) == 11)
for number, argument in ((36, lock(1, 0)), (37, lock(0, 0)), (38, lock(0, 0)),
                         (1024, 0), (1026, 1), (1035, bytes(8)), (1036, bytes(8)),
                         (1037, bytes(8)), (1038, bytes(8)), (1039, bytes(8)), (1040, bytes(8))):
    facts[f"fcntl {{number}}"] = errno_of(fcntl.fcntl, shared, number, argument)
own = os.open("/tmp/own/file", os.O_RDWR | os.O_CREAT)
attack("lease", fcntl.fcntl, own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
control("file lock", fcntl.flock, own, fcntl.LOCK_EX | fcntl.LOCK_NB)
control("record lock", fcntl.lockf, own, fcntl.LOCK_EX | fcntl.LOCK_NB)
control("pipe size", lambda: fcntl.fcntl(os.pipe()[0], fcntl.F_GETPIPE_SZ) > 0)
control("close on exec", fcntl.fcntl, own, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
def query(mode):
    for _ in range(2):  # the second time there is a database already
        database = sqlite3.connect(f"/tmp/own/{{mode}}.db", timeout=1)
        database.execute(f"pragma journal_mode = {{mode}}")
        database.execute("create table if not exists t (x)")
        database.execute("insert into t values (1)")
        database.commit()
        database.execute("insert into t values (2)")
        database.rollback()
        rows = database.execute("select count(*) from t").fetchone()[0]
        database.close()
    return rows == 2
for mode in ("delete", "truncate", "persist", "memory", "wal"):
    control(f"sqlite {{mode}}", query, mode)
"""


@x86_64
def test_locks_tell_nothing_of_another_sandbox(arena: Arena) -> None:
    seconds = {"seconds": 30}
    predictor = arena.start(PREDICTOR, given=seconds, sees_held_out=True, wall=60)
    predictor.printed("ready", 60)
    found = arena.repels(TRAINING).facts
    assert set(found.values()) == {1}, found
    predictor.handle.kill()
    predictor.wait()
    ended = arena.repels(PREDICTOR, given={"seconds": 0}, sees_held_out=True)
    assert ended.controls == ["descriptors"]


FILE_SYSTEM = """
import fcntl
shared = os.open("/usr/bin/env", os.O_RDONLY)
requests = {
    "extents in memory": 0xC020662A, "extents": 0xC020660B, "flags": 0x80086601,
    "xfs": 0x8070586D, "freeze": 0xC0045877,
    "trim": 0xC0185879, "btrfs": 0x8400941F, "clone": 0x40049409,
    "upper half": 1 << 32 | 0xC020662A,
}
for name, request in requests.items():
    facts[name] = errno_of(lambda: call(16, shared, request, bytes(4096)))
for name, arguments in {"inotify_init": (253,), "inotify_init1": (294, 0),
                        "inotify_add_watch": (254, 0, b"/usr/bin/env", 0xFFF),
                        "inotify_rm_watch": (255, 0, 1)}.items():
    facts[name] = errno_of(lambda: call(*arguments))
control("bytes to read", lambda: fcntl.ioctl(os.pipe()[0], 0x541B, bytes(4)) == bytes(4))
control("non-blocking", lambda: os.set_blocking(os.pipe()[0], False))
"""


@x86_64
def test_requests_and_watches_of_shared_files_are_refused(arena: Arena) -> None:
    found = arena.repels(FILE_SYSTEM).facts
    assert found == dict.fromkeys(found, 1)


STATISTICS = """
for path in GIVEN["paths"]:
    if os.path.isdir(path):
        attack(f"listed {path}", lambda: bool(os.listdir(path)))
        attack(f"written {path}", opens, f"{path}/new", os.O_WRONLY | os.O_CREAT)
    elif os.path.exists(path):
        attack(path, lambda: bool(read(path)))
for path in ("/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/cpuinfo"):
    control(path, lambda: bool(read(path)))
for path in ("kernel/osrelease", "kernel/random/boot_id", "kernel/pid_max",
             "vm/overcommit_memory", "vm/max_map_count"):
    control(path, lambda: bool(read(f"/proc/sys/{path}")))
control("own process", lambda: holds("/proc/self/status", "Pid"))
"""


def test_statistics_of_the_host_are_hidden(arena: Arena) -> None:
    names = (
        *("buddyinfo", "diskstats", "fs", "interrupts", "key-users", "keys", "locks", "pressure"),
        *("pagetypeinfo", "sched_debug", "schedstat", "slabinfo", "softirqs", "swaps"),
        *("timer_list", "vmstat", "zoneinfo", "sys/fs/file-nr", "sys/fs/inode-nr"),
        *("sys/fs/inode-state", "sys/fs/dentry-state", "sys/fs", "sys/kernel/pty", "cgroups"),
        *("sys/fs/aio-nr", "sys/fs/dentry-negative", "sys/fs/quota", "sys/kernel/pty/nr"),
        "sys/kernel/hung_task_detect_count",
    )
    arena.repels(STATISTICS, given={"paths": [f"/proc/{name}" for name in names]})


COOKIES = """
local, routing = socket.socket(socket.AF_UNIX), socket.socket(16, socket.SOCK_RAW, 0)
for option in (57, 71, 77):
    for given in (local, routing):
        facts[f"{given.family} {option}"] = errno_of(given.getsockopt, 1, option, 8)
def raw(level, option):
    call(55, local.fileno(), level, option, bytes(8), (8).to_bytes(4, "little"))
facts["upper half"] = errno_of(raw, 1 << 32 | 1, 1 << 32 | 57)
facts["aio"] = {38: 1}.get(errno_of(call, 206, 1, bytes(8)), 0)
control("error of a socket", lambda: local.getsockopt(1, 4) == 0)
control("file in memory", lambda: os.close(os.memfd_create("x")))
control("processors", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
"""


@x86_64
def test_nobody_reads_the_cookies_of_sockets(arena: Arena) -> None:
    found = arena.repels(COOKIES).facts
    assert found == dict.fromkeys(found, 1)


COUNTERS = """
import mmap, subprocess
attack("file in memory", os.memfd_create, "x")
attack("anonymous shared memory", mmap.mmap, -1, 4096)
attack("shared memory of System V", lambda: call(29, 0, 4096, 0o1600))
def mapped_zero():
    with open("/dev/zero", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
        return holds("/proc/self/maps", "/dev/zero")
attack("mapping of /dev/zero", mapped_zero)
attack("process descriptor", os.pidfd_open, os.getpid())
def descriptor_of_a_child():
    if call(56, 0x1011, 0, bytes(4), 0, 0) == 0:
        os._exit(0)
attack("clone with a process descriptor", descriptor_of_a_child)
attack("socket", socket.socket, socket.AF_UNIX)
attack("routing socket", socket.socket, 16, socket.SOCK_RAW, 0)
attack("socket pair", socket.socketpair)
attack("choice of a processor", os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))})
attack("asynchronous files", call, 206, 1, bytes(8))
control("pipe", os.pipe)
control("own memory", lambda: mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
control("program", lambda: subprocess.run(["true"], check=True))
with open("/tmp/file", "wb+") as file:
    file.write(bytes(4096))
    file.flush()
    control("shared file", lambda: mmap.mmap(file.fileno(), 4096))
"""


@x86_64
def test_a_predictor_reads_and_moves_few_counters_of_the_host(arena: Arena) -> None:
    arena.repels(COUNTERS, sees_held_out=True)


PAGES = """
import subprocess
names = ("smaps", "smaps_rollup", "numa_maps", "maps", "status", "stat", "pagemap")
for process in ("self", "thread-self", f"self/task/{os.getpid()}", str(os.getppid()), "1"):
    for name in names:
        attack(f"{name} of {process}", lambda: read(f"/proc/{process}/{name}", 1))
        attack(f"{name} of {process}, by a detour",
               lambda: read(f"/proc/self/root/proc/{process}/{name}", 1))
folder = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
attack("from a folder that is open", lambda: os.open("smaps", os.O_RDONLY, dir_fd=folder))
attack("by a child", lambda: subprocess.run(["/bin/cat", "/proc/self/smaps"]).returncode == 0)
def forked():
    child = os.fork()
    if child == 0:
        os._exit(errno_of(read, "/proc/self/smaps", 1))
    return os.waitpid(child, 0)[1] == 0
attack("by a fork", forked)
for path in ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/etc/passwd"):
    control(path, read, path, 1)
control("program", lambda: subprocess.run(["/bin/true"], check=True))
control("own file", lambda: write("/tmp/own") or read("/tmp/own"))
"""


def test_a_predictor_reads_no_marks_of_pages(arena: Arena) -> None:
    """What was read of a file that all sandboxes see could be told from them, bit by bit."""
    arena.repels(PAGES, sees_held_out=True)

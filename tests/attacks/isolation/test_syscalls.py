"""The kernel's surface: forbidden calls, foreign ABIs, privileges, limits, devices, mounts."""

import os
import platform
from pathlib import Path

import pytest

from assay.sandbox import Mount, syscalls
from assay.sandbox.bubblewrap import BubblewrapSandbox
from assay.sandbox.cgroups import ControlGroups, Hierarchies
from tests.attacks.arena import MIB, Arena
from tests.attacks.conftest import settings_of

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root could do")
KERNEL_FILES = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sysrq-trigger",
)

FORBIDDEN = """
null, path = 0, b"/tmp"
calls = {
    "ptrace": (101, 0, 0, 0, 0), "process_vm_readv": (310, os.getpid(), 0, 0, 0, 0, 0),
    "process_vm_writev": (311, os.getpid(), 0, 0, 0, 0, 0), "pidfd_getfd": (438, 0, 0, 0),
    "kcmp": (312, os.getpid(), os.getpid(), 0, 0, 0), "process_madvise": (440, 0, 0, 0, 0, 0),
    "io_uring_setup": (425, 1, bytes(120)), "io_uring_enter": (426, 0, 0, 0, 0, 0, 0),
    "io_uring_register": (427, 0, 0, 0, 0), "userfaultfd": (323, 1),
    "bpf": (321, 0, bytes(64), 64),
    "perf_event_open": (298, bytes(128), 0, -1, -1, 0), "memfd_secret": (447, 0),
    "keyctl": (250, 0, -3, 1), "add_key": (248, b"user", b"x", b"x", 1, -3),
    "request_key": (249, b"user", b"x", 0, -3), "setns": (308, 0, 0),
    "mount": (165, b"none", path, b"tmpfs", 0, 0), "umount2": (166, path, 2),
    "remount": (165, 0, b"/usr", 0, 0x1020, 0), "bind": (165, path, b"/usr", 0, 0x1000, 0),
    "pivot_root": (155, path, path), "chroot": (161, path), "open_tree": (428, -100, path, 1),
    "move_mount": (429, -100, path, -100, path, 0), "fsopen": (430, b"tmpfs", 0),
    "fsconfig": (431, 0, 0, 0, 0, 0), "fsmount": (432, 0, 0, 0), "fspick": (433, -100, path, 0),
    "mount_setattr": (442, -100, b"/usr", 0, bytes(32), 32),
    "name_to_handle_at": (303, -100, path, bytes(64), bytes(8), 0),
    "open_by_handle_at": (304, 1, bytes(64), 0), "fanotify_init": (300, 0, 0),
    "settimeofday": (164, bytes(16), 0), "clock_settime": (227, 0, bytes(16)),
    "adjtimex": (159, b"\\x01" + bytes(207)), "init_module": (175, b"x", 1, b""),
    "finit_module": (313, 0, b"", 0), "delete_module": (176, b"x", 0),
    "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, -1, -1, 0, b"", 0),
    "reboot": (169, 0xFEE1DEAD, 672274793, 0, 0), "swapon": (167, path, 0),
    "swapoff": (168, path), "acct": (163, path), "quotactl": (179, 0, path, 0, 0),
    "sethostname": (170, b"x", 1), "setdomainname": (171, b"x", 1), "vhangup": (153,),
    "iopl": (172, 3), "ioperm": (173, 0x70, 1, 1), "modify_ldt": (154, 0, bytes(16), 16),
    "personality no randomisation": (135, 0x0040000), "migrate_pages": (256, 1, 0, 0, 0),
    "setuid": (105, 0), "setgid": (106, 0), "setresuid": (117, 0, 0, 0),
    "setgroups": (116, 1, bytes(4)),
    "capset": (126, b"\\x22\\x05\\x08\\x20" + bytes(4), b"\\xff" * 24),
    "mknod": (133, b"/tmp/null", 0o20666, 0x103), "lookup_dcookie": (212, 0, 0, 0),
}
for name, (number, *arguments) in calls.items():
    facts[name] = errno_of(call, number, *arguments)
    attack(name, lambda: facts[name] == 0)
attack("setfsuid", lambda: (call(122, 0), call(122, -1))[1] == 0)
control("getpid", lambda: call(39) == os.getpid())
control("memfd", lambda: os.close(os.memfd_create("x")))
control("pidfd", lambda: os.close(os.pidfd_open(os.getpid())))
"""
REFUSED_BY_FILTER = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "userfaultfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "keyctl"),
    *("add_key", "request_key", "setns", "mount", "umount2", "open_tree", "move_mount", "fsopen"),
    *("mount_setattr", "name_to_handle_at", "open_by_handle_at", "personality no randomisation"),
)


@x86_64
def test_a15_forbidden_calls(arena: Arena) -> None:
    facts = arena.repels(FORBIDDEN).facts
    assert {name: facts[name] for name in REFUSED_BY_FILTER} == dict.fromkeys(REFUSED_BY_FILTER, 1)


UNLISTED = """
for name, number in GIVEN["calls"].items():
    facts[name] = errno_of(call, number, 0, 0, 0, 0, 0, 0)
    attack(name, lambda: facts[name] not in (1, 38))
control("getpid", lambda: call(39) == os.getpid())
"""


@x86_64
def test_a15_calls_that_nobody_was_seen_to_need(arena: Arena) -> None:
    """Every call of the kernel that is on no list, refused as if the kernel did not have it."""
    listed = syscalls.ALLOWED | syscalls.JUDGED
    numbers = {name: number for name, (number, _) in syscalls.NUMBERS.items() if number}
    calls = {name: number for name, number in numbers.items() if name not in listed}
    assert len(calls) > 100, "the lists allow nearly everything"
    found = arena.repels(UNLISTED, given={"calls": calls}).facts
    unknown = calls.keys() - syscalls.DENIED
    assert {found[name] for name in unknown} == {38}
    assert {found[name] for name in calls.keys() & syscalls.DENIED} == {1}


NAMESPACES = """
import subprocess
flags = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
         "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "time": 0x80}
def clone(flag):
    pid = call(56, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def clone3(flag):
    arguments = flag.to_bytes(8, "little") + bytes(24) + (17).to_bytes(8, "little") + bytes(48)
    pid = call(435, arguments, 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def unshare(flag):
    return succeeds_in_child(lambda: call(272, flag))
def runs(*command):
    return subprocess.run(command, capture_output=True).returncode == 0
for name, flag in flags.items():
    attack(f"unshare {name}", unshare, flag)
    attack(f"unshare user and {name}", unshare, flag | flags["user"])
    if flag > 0xFF:
        attack(f"clone {name}", clone, flag)
        attack(f"clone user and {name}", clone, flag | flags["user"])
    attack(f"clone3 {name}", clone3, flag | flags["user"])
programs = (("unshare", "-Urm", "true"), ("bwrap", "--ro-bind", "/", "/", "true"),
            ("mount", "-t", "tmpfs", "none", "/tmp"), ("umount", "-l", "/usr"),
            ("nsenter", "-t", "1", "-m", "true"), ("chroot", "/", "true"))
for program in programs:
    if os.path.exists(f"/usr/bin/{program[0]}"):
        attack(f"program {program[0]}", runs, f"/usr/bin/{program[0]}", *program[1:])
facts["max"] = errno_of(write, "/proc/sys/user/max_user_namespaces", b"1000")
control("thread", lambda: __import__("threading").Thread(target=int).start())
control("child", lambda: clone(0))
control("program", runs, "/usr/bin/true")
"""


@x86_64
def test_a28_nested_namespaces(arena: Arena) -> None:
    assert arena.repels(NAMESPACES).facts["max"] != 0


ABIS = """
import mmap
def machine_code(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
def in_child(code, good):
    return succeeds_in_child(lambda: machine_code(bytes.fromhex(code)) == good())
control("machine code", in_child, "b827000000 0f05 c3", os.getpid)  # getpid by syscall
attack("int80", in_child, "b814000000 cd80 c3", os.getpid)  # getpid of i386
attack("int80 fork", in_child, "b802000000 cd80 c3", lambda: 0)
attack("int80 socketcall", in_child, "b866000000 bb01000000 31c9 cd80 c3", lambda: -14)
attack("x32", in_child, "b827000040 0f05 c3", os.getpid)  # getpid of x32
attack("x32 ptrace", in_child, "b809020040 0f05 c3", lambda: 0)
attack("far call into 32 bits", in_child, "6a23 680000 0000 cb", lambda: 0)
for number in (457, 500, 512, 547, 1000, 0x3FFFFFFF):
    facts[str(number)] = errno_of(call, number)
"""


@x86_64
def test_a30_foreign_abis(arena: Arena) -> None:
    facts = arena.repels(ABIS).facts
    assert set(facts.values()) <= {38}  # calls newer than the filter are answered with ENOSYS


KERNEL = """
for path in GIVEN["paths"]:
    attack(f"written {path}", opens, path, os.O_WRONLY)
for top in ("/sys", "/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.lstat(path).st_rdev != os.makedev(1, 3):  # hidden by /dev/null
                attack(f"opened {path}", opens, path, os.O_WRONLY)
attack("cgroup", os.mkdir, "/sys/fs/cgroup/x")
attack("own cgroup", lambda: [opens(p, 1) for p in ("/sys/fs/cgroup/cgroup.procs",)])
control("own name", lambda: read("/proc/self/comm") != "")
"""
# Switches of the program's own IPC and PID namespaces, which count for nobody else.
OWN_NAMESPACES = [
    "auto_msgmni",
    "msgmax",
    "msgmnb",
    "msgmni",
    "ns_last_pid",
    "pid_max",
    "sem",
    "shm_rmid_forced",
    "shm_next_id",
    "msg_next_id",
    "sem_next_id",
    "shmall",
    "shmmax",
    "shmmni",
]


def test_a16_kernel_files(arena: Arena) -> None:
    ended = arena.attack(KERNEL, given={"paths": KERNEL_FILES})
    own = {f"opened /proc/sys/kernel/{name}" for name in OWN_NAMESPACES}
    wrong = [name for name in ended.succeeded if name not in own and "/fs/mqueue/" not in name]
    assert wrong == []


def test_a33_switches_of_own_namespaces_stay_there(arena: Arena) -> None:
    script = """
for name, value in (("pid_max", "400"), ("msgmax", "4096"), ("shmmax", "1")):
    facts[name] = errno_of(write, f"/proc/sys/kernel/{name}", value.encode())
control("runs", lambda: True)
"""
    paths = [Path("/proc/sys/kernel", name) for name in ("pid_max", "msgmax", "shmmax")]
    before = [path.read_text() for path in paths]
    arena.attack(script)
    assert [path.read_text() for path in paths] == before


@needs_root
def test_a16_subprocess_lets_through(plain: Arena) -> None:
    script = """
for path in GIVEN["paths"]:
    attack(path, opens, path, os.O_WRONLY)
attack("root", os.setuid, 0)
control("runs", lambda: True)
"""
    ended = plain.attack(script, given={"paths": KERNEL_FILES})
    assert {KERNEL_FILES[0], "root"} <= set(ended.succeeded)


PRIVILEGES = """
import subprocess, shutil
status = dict(line.split(":\\t", 1) for line in read("/proc/self/status").decode().splitlines()
              if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
    attack(name, lambda: int(status[name], 16) != 0)
attack("privileges can be gained", lambda: status["NoNewPrivs"] != "1")
attack("no filter", lambda: status["Seccomp"] != "2")
attack("groups", lambda: any(group != os.getgid() for group in os.getgroups()))
attack("root", lambda: 0 in os.getresuid() + os.getresgid())
for function in (os.setuid, os.seteuid, os.setgid, os.setegid):
    attack(function.__name__, function, 0)
def becomes_root(*command):
    found = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    return b"uid=0" in found.stdout
shutil.copy("/usr/bin/bash", GIVEN["job"] + "/shell")
for mode in (0o4755, 0o2755, 0o6777):
    errno_of(os.chmod, GIVEN["job"] + "/shell", mode)
    attack(f"set-id shell {mode:o}", becomes_root, GIVEN["job"] + "/shell", "-p", "-c", "id")
for command in (("sudo", "-n", "id"), ("su", "-c", "id"), ("pkexec", "id"), ("doas", "id"),
                ("setpriv", "--reuid=0", "id"), ("capsh", "--", "-c", "id")):
    if shutil.which(command[0]):
        attack(command[0], becomes_root, shutil.which(command[0]), *command[1:])
attack("given set-id file", becomes_root, GIVEN["data"] + "/shell", "-p", "-c", "id")
attack("file capabilities", os.setxattr, GIVEN["job"] + "/shell", "security.capability",
       bytes.fromhex("0100000200000000000020000000000000000000"))
attack("ambient", lambda: call(157, 47, 2, 21, 0, 0))
attack("keeps capabilities", lambda: call(157, 8, 1, 0, 0, 0) == 0 and False)
attack("securebits", lambda: call(157, 28, 1, 0, 0, 0))
attack("leave no_new_privs", lambda: call(157, 38, 0, 0, 0, 0))
attack("leave filter", lambda: call(157, 22, 0, 0, 0, 0))
control("program", lambda: subprocess.check_output(["/usr/bin/id"]).startswith(b"uid"))
"""


@x86_64
@needs_root
def test_a17_gaining_privileges(arena: Arena, workspace: Mount, inputs: Mount) -> None:
    shell = inputs.source / "shell"  # what another run may have left: root's, and set-user-id
    shell.write_bytes(Path("/usr/bin/bash").read_bytes())
    shell.chmod(0o4755)
    places = {"job": arena.sandbox.path(workspace), "data": arena.sandbox.path(inputs)}
    arena.repels(PRIVILEGES, given=places, mounts=(workspace, inputs))


LIMITS = """
import resource
def raised(function, *arguments):
    try:
        function(*arguments)
    except ValueError:  # Python's word for EPERM
        return False
for name in ("RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CPU"):
    kind = getattr(resource, name)
    soft, hard = resource.getrlimit(kind)
    facts[name] = hard
    attack(f"raised {name}", raised, resource.setrlimit, kind, (hard, hard + 1))
    attack(f"raised {name} of 1", raised, resource.prlimit, 1, kind, (hard, hard + 1))
    attack(f"lowered {name} of 1", raised, resource.prlimit, 1, kind, (0, 0))
def adjusts(path, value):
    write(path, value)
    return int(read(path)) < 0
attack("oom_score_adj", adjusts, "/proc/self/oom_score_adj", b"-1000")
attack("oom_score_adj of 1", adjusts, "/proc/1/oom_score_adj", b"-1000")
attack("nice", lambda: os.nice(-5))
attack("priority", os.setpriority, os.PRIO_PROCESS, 0, -10)
attack("io realtime", lambda: call(251, 1, 0, (1 << 13) | 0))
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attack(f"realtime {policy}", os.sched_setscheduler, 0, policy, os.sched_param(1))
attack("deadline", lambda: call(314, 0, (48).to_bytes(4, "little") + b"\\x06" + bytes(11)
       + b"".join(n.to_bytes(8, "little") for n in (0, 10**6, 10**7, 10**7)), 0))
attack("lock everything", lambda: call(151, 3) == 0 and False)
attack("huge pages", lambda: call(9, 0, 2 << 20, 3, 0x40022, -1, 0))
attack("own group is left", lambda: [opens(path, os.O_WRONLY) for path in GIVEN["groups"]])
control("lowered", resource.setrlimit, resource.RLIMIT_NOFILE, (100, 100))
control("nicer", lambda: os.nice(1))
"""


@x86_64
def test_a32_own_limits(arena: Arena) -> None:
    groups = ["/sys/fs/cgroup/memory/tasks", "/sys/fs/cgroup/cgroup.procs"]
    limits = {"cpu_seconds": 10, "file_bytes": 16 * MIB}
    ended = arena.attack(LIMITS, given={"groups": groups}, **limits)
    assert ended.facts["RLIMIT_CORE"] == 0
    assert 0 < ended.facts["RLIMIT_CPU"] <= 12
    assert ended.facts["RLIMIT_FSIZE"] == 16 * MIB
    assert ended.succeeded == []


DEVICES = """
import stat, fcntl, termios
known = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "console"}
for folder, folders, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        odd = stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and name not in known)
        attack(f"device {path}", lambda: odd)
for place in ("/tmp", "/dev/shm", GIVEN["job"]):
    for name, kind, number in (("mem", 0o20666, (1, 1)), ("disk", 0o60666, (254, 0)),
                               ("fuse", 0o20666, (10, 229)), ("kvm", 0o20666, (10, 232))):
        attack(f"{name} made in {place}", os.mknod, f"{place}/{name}", kind, os.makedev(*number))
attack("made in /dev", write, "/dev/own")
attack("controlling terminal", opens, "/dev/tty", os.O_RDWR)
master, slave = os.openpty()
attack("typed", fcntl.ioctl, slave, 0x5412, b"x")
attack("typed through upper half", lambda: call(16, slave, (1 << 32) | 0x5412, b"x"))
attack("selection", fcntl.ioctl, slave, 0x541C, b"\\x02")
attack("console", fcntl.ioctl, slave, 0x541D)
for number in range(3):
    attack(f"typed into {number}", fcntl.ioctl, number, 0x5412, b"x")
control("terminal of its own", lambda: os.write(slave, b"x") and os.read(master, 1) == b"x")
control("zero", lambda: read("/dev/zero", 4) == bytes(4))
"""


@x86_64
def test_a34_devices_and_terminals(arena: Arena, workspace: Mount) -> None:
    job = arena.sandbox.path(workspace)
    arena.repels(DEVICES, given={"job": job}, mounts=(workspace,))


TAKEOVER = """
import struct
def jump_into_init(code):
    address = int(read("/proc/1/syscall").split()[-1], 16)
    memory = os.open("/proc/1/mem", os.O_RDWR)
    os.pwrite(memory, bytes.fromhex(code), address)
    if os.fork() == 0:  # an orphan whose end wakes the init
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
# 60 forks that stay, then nothing: whatever limit binds the init is not the program's own.
attack("init taken over", jump_into_init,
       "bb3c000000 b839000000 0f05 85c0 7404 ffcb 75f1 b822000000 0f05 ebf7")
time.sleep(0.4)
facts["processes"] = len(processes())
control("runs", lambda: True)
"""


@x86_64
def test_a21_taking_over_the_init(arena: Arena) -> None:
    """The init has the program's user; what it is made to do must stay within the limits."""
    ended = arena.run(TAKEOVER, processes=20, wall=1.5)
    assert ended.seconds < 15
    assert ended.facts.get("processes", 0) <= 24, ended
    arena.repels("control('next one runs', lambda: True)", processes=20)


@x86_64
@pytest.mark.parametrize(
    "arena", [pytest.param("bubblewrap", marks=pytest.mark.bubblewrap)], indirect=True
)
def test_a21_taking_over_the_init_without_control_groups(arena: Arena, tmp_path: Path) -> None:
    bare = BubblewrapSandbox(settings_of("bubblewrap", tmp_path), ControlGroups(Hierarchies()))
    folder = tmp_path / "bare"
    folder.mkdir()
    forks = """
def fork():
    if os.fork() == 0:
        time.sleep(1)
        os._exit(0)
facts["refused"] = errno_of(lambda: [fork() for _ in range(60)])
control("some", lambda: len(processes()) > 10)
"""
    assert Arena(bare, folder).attack(forks, processes=20).facts["refused"] == 11
    ended = Arena(bare, folder).run(TAKEOVER, processes=20, wall=2)
    assert ended.facts.get("processes", 0) <= 24, ended


FORGED = """
def forge(text):
    address = int(read("/proc/1/syscall").split()[-1], 16)
    memory = os.open("/proc/1/mem", os.O_RDWR)
    length = len(text).to_bytes(4, "little")
    write_3 = bytes.fromhex("5e bf03000000 ba") + length + bytes.fromhex("b801000000 0f05")
    pause = bytes.fromhex("b822000000 0f05 ebf7")
    os.pwrite(memory, b"\\xe8" + length + text + write_3 + pause, address)
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
attack("init taken over", forge, b"Ethe engine broke\\n")
print("hostile code ran", flush=True)
control("runs", lambda: True)
time.sleep(2)
os._exit(3)
"""


@x86_64
def test_a37_failing_is_never_the_fault_of_the_host(arena: Arena) -> None:
    """Code that ran must not be able to make its end look like one it has nothing to do with."""
    ended = arena.run(FORGED, wall=1.5)
    assert ended.reason in {"exited", "wall"}
    assert "hostile code ran" in ended.out
    arena.repels("control('next one runs', lambda: True)")

"""Programs that do what training code does, for the recorder of system calls and its tests.

`benchmarks.syscalls` runs each under strace, and tests run each in every sandbox: what was
recorded must be enough.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from assay.contracts.batch import BatchRequest
from assay.environments import Environment
from assay.sandbox.docker import init

SYSTEM = """
import ctypes.util, platform, resource, subprocess, sys, sysconfig
subprocess.run(["/bin/sh", "-c", "ls -la / | sort | head -3 && cp /etc/passwd x && mv x y && rm y "
                "&& mkdir -p a/b && touch a/b/c && ln -s c a/b/d && chmod 600 a/b/c && rm -r a"],
               check=True, stdout=subprocess.DEVNULL)
subprocess.run(["prlimit", "--nproc=256", "--", "timeout", "--foreground", "--kill-after=1", "9",
                "true"], check=True)
for command in (["id"], ["nproc"], ["uname", "-a"], ["env"], ["df", "/tmp"], ["free"], ["ps"],
                ["date"], ["sleep", "0.01"], ["head", "-c9", "/dev/urandom"], ["ldd", "/bin/ls"]):
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
               stderr=subprocess.DEVNULL)
platform.platform(), resource.getrusage(0), resource.getrlimit(7)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""

FILES = """
import fcntl, mmap, os, shutil, sqlite3, tempfile, time
with open("data", "wb+") as file:
    file.write(b"x" * 100_000)
    file.flush()
    os.fsync(file.fileno()), os.fdatasync(file.fileno())
    os.pread(file.fileno(), 9, 0), os.pwrite(file.fileno(), b"y", 0)
    os.preadv(file.fileno(), [bytearray(9)], 0), os.pwritev(file.fileno(), [b"z"], 0)
    os.readv(file.fileno(), [bytearray(9)]), os.writev(file.fileno(), [b"z"])
    os.posix_fallocate(file.fileno(), 0, 200_000)
    file.truncate(1000)
    fcntl.flock(file, fcntl.LOCK_EX), fcntl.lockf(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 1000) as block:
        block[0:3] = b"abc"
        block.flush()
        block.madvise(mmap.MADV_WILLNEED)
    os.fchmod(file.fileno(), 0o600), os.fstatvfs(file.fileno())
os.truncate("data", 900), os.chmod("data", 0o644), os.utime("data", (1, 1))
os.mkdir("inner"), os.makedirs("a/b/c"), os.rename("data", "inner/data")
os.replace("inner/data", "data"), os.link("data", "second"), os.symlink("data", "third")
os.readlink("third"), os.lstat("third"), os.access("data", os.R_OK), os.mkfifo("fifo")
os.listdir("."), list(os.walk(".")), os.getcwd(), os.chdir("a"), os.chdir(".."), os.umask(0o22)
os.statvfs("."), os.stat("."), os.chown("data", -1, -1)
folder = os.open(".", os.O_RDONLY)
os.stat("data", dir_fd=folder), os.open("data", os.O_RDONLY, dir_fd=folder), os.fchdir(folder)
shutil.copy2("data", "copy"), shutil.copytree("a", "tree"), shutil.rmtree("tree")
try:
    os.listxattr("data"), os.setxattr("data", "user.x", b"1"), os.getxattr("data", "user.x")
except OSError:
    pass
source, target = os.open("data", os.O_RDONLY), os.open("other", os.O_RDWR | os.O_CREAT)
os.sendfile(target, source, 0, 100), os.copy_file_range(source, target, 100)
reader, writer = os.pipe()
os.splice(source, writer, 50), os.dup(reader), os.dup2(reader, 90), os.lseek(source, 0, 0)
with tempfile.TemporaryDirectory() as inner, tempfile.NamedTemporaryFile() as named:
    named.write(b"x")
memory = os.memfd_create("x")
os.ftruncate(memory, 4096), os.eventfd(0), os.getrandom(8)
database = sqlite3.connect("base.db")
database.execute("pragma journal_mode = wal")
database.execute("create table t (x)")
database.execute("insert into t values (1)")
database.commit(), database.close()
time.sleep(0.01), os.unlink("second"), os.rmdir("inner")
"""

PROCESSES = """
import asyncio, concurrent.futures, ctypes, multiprocessing, os, resource, select, signal
import subprocess, sys, threading, time
from multiprocessing import shared_memory

def square(number):
    return number * number

def main():
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(3))) == [0, 1, 4]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(square, range(3))) == [0, 1, 4]
    block = shared_memory.SharedMemory(create=True, size=10_000)
    block.close(), block.unlink()
    queue, lock = multiprocessing.Queue(), multiprocessing.Lock()
    child = multiprocessing.Process(target=queue.put, args=(1,))
    child.start()
    assert queue.get() == 1
    child.join()
    with multiprocessing.Manager() as manager:
        assert list(manager.list([1])) == [1]
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True, start_new_session=True)
    os.system("true")
    if (pid := os.fork()) == 0:
        os.setsid()
        os.execv("/bin/true", ["true"])
    descriptor = os.pidfd_open(pid)
    select.select([descriptor], [], [])
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT), os.waitpid(pid, 0), os.close(descriptor)
    sleeper = subprocess.Popen(["sleep", "30"], process_group=0)
    sleeper.send_signal(signal.SIGSTOP), sleeper.send_signal(signal.SIGCONT), sleeper.kill()
    sleeper.wait()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01), signal.pause()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1), signal.sigtimedwait([signal.SIGUSR1], 1)
    signal.pthread_kill(threading.get_ident(), 0)
    os.sched_setaffinity(0, os.sched_getaffinity(0)), os.sched_yield(), os.nice(1), os.getloadavg()
    os.getpriority(os.PRIO_PROCESS, 0), os.getpgid(0), os.getsid(0), os.getgroups(), os.times()
    os.getresuid(), os.getresgid(), os.sched_getscheduler(0)
    os.sched_getparam(0), os.sched_get_priority_max(0), os.sysconf("SC_NPROCESSORS_ONLN")
    time.clock_getres(time.CLOCK_MONOTONIC), time.process_time(), time.thread_time()
    poll, epoll = select.poll(), select.epoll()
    reader, writer = os.pipe()
    poll.register(reader), epoll.register(reader), poll.poll(1), epoll.poll(0.001)
    library = ctypes.CDLL(None)
    library.prctl(15, b"name", 0, 0, 0)
    async def sleep():
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()
        await asyncio.to_thread(time.sleep, 0.01)
    asyncio.run(sleep())
    resource.getrusage(resource.RUSAGE_CHILDREN), resource.prlimit(0, resource.RLIMIT_NOFILE)

if __name__ == "__main__":
    main()
"""

SOCKETS = """
import array, asyncio, os, socket, threading, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200), self.end_headers(), self.wfile.write(b"hello")
    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
assert urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read() == b"hello"
server.shutdown()
left, right = socket.socketpair()
socket.send_fds(left, [b"x"], [0])
assert socket.recv_fds(right, 1, 1)[0] == b"x"
left.sendall(b"x"), right.recv_into(bytearray(1)), left.shutdown(socket.SHUT_WR)
left.getsockname()
listener = socket.socket(socket.AF_UNIX)
listener.bind("socket"), listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("socket"), client.getpeername(), listener.accept()
client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    try:
        udp = socket.socket(family, socket.SOCK_DGRAM)
        udp.bind((address, 0)), udp.sendto(b"x", udp.getsockname()[:2]), udp.recvfrom(1)
        udp.connect(udp.getsockname()), udp.sendmsg([b"y"]), udp.recvmsg(1)
    except OSError:
        assert family == socket.AF_INET6  # not everywhere
try:
    socket.getaddrinfo("localhost", 80)
except OSError:
    pass
socket.gethostname(), socket.if_nameindex()

async def talk():
    async def echo(reader, writer):
        writer.write(await reader.read(5))
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello")
    assert await reader.read(5) == b"hello"
    writer.close(), server.close()
asyncio.run(talk())
"""

TORCH = """
import mmap, os
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    array = numpy.memmap("array", dtype="float32", mode="w+", shape=(1000, 10))
    array[:] = numpy.random.default_rng(0).normal(size=array.shape)
    array.flush()
    numpy.linalg.svd(array[:50]), numpy.save("x.npy", array), numpy.load("x.npy", mmap_mode="r")
    data = TensorDataset(torch.from_numpy(numpy.array(array)), torch.zeros(1000, 1))
    model = nn.Sequential(nn.Linear(10, 300), nn.GELU(), nn.Linear(300, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for method in ("fork", "spawn"):
        for strategy in ("file_descriptor", "file_system"):
            torch.multiprocessing.set_sharing_strategy(strategy)
            for x, y in DataLoader(data, 250, num_workers=2, multiprocessing_context=method):
                loss = (model(x) - y).square().mean()
                loss.backward()
                optimizer.step()
    torch.set_num_threads(4)
    torch.randn(1500, 1500) @ torch.randn(1500, 1500)
    torch.save(model.state_dict(), "model.pt")
    torch.load("model.pt", mmap=True, weights_only=True)
    torch.empty(1000).share_memory_()
    torch.rand(10, dtype=torch.bfloat16) @ torch.ones(10).bfloat16()

if __name__ == "__main__":
    main()
"""

DISTRIBUTED = """
import os
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

def work(rank, how):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=how, rank=rank, world_size=2)
    total = torch.ones(100_000)
    distributed.all_reduce(total)
    assert float(total[0]) == 2.0
    distributed.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    # No rank takes its end of a connection away while the other still uses it: on a busy host
    # that once ended one of them with SIGABRT.
    del model
    distributed.barrier()
    distributed.destroy_process_group()

if __name__ == "__main__":
    for how in (f"file://{os.getcwd()}/rendezvous", "tcp://127.0.0.1:29511"):
        multiprocessing.spawn(work, (how,), nprocs=2)
"""

COMPILER = """
import os, subprocess
import torch
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("cache")
with open("x.c", "w") as file:
    file.write("#include <stdio.h>\\nint main(void) { puts(\\"hello\\"); return 0; }\\n")
subprocess.run(["gcc", "-O2", "-o", "x", "x.c"], check=True)
assert subprocess.check_output([os.path.abspath("x")]) == b"hello\\n"
compiled = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).sum())
x = torch.randn(64, requires_grad=True)
compiled(x).backward()
assert x.grad is not None
"""

#: What a container's first process does besides; see `assay.sandbox.docker.init`.
SUPERVISION = f"""
import sys
source = {Path(init.__file__).read_text()!r}
space = {{"__name__": "init"}}
exec(compile(source, "init", "exec"), space)
import os, select, signal, socket
here, there = socket.socketpair()
streams = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
order = {{"argv": ["/bin/sleep", "0.1"], "env": {{}}, "cwd": "/", "seconds": 9.0, "grace": 1.0,
          "limits": {{"RLIMIT_CORE": (0, 0), "RLIMIT_NOFILE": (256, 256)}}, "filter": "",
          "keep": None, "linger": 1.0}}
space["end_everything"] = lambda: None
if os.fork() == 0:
    here.close()
    space["hide"]()
    space["Keeper"](there, order, streams).run()
    os._exit(0)
there.close()
assert here.recv(1) == b"S"
here.send(b"T")
assert here.recv(10).startswith(b"X")
here.close()
os.wait()
"""

ROOT = Path(__file__).resolve().parents[2]
#: Name and Python code of each program. It is run as a file, in an empty folder from which what it
#: compiled can be executed.
WORKLOADS = {
    "system": SYSTEM,
    "files": FILES,
    "processes": PROCESSES,
    "sockets": SOCKETS,
    "torch": TORCH,
    "distributed": DISTRIBUTED,
    "compiler": COMPILER,
    "supervision": SUPERVISION,
}


def knob_batch(environment: Environment) -> BatchRequest:
    """A batch with one idea that turns the first knob; the baseline is measured with it."""
    knob = next(k for k in environment.manifest.knobs if k.values)
    changed = knob.line[: knob.line.rindex("= ") + 2] + knob.values[0]
    idea = (
        f"[Experiment] Turn {knob.name}.\n[Code Changes]\nIn `{knob.file}`:\n"
        f"<<<<<<< SEARCH\n{knob.line}\n=======\n{changed}\n>>>>>>> REPLACE\n[End]"
    )
    return BatchRequest.model_validate(
        {
            "environment": environment.manifest.name,
            "profile": "tiny",
            "ideas": [{"text": idea, "client_key": knob.name}],
            "options": {"baseline_seeds": 1, "allow_unisolated": True},
        }
    )


def patient_copy(name: str, folder: Path) -> Path:
    """A folder with a copy of an environment whose profiles have ten times the seconds."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "environments" / name, folder / name, ignore=ignored)
    manifest = folder / name / "environment.toml"
    longer = re.sub(
        r"^((?:\w+_)?seconds = \d+)", r"\g<1>0", manifest.read_text(), flags=re.MULTILINE
    )
    manifest.write_text(longer)
    return folder


def uncapped_copy(name: str, folder: Path) -> Path:
    """A folder with a copy of an environment without caps on compute: what an idea costs beside
    the baseline varies with the load of the host, and decides nothing there."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "environments" / name, folder / name, ignore=ignored)
    manifest = folder / name / "environment.toml"
    caps = r"^(compute|evaluation_compute|artifact) = .*\n"
    text, removed = re.subn(caps, "", manifest.read_text(), flags=re.MULTILINE)
    assert removed == 3
    manifest.write_text(text)
    return folder

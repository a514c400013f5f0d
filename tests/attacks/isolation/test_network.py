"""Nothing leaves: no address, no socket family, no way to change the (empty) network."""

import ctypes
import secrets
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.attacks.arena import Arena


@dataclass(frozen=True)
class Listeners:
    """Canary listeners of the host and what is needed to reach them."""

    tcp: socket.socket
    udp: socket.socket
    abstract: str
    addresses: tuple[str, ...]

    @property
    def given(self) -> dict[str, object]:
        return {
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "abstract": self.abstract,
            "addresses": self.addresses,
        }

    @property
    def reached(self) -> bool:
        """Whether anything arrived."""
        return bool(select.select([self.tcp, self.udp], [], [], 0.05)[0])


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    addresses = [
        each.address
        for group in psutil.net_if_addrs().values()
        for each in group
        if each.family == socket.AF_INET
    ]
    name = f"assay-attack-{secrets.token_hex(8)}"
    with (
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("0.0.0.0", 0))
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield Listeners(tcp, udp, name, tuple(addresses))


LOOPBACK = """
def listed(path, name):
    return holds(path, name)
attack("tcp 127.0.0.1", connect, socket.AF_INET, ("127.0.0.1", GIVEN["tcp"]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.sendto(b"x", ("127.0.0.1", GIVEN["udp"]))
attack("abstract", connect, socket.AF_UNIX, "\\0" + GIVEN["abstract"])
attack("abstract names", holds, "/proc/net/unix", GIVEN["abstract"])
attack("tcp table", holds, "/proc/net/tcp", f":{GIVEN['tcp']:04X} ")
with socket.create_server(("127.0.0.1", 0)) as own:
    control("own loopback", connect, socket.AF_INET, own.getsockname())
control("socketpair", lambda: socket.socketpair()[0].close())
"""
OUTSIDE = """
def send(address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, 2) as udp:
        udp.sendto(b"x", (address, 53))
def resolve():
    socket.getaddrinfo("example.com", 443)
def connect_6(address):
    connect(socket.AF_INET6, (address, GIVEN["tcp"], 0, 0))
since = time.monotonic()
for address in [*GIVEN["addresses"], "169.254.169.254", "192.0.2.1", "0.0.0.0"]:
    for port in (GIVEN["tcp"], 80):
        attack(f"tcp {address}:{port}", connect, socket.AF_INET, (address, port))
    if not address.startswith(("127.", "0.")):
        attack(f"udp {address}", send, address)
for address in ("::1", "fe80::1", "2001:db8::1", "::ffff:127.0.0.1"):
    attack(f"tcp {address}", connect_6, address)
attack("udp 2001:db8::1", send, "2001:db8::1")
attack("name lookup", resolve)
attack("multicast", send, "224.0.0.1")
facts["seconds"] = time.monotonic() - since
facts["interfaces"] = [name for _, name in socket.if_nameindex()]
facts["routes"] = read("/proc/net/route").decode().splitlines()[1:]
"""


def test_a03_no_address_is_reached(arena: Arena, listeners: Listeners) -> None:
    ended = arena.repels(LOOPBACK + OUTSIDE, given=listeners.given)
    assert ended.facts["interfaces"] == ["lo"]
    assert ended.facts["routes"] == []
    assert ended.facts["seconds"] < 6  # refused at once rather than by a timeout
    assert not listeners.reached


def test_a03_subprocess_lets_through(plain: Arena, listeners: Listeners) -> None:
    ended = plain.attack(LOOPBACK, given=listeners.given)
    wanted = {"tcp 127.0.0.1", "abstract", "abstract names", "tcp table"}
    assert wanted <= set(ended.succeeded)
    assert listeners.reached


FAMILIES = """
allowed = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
for family in range(64):
    for kind in (1, 2, 3, 4, 5, 10):
        if family not in allowed:
            attack(f"family {family} type {kind}", lambda: socket.socket(family, kind).close())
            attack(f"pair {family} type {kind}", lambda: socket.socketpair(family, kind))
for family in allowed:
    control(f"family {family}", lambda: socket.socket(family, 2).close())
facts["vsock"] = errno_of(socket.socket, 40, 1)
facts["huge"] = errno_of(call, 41, (1 << 32) | 40, 1, 0) if os.uname().machine == "x86_64" else 1
"""


def test_a04_socket_families(arena: Arena) -> None:
    facts = arena.repels(FAMILIES).facts
    assert facts == {"vsock": 1, "huge": 1}  # EPERM, also behind the upper half of a register


RAW = """
import fcntl, struct
raw, packet = socket.SOCK_RAW, 0x0003
attack("raw", lambda: socket.socket(socket.AF_INET, raw, 255).close())
attack("icmp", lambda: socket.socket(socket.AF_INET, raw, 1).close())
attack("icmp6", lambda: socket.socket(socket.AF_INET6, raw, 58).close())
attack("tunnel", opens, "/dev/net/tun", os.O_RDWR)
attack("vhost", opens, "/dev/vhost-vsock", os.O_RDWR)
for protocol in range(1, 23):
    attack(f"netlink {protocol}", lambda: socket.socket(16, raw, protocol).close())
inet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = struct.pack("16sh22x", b"lo", 0)
attack("interface down", fcntl.ioctl, inet, 0x8914, request)
attack("address", fcntl.ioctl, inet, 0x8916, struct.pack("16sHH4s16x", b"lo", 2, 0, b"\\x0a" * 4))
attack("bind to device", inet.setsockopt, socket.SOL_SOCKET, 25, b"lo\\0")
attack("mark", inet.setsockopt, socket.SOL_SOCKET, 36, 1)
attack("force buffer", inet.setsockopt, socket.SOL_SOCKET, 32, 1 << 28)
attack("iptables", socket.socket(socket.AF_INET, 2).setsockopt, 0, 64, bytes(96))
def new_link():
    with socket.socket(16, raw, 0) as netlink:
        info = b"\\x0c\\0\\x12\\0" + b"\\x08\\0\\x01\\0veth"[:8]
        body = struct.pack("BBHiII", 0, 0, 0, 0, 0, 0) + info
        netlink.sendto(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body, (0, 0))
        answer = netlink.recv(4096)
        return struct.unpack_from("i", answer, 16)[0] == 0
attack("new interface", new_link)
control("buffer", inet.setsockopt, socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
control("interfaces", lambda: socket.if_nameindex() != [])
"""


def test_a36_raw_sockets_and_changes_of_the_network(arena: Arena) -> None:
    ended = arena.attack(RAW)
    # A device of its own network namespace may be named; there is none but the loopback one.
    assert set(ended.succeeded) <= {"bind to device"}


IPC = """
attack("shared memory", lambda: call(GIVEN["shmget"], GIVEN["key"], 0, 0))
attack("listed", holds, "/proc/sysvipc/shm", str(GIVEN["key"]))
attack("posix shared memory", holds, f"/dev/shm/{GIVEN['name']}", "canary")
attack("message queue", lambda: call(GIVEN["mq_open"], GIVEN["name"].encode(), 0, 0, 0))
control("own shared memory", lambda: call(GIVEN["shmget"], GIVEN["key"] + 1, 4096, 0o1600))
control("own posix shared memory", write, "/dev/shm/own-of-the-attack")
os.unlink("/dev/shm/own-of-the-attack")
"""


@pytest.fixture
def host_ipc() -> Iterator[dict[str, object]]:
    """Shared memory and a message queue of the host, open to everybody."""
    name, key = f"assay-attack-{secrets.token_hex(8)}", secrets.randbelow(1 << 28) + 1
    library = ctypes.CDLL(None, use_errno=True)
    segment = library.shmget(key, 4096, 0o1666)
    queue = library.mq_open(f"/{name}".encode(), 0o100 | 0o2, 0o666, None)
    file = Path("/dev/shm", name)
    file.write_text("canary")
    file.chmod(0o644)
    try:
        yield {"name": name, "key": key, "shmget": 29, "mq_open": 240}
    finally:
        file.unlink()
        library.shmctl(segment, 0, None)
        if queue >= 0:
            library.mq_unlink(f"/{name}".encode())


@pytest.mark.skipif("__import__('platform').machine() != 'x86_64'", reason="x86-64 numbers")
def test_a26_shared_memory_of_the_host(arena: Arena, host_ipc: dict[str, object]) -> None:
    arena.repels(IPC, given=host_ipc)


@pytest.mark.skipif("__import__('platform').machine() != 'x86_64'", reason="x86-64 numbers")
def test_a26_subprocess_lets_through(plain: Arena, host_ipc: dict[str, object]) -> None:
    remove = "call(31, call(29, GIVEN['key'] + 1, 0, 0), 0, 0)\n"
    ended = plain.attack(IPC + remove, given=host_ipc)
    assert {"shared memory", "listed", "posix shared memory"} <= set(ended.succeeded)

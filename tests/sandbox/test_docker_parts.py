"""The parts of the Docker backend that need no engine: what is asked for, labels, the link."""

import contextlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Exit, Limits, SandboxError, SandboxSpec, seccomp, syscalls
from assay.sandbox.docker import engine, kept
from assay.sandbox.docker.config import Container, check_gpus, container_config, reserved
from assay.sandbox.docker.engine import abandoned, owner
from assay.sandbox.docker.image import Image
from assay.sandbox.docker.link import SOCKET, open_door

GPU = "GPU-3a8c1c3b-7a7f-9e0c-5f5d-7b0a7f6b2c11"
IMAGE = Image(
    id="sha256:1",
    digest="sha256:2",
    python="python3",
    path="/bin",
    variables=frozenset({"LD_PRELOAD", "PATH", "NVIDIA_VISIBLE_DEVICES"}),
    system=(("/usr", "/usr"),),
)


def config(gpus: tuple[str, ...] = (), **limits: Any) -> dict[str, Any]:
    secret = {"NVIDIA_VISIBLE_DEVICES": "all", "LD_PRELOAD": "/evil.so", "KEY": "s3cr3t"}
    spec = SandboxSpec(
        "t", ("train", "--x"), secret, (), "/job", Limits(9, 1 << 30, 64, **limits), gpus=gpus
    )
    folders = (("/data", "/in", False), ("/work", "/job", True))
    devices = (("/dev/x", "/dev/y"),)
    profile = seccomp.build_profile("x86_64")
    labels = {"assay.scope": "s"}
    container = Container(IMAGE, 61001, 61001, Path("/door"), labels, profile, devices, folders)
    return container_config(spec, container)


def test_containers_are_closed() -> None:
    body = config(cpus=1.5)
    assert (body["Image"], body["User"], body["Labels"]) == (
        "sha256:1",
        "61001:61001",
        {"assay.scope": "s"},
    )
    host = body["HostConfig"]
    wanted = {
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "LogConfig": {"Type": "none", "Config": {}},
        "PidsLimit": 65,
        "Memory": 1 << 30,
        "MemorySwap": 1 << 30,
        "CpuPeriod": 100_000,
        "CpuQuota": 150_000,
        "ShmSize": 1 << 29,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={1 << 29}"},
        "DeviceRequests": [],
        "Devices": [
            {"PathOnHost": "/dev/x", "PathInContainer": "/dev/y", "CgroupPermissions": "rw"}
        ],
    }
    assert {name: host[name] for name in wanted} == wanted
    first, second = host["SecurityOpt"]
    assert first == "no-new-privileges"
    assert json.loads(second.removeprefix("seccomp="))["defaultAction"] == "SCMP_ACT_ERRNO"
    assert not {"CapAdd", "Binds", "PidMode", "UsernsMode", "VolumesFrom"} & set(host)
    mounts = {each["Target"]: (each["Source"], each["ReadOnly"]) for each in host["Mounts"]}
    assert mounts == {
        "/usr": ("/usr", True),
        "/etc/passwd": ("/door/passwd", True),
        "/etc/hosts": ("/door/hosts", True),
        "/etc/nsswitch.conf": ("/door/nsswitch.conf", True),
        "/.assay": ("/door/socket", True),
        "/in": ("/data", True),
        "/job": ("/work", False),
    }


def test_nothing_of_the_program_reaches_the_engine() -> None:
    body = config()
    text = json.dumps(body)
    assert "s3cr3t" not in text
    assert "evil" not in text
    assert "--x" not in text
    # A bare name takes the image's own variable away.
    assert body["Env"] == [
        "PATH=/bin",
        "HOME=/tmp",
        "NVIDIA_VISIBLE_DEVICES=void",
        "NVIDIA_DRIVER_CAPABILITIES=",
        "LD_PRELOAD",
    ]


def test_gpus_are_named_one_by_one() -> None:
    mig = "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
    body = config((GPU, mig))
    assert body["HostConfig"]["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": [GPU, mig], "Capabilities": [["gpu"]]}
    ]
    assert f"NVIDIA_VISIBLE_DEVICES={GPU},{mig}" in body["Env"]
    assert "/sys" not in body["HostConfig"]["MaskedPaths"]
    assert "/sys" in config()["HostConfig"]["MaskedPaths"]
    check_gpus(("MIG-GPU-3a8c1c3b-7a7f/1/0",))


@pytest.mark.parametrize("gpu", ["all", "0", "", "GPU-", "GPU-x,all", "GPU-a\n", "void", "none"])
def test_other_words_for_gpus_are_refused(gpu: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        config((gpu,))


def test_reserved_targets() -> None:
    assert all(map(reserved, ("/lib", "/lib/x", "/bin", "/tmp", "/.assay")))
    assert not any(map(reserved, ("/job", "/library", "/tmp/x", "/opt")))


# ---- whom a container belongs to ----


def labels(owner_label: str, deadline: float = 2e12) -> dict[str, str]:
    return {"assay.scope": "s", "assay.owner": owner_label, "assay.deadline": str(deadline)}


def test_who_is_abandoned() -> None:
    now = 1e9
    boot, namespace, pid, started = owner().split()
    assert not abandoned(labels(owner()), now)
    assert abandoned(labels(owner(), deadline=now - 1), now)
    assert abandoned(labels(f"{boot} {namespace} {pid} 1"), now)  # the id was used again
    assert abandoned(labels(f"{boot} {namespace} 4194305 {started}"), now)
    assert abandoned(labels(f"another-boot {namespace} {pid} {started}"), now)
    # A process of another container: only its deadline can tell.
    assert not abandoned(labels(f"{boot} pid:[1] 4194305 {started}"), now)
    assert abandoned(labels(f"{boot} pid:[1] 4194305 {started}", deadline=now - 1), now)


@pytest.mark.parametrize(
    "found", [{}, {"assay.scope": "s"}, labels("?"), {**labels(""), "assay.deadline": "soon"}]
)
def test_strange_labels_are_left_alone(found: dict[str, str]) -> None:
    assert not abandoned(found, 1e9)


@contextlib.contextmanager
def small_engine(path: Path) -> Iterator[list[str]]:
    """Answer what a client of Docker asks first; yields the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b'{"ApiVersion": "1.44"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A socket has no address that could be named."""

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def test_connections_are_made_once(tmp_path: Path, monkeypatch: Any) -> None:
    one, two = (tmp_path / name for name in ("one", "two"))
    with small_engine(one) as of_one, small_engine(two) as of_two:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{one}")
        first = engine.connect(None)
        assert engine.connect(f"unix://{one}") is first
        assert engine.connect(f"unix://{two}") is not first
        assert engine.connect(None) is first
        assert (len(of_one), len(of_two)) == (1, 1)
        for host in (one, two):
            engine.connect(f"unix://{host}").client.close()


# ---- the link ----


def caller(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(folder / SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


def test_only_the_first_gets_in(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 150)  # far beyond the length of a socket's path
    with open_door(deep, os.getuid(), os.getgid()) as door:
        short = tmp_path / "short"
        short.symlink_to(door.folder)
        with caller(short):
            link = door.accept(lambda: True)
            assert link.pid == os.getpid()
            with pytest.raises(FileNotFoundError):
                caller(short)
            link.close()
    assert list(deep.iterdir()) == []


def test_others_and_nobody(tmp_path: Path) -> None:
    with open_door(tmp_path / "a", os.getuid() + 1, 0) as door:
        with caller(door.folder), pytest.raises(SandboxError, match="asked for the program"):
            door.accept(lambda: True)
    with open_door(tmp_path / "a", os.getuid(), 0) as door:
        with pytest.raises(SandboxError, match=r"Python 3\.9"):
            door.accept(lambda: False)


def speak(init: socket.socket, said: bytes) -> None:
    init.sendall(said)
    init.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("said", "status", "problem"),
    [
        (b"SX0\n", 0, None),
        (b"SX768\n", 3, None),
        (b"SX9\n", -9, None),
        (b"SX99999\n", None, None),
        (b"SXnonsense\n", None, None),
        (b"SX" + b"1" * 9000, None, None),
        (b"X0\n", None, None),
        (b"Eno such file\n", None, "no such file"),
        (b"SEforged\n", None, None),
        (b"", None, None),
    ],
)
def test_what_an_init_may_say(
    tmp_path: Path, said: bytes, status: int | None, problem: str | None
) -> None:
    with open_door(tmp_path, os.getuid(), 0) as door:
        with caller(door.folder) as init:
            link = door.accept(lambda: True)
            assert not link.wait(0.01)
            speaker = threading.Timer(0.05, speak, (init, said))
            speaker.start()
            since = time.monotonic()
            assert link.wait(5)
            assert time.monotonic() - since < 2
            assert (link.status, link.problem) == (status, problem)
            speaker.join()
            link.close()


# ---- the profile says what the filter says ----


def verdict(profile: dict[str, Any], call: str, *arguments: int) -> int:
    """The error number that a profile answers with; 0 where it allows.

    Engines do not say which rule counts if several match, so those must agree.
    """
    padded = (*arguments, 0, 0, 0, 0, 0, 0)
    compare = {
        "SCMP_CMP_EQ": lambda found, value, _: found == value,
        "SCMP_CMP_NE": lambda found, value, _: found != value,
        "SCMP_CMP_GT": lambda found, value, _: found > value,
        "SCMP_CMP_MASKED_EQ": lambda found, mask, value: found & mask == value,
    }
    answers = {
        0 if rule["action"] == "SCMP_ACT_ALLOW" else int(rule["errnoRet"])
        for rule in profile["syscalls"]
        if call in rule["names"]
        and all(
            compare[each["op"]](padded[each["index"]], each["value"], each["valueTwo"])
            for each in rule["args"]
        )
    }
    assert len(answers) < 2, (call, arguments, answers)
    return answers.pop() if answers else int(profile["defaultErrnoRet"])


@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("read", (), 0),
        ("ptrace", (), 1),
        ("io_uring_setup", (), 1),
        ("clone", (0x11,), 0),
        ("clone", (0x10000000,), 1),
        ("clone", (0x00020011,), 1),
        ("clone3", (), 38),
        ("socket", (1,), 0),
        ("socket", (2, 1), 0),
        ("socket", (10, 1), 0),
        ("socket", (16, 3, 0), 0),
        ("socket", (16, 3, 12), 1),
        ("socket", (17,), 1),
        ("socket", (40,), 1),
        ("socket", (2**32 + 40,), 1),
        ("socketpair", (40,), 1),
        ("ioctl", (0, 0x5412), 1),
        ("ioctl", (0, 2**32 + 0x5412), 1),
        ("ioctl", (0, 0x5413), 0),
        ("ioctl", (0, 0), 0),
        ("ioctl", (0, 0xC0104600), 0),
        ("ioctl", (0, 0xC020662A), 1),
        ("ioctl", (0, 2**32 + 0xC020660B), 1),
        ("ioctl", (0, 0x8070586D), 1),
        ("ioctl", (0, 0x8400941F), 1),
        ("ioctl", (0, 0x541B), 0),
        ("ioctl", (0, 0x660000), 0),
        ("inotify_init1", (), 1),
        ("fcntl", (3, 5), 0),
        ("fcntl", (3, 2**32 + 37), 1),
        ("fcntl", (3, 1024), 1),
        ("fcntl", (3, 6), 0),
        ("fcntl", (3, 7), 0),
        ("fcntl", (3, 1030), 0),
        ("fcntl", (3, 1034), 0),
        ("flock", (), 0),
        ("getsockopt", (3, 1, 4), 0),
        ("getsockopt", (3, 1, 57), 1),
        ("getsockopt", (3, 2**32 + 1, 2**32 + 71), 1),
        ("getsockopt", (3, 6, 57), 0),
        ("io_setup", (), 38),
        ("madvise", (0, 0, 20), 1),
        ("madvise", (0, 0, 4), 0),
        ("prlimit64", (0,), 0),
        ("prlimit64", (1,), 1),
        ("preadv2", (0, 0, 0, 0, 0, 8), 1),
        ("preadv2", (0, 0, 0, 0, 0, 0), 0),
        ("setns", (), 1),
        ("sysfs", (), 38),
        ("landlock_create_ruleset", (), 0),
        ("quotactl_fd", (), 1),
        ("a_call_of_tomorrow", (), 38),
    ],
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_profile(machine: str, call: str, arguments: tuple[int, ...], answer: int) -> None:
    profile = json.loads(seccomp.build_profile(machine))
    assert profile["architectures"] == [f"SCMP_ARCH_{machine.upper()}"]
    assert verdict(profile, call, *arguments) == answer


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_profile_allows_what_the_filter_allows(machine: str) -> None:
    profile = json.loads(seccomp.build_profile(machine))
    column = {"x86_64": 0, "aarch64": 1}[machine]
    for call, numbers in syscalls.NUMBERS.items():
        if numbers[column] is None or call in syscalls.JUDGED:
            continue
        wanted = {call in syscalls.ALLOWED: 0, call in syscalls.DENIED: 1}.get(True, 38)
        assert verdict(profile, call) == wanted, call


@pytest.mark.parametrize("locks", [True, False])
def test_the_profile_judges_every_command_and_request_once(locks: bool) -> None:
    """One rule for each value of the bytes that count, and the same answer as the filter's."""
    profile = json.loads(seccomp.build_profile("x86_64", locks=locks))
    refused = {36, 37, 38, 1024, 1026, *range(1035, 1041), *(() if locks else (5, 6, 7))}
    for command in range(2048):
        assert verdict(profile, "fcntl", 3, command) == (command in refused), command
    for kind in range(256):
        wanted = kind in (0x58, 0x66, 0x94)
        for request in (kind << 8, kind << 8 | 0xC02000FF, kind << 8 | 0x12):
            injects = request == 0x5412
            assert verdict(profile, "ioctl", 3, request) == (wanted or injects), hex(request)
    for option in range(2048):
        assert verdict(profile, "getsockopt", 3, 1, option) == (option in (57, 71, 77)), option
        assert verdict(profile, "getsockopt", 3, option, 57) == (option == 1), option
    assert verdict(profile, "flock") == (0 if locks else 38)
    assert len(profile["syscalls"]) < 350


def test_the_profile_of_a_worker_refuses_nothing_that_concerns_shared_files() -> None:
    rules = seccomp.refusals("x86_64", shares_files=True)
    requests = [rule["args"][0]["valueTwo"] for rule in rules if rule["names"] == ["ioctl"]]
    assert requests == [0x5412, 0x541C]
    names = {name for rule in rules for name in rule["names"]}
    assert not names & {"fcntl", "flock", "inotify_init", "inotify_add_watch"}


def test_profile_names_only_calls_of_the_machine() -> None:
    assert verdict(json.loads(seccomp.build_profile("x86_64")), "iopl") == 1
    assert verdict(json.loads(seccomp.build_profile("aarch64")), "iopl") == 38
    named = {
        machine: {
            name
            for rule in json.loads(seccomp.build_profile(machine))["syscalls"]
            for name in rule["names"]
        }
        for machine in ("x86_64", "aarch64")
    }
    assert "iopl" in named["x86_64"] - named["aarch64"]
    with pytest.raises(KeyError):
        seccomp.build_profile("riscv64")


def test_the_end_of_a_program_with_a_warm_up_whose_container_is_gone() -> None:
    """Its first process noted how long it ran; when its clock was started the worker knows."""
    late, done = Exit("wall", -9, 42.0, 1.0, None), Exit("exited", 0, 42.0, 1.0, None)
    found = kept.Ended(late, 1000.0, warm_up=True)
    assert (found.wait().reason, found.wait().warm_up_seconds) == ("warm_up", 42.0)
    found.start_clock(1030.0)
    end = found.wait()
    assert (end.reason, end.warm_up_seconds, end.wall_seconds) == ("wall", 30.0, 12.0)
    assert kept.Ended(done, 1000.0, warm_up=True).wait().wall_seconds == 0.0
    plain = kept.Ended(late, 1000.0)
    plain.start_clock(1030.0)
    assert plain.wait() == late


def test_the_end_of_what_trained_in_its_warm_up_while_nobody_looked() -> None:
    """The init allows both times together; the clock had been started after 10 s."""
    done = Exit("exited", 0, 1900.0, 0.0, None)
    found = kept.Ended(done, 1000.0, warm_up=True, longest=1500.0)
    found.start_clock(1010.0)
    assert (found.wait().reason, found.wait().wall_seconds) == ("wall", 1890.0)
    found = kept.Ended(done, 1000.0, warm_up=True, longest=1500.0)
    found.start_clock(1400.0)
    assert (found.wait().reason, found.wait().wall_seconds) == ("exited", 1500.0)

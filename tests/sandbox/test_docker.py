"""What every isolating backend must hold, run against Docker; and what is special about it."""

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import (
    Guarantee,
    Handle,
    Limits,
    Mount,
    Sandbox,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
    SandboxUnavailable,
    choose_sandbox,
    open_sandbox,
    seccomp,
)
from assay.sandbox.choose import ISOLATING, sweep_containers
from assay.sandbox.docker import backend
from assay.sandbox.docker.engine import Engine
from assay.sandbox.filesystem import HOSTS
from tests.sandbox import test_disk, test_files, test_isolation, test_limits, test_seccomp
from tests.sandbox.conftest import Started, Starter
from tests.sandbox.docker_engine import HOST, containers, python_archive, require_docker

pytestmark = pytest.mark.docker


@pytest.fixture
def engine() -> Engine:
    return require_docker()


@pytest.fixture
def scope(engine: Engine) -> Iterator[str]:
    """A scope for one test; no container of it may be left."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    left = containers(engine, name)
    for container in left:
        engine.remove(container)
    assert left == []


@pytest.fixture
def docker_settings(scope: str, tmp_path: Path) -> SandboxSettings:
    return SandboxSettings(
        "docker", grace_seconds=0.5, scratch=tmp_path / "scratch", docker_host=HOST, scope=scope
    )


@pytest.fixture
def docker(docker_settings: SandboxSettings, folder: Path, tmp_path: Path) -> Iterator[Starter]:
    yield Starter(open_sandbox(docker_settings), folder)
    scratch = tmp_path / "scratch"
    assert not scratch.exists() or list(scratch.iterdir()) == []


@pytest.fixture
def bubblewrap(docker: Starter) -> Starter:
    """Under this name the tests of the other isolating backend get theirs."""
    return docker


SHARED = (
    test_limits.test_exit_code_and_streams,
    test_limits.test_stdin_reaches_the_code,
    test_limits.test_death_by_signal_is_a_negative_code,
    test_limits.test_wait_wakes_at_once,
    test_limits.test_wait_can_be_repeated,
    test_limits.test_wall_limit,
    test_limits.test_code_can_save_after_sigterm,
    test_limits.test_ignoring_sigterm_ends_after_the_grace,
    test_limits.test_cancel,
    test_limits.test_kill_from_another_thread,
    test_limits.test_daemons_die,
    test_limits.test_memory_limit,
    test_limits.test_memory_limit_counts_the_whole_tree,
    test_limits.test_fork_limit,
    test_limits.test_cpu_limit_counts_the_whole_tree,
    test_limits.test_cpu_time_and_peak_memory_are_reported,
    test_limits.test_temporary_folders_are_bounded,
    test_limits.test_file_size_limit,
    test_limits.test_a_program_that_cannot_start,
    test_isolation.test_environment_holds_only_what_was_given,
    test_isolation.test_processes_inside_meet_by_name,
    test_isolation.test_no_process_inside_names_a_folder_of_the_host,
    test_isolation.test_many_variables_reach_the_program,
    test_isolation.test_given_variables_win_over_ours,
    test_isolation.test_no_network,
    test_isolation.test_system_is_read_only,
    test_isolation.test_writes_stay_in_the_workspace,
    test_isolation.test_processes_of_the_host_are_hidden,
    test_isolation.test_descriptors_are_not_inherited,
    test_isolation.test_nobody_is_root,
    test_isolation.test_two_sandboxes_have_two_users,
    test_isolation.test_torch_works_inside,
    test_files.test_sources_below_closed_folders_are_staged,
    test_files.test_nothing_is_left_after_a_kill,
    test_files.test_workspace_belongs_to_the_worker_again,
    test_files.test_hard_links_do_not_lend_foreign_files,
    test_files.test_private_sources_are_refused_with_a_remedy,
    test_seccomp.test_calls_are_refused,
)
globals().update({test.__name__: test for test in SHARED})


def test_docker_holds_every_guarantee(docker_settings: SandboxSettings) -> None:
    scope = docker_settings.scope
    settings, reason = choose_sandbox(
        "docker", docker_settings.scratch, docker_host=HOST, scope=scope
    )
    assert (settings.name, settings.docker_host, settings.scope) == ("docker", HOST, scope)
    assert "no network" in reason
    sandbox = open_sandbox(settings)
    assert isinstance(sandbox, Sandbox)
    assert sandbox.isolated
    assert set(sandbox.facts) == {"docker", "runtime", "image"}
    assert sandbox.facts["image"].startswith("sha256:")
    held = sandbox.probe()
    expected = set(Guarantee)
    if not seccomp.supported():
        expected.remove(Guarantee.SYSCALL_FILTER)
    assert {guarantee for guarantee, value in held.items() if value} == expected


def test_host_files_and_settings_are_not_there(docker: Starter, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("canary")
    paths = [str(canary), "/etc/shadow", "/etc/machine-id", "/home", "/var", "/run", "/sys/class"]
    paths += [str(Path(__file__).parents[2] / "pyproject.toml"), "/sys/fs", "/proc/acpi/wakeup"]
    code = f"""
import os
print([path for path in {paths!r} if os.path.exists(path)])
print([open("/etc/" + name).read() for name in ("hostname", "hosts", "resolv.conf")])
print(open("/proc/self/cgroup").read().count("docker"), os.uname().nodename)
"""
    out = docker.finish(code).out.splitlines()
    assert out == ["[]", str(["sandbox\n", HOSTS, ""]), "0 sandbox"]


def test_the_link_cannot_be_used_again(docker: Starter) -> None:
    code = """
import os, socket
try:
    socket.socket(socket.AF_UNIX).connect("/.assay")
except OSError as error:
    print(error.errno)
for path in ("/proc/1/fd", "/proc/1/environ", "/proc/1/mem"):
    try:
        print(os.listdir(path) if path.endswith("fd") else open(path, "r+b"))
    except OSError as error:
        print(error.errno)
"""
    # Connection refused. The init hides what it holds, the engine's pipes among it: no flood can
    # keep the engine busy.
    assert docker.finish(code).out.splitlines() == ["111", "13", "13", "13"]


def test_end_of_streams_is_seen_while_the_init_lives(docker: Starter) -> None:
    reader, writer = os.pipe()
    code = "import os, time; os.close(1); time.sleep(30)"
    spec = SandboxSpec(
        "t", (sys.executable, "-c", code), {}, (), "/", Limits(20, 1 << 28), stdout=writer
    )
    handle = docker.sandbox.start(spec)
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert isinstance(handle, Handle)
    assert handle.pid > 0
    handle.kill()


def test_programs_that_cannot_be_executed(docker: Starter) -> None:
    spec = SandboxSpec("t", ("/nowhere/program",), {}, (), "/", Limits(20, 1 << 28))
    with pytest.raises(SandboxError, match=r"did not start.*nowhere"):
        docker.sandbox.start(spec).wait()


@pytest.mark.parametrize("target", ["/tmp", "/.assay", "/lib/x", "/bin", "/etc"])
def test_targets_over_the_system_are_refused(
    docker: Starter, workspace: Mount, target: str
) -> None:
    with pytest.raises(ValueError, match="target"):
        docker.start("pass", mounts=(Mount(workspace.source, target),))


def test_reasons(docker: Starter, workspace: Mount) -> None:
    code = "import os, time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(9)"
    ended = docker.start(code, processes=20).wait()
    assert (ended.exit.reason, ended.exit.code) == ("processes", 1)
    limits = Limits(20, 1 << 28, disk_bytes=1 << 20, cpus=0.5)
    code = "import time; open('/job/x', 'wb').write(b'x' * (2 << 20)); time.sleep(20)"
    argv = (sys.executable, "-c", code)
    handle = docker.sandbox.start(SandboxSpec("t", argv, {}, (workspace,), "/", limits))
    assert handle.wait().reason == "disk"


FILL = [(test_disk.OVERFLOWS, "disk"), (test_disk.BALLOONS, "memory")]


@test_disk.as_root
@pytest.mark.parametrize(("code", "reason"), FILL)
def test_files_that_fill_the_memory_are_blamed_on_the_disk(
    docker: Starter, tmp_path: Path, code: str, reason: str
) -> None:
    assert test_disk.told_of_memory(docker.sandbox, tmp_path / "writable", code) == reason


def test_share_of_processors(docker: Starter) -> None:
    code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    spec = SandboxSpec(
        "t", (sys.executable, "-c", code), {}, (), "/", Limits(20, 1 << 28, cpus=0.3)
    )
    assert 0.1 < docker.sandbox.start(spec).wait().cpu_seconds < 0.6


def test_a_killed_program_tells_what_it_used(docker: Starter) -> None:
    burn = "while time.process_time() < 0.3: pass\nprint('.', flush=True)\nwhile True: pass"
    started = docker.start(f"import time\nx = b'x' * (50 << 20)\n{burn}")
    started.printed(".")
    started.handle.kill()
    ended = started.wait()
    assert ended.exit.reason == "cancelled"
    assert ended.exit.cpu_seconds > 0.2
    assert (ended.exit.peak_memory_bytes or 0) > 50 << 20
    started.handle.kill()


def test_several_at_once(docker: Starter) -> None:
    def one(number: int) -> str:
        reader, writer = os.pipe()
        argv = (sys.executable, "-I", "-S", "-c", f"print({number})")
        spec = SandboxSpec("t", argv, {}, (), "/", Limits(20, 1 << 28), stdout=writer)
        handle = docker.sandbox.start(spec)
        os.close(writer)
        assert handle.wait().code == 0
        with os.fdopen(reader) as text:
            return text.read()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(12))) == [f"{number}\n" for number in range(12)]


# ---- where the host does not show the container's processes (a worker in a container) ----


@pytest.fixture
def distant(docker: Starter, monkeypatch: Any) -> Starter:
    monkeypatch.setattr(backend, "container_group", lambda pid, container: None)
    monkeypatch.setattr("assay.sandbox.docker.link.Link.kill", lambda self: False)
    return docker


def test_limits_by_asking_the_engine(distant: Starter) -> None:
    ended = distant.start(test_limits.ALLOCATE.format(seconds=1), memory=128 << 20).wait()
    assert ended.exit.reason == "memory"
    ended = distant.start("while True: pass", cpu=0.4).wait()
    assert ended.exit.reason == "cpu"
    assert 0.4 <= ended.exit.cpu_seconds < 3.0
    assert ended.exit.peak_memory_bytes is not None


@test_disk.as_root
@pytest.mark.parametrize(("code", "reason"), FILL)
def test_the_engine_does_not_know_what_filled_the_memory(
    distant: Starter, tmp_path: Path, code: str, reason: str
) -> None:
    assert test_disk.told_of_memory(distant.sandbox, tmp_path / "writable", code) == reason


@pytest.mark.parametrize("number", [9, 25])
def test_a_signal_is_told_from_a_status_above_128(docker: Starter, number: int) -> None:
    chosen = docker.start(f"import os; os._exit(128 + {number})").wait().exit
    assert (chosen.reason, chosen.code, chosen.code_is_certain) == ("exited", 128 + number, True)
    killed = docker.start(test_limits.KILLS_ITSELF.format(number=number)).wait().exit
    assert (killed.code, killed.code_is_certain) == (-number, True)


def test_kill_by_asking_the_engine(
    distant: Starter, host_processes: Callable[[str], list[int]]
) -> None:
    test_limits.test_kill_from_another_thread(distant)
    test_limits.test_daemons_die(distant, host_processes, "kill")
    assert distant.start("import sys; sys.exit(3)").wait().exit.code == 3


# ---- workers that die, and the reaper ----

WORKER = """
import pathlib, sys
from assay.sandbox import Limits, SandboxSettings, SandboxSpec, open_sandbox
scratch, host, scope, mark = sys.argv[1:]
sandbox = open_sandbox(
    SandboxSettings("docker", scratch=pathlib.Path(scratch), docker_host=host, scope=scope)
)
argv = ("/bin/sh", "-c", "echo ready; exec sleep " + mark)
sandbox.start(SandboxSpec("t", argv, {}, (), "/", Limits(60, 1 << 28), stdout=1)).wait()
"""


def killed_worker(settings: SandboxSettings, mark: str) -> None:
    arguments = [str(settings.scratch), HOST, settings.scope, mark]
    command = [sys.executable, "-c", WORKER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        worker.kill()


def test_programs_die_with_a_killed_worker_and_are_reaped(
    docker_settings: SandboxSettings,
    engine: Engine,
    scope: str,
    host_processes: Callable[[str], list[int]],
) -> None:
    mark = f"35.{time.time_ns()}"
    killed_worker(docker_settings, mark)
    deadline = time.monotonic() + 1.0
    while host_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert host_processes(mark) == []
    assert len(containers(engine, scope)) == 1
    other = SandboxSettings("docker", scratch=Path("/x"), docker_host=HOST, scope="other-scope")
    sweep_containers(other)
    assert len(containers(engine, scope)) == 1
    choose_sandbox("docker", docker_settings.scratch, docker_host=HOST, scope=scope)
    assert containers(engine, scope) == []


def test_the_reaper_spares_the_living(
    docker: Starter, docker_settings: SandboxSettings, engine: Engine, monkeypatch: Any
) -> None:
    started: Started = docker.start("import time; print('.', flush=True); time.sleep(30)")
    started.printed(".")
    assert sweep_containers(docker_settings) == 0
    stranger = engine.create(
        {
            "Image": docker.sandbox.image.id,  # type: ignore[attr-defined]
            "Entrypoint": ["/nothing"],
            "Labels": {"assay.scope": docker_settings.scope},
        }
    )
    try:
        assert sweep_containers(docker_settings) == 0
        jumped = time.time() + 20 + 3600
        monkeypatch.setattr("time.time", lambda: jumped)
        assert sweep_containers(docker_settings) == 0  # a clock that was set ends nothing
        late = time.monotonic() + 20 + 3600
        with monkeypatch.context() as patch:
            patch.setattr("time.monotonic", lambda: late)
            assert sweep_containers(docker_settings) == 1
        assert containers(engine, docker_settings.scope) == [stranger]
    finally:
        engine.remove(stranger)
    monkeypatch.undo()
    with pytest.raises(SandboxError, match="ended from outside"):
        started.wait()


def test_sweeping_other_backends_is_nothing(tmp_path: Path) -> None:
    assert sweep_containers(SandboxSettings("bubblewrap", scratch=tmp_path)) == 0


# ---- images ----


@pytest.fixture(scope="module")
def python_image() -> Iterator[str]:
    """An image with a Python of its own, and variables that nobody must see."""
    engine = require_docker()
    tag = uuid.uuid4().hex[:12]
    changes = ["ENV NVIDIA_VISIBLE_DEVICES=all", "ENV LD_PRELOAD=/x.so", "ENV OTHER=1"]
    engine.client.import_image_from_data(
        python_archive(), repository="assay-test-python", tag=tag, changes=changes
    )
    yield f"assay-test-python:{tag}"
    engine.client.remove_image(f"assay-test-python:{tag}", force=True)


def test_an_image_of_its_own(
    docker_settings: SandboxSettings, scope: str, python_image: str, folder: Path, engine: Engine
) -> None:
    settings, _ = choose_sandbox(
        "docker", docker_settings.scratch, docker_host=HOST, image=python_image, scope=scope
    )
    sandbox = open_sandbox(settings)
    assert sandbox.python == "python3"
    assert sandbox.facts["image"] == engine.client.inspect_image(python_image)["Id"]
    out = folder / "out"
    code = """
import os, sys
print(sys.executable, sorted(os.environ), os.path.exists("/usr/share"))
"""
    with out.open("wb") as stdout:
        argv = (sandbox.python, "-I", "-c", code)
        spec = SandboxSpec("t", argv, {}, (), "/", Limits(20, 1 << 28), stdout=stdout.fileno())
        assert sandbox.start(spec).wait().code == 0
    assert out.read_text() == "/usr/local/bin/python3 ['HOME', 'LANG', 'PATH', 'PWD'] False\n"


def test_a_named_image_is_pinned_though_its_tag_moves(
    docker_settings: SandboxSettings, scope: str, python_image: str, engine: Engine
) -> None:
    scratch = docker_settings.scratch
    name, _, tag = python_image.partition(":")
    engine.client.tag(python_image, f"{name}-moving", tag)
    settings, why = choose_sandbox(
        "auto", scratch, docker_host=HOST, image=f"{name}-moving:{tag}", scope=scope
    )
    assert settings.name == "docker", why  # an image means Docker
    before = open_sandbox(settings).facts["image"]
    engine.client.import_image_from_data(b"\0" * 10240, repository=f"{name}-moving", tag=tag)
    try:
        sandbox = open_sandbox(settings)
        assert sandbox.facts["image"] == before
        spec = SandboxSpec("t", ("python3", "-c", ""), {}, (), "/", Limits(20, 1 << 28))
        assert sandbox.start(spec).wait().code == 0
    finally:
        engine.client.remove_image(f"{name}-moving:{tag}")


def test_images_that_are_missing_or_have_volumes(
    docker_settings: SandboxSettings, engine: Engine
) -> None:
    scratch, scope = docker_settings.scratch, docker_settings.scope
    with pytest.raises(SandboxUnavailable, match="docker pull nowhere/nothing:1"):
        choose_sandbox("docker", scratch, docker_host=HOST, image="nowhere/nothing:1", scope=scope)
    engine.client.import_image_from_data(
        b"\0" * 10240, repository="assay-test-volume", tag="x", changes=["VOLUME /data"]
    )
    try:
        with pytest.raises(SandboxUnavailable, match="VOLUME"):
            choose_sandbox(
                "docker", scratch, docker_host=HOST, image="assay-test-volume:x", scope=scope
            )
    finally:
        engine.client.remove_image("assay-test-volume:x", force=True)


def test_an_image_that_vanished_is_looked_up_again(docker: Starter, engine: Engine) -> None:
    sandbox: Any = docker.sandbox
    found = sandbox.image
    object.__setattr__(found, "id", "sha256:" + "0" * 64)
    assert docker.finish("print(1)").out == "1\n"


# ---- engines that are not there ----


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("unix:///nowhere/docker.sock", "no Docker engine answers at .*remedy: start Docker"),
        ("tcp://127.0.0.1:1", "on this machine, not tcp"),
    ],
)
def test_unreachable_engines(tmp_path: Path, host: str, message: str, monkeypatch: Any) -> None:
    with pytest.raises(SandboxUnavailable, match=message):
        choose_sandbox("docker", tmp_path, docker_host=host)
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(SandboxUnavailable, match=message):
        choose_sandbox("docker", tmp_path)


def test_auto_takes_docker_only_without_bubblewrap(docker_settings: SandboxSettings) -> None:
    def chosen_of(**problems: str | None) -> tuple[SandboxSettings, str]:
        """What is chosen when these backends have these problems."""
        said = {name: lambda _, problem=problem: problem for name, problem in problems.items()}
        return choose_sandbox(
            "auto",
            docker_settings.scratch,
            docker_host=HOST,
            scope=docker_settings.scope,
            candidates={**ISOLATING, **said},
        )

    assert chosen_of(bubblewrap=None)[0].name == "bubblewrap"
    chosen, _ = chosen_of(bubblewrap="bubblewrap is broken")
    assert (chosen.name, chosen.docker_host) == ("docker", HOST)
    chosen, reason = chosen_of(bubblewrap="bubblewrap is broken", docker="docker is broken")
    assert chosen.name == "subprocess"
    assert reason == "nothing is isolated: bubblewrap is broken; docker is broken"


def test_without_the_package(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "assay.sandbox.docker.backend", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'assay\[worker\]'"):
        open_sandbox(SandboxSettings("docker", scratch=tmp_path))


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA GPU here")
def test_one_gpu_is_seen(docker_settings: SandboxSettings, folder: Path) -> None:
    """Needs an NVIDIA driver and its container toolkit."""
    listing = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    uuids = listing.stdout.split()
    out = folder / "out"
    with out.open("wb") as stdout:
        limits = Limits(60, 1 << 30)
        argv = ("nvidia-smi", "-L")
        spec = SandboxSpec(
            "gpu", argv, {}, (), "/", limits, stdout=stdout.fileno(), gpus=(uuids[0],)
        )
        assert open_sandbox(docker_settings).start(spec).wait().code == 0
    assert [line for line in out.read_text().splitlines() if "UUID" in line] != []
    assert all(uuid not in out.read_text() for uuid in uuids[1:])


def test_cancel_while_several_wait(docker: Starter) -> None:
    cancel = threading.Event()
    started = [docker.start("import time; time.sleep(30)") for _ in range(3)]
    threading.Timer(0.2, cancel.set).start()
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda each: each.wait(cancel), started))
    assert {each.exit.reason for each in ended} == {"cancelled"}

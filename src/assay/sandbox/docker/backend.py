"""The Docker backend: one hardened container for each program.

What bubblewrap does with namespaces and a filter, the engine does here, with the same user ids,
mounts and filter. In addition it hands out GPUs, and programs may come with an image of their own.

Not held: writable mounts allow execution (as under bubblewrap), and set-user-id bits on them are
made harmless by no-new-privileges rather than by the mount. File systems mounted below a read-only
source are not seen. Engines that map user ids (rootless, userns-remap) are refused.
"""

import contextlib
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from docker import errors  # type: ignore[import-untyped]

from assay.sandbox import seccomp
from assay.sandbox.counters import advance_counters
from assay.sandbox.disk import DiskWatch
from assay.sandbox.docker import kept
from assay.sandbox.docker.config import Container, check_gpus, container_config, reserved
from assay.sandbox.docker.engine import (
    DEADLINE_LABEL,
    NAME_LABEL,
    OWNER_LABEL,
    SCOPE_LABEL,
    Engine,
    boot_id,
    connect,
    owner,
    reap,
    remove_kept,
)
from assay.sandbox.docker.handle import DockerHandle
from assay.sandbox.docker.image import Image, empty_image, find_image
from assay.sandbox.docker.link import Link, knock, open_door
from assay.sandbox.docker.meter import EngineMeter, GroupMeter, container_group
from assay.sandbox.filesystem import check_target, is_device
from assay.sandbox.gpus import driver_libraries
from assay.sandbox.interface import (
    DEVNULL,
    Exit,
    Guarantee,
    Handle,
    Limits,
    Mount,
    Reason,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
    SandboxUnavailable,
)
from assay.sandbox.launcher import program_of
from assay.sandbox.ownership import expect_back, hand_over
from assay.sandbox.probe import probe_sandbox
from assay.sandbox.supervise import GUARD_SECONDS, blame_memory
from assay.sandbox.users import Reservation, is_root, reserve_user

_MARGIN_SECONDS = 300.0  # how long a container may outlive its limit before anybody removes it


class DockerSandbox:
    """Starts programs in containers; see the module's text and `interface.Sandbox`.

    Raises `SandboxUnavailable` from its first use when the engine or the image is not there.
    """

    name = "docker"
    isolated = True

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._found: Image | None = None
        self._finding = threading.Lock()

    @property
    def _engine(self) -> Engine:
        return connect(self._settings.docker_host)

    @property
    def image(self) -> Image:
        """The image that containers are made of; looked up again once it is gone."""
        with self._finding:
            if self._found is None:
                name = self._settings.image
                engine = self._engine
                self._found = find_image(engine, name) if name else empty_image(engine)
            return self._found

    @property
    def python(self) -> str:
        return self.image.python

    @property
    def facts(self) -> dict[str, str]:
        return {**self._engine.facts, "image": self.image.digest}

    @property
    def adopts(self) -> bool:
        return True

    def path(self, mount: Mount) -> str:
        return mount.target

    def probe(self, quick: bool = False) -> dict[Guarantee, bool]:
        hasty = DockerSandbox(replace(self._settings, grace_seconds=0.1))
        return probe_sandbox(hasty, self._settings.scratch, quick)

    def reap(self) -> int:
        """Remove containers of this scope that nobody owns any more; returns how many."""
        return reap(self._engine, self._settings.scope)

    def remove_kept(self, wanted: Collection[str]) -> int:
        """Remove the kept containers of this scope but for programs with these names."""
        return remove_kept(self._engine, self._settings.scope, wanted)

    def discard(self, name: str) -> None:
        """Remove the container of a kept program."""
        self._engine.remove(kept.container_name(self._settings.scope, name))

    def start(self, spec: SandboxSpec) -> DockerHandle:
        """Start a program; unlike under bubblewrap, any thread may do so.

        Its time counts from when the container asks for it, not from the engine's preparations.
        """
        check_gpus(spec.gpus)
        if self.image.system:  # an image of its own has the libraries from NVIDIA's toolkit
            libraries = driver_libraries(spec.gpus)
            env = {**libraries.variables, **spec.env}
            spec = replace(spec, mounts=(*spec.mounts, *libraries.mounts), env=env)
        for mount in spec.mounts:
            _check_mount(mount)
        with ExitStack() as stack:
            try:
                return self._start(spec, stack)
            except OSError as error:
                raise SandboxError(f"sandbox {spec.name} could not be started: {error}") from error

    def _start(self, spec: SandboxSpec, stack: ExitStack) -> DockerHandle:
        reserved = stack.enter_context(reserve_user()) if is_root() else None
        lent = reserved.user if reserved is not None else None
        user, group = (lent, lent) if lent is not None else (os.geteuid(), os.getegid())
        if spec.sees_held_out:
            stack.callback(advance_counters, shared_memory=bool(spec.gpus))
        hand_over(spec.mounts, lent, stack)
        folders, devices = _sources(spec.mounts)
        with open_door(self._settings.scratch, user, group) as door:
            wanted = Container(
                image=self.image,
                user=user,
                group=group,
                door=door.folder,
                labels=self._labels(spec),
                profile=_profile(not spec.sees_held_out) if seccomp.supported() else None,
                devices=devices,
                folders=folders,
            )
            undo = stack.enter_context(ExitStack())  # what the handle does by itself at the end
            container = self._create(spec, wanted)
            undo.callback(self._engine.remove, container)
            self._engine.start(container)
            link = door.accept(lambda: bool(self._engine.state(container)["Running"]))
        undo.callback(link.close)
        handle = self._send_order(spec, container, link, reserved)
        undo.pop_all()
        handle.cleanup.push(stack.pop_all())
        return handle

    def _create(self, spec: SandboxSpec, wanted: Container) -> str:
        name = None
        if spec.keep is not None:
            name = kept.container_name(self._settings.scope, spec.name)
        try:
            return self._engine.create(container_config(spec, wanted), name)
        except errors.NotFound:  # the image was removed meanwhile
            with self._finding:
                self._found = None
        wanted = replace(wanted, image=self.image)
        try:
            return self._engine.create(container_config(spec, wanted), name)
        except errors.NotFound as error:
            raise SandboxUnavailable(f"Docker lost the image {wanted.image.id}") from error

    def _send_order(
        self, spec: SandboxSpec, container: str, link: Link, reserved: Reservation | None
    ) -> DockerHandle:
        meter = self._meter(link, container, spec)
        disk = DiskWatch(spec.mounts, spec.limits)
        order = self._order(spec)
        grace, started = self._settings.grace_seconds, time.monotonic()
        with _streams(spec) as streams:
            if spec.keep is None:
                link.order(order, streams)
            else:
                user = reserved.user if reserved is not None else None
                kept.clear(spec.keep.folder)
                kept.Note(boot_id(), started, user).write(spec.keep.folder)
                with kept.opened(spec.keep) as others:
                    held = [reserved.descriptor] if reserved is not None else []
                    link.order(order, [*streams, *others, *held])
        return DockerHandle(self._engine, container, spec, grace, link, meter, disk, started)

    def _meter(
        self, link: Link, container: str, spec: SandboxSpec, *, began: float | None = None
    ) -> GroupMeter | EngineMeter:
        found = container_group(link.pid, container) if link.pid else None
        if found is None:
            return EngineMeter(self._engine, container)
        return GroupMeter(found, spec.limits.cpus, began=began)

    def _order(self, spec: SandboxSpec) -> dict[str, Any]:
        """What the container's init is told; see `init`."""
        image, keep = self.image, spec.keep
        filtered = ""
        if seccomp.supported():
            program = seccomp.build_filter(held_out=spec.sees_held_out, gpus=bool(spec.gpus))
            filtered = program.hex()
        ours = {"PATH": image.path, "HOME": "/tmp", "LANG": "C.UTF-8", "PWD": spec.cwd}
        return {
            "argv": program_of(spec, self.python),
            "env": {**ours, **spec.env},
            "cwd": spec.cwd,
            "limits": _resource_limits(spec.limits),
            "filter": filtered,
            "seconds": spec.limits.longest_seconds + GUARD_SECONDS,
            "grace": self._settings.grace_seconds,
            "keep": None if keep is None else [keep.most_bytes, keep.tail_bytes],
            "linger": spec.limits.longest_seconds + _MARGIN_SECONDS,
        }

    def _labels(self, spec: SandboxSpec) -> dict[str, str]:
        allowed = spec.limits.longest_seconds + self._settings.grace_seconds + _MARGIN_SECONDS
        names = {} if spec.keep is None else {**spec.keep.labels, NAME_LABEL: spec.name}
        return {
            **names,
            SCOPE_LABEL: self._settings.scope,
            OWNER_LABEL: owner(),
            DEADLINE_LABEL: str(round(time.monotonic() + allowed)),
        }

    def adopt(self, spec: SandboxSpec) -> Handle | None:
        """See `interface.Sandbox.adopt`; the init tells whether the program still runs."""
        keep = spec.keep
        if keep is None:
            raise ValueError("only a kept program can be adopted")
        container = self._engine.find(kept.container_name(self._settings.scope, spec.name))
        note = kept.read_note(keep.folder)
        with ExitStack() as stack:
            if note is not None:
                expect_back(spec.mounts, note.user, stack)
                link = knock(keep.folder) if container is not None else None
                if container is not None and link is not None:
                    handle = self._take_over(spec, container, link, note)
                    handle.cleanup.push(stack.pop_all())
                    return handle
            disk = DiskWatch(spec.mounts, spec.limits)
            state = self._engine.state(container) if container is not None else {}
            if container is not None:
                self._engine.remove(container)
            return _outcome(spec, note, state, blame_memory(disk, spec.limits))

    def _take_over(
        self, spec: SandboxSpec, container: str, link: Link, note: kept.Note
    ) -> DockerHandle:
        meter = self._meter(link, container, spec, began=note.started)
        disk = DiskWatch(spec.mounts, spec.limits)
        grace = self._settings.grace_seconds
        return DockerHandle(self._engine, container, spec, grace, link, meter, disk, note.started)


@functools.cache
def _profile(locks: bool) -> str:
    return seccomp.build_profile(locks=locks)


def _outcome(
    spec: SandboxSpec, note: kept.Note | None, state: dict[str, Any], no_memory: Reason
) -> kept.Ended | None:
    """What became of a program whose container is gone; `state` is the last that Docker knew, and
    `no_memory` the reason to tell if memory ran out."""
    assert spec.keep is not None  # or it could not be adopted
    record = kept.read_record(spec.keep.folder)
    if note is None or not record.started:
        return None
    end = record.end
    if end is None and state.get("OOMKilled"):
        wall = time.monotonic() - note.started if note.boot == boot_id() else 0.0
        end = Exit(no_memory, -signal.SIGKILL, max(0.0, wall), 0.0, None)
    if end is not None:
        limits = spec.limits
        longest = limits.wall_seconds + limits.starved_seconds
        warm_up = limits.warm_up_seconds > 0
        return kept.Ended(end, note.started, warm_up=warm_up, longest=longest)
    raise SandboxError("the container was ended from outside while no worker watched")


def _check_mount(mount: Mount) -> None:
    try:
        check_target(mount)
    except FileNotFoundError as error:
        raise SandboxError(f"a mount's source is missing: {error}") from error
    if reserved(mount.target):
        raise ValueError(f"mount target {mount.target} would hide a part of the system")


def _sources(
    mounts: tuple[Mount, ...],
) -> tuple[tuple[tuple[str, str, bool], ...], tuple[tuple[str, str], ...]]:
    """Folders (source, target, writable) and devices (source, target), without links."""
    real = [(os.path.realpath(mount.source), mount) for mount in mounts]
    folders = [(s, m.target, m.writable) for s, m in real if not is_device(m.source)]
    devices = [(s, m.target) for s, m in real if is_device(m.source)]
    return tuple(folders), tuple(devices)


@contextlib.contextmanager
def _streams(spec: SandboxSpec) -> Iterator[tuple[int, int, int]]:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        first, second, third = (
            nothing if stream == DEVNULL else stream
            for stream in (spec.stdin, spec.stdout, spec.stderr)
        )
        yield first, second, third
    finally:
        os.close(nothing)


def _resource_limits(limits: Limits) -> dict[str, tuple[int, int]]:
    """Soft and hard limits of each single process."""
    wanted = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_NOFILE": (limits.open_files, limits.open_files),
        "RLIMIT_FSIZE": (limits.file_bytes, limits.file_bytes),
    }
    if limits.cpu_seconds is not None:
        # A backstop: the tree's CPU time is watched from outside.
        soft = math.ceil(limits.cpu_seconds) + 1
        wanted["RLIMIT_CPU"] = (soft, soft + 1)
    return wanted

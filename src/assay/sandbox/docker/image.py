"""The images that containers are made from, and the host's system as an image of its own."""

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from docker import errors  # type: ignore[import-untyped]

from assay.sandbox.docker.engine import Engine, translated
from assay.sandbox.filesystem import SYSTEM_FILES, SYSTEM_LINKS, interpreter_mounts
from assay.sandbox.interface import SandboxUnavailable

_EMPTY = "assay-empty"
_FOLDERS = ("usr", "etc", "etc/alternatives", "proc", "sys", "dev", "tmp")
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Image:
    """An image as it was found once.

    Attributes:
        id: what containers are made from, so that a tag that moves changes nothing.
        digest: what provenance says: the registry's digest where there is one, else the id.
        python: its interpreter.
        path: PATH for programs.
        variables: names that it would put into the environment.
        system: (source, target) of the host's files that are bound into it read-only.
    """

    id: str
    digest: str
    python: str
    path: str
    variables: frozenset[str] = frozenset()
    system: tuple[tuple[str, str], ...] = field(default=())


def find_image(engine: Engine, name: str) -> Image:
    """The local image `name`, with the interpreter it brings.

    Raises `SandboxUnavailable` when it is missing or would let programs write without limit.
    """
    with translated(f"Docker does not show the image {name}"):
        try:
            found = engine.client.inspect_image(name)
        except errors.NotFound:
            raise SandboxUnavailable(
                f"the image {name} is not on this machine; remedy: docker pull {name}"
            ) from None
    return _image(name, found)


def _image(name: str, found: Mapping[str, Any]) -> Image:
    config = found.get("Config") or {}
    if config.get("Volumes"):
        raise SandboxUnavailable(
            f"the image {name} declares volumes, which are writable and have no limit; "
            "remedy: build one without VOLUME"
        )
    pairs = [variable.partition("=") for variable in config.get("Env") or ()]
    variables = {key: value for key, _, value in pairs}
    digests = found.get("RepoDigests") or ()
    return Image(
        id=found["Id"],
        digest=digests[0].rpartition("@")[2] if digests else found["Id"],
        python="python3",
        path=variables.get("PATH", _PATH),
        variables=frozenset(variables),
    )


def empty_image(engine: Engine) -> Image:
    """An image with nothing but mount points for this host's system; made where it is missing."""
    content = _empty_archive()
    tag = hashlib.sha256(content).hexdigest()[:16]
    name = f"{_EMPTY}:{tag}"
    with translated("Docker could not make an empty image"):
        try:
            found = engine.client.inspect_image(name)
        except errors.NotFound:
            engine.client.import_image_from_data(content, repository=_EMPTY, tag=tag)
            found = engine.client.inspect_image(name)
    return Image(
        id=found["Id"],
        digest=found["Id"],
        python=sys.executable,
        path=f"{sys.prefix}/bin:{_PATH}",
        system=_host_system(),
    )


def _empty_archive() -> bytes:
    """A small tar archive: folders, and the links that this host's system has at its top."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            # Some versions of runc give a tmpfs the mode of the folder below it.
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for link in SYSTEM_LINKS:
            if os.path.islink(link):
                entry = tarfile.TarInfo(link.lstrip("/"))
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(link)
                archive.addfile(entry)
    return buffer.getvalue()


def _host_system() -> tuple[tuple[str, str], ...]:
    """What of the host a program sees besides its mounts: system and interpreter, no more."""
    system = [("/usr", "/usr")]
    system += [(link, link) for link in SYSTEM_LINKS if os.path.isdir(link)]
    system += [(path, path) for path in SYSTEM_FILES if os.path.exists(path)]
    system = [(source, target) for source, target in system if not os.path.islink(target)]
    for mount in interpreter_mounts():
        system.append((os.path.realpath(mount.source), mount.target))
        if (mount.source / "pip.conf").exists():  # may hold passwords
            system.append((os.devnull, f"{mount.target}/pip.conf"))
    return tuple(system)

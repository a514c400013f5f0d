"""Source trees as bytes: read a folder, pack it into a zip with a fixed layout, unpack it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from assay.domain.errors import InvalidInput
from assay.domain.hashing import tree_hash

_IGNORED = frozenset({"__pycache__", ".git", ".DS_Store", ".ipynb_checkpoints"})
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's earliest date: the same tree gives the same bytes


def read_tree(folder: Path) -> dict[str, bytes]:
    """Every regular file below `folder`, by `/`-separated name. Links are refused.

    Raises:
        InvalidInput: the tree holds a symbolic link.
    """
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(map(is_ignored, relative.parts)):
            continue
        if path.is_symlink():
            raise InvalidInput(f"{path}: symbolic links are not allowed in an environment")
        if path.is_file():
            files[relative.as_posix()] = path.read_bytes()
    return files


def is_ignored(name: str) -> bool:
    """Whether a file or folder of this name belongs to no source tree."""
    return name in _IGNORED or name.endswith(".pyc")


def pack_tree(files: Mapping[str, bytes]) -> bytes:
    """A zip whose bytes depend on nothing but names and contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return buffer.getvalue()


def unpack_tree(data: bytes, *, max_bytes: int = 256 << 20) -> dict[str, bytes]:
    """The files of a zip made by `pack_tree`, checked by name and total size.

    Raises:
        InvalidInput: a name leaves the tree, or the content is larger than `max_bytes`.
    """
    files: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(i.file_size for i in archive.infolist()) > max_bytes:
            raise InvalidInput(f"the archive unpacks to more than {max_bytes} bytes")
        for info in archive.infolist():
            check_name(info.filename)
            files[info.filename] = archive.read(info)
    return files


def check_name(name: str) -> None:
    """Refuse names that are absolute or climb out of their tree."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\x00" in name or not name:
        raise InvalidInput(f"{name!r}: not a name inside the tree")


def write_tree(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files below `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        check_name(name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@dataclass(frozen=True)
class Bundle:
    """The files of an environment as one content-addressed archive."""

    sha256: str
    data: bytes

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Bundle:
        """Pack the files. The hash is that of the tree, not of the archive."""
        return cls(tree_hash(files), pack_tree(files))

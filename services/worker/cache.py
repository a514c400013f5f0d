"""What a host keeps between attempts: environments by hash, their prepared data."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.contracts.environment import Profile
from assay.domain.codebases import is_hash
from assay.domain.errors import AssayError
from assay.domain.failure_codes import FailureCode
from assay.domain.hashing import tree_hash
from assay.environments import Environment, prepare_data, unpack_tree
from assay.environments.bundle import read_tree, write_tree
from services.worker.folders import remove_tree


class Corrupt(AssayError):
    """What was fetched is not what its hash says."""

    code = FailureCode.CORRUPT_TRANSFER


@dataclass(frozen=True)
class CachedBundle:
    """An environment's bundle on this host: trusted, read by nothing inside a sandbox."""

    sha256: str
    environment: Environment
    evaluator: str
    baseline: dict[str, bytes]

    @property
    def folder(self) -> Path:
        """The unpacked environment folder."""
        return self.environment.folder

    def profile(self, environment: str, name: str) -> Profile:
        """A profile of the environment this bundle is said to hold.

        Raises:
            Corrupt: it holds another one.
        """
        expected, _, sha256 = environment.partition("@")
        found = self.environment
        if found.name != expected or not found.content_hash.startswith(sha256):
            raise Corrupt(f"bundle {self.sha256[:12]} holds {found.id}, not {environment}")
        return found.profile(name)


def verified_tree(data: bytes, sha256: str) -> dict[str, bytes]:
    """The files of a zip whose tree has this hash.

    Raises:
        Corrupt: it has another one, or is not a zip of a tree.
    """
    try:
        files = unpack_tree(data)
    except Exception as error:  # zipfile raises a wide range on damaged input
        raise Corrupt(f"{sha256[:12]}: {type(error).__name__}: {error}") from error
    found = tree_hash(files)
    if found != sha256:
        raise Corrupt(f"asked for {sha256[:12]}, got a tree with hash {found[:12]}")
    return files


class BundleCache:
    """Bundles are fetched once per host and data is prepared once per host and profile."""

    def __init__(
        self, folder: Path, fetch: Callable[[str], bytes], *, held_out_key: str = ""
    ) -> None:
        self._folder = folder
        self._held_out_key = held_out_key
        self._fetch = fetch
        self._loaded: dict[str, CachedBundle] = {}
        self._fingerprints: dict[Path, str] = {}
        self._lock = threading.Lock()

    def bundle(self, sha256: str) -> CachedBundle:
        """The bundle with this hash, from memory, from disk or from the API.

        Raises:
            Corrupt: what the API sent has another hash.
            InvalidInput: the environment's manifest is wrong.
        """
        if not is_hash(sha256):
            raise Corrupt(f"{sha256[:80]!r} is not the hash of a bundle")
        with self._lock:
            found = self._loaded.get(sha256)
            if found is None:
                found = self._loaded[sha256] = self._load(sha256)
            return found

    def data(self, bundle: CachedBundle, profile: str) -> Path:
        """The folder with `train/`, `search/` and `sealed/`, prepared if it is not there.

        Raises:
            PrepareError: the environment's `prepare.py` failed.
        """
        return prepare_data(
            bundle.environment, profile, self._folder, held_out_key=self._held_out_key
        )

    def fingerprint(self, split: Path) -> str:
        """The hash of a prepared split: results on different ones are not comparable."""
        with self._lock:
            found = self._fingerprints.get(split)
            if found is None:
                digest = hashlib.sha256()
                for path in sorted(p for p in split.rglob("*") if p.is_file()):
                    digest.update(path.relative_to(split).as_posix().encode())
                    with path.open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                found = self._fingerprints[split] = digest.hexdigest()
            return found

    def _load(self, sha256: str) -> CachedBundle:
        target = self._folder / "bundles" / sha256
        if target.is_dir() and tree_hash(read_tree(target)) != sha256:
            remove_tree(target)  # a disk or a person changed it
        if not target.is_dir():
            self._install(sha256, target)
        environment = Environment.load(target, unpacked=True)
        evaluator = tree_hash(read_tree(target / "evaluator"))
        return CachedBundle(sha256, environment, evaluator, read_tree(target / "codebase"))

    def _install(self, sha256: str, target: Path) -> None:
        files = verified_tree(self._fetch(sha256), sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{sha256[:12]}.", dir=target.parent))
        try:
            write_tree(files, unfinished)
            os.rename(unfinished, target)
        except OSError:
            remove_tree(unfinished)
            if not target.is_dir():  # otherwise another process was faster, with the same tree
                raise

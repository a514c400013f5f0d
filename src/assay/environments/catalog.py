"""Find environment folders and read what they declare."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from assay.contracts.environment import EnvironmentManifest, Profile
from assay.domain.errors import FieldError, InvalidInput, NotFound, Unavailable
from assay.domain.hashing import text_tree_hash, tree_hash
from assay.environments.bundle import read_tree, write_tree
from assay.environments.vendored import vendored_files

MANIFEST = "environment.toml"
BASELINES = "baseline.json"
#: Texts of the environment's own for those who implement ideas (see docs/environments.md).
RULES, EXAMPLE = "prompts/executor_rules.txt", "prompts/executor_example.txt"
#: What a profile means in the code, for those who propose and implement ideas; by its name.
PROFILE_NOTES = "prompts/profile_{}.txt"
#: Prose, prompts and measured baselines do not change what is run: no part of the hash.
NOT_HASHED = ("README.md", BASELINES, RULES, EXAMPLE, PROFILE_NOTES.format("*"))


def is_hashed(name: str) -> bool:
    """Whether a file of an environment is part of its hash."""
    return not any(fnmatchcase(name, pattern) for pattern in NOT_HASHED)


def default_folders() -> list[Path]:
    """Where environments are looked for, first match wins.

    `ASSAY_ENVIRONMENTS` (colon-separated), `./environments`, then those shipped with Assay.
    """
    named = [Path(p) for p in os.environ.get("ASSAY_ENVIRONMENTS", "").split(os.pathsep) if p]
    package = Path(__file__).resolve().parent.parent
    shipped = [package / "_environments", package.parent.parent / "environments"]
    return [*named, Path.cwd() / "environments", *shipped]


@dataclass(frozen=True)
class Environment:
    """A research problem as it stands on disk.

    `unpacked`: the folder came out of a bundle and is complete. To another one `files` adds what
    its manifest calls `vendored`.
    """

    folder: Path
    manifest: EnvironmentManifest
    unpacked: bool = False

    @classmethod
    def load(cls, folder: Path, *, unpacked: bool = False) -> Environment:
        """Read and check a folder.

        Raises:
            InvalidInput: the manifest is missing, malformed, or contradicts the folder.
            Unavailable: the folder cannot be read now.
        """
        path = folder / MANIFEST
        try:
            with _reading():
                raw = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise InvalidInput(f"{path}: not found; an environment needs this file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: {error}") from None
        try:
            manifest = EnvironmentManifest.model_validate(raw)
        except ValidationError as error:
            fields = tuple(
                FieldError("/" + "/".join(map(str, e["loc"])), e["msg"], e["type"])
                for e in error.errors()
            )
            text = "; ".join(f"{f.pointer}: {f.message}" for f in fields)
            raise InvalidInput(f"{path}: {text}", fields=fields) from None
        environment = cls(folder, _protecting_vendored(manifest), unpacked)
        environment._check_folder()
        return environment

    def _check_folder(self) -> None:
        for needed in ("codebase", "evaluator/evaluate.py", "prepare.py"):
            if not (self.folder / needed).exists():
                raise InvalidInput(f"{self.folder}: {needed} is missing")
        if not self.unpacked:  # a bundle holds the files as they were when it was packed
            self._check_vendored()

    def _check_vendored(self) -> None:
        known = vendored_files()
        for name in self.manifest.vendored:
            if name not in known:
                raise InvalidInput.field(
                    "/vendored",
                    f"{self.folder / MANIFEST}: vendored: Assay has no file {name!r}; it has: "
                    f"{', '.join(known)}",
                )
            own = self.folder / name
            with _reading():
                if own.is_symlink() or (own.exists() and own.read_bytes() != known[name]):
                    raise InvalidInput(
                        f"{own}: {name} is `vendored` in {MANIFEST}, so Assay adds it, and this "
                        "one is different. Delete it; or keep it and take it off that list"
                    )

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def id(self) -> str:
        """`name@hash`, twelve digits of the content hash."""
        return f"{self.name}@{self.content_hash[:12]}"

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Every file, by its path in the folder, and those that Assay adds."""
        with _reading():
            files = read_tree(self.folder)
        if self.unpacked:
            return files
        return files | {name: vendored_files()[name] for name in self.manifest.vendored}

    @cached_property
    def content_hash(self) -> str:
        return tree_hash({n: c for n, c in self.files.items() if is_hashed(n)})

    @cached_property
    def codebase(self) -> dict[str, str]:
        """The text files of the baseline codebase, by name."""
        prefix = "codebase/"
        return {
            name.removeprefix(prefix): content.decode()
            for name, content in self.files.items()
            if name.startswith(prefix)
        }

    @contextmanager
    def complete_folder(self) -> Iterator[Path]:
        """A folder that holds all of `files`: this one, or a copy that goes with the block."""
        if all((self.folder / name).exists() for name in self.manifest.vendored):
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix=f"assay-{self.name}-") as scratch:
            folder = Path(scratch) / self.name
            write_tree(self.files, folder)
            yield folder

    @property
    def codebase_hash(self) -> str:
        return text_tree_hash(self.codebase)

    def profile(self, name: str) -> Profile:
        """The profile of that name.

        Raises:
            InvalidInput: there is none; the message lists those there are.
        """
        try:
            return self.manifest.profiles[name]
        except KeyError:
            known = ", ".join(sorted(self.manifest.profiles))
            raise InvalidInput.field(
                "/profile", f"{self.name} has no profile {name!r}; it has: {known}"
            ) from None

    def prompt(self, name: str) -> str:
        """The environment's own text for a prompt (such as `RULES`); empty without one."""
        path = self.folder / name
        with _reading():
            if path.is_file():
                return path.read_text(encoding="utf-8")
        return ""

    def profile_notes(self, profile: str) -> str:
        """What a profile means in the code; empty where the environment does not say."""
        return self.prompt(PROFILE_NOTES.format(profile))

    def committed_baselines(self) -> Mapping[str, Any]:
        """`baseline.json`: what `assay env calibrate` measured, by profile and hardware class."""
        path = self.folder / BASELINES
        if not path.exists():
            return {}
        with _reading():
            data: Mapping[str, Any] = json.loads(path.read_text())
        return data


def _protecting_vendored(manifest: EnvironmentManifest) -> EnvironmentManifest:
    """The manifest with the vendored files of its codebase among those no diff may touch."""
    spec, prefix = manifest.codebase, "codebase/"
    added = tuple(n.removeprefix(prefix) for n in manifest.vendored if n.startswith(prefix))
    more = tuple(name for name in added if name not in spec.protected)
    protecting = spec.model_copy(update={"protected": (*spec.protected, *more)})
    return manifest.model_copy(update={"codebase": protecting})


class Catalog:
    """The environments found in some folders."""

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        self._folders = list(folders) if folders is not None else default_folders()

    def names(self) -> list[str]:
        """Names of all environments, sorted."""
        return sorted(self._paths())

    def get(self, name: str) -> Environment:
        """The environment called `name`, or `name@hash` if it has not changed since.

        Raises:
            NotFound: there is none; the message lists those there are.
            InvalidInput: its manifest is wrong, or the hash differs.
            Unavailable: a folder cannot be read now.
        """
        short, _, wanted = name.partition("@")
        paths = self._paths()
        if short not in paths:
            known = ", ".join(sorted(paths)) or "none"
            raise NotFound(
                f"environment {short!r} was not found; known: {known}. "
                "Set ASSAY_ENVIRONMENTS to the folder that holds yours."
            )
        environment = Environment.load(paths[short])
        if wanted and not environment.content_hash.startswith(wanted):
            raise InvalidInput.field(
                "/environment", f"{name} is not what is installed here ({environment.id})"
            )
        return environment

    def all(self) -> list[Environment]:
        """Every environment, by name."""
        return [self.get(name) for name in self.names()]

    def _paths(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        with _reading():
            for folder in self._folders:
                if folder.is_dir():
                    for child in sorted(folder.iterdir()):
                        if (child / MANIFEST).is_file():
                            found.setdefault(child.name, child)
        return found


@contextmanager
def _reading() -> Iterator[None]:
    """Raises Unavailable for faults of the disk and for too many open files."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(
            f"environments cannot be read: {error}; once that is mended, try again"
        ) from error

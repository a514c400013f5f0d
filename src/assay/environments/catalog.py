"""Find environment folders and read what they declare."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from assay.contracts.environment import EnvironmentManifest, Profile
from assay.domain.errors import FieldError, InvalidInput, NotFound, Unavailable
from assay.domain.hashing import text_tree_hash, tree_hash
from assay.environments.bundle import read_tree

MANIFEST = "environment.toml"
BASELINES = "baseline.json"
#: Texts of the environment's own for those who implement ideas (see docs/environments.md).
RULES, EXAMPLE = "prompts/executor_rules.txt", "prompts/executor_example.txt"
#: Prose, prompts and measured baselines do not change what is run: no part of the hash.
NOT_HASHED = frozenset({"README.md", BASELINES, RULES, EXAMPLE})


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
    """A research problem as it stands on disk."""

    folder: Path
    manifest: EnvironmentManifest

    @classmethod
    def load(cls, folder: Path) -> Environment:
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
        environment = cls(folder, manifest)
        environment._check_folder()
        return environment

    def _check_folder(self) -> None:
        for needed in ("codebase", "evaluator/evaluate.py", "prepare.py"):
            if not (self.folder / needed).exists():
                raise InvalidInput(f"{self.folder}: {needed} is missing")

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def id(self) -> str:
        """`name@hash`, twelve digits of the content hash."""
        return f"{self.name}@{self.content_hash[:12]}"

    @cached_property
    def content_hash(self) -> str:
        with _reading():
            files = read_tree(self.folder)
        return tree_hash({n: c for n, c in files.items() if n not in NOT_HASHED})

    @cached_property
    def codebase(self) -> dict[str, str]:
        """The text files of the baseline codebase, by name."""
        with _reading():
            files = read_tree(self.folder / "codebase")
        return {name: content.decode() for name, content in files.items()}

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
        """The environment's own text for a prompt (`RULES`, `EXAMPLE`); empty without one."""
        path = self.folder / name
        with _reading():
            if path.is_file():
                return path.read_text(encoding="utf-8")
        return ""

    def committed_baselines(self) -> Mapping[str, Any]:
        """`baseline.json`: what `assay env calibrate` measured, by profile and hardware class."""
        path = self.folder / BASELINES
        if not path.exists():
            return {}
        with _reading():
            data: Mapping[str, Any] = json.loads(path.read_text())
        return data


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

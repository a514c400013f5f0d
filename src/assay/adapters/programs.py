"""What OpenEvolve and SkyDiscover have in common: they evolve one program, a file at a time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Unpack

from assay.adapters.evaluator import Evaluator, Settings
from assay.adapters.score import Score
from assay.domain.errors import InvalidInput


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of a package that an extra of Assay installs.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        said = f"{missing}; install it with: pip install 'assay[{extra}]'"
        raise ImportError(said, name=missing.name) from missing


class ProgramScorer(Evaluator):
    """Scores programs that take the place of one file; see `Evaluator` for what else it takes.

    Args:
        file: the file of the codebase that the program is.
    """

    def __init__(
        self, environment: str, profile: str, *, file: str, **settings: Unpack[Settings]
    ) -> None:
        super().__init__(environment, profile, **settings)
        self._file = file

    @property
    def program(self) -> str:
        """The program to start from: the file as it is.

        Raises:
            InvalidInput: the codebase has no such file.
        """
        return self.file(self._file)

    def score_program(self, path: str) -> Score:
        """Measure the program in a file; see `score_all`."""
        self.file(self._file)
        try:
            text = Path(path).read_bytes().decode()
        except UnicodeDecodeError as wrong:
            raise InvalidInput(f"{path}: a program is text in UTF-8 ({wrong})") from None
        return self.score({self._file: text})

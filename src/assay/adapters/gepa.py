"""Assay as the evaluator of GEPA (https://pypi.org/project/gepa/)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from assay.adapters.evaluator import Candidate, Evaluator, Settings
from assay.adapters.score import Score
from assay.domain.errors import InvalidInput

#: What GEPA adds to candidates when it refines them.
_NOT_A_FILE = "refiner_prompt"


class CandidateEvaluator(Evaluator):
    """The `batch_evaluator` of `gepa.optimize_anything`; see `Evaluator` for its arguments.

    A candidate is texts of files by name. Its score is the reward, 0 if it failed; the side
    information tells the model why. With `dataset=[0, 1, 2]` the examples are seeds, and each is
    an experiment of its own.
    """

    def __init__(self, environment: str, profile: str, **settings: Unpack[Settings]) -> None:
        settings.setdefault("ideator", "gepa")
        super().__init__(environment, profile, **settings)

    def candidate(self, *names: str) -> dict[str, str]:
        """Return the candidate to start from: these files as they are.

        Raises:
            InvalidInput: the codebase has no such file.
        """
        return {name: self.file(name) for name in names}

    def __call__(
        self, pairs: Sequence[tuple[Mapping[str, str], int | None]]
    ) -> list[tuple[float, dict[str, Any]]]:
        """Return score and side information of each candidate on its example.

        Raises: as `score_all`, and InvalidInput for a candidate that is not texts by name or an
            example that is no seed.
        """
        scores = self.score_all(
            Candidate(_files(candidate), _seeds(example)) for candidate, example in pairs
        )
        return [(score.reward, _side_information(score)) for score in scores]


def _files(candidate: object) -> dict[str, str]:
    if not isinstance(candidate, Mapping):
        raise InvalidInput("seed_candidate: give texts by file name, as `candidate` returns them")
    return {name: text for name, text in candidate.items() if name != _NOT_A_FILE}


def _seeds(example: object) -> tuple[int, ...] | None:
    if example is None:
        return None
    if not isinstance(example, int) or isinstance(example, bool):
        raise InvalidInput(f"dataset: {example!r} is no seed; give integers such as [0, 1, 2]")
    return (example,)


def _side_information(score: Score) -> dict[str, Any]:
    """What GEPA shows to its model, in its own words."""
    names = {"feedback": "Feedback", "failure": "Error"}
    return {names.get(name, name): text for name, text in score.as_text().items()}

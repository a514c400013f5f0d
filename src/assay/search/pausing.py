"""When a search pauses: one code ended most of an epoch, so the next would probably end the same.

`loop.py` asks before it asks the ideator for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from assay.contracts.batch import ExperimentBody
from assay.contracts.search import PauseRequest
from assay.domain.isolation import is_offline
from assay.domain.states import ExperimentState, FailureStage
from assay.search.ask import SearchError

#: Of fewer ideas, more than half may fail alike by chance.
SMALLEST_EPOCH = 4
#: The reason of such a pause in the record.
FAILURES = "failures"


class SearchPaused(SearchError):
    """One code ended most of an epoch, or a person paused. `assay search resume` goes on."""

    code = "search_paused"


@dataclass(frozen=True)
class CommonFailure:
    """The code that ended most of an epoch, how many ideas, and one of them."""

    code: str
    failed: int
    total: int
    example: ExperimentBody


def common_failure(experiments: Sequence[ExperimentBody], executor: str) -> CommonFailure | None:
    """Return the failure that ended more than half of an epoch, if one did.

    Cancelled ideas do not count. Neither do diffs that an offline executor could not make: the
    offline ideator proposes edits that do not fit on purpose.
    """
    ended = [e for e in experiments if e.state != ExperimentState.CANCELLED]
    failed = [e for e in ended if e.failure is not None and _counts(e, executor)]
    codes = Counter(e.failure.code for e in failed if e.failure is not None)
    if len(ended) < SMALLEST_EPOCH or not codes:
        return None
    code, times = codes.most_common(1)[0]
    if 2 * times <= len(ended):
        return None
    example = next(e for e in failed if e.failure is not None and e.failure.code == code)
    return CommonFailure(code, times, len(ended), example)


def _counts(experiment: ExperimentBody, executor: str) -> bool:
    failure = experiment.failure
    at_implement = failure is not None and failure.stage == FailureStage.IMPLEMENT
    return not (at_implement and is_offline(executor))


def pause_request(search: str, ideas: str, found: CommonFailure) -> PauseRequest:
    """Return what is stored of a pause, with the message that a person reads.

    `ideas`: which ideas failed, such as `ideas of epoch 3`.
    """
    experiment, measurements = found.example.id, found.example.measurements
    lines = [
        f"{found.failed} of {found.total} {ideas} failed with `{found.code}`, so no more are "
        "asked for.",
        f"What it means: docs/errors.md#{found.code}",
    ]
    if measurements:
        lines += [
            f"Look at one of them: assay measurement logs {measurements[0]}",
            "Where its code is not to blame, remove the cause and measure it again: "
            f"assay experiment retry {experiment}",
        ]
    else:
        lines.append(f"Look at one of them: assay experiment show {experiment}")
    lines.append(f"Go on: assay search resume {search}")
    return PauseRequest(
        code=found.code, failed=found.failed, total=found.total, message="\n".join(lines)
    )

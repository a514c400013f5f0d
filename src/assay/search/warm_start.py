"""What a search is told of earlier searches and batches: `--warm-start`.

`cli/search.py` finds and checks them before a search starts; `loop.py` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from assay.client import Client, NotFound
from assay.contracts.batch import BatchBody
from assay.contracts.search import SearchBody
from assay.domain.errors import InvalidInput
from assay.domain.states import MeasurementKind
from assay.llm.ideation import Trajectory
from assay.search.trajectories import TrajectoryReader


@dataclass(frozen=True)
class Here:
    """Where a search measures: what its numbers have in common."""

    environment: str
    profile: str
    hardware_class: str
    conditions: str | None


def check(client: Client, sources: Sequence[str], environment: str) -> None:
    """Check that a search of an environment can be told of these searches and batches.

    Raises:
        InvalidInput: one does not exist or is another owner's, is of another environment, or
            confirms or reproduces results, which search must not see.
    """
    wanted = environment.partition("@")[0]
    for source in sources:
        try:
            body = get(client, source)
        except NotFound:
            raise _refused(f"you have no search or batch {source}") from None
        if body.environment.partition("@")[0] != wanted:
            raise _refused(f"{source} is of {body.environment}, the search of {wanted}")
        if isinstance(body, BatchBody) and not is_for_search(body):
            raise _refused(
                f"{source} measured results again; a search must not see what came of it"
            )


def get(client: Client, source: str) -> SearchBody | BatchBody:
    """The search or batch of that id. Raises NotFound, also for another owner's."""
    is_search = source.startswith("srch_")
    return client.searches.get(source) if is_search else client.batches.get(source)


def is_for_search(batch: BatchBody) -> bool:
    """Whether a search may see the results of a batch: not what confirms or reproduces others."""
    return batch.kind == MeasurementKind.SCORE


def read(
    client: Client, reader: TrajectoryReader, sources: Sequence[str], here: Here
) -> tuple[Trajectory, ...]:
    """The trajectories of all batches of these sources that have finished, oldest first."""
    found: list[Trajectory] = []
    named = (pair for source in sources for pair in _batches(client, source))
    batches = {batch.id: (batch, said) for batch, said in named}
    for batch, said in sorted(batches.values(), key=lambda pair: (pair[0].created_at, pair[0].id)):
        if batch.finished_at is not None and is_for_search(batch):
            elsewhere = _elsewhere(batch, here)
            epoch = -1 if batch.epoch is None else batch.epoch
            tried = reader.of_batch(batch.id, epoch, said)
            found += [replace(each, elsewhere=elsewhere) for each in tried]
    return tuple(found)


def _batches(client: Client, source: str) -> Iterator[tuple[BatchBody, str]]:
    """The batches of a source, each with whose ideas they are."""
    body = get(client, source)
    if isinstance(body, BatchBody):
        whose = "by people" if body.ideator is None else f"by {body.ideator}"
        yield body, f"{whose}, in batch {body.id}"
        return
    for epoch in client.searches.epochs(body.id):
        if epoch.batch is not None:
            yield client.batches.get(epoch.batch), f"in the earlier search {body.id}"


def _elsewhere(batch: BatchBody, here: Here) -> str:
    """Why the numbers of a batch cannot be compared with the search's; empty if they can."""
    reasons = []
    if batch.environment != here.environment:
        reasons.append(f"on another version of the environment ({batch.environment})")
    if batch.profile != here.profile:
        reasons.append(f"in the profile {batch.profile}")
    if batch.hardware_class != here.hardware_class:
        reasons.append(f"on other hardware ({batch.hardware_class})")
    elif batch.conditions != here.conditions:
        reasons.append("under other conditions")
    return f"measured {' and '.join(reasons)}" if reasons else ""


def _refused(why: str) -> InvalidInput:
    return InvalidInput.field("/config/warm_start", f"--warm-start: {why}")

"""Measure the codebases of results again, on seeds that selected none of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.contracts.batch import MAX_SEEDS, BatchOptions, BatchRequest, IdeaRequest
from assay.domain.errors import InvalidInput

if TYPE_CHECKING:
    from assay.client import Client

#: Fresh seeds lie above those of baselines and those that people choose.
FIRST_FRESH_SEED = 1_000_000
_PLACES = 1_000_000


def fresh_seeds(codebases: Sequence[str], number: int) -> list[int]:
    """Return seeds that nobody has looked at: they follow from what is confirmed, and on how many.

    The same codebases on the same number of seeds get the same seeds, so asking until the answer
    is yes does not help; others get other seeds, so what is known of these says nothing of them.
    """
    named = json.dumps([sorted(codebases), number]).encode()
    place = int.from_bytes(hashlib.sha256(named).digest()[:8], "big") % _PLACES
    start = FIRST_FRESH_SEED + place * MAX_SEEDS
    return list(range(start, start + number))


def confirmation(client: Client, experiments: Sequence[str], seeds: int) -> BatchRequest:
    """Return a batch that measures the experiments' codebases on as many fresh seeds.

    Raises:
        InvalidInput: one is named twice, or they differ in environment, profile or models.
    """
    doubled = [name for name, times in Counter(experiments).items() if times > 1]
    if doubled:
        raise InvalidInput(f"{doubled[0]} is named twice; name each experiment once")
    bodies = [client.experiments.get(experiment) for experiment in experiments]
    batches = [client.batches.get(body.batch) for body in bodies]
    first = batches[0]
    terms = {
        (b.environment, b.profile, b.hardware_class, b.conditions, b.executor, b.ideator)
        for b in batches
    }
    if len(terms) > 1:
        raise InvalidInput(
            "the experiments differ in environment, profile, conditions or models; confirm "
            "those of each in a batch of their own"
        )
    codebases = [body.codebase or "" for body in bodies]
    return BatchRequest(
        environment=first.environment,
        profile=first.profile,
        hardware_class=first.hardware_class,
        conditions=first.conditions,
        executor=first.executor,
        ideator=first.ideator,
        ideas=[
            IdeaRequest(text=body.idea.text, parents=[body.id], confirms=body.id)
            for body in bodies
        ],
        options=BatchOptions(
            seeds=fresh_seeds(codebases, seeds),
            novelty="allow",
            priority=first.options.priority,
            allow_unisolated=first.options.allow_unisolated,
        ),
    )

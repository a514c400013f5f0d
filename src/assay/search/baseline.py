"""The baseline that a search compares with, read when it is whole."""

from __future__ import annotations

from dataclasses import dataclass

from assay.client import Client
from assay.contracts.batch import BaseBody, BatchBody
from assay.contracts.search import SearchBody
from assay.domain.metrics import Sample, mean, reward
from assay.domain.rounding import shown, shown_or_none
from assay.llm.ideation import Baseline
from assay.search.ask import SearchError, Setting
from assay.search.config import SearchConfig
from assay.search.observer import Observer

#: Between two looks at the service of a loop that waits for measurements.
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Measured:
    """The reward of the baseline, and how ideators are told of it; None: they are not."""

    reward: float
    told: Baseline | None


def wait_for_baseline(
    client: Client,
    search: SearchBody,
    config: SearchConfig,
    setting: Setting,
    batch: BatchBody,
    observer: Observer,
) -> Measured:
    """Return the baseline, once all its measurements have finished. `batch`: of epoch 0.

    A half-measured baseline would make the choice of what to exploit depend on timing, and so
    would seeds that somebody else asks for: the search's own count. One that failed is left out.
    With a base, it is the base's reward: that is what ideas are to beat.

    Raises:
        SearchError: no measurement of it succeeded.
    """
    if search.base is not None:
        return Measured(_base_reward(client, setting, search.base, batch), None)
    name, profile = search.environment, search.profile
    hardware, on = batch.hardware_class, batch.conditions
    environments = client.environments
    wanted = set(range(config.options.baseline_seeds or _default_seeds(setting)))
    body = environments.baseline(name, profile, hardware_class=hardware, conditions=on)
    if not wanted <= {*body.seeds, *(each.seed for each in body.failures)}:
        seeds = sorted(wanted)
        body = environments.calibrate(name, profile, seeds, hardware_class=hardware, conditions=on)
    while wanted.intersection(body.pending_seeds):
        observer.waiting_for_baseline(body)
        client.sleep(POLL_SECONDS)
        body = environments.baseline(name, profile, hardware_class=hardware, conditions=on)
    measured = zip(body.seeds, body.values, strict=True)
    values = [value for seed, value in measured if seed in wanted]
    if not values:
        raise SearchError(
            f"no baseline measurement of {name}, {profile}, {hardware} succeeded, so nothing "
            "can be compared with it; see: assay env calibrate --help",
            code="baseline_failed",
        )
    sample = Sample.of(values)
    assert sample is not None
    told = Baseline(shown(sample.mean), shown_or_none(sample.spread), len(values))
    return Measured(reward(setting.environment.reward, mean(values)), told)


def _base_reward(client: Client, setting: Setting, base: BaseBody, first: BatchBody) -> float:
    """The reward of the search's base, once all its measurements have finished."""
    while True:
        batch = client.batches.get(first.id)
        same = (each.measured for each in batch.bases if each.codebase == base.codebase)
        found = next(same, None)
        if found is None or not found.pending:
            break
        client.sleep(POLL_SECONDS)
    if found is None or found.mean is None:
        raise SearchError(
            f"no measurement of the base {base.name or base.codebase} succeeded, so nothing "
            "can be compared with it; start a search with another base",
            code="baseline_failed",
        )
    return reward(setting.environment.reward, found.mean)


def _default_seeds(setting: Setting) -> int:
    profiles = setting.environment.profiles
    return next(p.baseline_seeds for p in profiles if p.name == setting.profile)

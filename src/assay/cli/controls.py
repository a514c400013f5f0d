"""Measure an environment's controls: edits that must change nothing but luck."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from assay.cli.output import Output
from assay.domain.errors import AssayError

if TYPE_CHECKING:
    from assay.client import Client
    from assay.contracts.batch import ExperimentBody
    from assay.contracts.environment import BaselineBody
    from assay.environments.catalog import Environment


def measure_controls(
    client: Client,
    out: Output,
    environment: Environment,
    baseline: BaselineBody,
    seeds: Sequence[int],
    timeout: float | None = None,
) -> dict[str, Any]:
    """Every recipe of kind `control` on the baseline's seeds, by name: mean, spread and values,
    and the kind and ids of the measurements they are of.

    Raises:
        WaitTimeout: `timeout` seconds passed first; the measurements go on.
        AssayError: a control has no result.
    """
    from assay.analysis.text import counted
    from assay.contracts.batch import BatchOptions, BatchRequest, IdeaRequest
    from assay.llm.offline.exact import recipe_idea
    from assay.search.ask import recipe_of

    controls = [r for r in environment.manifest.recipes if r.kind == "control"]
    if not controls:
        return {}
    out.say(f"controls: {', '.join(c.name for c in controls)}, {counted(len(seeds), 'seed')} each")
    ideas = [IdeaRequest(text=recipe_idea(recipe_of(c)), client_key=c.name) for c in controls]
    # A control is part of the environment, and so as trusted as its codebase.
    options = BatchOptions(seeds=list(seeds), baseline_seeds=0, allow_unisolated=True)
    request = BatchRequest(
        environment=baseline.environment,
        profile=baseline.profile,
        ideas=ideas,
        hardware_class=baseline.hardware_class,
        conditions=baseline.conditions,
        options=options,
    )
    batch = client.batches.wait(client.batches.create(request).id, timeout=timeout)
    return {
        experiment.idea.client_key or "": _figures(client, experiment)
        for experiment in client.experiments.list(batch=batch.id)
    }


def _figures(client: Client, body: ExperimentBody) -> dict[str, Any]:
    if body.metric is None:
        why = "no result" if body.failure is None else body.failure.message
        raise AssayError(f"the control {body.idea.client_key}: {why}", code="control_failed")
    scored = [m for m in client.experiments.result(body.id).measurements if m.metric is not None]
    values = [m.metric for m in scored if m.metric is not None]
    return {
        "mean": fmean(values),
        "spread": stdev(values) if len(values) > 1 else None,
        "values": values,
        "kind": scored[0].kind,
        "measurements": [m.id for m in scored],
    }

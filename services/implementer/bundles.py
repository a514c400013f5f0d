"""An experiment as one archive, to be measured again by hand and without a service.

The archive holds what models and users wrote: every name is checked, so that nothing leaves the
folder it is unpacked in. Held-out keys are known to workers alone; the record has a fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import MeasurementBody, ResultBody
from assay.contracts.bundle import (
    CHANGES,
    CODEBASE,
    ENVIRONMENT,
    IDEA,
    README,
    RECORD,
    REQUIREMENTS,
    RUN,
    BundledSeed,
    BundleRecord,
)
from assay.domain.conditions import host_facts, normalised
from assay.environments.bundle import check_name, pack_tree, unpack_tree
from assay.patching import unified_diff
from assay.storage import conditions, environments, schema, software
from assay.storage.objects import ObjectStore, bundle_key, codebase_key
from assay.storage.rows import get

#: What a host needs to run a bundle: Assay with these extras.
_EXTRAS = ("worker", "environments")
#: Who measured: of no use to the reader, and perhaps not for everybody.
_PRIVATE = ("worker", "host")
#: Facts of a provenance that conditions name otherwise, or not at all.
_FACTS = ("hardware_class", "torch", "python", "numpy", "cpu_model", "evaluation", "driver")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r"extra == ['\"]([a-z]+)['\"]")


def experiment_bundle(
    session: Session,
    store: ObjectStore,
    row: schema.Experiment,
    result: ResultBody,
    now: datetime,
) -> bytes:
    """A zip of an experiment with a result: its files, what it was measured on, how to run it.

    Raises:
        NotFound: the object store lost its codebase or its environment.
        InvalidInput: a file has a name that leaves the archive.
    """
    batch = get(session, schema.Batch, row.batch_id, "batch")
    environment = get(session, schema.Environment, batch.environment_id, "environment")
    idea = get(session, schema.Idea, row.idea_id, "idea")
    assert row.codebase_id is not None, "it has a result"
    codebase = unpack_tree(store.get(codebase_key(row.codebase_id)))
    tree = unpack_tree(store.get(bundle_key(environment.bundle)))
    record = _record(session, row, batch, environment, result, sorted(codebase), now)
    changes = unified_diff(
        environments.get_codebase(store, environment.codebase),
        {name: content.decode() for name, content in codebase.items()},
    )
    texts = {
        RECORD: record.model_dump_json(indent=2) + "\n",
        README: _readme(record),
        RUN: _RUN,
        REQUIREMENTS: _requirements(record, _packages(session, result.measurements)),
        IDEA: idea.text + "\n",
        CHANGES: changes,
    }
    files = {name: text.encode() for name, text in texts.items()}
    for folder, found in ((CODEBASE, codebase), (ENVIRONMENT, tree)):
        for name, content in found.items():
            check_name(name)
            files[f"{folder}/{name}"] = content
    return pack_tree(files)


def _record(
    session: Session,
    row: schema.Experiment,
    batch: schema.Batch,
    environment: schema.Environment,
    result: ResultBody,
    codebase_files: list[str],
    now: datetime,
) -> BundleRecord:
    manifest = environments.manifest(session, environment.id)
    on = conditions.of_batch(session, batch)
    facts = conditions.facts_by_id(session, [on.id]).get(on.id, {})
    first = result.measurements[0].provenance
    told = host_facts(on.hardware_class, {name: first.get(name) for name in _FACTS})
    return BundleRecord(
        experiment=row.id,
        environment=environment.id,
        environment_tree=environment.bundle,
        codebase=row.codebase_id or "",
        codebase_files=codebase_files,
        profile=batch.profile,
        command=list(manifest.entry_points.train),
        metric_name=result.metric_name,
        direction=result.direction,
        metric=result.metric,
        comparison=result.against_baseline or result.comparison,
        hardware_class=on.hardware_class,
        conditions=on.id or None,
        facts=facts or told.deciding,
        recorded=told.recorded,
        held_out_key=facts.get("held_out_key"),
        seeds=[_seed(each) for each in result.measurements],
        created_at=now,
    )


def _seed(body: MeasurementBody) -> BundledSeed:
    assert body.metric is not None, "it succeeded"
    return BundledSeed(
        seed=body.seed,
        measurement=body.id,
        kind=body.kind,
        metric=body.metric,
        metrics=body.metrics,
        artifact=body.provenance.get("artifact"),
        provenance={k: v for k, v in body.provenance.items() if k not in _PRIVATE},
    )


def _packages(session: Session, measured: list[MeasurementBody]) -> dict[str, str]:
    """The versions of what the worker that measured has installed; empty if it changed since."""
    for body in measured:
        attempt = session.scalars(
            select(schema.Attempt)
            .where(schema.Attempt.measurement_id == body.id)
            .order_by(schema.Attempt.number.desc())
            .limit(1)
        ).first()
        worker = attempt and session.get(schema.Worker, attempt.worker_id)
        if attempt and worker and software.of_worker(worker) == attempt.software:
            told: Any = worker.info.get("packages")
            return {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}
    return {}


def _requirements(record: BundleRecord, packages: Mapping[str, str]) -> str:
    """What to install: the versions that were measured with, where they are known."""
    provenance = record.seeds[0].provenance
    known = dict(packages) | {
        name: str(provenance[name]) for name in ("torch", "numpy", "vllm") if provenance.get(name)
    }
    lines = [
        f"# {record.experiment} was measured with Python {provenance.get('python', '(unknown)')}",
        f"# on {record.hardware_class}, by Assay {provenance.get('assay', '(unknown)')}.",
        "# Assay is not in this list: README.md says how to install it.",
    ]
    if "+" in known.get("torch", ""):  # built for an index of PyTorch's own
        build = known["torch"].partition("+")[2]
        lines.append(f"--extra-index-url https://download.pytorch.org/whl/{build}")
    asked = {}
    for requirement in metadata.requires("assay") or []:
        found, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if found and (extra is None or extra.group(1) in _EXTRAS):
            asked[normalised(found.group(1))] = requirement.partition(";")[0].strip()
    for name in known.keys() & {*record.facts, "vllm"}:  # what the environment says decides
        asked.setdefault(name, name)
    for name, requirement in sorted(asked.items()):
        lines.append(f"{name}=={known[name]}" if name in known else requirement)
    return "\n".join(lines) + "\n"


def _readme(record: BundleRecord) -> str:
    seeds = "\n".join(f"| {each.seed} | {each.metric:g} |" for each in record.seeds)
    found = record.comparison
    verdict = "There is no baseline to compare it with."
    if found is not None:
        interval = "" if found.low is None else f" (95 % interval {found.low:g} to {found.high:g})"
        verdict = (
            f"Beside the baseline ({found.baseline_mean:g} on {found.baseline_n} seeds) it "
            f"improves by {found.effect:g}{interval}: {found.verdict}."
        )
    facts = "\n".join(
        f"| {k} | `{v}` |" for k, v in sorted((record.recorded | record.facts).items())
    )
    key = "" if record.held_out_key in (None, "none") else _KEY.format(key=record.held_out_key)
    return _README.format(
        experiment=record.experiment,
        environment=record.environment,
        profile=record.profile,
        metric=record.metric_name,
        value=f"{record.metric:g}",
        direction=record.direction,
        seeds=seeds,
        verdict=verdict,
        conditions=record.conditions or "not recorded",
        facts=facts,
        key=key,
        command=" ".join(record.command),
        assay=record.seeds[0].provenance.get("assay", "(unknown)"),
        extras=",".join(_EXTRAS),
    )


_KEY = """
Its held-out data was generated with a secret key, which is not in here: it is the content of
`held-out.key` in the data folder of the service that measured this, or `ASSAY_WORKER_HELD_OUT_KEY`
of its workers. Ask its operator for it; the fingerprint is `{key}`.

```sh
export ASSAY_WORKER_HELD_OUT_KEY=…
```
"""

_README = """\
# {experiment}

{environment}, profile {profile}: {metric} {value} ({direction}). {verdict}

| seed | {metric} |
|---|---|
{seeds}

`idea.txt` is the idea, `changes.diff` what it changed, `codebase/` the result, and `environment/`
the problem: the unmodified codebase, `prepare.py`, the evaluator. `record.json` has everything in
one piece.

## Measure it again

With Python of the version below, on Linux, and the source of Assay {assay} (a checkout, or a
wheel that was built from one):

```sh
python -m venv venv
venv/bin/pip install -r requirements.txt
venv/bin/pip install 'PATH_OF_ASSAY[{extras}]'
venv/bin/python run.py
```
{key}
`run.py` prepares the data, runs `{command}` on each seed in a sandbox, as a worker does, scores
what that leaves with the evaluator, and prints the metric beside the one above.

| exit code | |
|---|---|
| 0 | every seed gives the same number, as shown |
| 1 | a seed gives another number, or fails |
| 2 | it could not be compared: other data, another key, changed files, no sandbox |

The code of an idea was written by a model. It is run in a sandbox alone: install bubblewrap
(`apt-get install bubblewrap`), or use Docker (`ASSAY_WORKER_SANDBOX=docker`).

## Where it was measured

Numbers are the same to the digit on the same hardware class with the same minor version of torch.
Elsewhere `run.py` says what differs, and they differ by rounding.

| fact (conditions: {conditions}) | |
|---|---|
{facts}
"""

_RUN = '''\
"""Measure this experiment again; see README.md."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    try:
        bundled = import_module("services.worker.bundled")
    except ImportError as error:
        sys.stderr.write(f"{error}\\nInstall Assay and what it needs, as README.md says.\\n")
        sys.exit(2)
    sys.exit(bundled.main(Path(__file__).resolve().parent, sys.argv[1:]))
'''

"""Measure the experiment of a bundle again: what its `run.py` calls."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from assay.contracts.bundle import (
    CODEBASE,
    DATA,
    ENVIRONMENT,
    RECORD,
    BundledSeed,
    BundleRecord,
)
from assay.contracts.worker import FinishRequest
from assay.domain.conditions import differences, host_facts
from assay.domain.errors import AssayError, InvalidInput
from assay.domain.hashing import tree_hash
from assay.domain.rounding import shown_metrics
from assay.environments import pack_tree
from assay.environments.bundle import check_name, read_tree
from assay.sandbox import SandboxError
from services.worker.alone import measure, opened_host
from services.worker.cache import CachedBundle
from services.worker.host import Host, held_out_fingerprint
from services.worker.provenance import data_facts
from services.worker.settings import PREFIX, WorkerSettings

#: Exit codes.
AGREES, DIFFERS, NOT_COMPARABLE = 0, 1, 2
_SECRETS = (f"{PREFIX}TOKEN", f"{PREFIX}HELD_OUT_KEY")
#: A fact of conditions that differs without making a difference to results.
_KEY = "held_out_key"


@dataclass(frozen=True)
class SeedReport:
    """One seed: the recorded metric, the one measured now, both as shown; `same_artifact` is None
    where one of the hashes is missing."""

    seed: int
    recorded: float
    measured: float | None
    equal: bool
    same_artifact: bool | None
    failure: str | None = None


@dataclass
class Report:
    """What came of a bundle."""

    experiment: str
    metric: str
    warnings: list[str] = field(default_factory=list)
    seeds: list[SeedReport] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether every seed gives the recorded number."""
        return all(each.equal for each in self.seeds)


class NotComparable(AssayError):
    """What would be measured here is not what the record is about."""

    code = "not_comparable"


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Measure what a bundle in `folder` holds and say whether it agrees; the exit code.

    0: every seed gives the recorded number, as shown. 1: one gives another, or fails. 2: it could
    not be compared (files, key or data differ, or this host cannot run it).
    """
    wanted = _arguments(arguments)
    try:
        report = run(folder, wanted.seeds, allow_unisolated=wanted.allow_unisolated)
    except (AssayError, SandboxError, OSError, ValidationError) as error:
        if wanted.json:
            _say(json.dumps({"error": str(error)}))
        sys.stderr.write(f"error: {error}\n")
        return NOT_COMPARABLE
    if wanted.json:
        _say(json.dumps(asdict(report) | {"agrees": report.agrees}))
    else:
        _say(
            f"{report.experiment} agrees to the digit"
            if report.agrees
            else f"{report.experiment} does not agree"
        )
    return AGREES if report.agrees else DIFFERS


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Measure the experiment of this bundle again."
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="only these of the recorded ones")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument(
        "--allow-unisolated",
        action="store_true",
        help="start the code also where no sandbox isolates it: it can then do all that you can",
    )
    return parser.parse_args(given)


def run(
    folder: Path, seeds: Sequence[int] | None = None, *, allow_unisolated: bool = False
) -> Report:
    """Measure the seeds of a bundle's record, or some of them, and compare the numbers.

    Settings come from `ASSAY_WORKER_*`, as a worker's do. What is said on the way goes to stderr.

    Raises:
        NotComparable: the key, the data or a file differ from the record, or this host failed.
        SandboxError: the sandbox that was asked for does not work here.
        PrepareError: the data could not be prepared.
    """
    record = BundleRecord.model_validate_json((folder / RECORD).read_bytes())
    wanted = _chosen(record, seeds)
    files, environment = _codebase(folder, record), _environment(folder, record)
    settings = _settings()
    _check_key(record, settings)
    archive = pack_tree(environment)
    report = Report(record.experiment, record.metric_name)
    with opened_host(settings, lambda _: archive) as host:
        bundle = host.bundles.bundle(record.environment_tree)
        report.warnings += _differences(record, host, bundle.environment.manifest.packages)
        for warning in report.warnings:
            _note(f"warning: {warning}; the result need not agree to the digit")
        if not (host.isolated or allow_unisolated):
            raise NotComparable(
                f"the code of an experiment is started only in isolation, and {host.why_not}: "
                "install bubblewrap, use Docker (ASSAY_WORKER_SANDBOX=docker), or name "
                "--allow-unisolated"
            )
        _note(f"preparing the data of {record.environment}, profile {record.profile}")
        _check_data(record, host, bundle)
        for each in wanted:
            _note(f"seed {each.seed}: {' '.join(record.command)}")
            end = measure(
                host,
                bundle,
                record.codebase,
                files,
                record.profile,
                each.seed,
                kind=each.kind,
                needs_isolation=not allow_unisolated,
            )
            report.seeds.append(_compared(record, each, end))
    return report


def _chosen(record: BundleRecord, seeds: Sequence[int] | None) -> list[BundledSeed]:
    known = {each.seed: each for each in record.seeds}
    unknown = sorted(set(seeds or ()) - known.keys())
    if unknown:
        raise InvalidInput(f"{RECORD} has no seed {unknown[0]}; it has {sorted(known)}")
    return [known[seed] for seed in (seeds or known)]


def _codebase(folder: Path, record: BundleRecord) -> dict[str, bytes]:
    """The files that were measured, and no others that may have come since."""
    files = {}
    for name in record.codebase_files:
        check_name(name)
        path = folder / CODEBASE / name
        if path.is_symlink() or not path.is_file():
            raise NotComparable(f"{path}: the record names this file")
        files[name] = path.read_bytes()
    if tree_hash(files) != record.codebase:
        raise NotComparable(f"{folder / CODEBASE}: files changed since the record was made")
    return files


def _environment(folder: Path, record: BundleRecord) -> dict[str, bytes]:
    files = read_tree(folder / ENVIRONMENT)
    if tree_hash(files) != record.environment_tree:
        raise NotComparable(f"{folder / ENVIRONMENT}: files changed since the record was made")
    return files


def _settings() -> WorkerSettings:
    """Those of a worker of this host that no service knows. Nothing it starts sees the key."""
    settings = WorkerSettings(token=SecretStr("none"), adopt=False)
    for variable in [name for name in os.environ if name.upper() in _SECRETS]:
        del os.environ[variable]
    os.umask(0o022)  # prepared data must be readable for the sandbox's user
    return settings


def _check_key(record: BundleRecord, settings: WorkerSettings) -> None:
    own = held_out_fingerprint(settings) or "none"
    if record.held_out_key is not None and own != record.held_out_key:
        raise NotComparable(
            f"held_out_key: {record.held_out_key} was measured with, and this is {own}; set "
            f"{PREFIX}HELD_OUT_KEY to the key of the service that measured"
        )


def _check_data(record: BundleRecord, host: Host, bundle: CachedBundle) -> None:
    found = data_facts(host, host.bundles.data(bundle, record.profile))
    for each in record.seeds:
        for name, split in DATA.items():
            known = each.provenance.get(name)
            if known is not None and known != found[name]:
                raise NotComparable(
                    f"{name}: the prepared {split}/ has hash {str(found[name])[:12]}, and "
                    f"{str(known)[:12]} was measured with; other data was fetched or generated, "
                    f"or {PREFIX}HELD_OUT_KEY differs"
                )


def _differences(record: BundleRecord, host: Host, packages: tuple[str, ...]) -> list[str]:
    """In which facts this host differs from the one that measured, those that decide first."""
    info = host.info | {"held_out_key": None}
    here = host_facts(host.hardware_class, info, packages)
    told = {
        "that decides": (_without_key(record.facts), here.deciding),
        "that seldom matters": (record.recorded, here.recorded),
    }
    found = []
    for what, (theirs, ours) in told.items():
        known = {name: ours.get(name, "unknown") for name in theirs}
        found += [f"{said} here ({what})" for said in differences(theirs, known)]
    assay = record.seeds[0].provenance.get("assay")
    if assay and assay != host.info["assay"]:
        found.append(f"assay: {assay} and {host.info['assay']} here")
    return found


def _without_key(facts: Mapping[str, str]) -> dict[str, str]:
    """It is compared on its own, before anything is run."""
    return {name: told for name, told in facts.items() if name != _KEY}


def _compared(record: BundleRecord, each: BundledSeed, end: FinishRequest) -> SeedReport:
    name = record.metric_name
    if end.state != "succeeded":
        failed = end.failure
        why = f"{end.state}" if failed is None else f"{failed.code}: {failed.message}"
        if end.infrastructure:
            raise NotComparable(f"seed {each.seed}: this host failed ({why})")
        _note(f"seed {each.seed}: {name} {each.metric:g} recorded, and now it failed: {why}")
        return SeedReport(each.seed, each.metric, None, False, None, why)
    metrics: dict[str, Any] = dict(end.metrics)
    measured = shown_metrics(metrics)[name]
    artifact = end.provenance.get("artifact")
    same = None if each.artifact is None else artifact == each.artifact
    equal = bool(measured == each.metric)
    said = "equal" if equal else "differs"
    more = "" if same is None else f", {'the same' if same else 'another'} artifact"
    _note(f"seed {each.seed}: {name} {each.metric!r} recorded, {measured!r} now: {said}{more}")
    return SeedReport(each.seed, each.metric, measured, equal, same)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()

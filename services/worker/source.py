"""The codebase of an attempt, as it came and as it is run."""

from __future__ import annotations

import base64
import logging
import threading
from typing import Any

from assay.contracts.worker import AttemptSpec
from assay.domain.failure_codes import FailureCode
from assay.domain.states import FailureStage
from assay.patching.guard import size_problem
from services.worker.api import AttemptApi
from services.worker.cache import CachedBundle, verified_tree
from services.worker.failures import AttemptFailed, failure
from services.worker.workspace import restore_protected

_log = logging.getLogger(__name__)


def fetch(
    api: AttemptApi, spec: AttemptSpec, *, patience: float, give_up: threading.Event
) -> bytes:
    """The zip of the codebase: it came along with the assignment, or the API has it.

    Raises:
        AssayError: the API does not have it, or is away.
    """
    if spec.archive is not None:
        return base64.b64decode(spec.archive)
    return api.codebase(spec.codebase, patience=patience, give_up=give_up)


def unpack(
    data: bytes, spec: AttemptSpec, bundle: CachedBundle, facts: dict[str, Any]
) -> dict[str, bytes]:
    """The codebase, with the environment's protected files as they should be.

    Raises:
        Corrupt: this is not what was asked for.
        AttemptFailed: it is larger than an environment's codebase may be.
    """
    protected = bundle.environment.manifest.codebase.protected
    files, restored = restore_protected(
        verified_tree(data, spec.codebase), bundle.baseline, protected
    )
    sizes = {name: len(content) for name, content in files.items()}
    problem = size_problem(sizes, {n: len(c) for n, c in bundle.baseline.items()})
    if problem is not None:
        raise AttemptFailed(failure(FailureStage.GUARD, FailureCode.CODEBASE_TOO_LARGE, problem))
    if restored:
        facts["restored"] = restored
        _log.warning("%s: protected files restored: %s", spec.attempt, restored)
    return files

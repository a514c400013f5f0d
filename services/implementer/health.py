"""Whether this process can do its work, and what is wrong with its surroundings if it can."""

from __future__ import annotations

import logging
from collections.abc import Callable

from assay.domain.errors import AssayError
from assay.storage.health import check_leader, check_schema, check_workers
from services.implementer.context import Context

log = logging.getLogger(__name__)


def readiness(context: Context) -> dict[str, str]:
    """Every check with `ok`, or with what is wrong where work can be taken all the same.

    Without a broker, a scheduler or a worker an API still accepts ideas, and loses none. Failing
    for it would turn a pause into an outage: results could not be read, and a worker that reaches
    the API through a load balancer could never register.

    Raises:
        Unavailable: the database or the object store cannot be used, or the schema is too old.
    """
    with context.db.read() as session:
        check_schema(session)
        found = {
            "database": "ok",
            "scheduler": _said(lambda: check_leader(context.db, session)),
            "workers": _said(lambda: check_workers(context.db, session)),
        }
    context.store.check()
    found["objects"] = "ok"
    for name, probe in context.probes.items():
        found[name] = _said(probe)
    return found


def _said(check: Callable[[], object]) -> str:
    try:
        check()
    except AssayError as error:
        return f"{error.code}: {error}"
    return "ok"

"""Codebases that were not made here: uploaded, and measured as they are.

What a person or an agent uploads is as hostile as what a model writes, so the same guard looks at
it. Routers and `submission` call this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import select

from assay.domain.errors import InvalidInput
from assay.domain.hashing import text_tree_hash
from assay.environments.catalog import Environment
from assay.patching.guard import check_beside_each_other, check_codebase
from assay.patching.types import PatchRefused
from assay.storage import environments, schema
from assay.storage.objects import codebase_key
from services.implementer.context import Context


class Stored(NamedTuple):
    """The hash of a codebase, and whether its content is new here."""

    sha256: str
    is_new: bool


def upload(context: Context, environment: Environment, files: Mapping[str, str]) -> Stored:
    """Check a codebase, store it under the hash of its content, and record it.

    Where no idea names it in time it is collected as garbage; uploading it again starts that time
    anew.

    Raises:
        InvalidInput: it changes or hides a protected file, is too large, or has a wrong name.
        Unavailable: the object store cannot be written.
    """
    check(environment, files, "/files")
    context.check_store()
    environment_id = environments.register(context.db, context.store, environment)
    is_new = not context.store.exists(codebase_key(text_tree_hash(files)))
    sha256 = environments.put_codebase(context.store, files)
    with context.write() as session:
        environments.keep_codebase(context.db, session, sha256, environment_id)
    return Stored(sha256, is_new)


def check(environment: Environment, files: Mapping[str, str], where: str) -> None:
    """Refuse a codebase that may not be measured in an environment. `where`: the field's pointer.

    Raises:
        InvalidInput: the guard's reason.
    """
    try:
        check_codebase(files, environment.codebase, environment.manifest.codebase.protected)
        check_beside_each_other(files, environment.codebase)
    except PatchRefused as refused:
        raise InvalidInput.field(where, refused.log, "codebase_refused") from None


def check_given(context: Context, environment: Environment, places: Mapping[str, str]) -> None:
    """Refuse codebases that are not measurable; `places`: the pointers of the fields, by codebase.

    Whether one belongs to this version of the environment is decided by its content and not by
    where it was first seen: versions and copies of an environment share codebases. One that is
    recorded for this very version went through the guard before it was.

    Raises:
        InvalidInput: one is unknown, or the guard refuses it.
    """
    if not places:
        return
    table = schema.Codebase
    with context.db.read() as session:
        query = select(table.id, table.environment_id).where(table.id.in_(list(places)))
        known = dict(session.execute(query).all())
    known[environment.codebase_hash] = environment.id
    for codebase, where in places.items():
        if codebase not in known:
            raise InvalidInput.field(
                where,
                f"no codebase {codebase} is stored here; send its files to "
                f"POST /v1/environments/{environment.name}/codebases first",
                "unknown_codebase",
            )
        if known[codebase] != environment.id:
            check(environment, environments.get_codebase(context.store, codebase), where)

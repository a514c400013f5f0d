"""Environments and codebases in the database and the object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from assay.contracts.environment import EnvironmentManifest
from assay.domain.hashing import text_tree_hash
from assay.environments.bundle import Bundle, pack_tree, unpack_tree
from assay.environments.catalog import Environment
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import ObjectStore, bundle_key, codebase_key
from assay.storage.rows import changed, get, insert_missing


def register(db: Database, store: ObjectStore, environment: Environment) -> str:
    """Store an environment's bundle and baseline codebase once. Returns its id, `name@hash`."""
    with db.read() as session:
        if session.get(schema.Environment, environment.id) is not None:
            return environment.id
    bundle = Bundle.of(environment.files)
    store.put(bundle_key(bundle.sha256), bundle.data)
    codebase = put_codebase(store, environment.codebase)
    with db.write() as session:
        now = db.now(session)
        row = {
            "id": environment.id,
            "name": environment.name,
            "content_hash": environment.content_hash,
            "manifest": environment.manifest.model_dump(mode="json"),
            "bundle": bundle.sha256,
            "codebase": codebase,
            "created_at": now,
        }
        insert_missing(session, schema.Environment, [row])
        add_codebase(db, session, codebase, environment.id)
    return environment.id


def put_codebase(store: ObjectStore, files: Mapping[str, str]) -> str:
    """Store a source tree under the hash of its content, which is returned."""
    sha256 = text_tree_hash(files)
    key = codebase_key(sha256)
    if not store.exists(key):
        store.put(key, pack_tree({name: text.encode() for name, text in files.items()}))
    return sha256


def get_codebase(store: ObjectStore, sha256: str) -> dict[str, str]:
    """The files of a codebase. Raises NotFound."""
    files = unpack_tree(store.get(codebase_key(sha256)))
    return {name: content.decode() for name, content in files.items()}


def add_codebase(
    db: Database,
    session: Session,
    sha256: str,
    environment_id: str,
    canonical: str | None = None,
) -> str:
    """Record a codebase that is in the object store. Returns the id under which it is measured.

    That is its own, unless it is new and one with the same code (`canonical`) was recorded before:
    then it is that one's, and the new one is not recorded.
    """
    row = {
        "id": sha256,
        "environment_id": environment_id,
        "canonical": canonical,
        "created_at": db.now(session),
    }
    if insert_missing(session, schema.Codebase, [row]):
        return sha256
    known = session.get(schema.Codebase, sha256)
    return sha256 if known is not None else find_same_code(session, canonical) or sha256


def find_same_code(session: Session, canonical: str | None) -> str | None:
    """The id of the codebase that was recorded with this code, or None."""
    if canonical is None:
        return None
    table = schema.Codebase
    return session.scalars(select(table.id).where(table.canonical == canonical)).one_or_none()


def keep_codebase(db: Database, session: Session, sha256: str, environment_id: str) -> None:
    """Record a codebase that is in the object store, and keep it as if it had come now.

    `garbage` removes codebases that nothing names once they are old.
    """
    add_codebase(db, session, sha256, environment_id)
    table = schema.Codebase
    changed(session, update(table).where(table.id == sha256).values(created_at=db.now(session)))


class Registered(NamedTuple):
    """A registered environment: its manifest, and its own codebase."""

    manifest: EnvironmentManifest
    codebase: str


def registered(session: Session, environment_id: str) -> Registered:
    """A registered environment. Raises NotFound.

    It is read once per process: an id holds a hash, so what it stands for never changes.
    """
    known = _REGISTERED.get(environment_id)
    if known is None:
        row = get(session, schema.Environment, environment_id, "environment")
        known = Registered(EnvironmentManifest.model_validate(row.manifest), row.codebase)
        _REGISTERED[environment_id] = known
    return known


def manifest(session: Session, environment_id: str) -> EnvironmentManifest:
    """The manifest of a registered environment. Raises NotFound."""
    return registered(session, environment_id).manifest


_REGISTERED: dict[str, Registered] = {}

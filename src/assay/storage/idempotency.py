"""Idempotency keys: a POST that is repeated is answered again, not carried out again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from assay.domain.errors import InvalidInput
from assay.storage import schema
from assay.storage.database import Database


def fingerprint(endpoint: str, body: str) -> str:
    """What makes two requests the same request."""
    return hashlib.sha256(f"{endpoint}\n{body}".encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """A stored answer."""

    status: int
    body: dict[str, Any]
    replayed: bool


def replay(db: Database, owner: str, key: str | None, fingerprint: str) -> Answer | None:
    """The stored answer to a request, if it was carried out before.

    Looked for before the request is checked again: what was accepted stays accepted, though the
    world has changed since.

    Raises:
        InvalidInput: the key was used for another request (code `idempotency_key_reused`).
    """
    if key is None:
        return None
    with db.read() as session:
        stored = session.get(schema.IdempotencyKey, (owner, key))
        return None if stored is None else _replay(stored, fingerprint)


def once(
    db: Database,
    owner: str,
    key: str | None,
    fingerprint: str,
    action: Callable[[Session], tuple[int, dict[str, Any]]],
) -> Answer:
    """Carry out `action` in one transaction, together with the record that it was carried out.

    An action that raises leaves no record, so a request that was refused may be corrected and
    sent again under the same key.

    Raises:
        InvalidInput: the key was used for another request (code `idempotency_key_reused`).
    """
    if key is None:
        with db.write() as session:
            status, body = action(session)
        return Answer(status, body, replayed=False)
    try:
        with db.write() as session:
            stored = session.get(schema.IdempotencyKey, (owner, key))
            if stored is not None:
                return _replay(stored, fingerprint)
            status, body = action(session)
            session.add(
                schema.IdempotencyKey(
                    owner=owner,
                    key=key,
                    fingerprint=fingerprint,
                    status=status,
                    body=body,
                    created_at=db.now(session),
                )
            )
        return Answer(status, body, replayed=False)
    except IntegrityError:  # somebody else committed the same key first (Postgres)
        with db.read() as session:
            stored = session.get(schema.IdempotencyKey, (owner, key))
            if stored is None:
                raise
            return _replay(stored, fingerprint)


def _replay(stored: schema.IdempotencyKey, fingerprint: str) -> Answer:
    if stored.fingerprint != fingerprint:
        raise InvalidInput(
            "Idempotency-Key was used before for a different request; use a new key",
            code="idempotency_key_reused",
        )
    return Answer(stored.status, stored.body, replayed=True)

"""Calls of models as the API shows them: the ledger, and what it adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from assay.contracts.batch import CallBody, Usage
from assay.contracts.search import IdeatorCallBody
from assay.storage import schema

_CALL = schema.ModelCall
_CALL_ENDED = _CALL.finished_at.is_not(None)
#: Sums over calls, as `_usage` takes them.
_USED = (
    func.count(),
    func.coalesce(func.sum(case((_CALL_ENDED, 0), else_=1)), 0),
    func.coalesce(func.sum(_CALL.input_tokens), 0),
    func.coalesce(func.sum(_CALL.cached_input_tokens), 0),
    func.coalesce(func.sum(_CALL.cache_write_tokens), 0),
    func.coalesce(func.sum(_CALL.output_tokens), 0),
    func.sum(_CALL.cost_usd),
    func.sum(case((_CALL.is_estimate, _CALL.cost_usd))),
    func.sum(case((_CALL.cost_usd.is_(None) & _CALL_ENDED, 1), else_=0)),
)


def usage_of_batches(session: Session, batch_ids: Sequence[str]) -> Mapping[str, Usage]:
    """What the model calls of batches used; those without calls are left out."""
    of = schema.ModelCall.batch_id
    rows = session.execute(select(of, *_USED).where(of.in_(batch_ids)).group_by(of))
    return {str(batch): _usage(*used) for batch, *used in rows}


def usage_of_implementations(
    session: Session, implementation_ids: Sequence[str]
) -> Mapping[str, Usage]:
    """What the model calls of implementations used; those without calls are left out."""
    of = schema.ModelCall.implementation_id
    rows = session.execute(select(of, *_USED).where(of.in_(implementation_ids)).group_by(of))
    return {str(implementation): _usage(*used) for implementation, *used in rows}


def usage_of_searches(
    session: Session, search_ids: Sequence[str]
) -> Mapping[tuple[str, bool], Usage]:
    """What the model calls of searches used, by the search and whether they were its ideator's."""
    table = schema.ModelCall
    of_ideator = table.implementation_id.is_(None)
    rows = session.execute(
        select(table.search_id, of_ideator, *_USED)
        .where(table.search_id.in_(search_ids))
        .group_by(table.search_id, of_ideator)
    )
    return {(search, bool(whose)): _usage(*used) for search, whose, *used in rows}


def _usage(
    calls: int,
    under_way: int,
    full: int,
    cached: int,
    written: int,
    output: int,
    cost: Decimal | None,
    estimated: Decimal | None,
    unpriced: int | None,
) -> Usage:
    return Usage(
        calls=calls,
        under_way=under_way,
        input_tokens=full + cached + written,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=output,
        cost_usd=None if unpriced else dollars(cost or Decimal(0)),
        estimated_usd=dollars(estimated or Decimal(0)),
    )


def call_body(row: schema.ModelCall) -> CallBody:
    """A request to a batch's executor, as the ledger has it."""
    more = {
        "batch": row.batch_id,
        "implementation": row.implementation_id,
        "sample": row.sample,
        "revision": row.revision,
    }
    return CallBody.model_validate({**_call_facts(row), **more})


def ideator_call_body(row: schema.ModelCall, asked: schema.IdeatorCall) -> IdeatorCallBody:
    """A request to a search's ideator, as the ledger has it, with its answer."""
    more = {
        "search": asked.search_id,
        "epoch": asked.epoch,
        "place": asked.place,
        "operator": asked.operator,
        "asked": asked.asked,
        "ideas": asked.ideas,
        "unread": asked.unread,
        "stop": asked.stop,
        "text": asked.text,
        "thinking": asked.thinking,
        "thinking_length": asked.thinking_length,
    }
    return IdeatorCallBody.model_validate({**_call_facts(row), **more})


def _call_facts(row: schema.ModelCall) -> dict[str, Any]:
    return {
        "id": row.id,
        "number": row.number,
        "model": row.model,
        "request_hash": row.request_hash,
        "prompt_version": row.prompt_version,
        "state": row.state,
        "code": row.code,
        "message": row.message,
        "input_tokens": row.input_tokens,
        "cached_input_tokens": row.cached_input_tokens,
        "cache_write_tokens": row.cache_write_tokens,
        "output_tokens": row.output_tokens,
        "is_estimate": row.is_estimate,
        "is_replay": row.is_replay,
        "reserved_usd": None if row.reserved_usd is None else dollars(row.reserved_usd),
        "cost_usd": None if row.cost_usd is None else dollars(row.cost_usd),
        "seconds": row.seconds,
        "request_id": row.request_id,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def dollars(amount: Decimal) -> str:
    """Dollars without trailing zeros, never in exponent notation."""
    return f"{amount.normalize():f}"

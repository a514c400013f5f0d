"""Calls of models as the API shows them: the ledger, and what it adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from assay.contracts.batch import CallBody, Usage
from assay.contracts.search import IdeatorCallBody
from assay.storage import schema
from assay.storage.rows import among, run

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


_OF_BATCHES = select(_CALL.batch_id, *_USED).where(among(_CALL.batch_id)).group_by(_CALL.batch_id)


def usage_of_batches(session: Session, batch_ids: Sequence[str]) -> Mapping[str, Usage]:
    """What the model calls of batches used; those without calls are left out."""
    rows = run(session, _OF_BATCHES, ids=list(batch_ids))
    return {batch: _usage(*used) for batch, *used in rows}


def usage_of_implementations(
    session: Session, implementation_ids: Sequence[str]
) -> Mapping[str, Usage]:
    """What the model calls of implementations used; those without calls are left out."""
    of = schema.ModelCall.implementation_id
    rows = session.execute(select(of, *_USED).where(of.in_(implementation_ids)).group_by(of))
    return {str(implementation): _usage(*used) for implementation, *used in rows}


@dataclass(frozen=True)
class IdeatorUse:
    """What the ideator of a search used, how many of its answers are kept, and how many of those
    are unread in part."""

    usage: Usage = field(default_factory=Usage)
    answers: int = 0
    unread: int = 0


_ASKED = schema.IdeatorCall
_OF_IDEATORS = (
    select(
        _ASKED.search_id,
        func.count(_ASKED.text),
        func.sum(case((_ASKED.text.is_not(None) & (_ASKED.unread > 0), 1), else_=0)),
        *_USED,
    )
    .join(_CALL, _CALL.id == _ASKED.call_id)
    .where(among(_ASKED.search_id))
    .group_by(_ASKED.search_id)
)


def use_of_ideators(session: Session, search_ids: Sequence[str]) -> Mapping[str, IdeatorUse]:
    """What the ideators of searches used and answered; those without calls are left out."""
    rows = run(session, _OF_IDEATORS, ids=list(search_ids))
    return {
        search: IdeatorUse(_usage(*used), answers, unread)
        for search, answers, unread, *used in rows
    }


def total(usages: Sequence[Usage]) -> Usage:
    """What several together used; of unknown cost if that of one is."""
    costs = [used.cost_usd for used in usages]
    known = [Decimal(cost) for cost in costs if cost is not None]
    return Usage(
        calls=sum(used.calls for used in usages),
        under_way=sum(used.under_way for used in usages),
        input_tokens=sum(used.input_tokens for used in usages),
        cached_input_tokens=sum(used.cached_input_tokens for used in usages),
        cache_write_tokens=sum(used.cache_write_tokens for used in usages),
        output_tokens=sum(used.output_tokens for used in usages),
        cost_usd=dollars(sum(known, Decimal(0))) if len(known) == len(costs) else None,
        estimated_usd=dollars(sum((Decimal(used.estimated_usd) for used in usages), Decimal(0))),
    )


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

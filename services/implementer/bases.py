"""What a base is named by, and who may give a codebase a name.

`POST /v1/searches` asks `resolve`, whatever submits or stores ideas asks `resolve_all`; `promote`
is behind `POST /v1/experiments/{id}/promote`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from assay.contracts.bases import PromotionBody
from assay.contracts.batch import MAX_BASES, ConfirmationBody, ExperimentBody, IdeaRequest
from assay.domain.codebases import BASELINE, is_hash
from assay.domain.errors import Conflict, InvalidInput
from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict
from assay.environments.catalog import Environment
from assay.storage import bases, schema
from assay.storage.bases import EXPERIMENT, Base
from assay.storage.rows import get
from services.implementer import codebases
from services.implementer.context import Context
from services.implementer.views.confirmations import experiment_bodies
from services.implementer.views.measurements import measurement_bodies

#: Codes of refusals.
UNKNOWN_BASE, TOO_MANY_BASES = "unknown_base", "too_many_bases"
UNCONFIRMED, NOT_CLAIMED, UNISOLATED = "unconfirmed", "not_claimed", "unisolated_result"


def resolve(
    context: Context,
    environment: Environment,
    named: str | None,
    owner: str,
    *,
    where: str = "/base",
) -> Base | None:
    """The codebase that `named` stands for now; None for the environment's own.

    `named` is a promoted name, an experiment of the owner, the hash of a codebase, `baseline` or
    None. `where`: the pointer of the field.

    Raises:
        InvalidInput: there is no such base here, or the guard refuses its code.
    """
    if named is None or named == BASELINE:
        return None
    with context.db.read() as session:
        codebase = _codebase(session, environment, named, owner, where)
    codebases.check_given(context, environment, {codebase: where})
    if codebase == environment.codebase_hash:
        return None
    return Base(codebase, None if named == codebase else named)


def resolve_all(
    context: Context,
    environment: Environment,
    ideas: Sequence[IdeaRequest],
    owner: str,
    default: Base | None,
) -> list[Base | None]:
    """Return for each idea the codebase that it changes; None for the environment's own.

    `default`: of the ideas that name none.

    Raises:
        InvalidInput: as `resolve`, or the ideas name more than `MAX_BASES` of them.
    """
    known: dict[str | None, Base | None] = {None: default, BASELINE: None}
    most = MAX_BASES - (default is not None and any(idea.base is None for idea in ideas))
    for place, idea in enumerate(ideas):
        if idea.base in known:
            continue
        where = f"/ideas/{place}/base"
        if len(known) - 2 == most:
            raise InvalidInput.field(
                where,
                f"a batch has at most {MAX_BASES} bases, because each is measured on the seeds of "
                "the baseline; put ideas with other bases into another batch",
                TOO_MANY_BASES,
            )
        known[idea.base] = resolve(context, environment, idea.base, owner, where=where)
    return [known[idea.base] for idea in ideas]


def _codebase(
    session: Session, environment: Environment, named: str, owner: str, where: str
) -> str:
    if is_hash(named):
        return named
    if named.startswith(EXPERIMENT):
        return _codebase_of_experiment(session, environment, named, owner, where)
    found = bases.holder(session, environment.id, named)
    if found is None:
        raise InvalidInput.field(
            where,
            f"nothing was promoted as {named!r} in {environment.id}; `assay env bases "
            f"{environment.name}` lists its names (another version of an environment has its own)",
            UNKNOWN_BASE,
        )
    return found.codebase_id


def _codebase_of_experiment(
    session: Session, environment: Environment, named: str, owner: str, where: str
) -> str:
    row = session.get(schema.Experiment, named)
    batch = None if row is None else session.get(schema.Batch, row.batch_id)
    if row is None or batch is None or batch.owner != owner:
        wrong = f"there is no experiment {named!r}; `assay batch show` lists those of a batch"
    elif _name_of(batch.environment_id) != environment.name:
        wrong = (
            f"{named} was made in {batch.environment_id}, and its code does not run in "
            f"{environment.name}; name an experiment in {environment.name}"
        )
    elif row.state != ExperimentState.SUCCEEDED.value or row.codebase_id is None:
        known = "" if row.codebase_id is None else f", or its codebase {row.codebase_id} as it is"
        wrong = f"{named} is {row.state}; name an experiment that has a result{known}"
    else:
        return row.codebase_id
    raise InvalidInput.field(where, wrong, UNKNOWN_BASE)


def _name_of(environment_id: str) -> str:
    return environment_id.partition("@")[0]


class Promoted(NamedTuple):
    """A promotion, and whether this request made it."""

    row: schema.Promotion
    is_new: bool


def promote(context: Context, session: Session, row: schema.Experiment, name: str) -> Promoted:
    """Give a name to the codebase of a confirmed result; nothing changes if it has it already.

    Raises:
        InvalidInput: the name is taken by the environment's own codebase.
        Conflict: the result is not confirmed, or not as better than what the name stands for.
    """
    if name == BASELINE:
        message = f"{BASELINE!r} is the environment's own codebase; choose another name"
        raise InvalidInput.field("/name", message)
    batch = get(session, schema.Batch, row.batch_id, "batch")
    bases.hold_names(session, batch.environment_id)
    holder = bases.holder(session, batch.environment_id, name)
    if holder is not None and holder.codebase_id == row.codebase_id:
        return Promoted(holder, is_new=False)
    confirmed = _check_claim(session, row, name, holder)
    return Promoted(
        bases.promote(context.db, session, row, batch, confirmed.experiment, name), is_new=True
    )


def _check_claim(
    session: Session, row: schema.Experiment, name: str, holder: schema.Promotion | None
) -> ConfirmationBody:
    """The confirmation that supports a promotion.

    It claims the result to be better than what the name stands for, or, of a new name, than what
    it was compared with; and the result is better than the environment's baseline as well.
    """
    body = experiment_bodies(session, [row])[0]
    found = body.confirmation
    if found is None or found.claimed is None:
        raise Conflict(_unconfirmed(body), code=UNCONFIRMED)
    with_base = f" --base {name}" if holder is not None else ""
    again = f"assay experiment confirm {row.id}{with_base}"
    compared = None if found.base is None else found.base.codebase
    if holder is not None and compared != holder.codebase_id:
        raise Conflict(
            f"{name} is codebase {holder.codebase_id[:12]} (promotion {holder.number}), which "
            f"{row.id} was not confirmed against; run: {again}, or promote it under another name",
            code=UNCONFIRMED,
        )
    if not found.claimed:
        than = "the baseline" if compared is None else f"codebase {compared[:12]}"
        raise Conflict(
            f"{found.experiment} does not support the claim that {row.id} is better than {than}, "
            "and the first confirmation decides",
            code=NOT_CLAIMED,
        )
    beside = found.against_baseline
    if compared is not None and (beside is None or beside.verdict != Verdict.BETTER.value):
        verdict = "not compared with it" if beside is None else beside.verdict
        raise Conflict(
            f"{row.id} is better than its base, but beside the environment's baseline it is "
            f"{verdict}; run: assay experiment confirm {row.id} --base {BASELINE}, and promote it "
            "under a new name",
            code=NOT_CLAIMED,
        )
    _check_isolated(session, found.experiment, again)
    return found


def _unconfirmed(body: ExperimentBody) -> str:
    if body.idea.confirms is not None:
        return f"{body.id} confirms {body.idea.confirms}; promote that one"
    if body.confirmation is not None:
        return (
            f"{body.confirmation.experiment}, which confirms {body.id}, or its baseline is not "
            f"finished; wait for {body.confirmation.batch}: assay batch watch "
            f"{body.confirmation.batch}"
        )
    return (
        f"{body.id} is not confirmed, and luck is not told from skill without that; run: assay "
        f"experiment confirm {body.id}"
    )


def _check_isolated(session: Session, confirming: str, again: str) -> None:
    row = get(session, schema.Experiment, confirming, "experiment")
    ids = experiment_bodies(session, [row])[0].measurements
    measured = [get(session, schema.Measurement, id_, "measurement") for id_ in ids]
    if not all(body.promotable for body in measurement_bodies(session, measured)):
        raise Conflict(
            f"{confirming} was measured where its code could change its own result; start a "
            f"worker with a sandbox and confirm it there: {again}",
            code=UNISOLATED,
        )


def promotion_bodies(session: Session, environment_id: str, owner: str) -> list[PromotionBody]:
    """The promotions in a version of an environment: by name, the latest of each first."""
    rows = bases.history(session, environment_id)
    latest: dict[str, int] = {}
    for row in rows:
        latest.setdefault(row.name, row.number)
    return [
        promotion_body(session, row, owner, is_current=row.number == latest[row.name])
        for row in rows
    ]


def promotion_body(
    session: Session, row: schema.Promotion, owner: str, *, is_current: bool
) -> PromotionBody:
    """A promotion as an owner may see it: a name is for all, experiments are their owner's."""
    confirming = get(session, schema.Experiment, row.confirmation_id, "experiment")
    is_own = row.owner == owner
    return PromotionBody(
        environment=row.environment_id,
        name=row.name,
        number=row.number,
        is_current=is_current,
        codebase=row.codebase_id,
        profile=get(session, schema.Batch, confirming.batch_id, "batch").profile,
        owner=row.owner,
        experiment=row.experiment_id if is_own else None,
        confirmation=row.confirmation_id if is_own else None,
        created_at=row.created_at,
    )

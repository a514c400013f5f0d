"""The queue as the API shows it: what comes next, and why the rest waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.queue import (
    MeasuringStage,
    QueueBatch,
    QueueBody,
    QueueNext,
    QueueShare,
    QueueStage,
)
from assay.domain.placement import Outlook, Policy, Reason, Supply
from assay.storage import implementations, leader, queue, schema, waiting
from assay.storage.placing import Rules, Waiting
from assay.storage.queue import Of, OwnBatch, Placing
from services.implementer.context import Context
from services.implementer.places import Places
from services.implementer.views import waits

#: Batches that are listed of each stage.
MOST_BATCHES = 50
#: Until a scheduler says what it decides by.
DEFAULT_RULES = Rules(Policy(), 60.0, 1800.0)


def queue_body(context: Context, session: Session, owner: str, limit: int) -> QueueBody:
    """The queue as an owner sees it, with the next `limit` of each stage."""
    stored = leader.rules_of(context.db, session)
    rules = Rules.read(stored) if stored else DEFAULT_RULES
    own = queue.unfinished_batches(session, owner)
    return QueueBody(
        at=context.db.now(session),
        scheduled=stored is not None,
        implementing=_implementing(context, session, owner, own, limit),
        measuring=_measuring(context, session, owner, own, rules, stored is not None, limit),
    )


class _Amounts(NamedTuple):
    """Of one batch, at one stage."""

    waiting: int = 0
    under_way: int = 0
    recent: float = 0.0


def _shares(
    amounts: Mapping[Of, _Amounts], owner: str, weight: Callable[[str], float]
) -> list[QueueShare]:
    """The share of an owner, and that of all others together."""
    active = {of[0] for of, each in amounts.items() if each.waiting or each.under_way}
    under_way, recent, weights = _sums(amounts, active, weight)
    found = []
    for name, owners in ((owner, active & {owner}), (None, active - {owner})):
        own = {of: each for of, each in amounts.items() if (of[0] == owner) == (name == owner)}
        has, had, part = _sums(own, owners, weight)
        found.append(
            QueueShare(
                owner=name,
                owners=len(owners),
                weight=part if owners or name is None else weight(owner),
                waiting=sum(each.waiting for each in own.values()),
                under_way=has,
                has=_ratio(has, under_way),
                recent=_ratio(had, recent),
                due=_ratio(part, weights),
            )
        )
    return found


def _sums(
    amounts: Mapping[Of, _Amounts], owners: Iterable[str], weight: Callable[[str], float]
) -> tuple[int, float, float]:
    return (
        sum(each.under_way for each in amounts.values()),
        sum(each.recent for each in amounts.values()),
        sum(map(weight, owners)),
    )


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _batches(
    amounts: Mapping[Of, _Amounts],
    own: Mapping[Of, OwnBatch],
    due: float | None,
    paused: Mapping[Of, tuple[int, float | None]],
) -> list[QueueBatch]:
    """What each batch of an owner has, who is due so much."""
    waits = [own[of].priority for of, each in amounts.items() if each.waiting and of in own]
    first = max(waits, default=0)
    under_way = sum(each.under_way for each in amounts.values())
    recent = sum(each.recent for each in amounts.values())
    found = []
    for of, batch in own.items():
        each = amounts.get(of, _Amounts())
        if not (each.waiting or each.under_way):
            continue
        part = due if each.waiting and batch.priority == first else 0.0
        number, again = paused.get(of, (0, None))
        found.append(
            QueueBatch(
                batch=batch.id,
                environment=batch.environment,
                profile=batch.profile,
                priority=batch.priority,
                waiting=each.waiting,
                under_way=each.under_way,
                has=_ratio(each.under_way, under_way),
                recent=_ratio(each.recent, recent),
                due=None if part is None else round(part / max(1, waits.count(first)), 4),
                paused=number,
                again_at=_moment(again),
            )
        )
    return found[:MOST_BATCHES]


def _moment(seconds: float | None) -> datetime | None:
    known = seconds is not None and abs(seconds) < 1e11
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None and known else None


def _implementing(
    context: Context, session: Session, owner: str, own: Mapping[Of, OwnBatch], limit: int
) -> QueueStage:
    most, most_ahead = context.settings.concurrent_ideas, context.settings.ideas_ahead
    processes: dict[str, Places] = defaultdict(lambda: Places(most, most_ahead))
    waiting_, under_way, owners = Counter[str](), Counter[str](), dict[str, str]()
    for each in queue.ideas(context.db, session):
        owners[each.batch] = each.owner
        if each.holder is None:
            waiting_[each.batch] += each.number
        else:
            under_way[each.batch] += each.number
            processes[each.holder].add(each.owner, each.batch, each.number)
    # One that has nothing under way cannot be seen, but takes what waits as soon as it looks.
    crowded = [set(each.full()) for each in processes.values()]
    full = set.intersection(*crowded) if crowded else set[str]()
    implemented = implementations.ahead(session)
    seen = list(processes.values()) or [Places(most, most_ahead)]
    for places in seen:
        places.see(implemented)
    far_ahead = set.intersection(*(set(places.ahead()) for places in seen))
    answers = queue.answers(context.db, session)
    times = {batch.id: of for of, batch in own.items()}
    amounts = {
        # Batches of others need no time to be told apart by.
        times.get(batch, (name, float(-number))): _Amounts(
            waiting_[batch], under_way[batch], answers.get(batch, 0)
        )
        for number, (batch, name) in enumerate(owners.items(), 1)
    }
    shares = context.settings.shares
    found = _shares(amounts, owner, lambda name: shares.get(name, 1.0))
    coming = queue.next_ideas(context.db, session, limit, sorted(full), sorted(far_ahead))
    next_ = [
        _next_idea(
            place,
            each,
            yours=each.owner == owner,
            why=_why_not_begun(each, processes, full, far_ahead),
        )
        for place, each in enumerate(coming, 1)
    ]
    return QueueStage(
        unit="places",
        total=most * max(1, len(processes)),
        under_way=under_way.total(),
        owners=found,
        batches=_batches(amounts, own, found[0].due, {}),
        next=next_,
    )


def _next_idea(
    place: int, each: implementations.Waiting, *, yours: bool, why: tuple[str, str]
) -> QueueNext:
    reason, why_ = why
    return QueueNext(
        place=place,
        yours=yours,
        batch=each.batch if yours else None,
        experiment=each.id if yours else None,
        measurement=None,
        gpus=0,
        cpus=0,
        reason=reason,
        why=why_,
        at=None,
    )


def _why_not_begun(
    each: implementations.Waiting,
    processes: Mapping[str, Places],
    full: set[str],
    far_ahead: set[str],
) -> tuple[str, str]:
    if each.is_new and each.batch in far_ahead:
        return "ahead", (
            "as many ideas of its batch as may be are under way or wait to be measured "
            "(ASSAY_IMPLEMENTER_IDEAS_AHEAD)"
        )
    if not processes:
        return "unclaimed", "no process has an idea under way now; one that runs begins it soon"
    free = sum(max(0, places.free) for places in processes.values())
    if not free:
        return "busy", "every process implements as many ideas as it may, until one ends"
    if each.batch in full:
        return "share", f"its batch has its share of the places; {free} are kept for others"
    if each.owner in full:
        return "share", f"its owner has a share of the places; {free} are kept for others"
    return "turn", f"it is begun in its turn; {free} places are free"


def _measuring(
    context: Context,
    session: Session,
    owner: str,
    own: Mapping[Of, OwnBatch],
    rules: Rules,
    scheduled: bool,
    limit: int,
) -> list[MeasuringStage]:
    found = queue.placing(context.db, session, rules, limit)
    waits_: dict[str, Counter[Of]] = defaultdict(Counter)
    paused: dict[str, dict[Of, tuple[int, float | None]]] = defaultdict(dict)
    for each in queue.queued(context.db, session):
        of = (each.owner, each.batch_at)
        waits_[each.hardware_class][of] = each.number
        if each.paused:
            paused[each.hardware_class][of] = (each.paused, each.again_at)
    used = queue.used(context.db, session)
    by_class: dict[str, list[Supply]] = defaultdict(list)
    for supply in found.free:
        by_class[supply.hardware_class].append(supply)
    says = _Says(context, session, found, owner, own, scheduled)
    return [
        _class_stage(
            *(name, by_class[name], waits_[name], used.get(name, {}), paused[name]),
            *(owner, own, rules.policy, [n for n in says.next if n[0] == name]),
        )
        for name in sorted({*waits_, *by_class})
    ]


def _class_stage(
    hardware_class: str,
    supplies: Sequence[Supply],
    waits_: Counter[Of],
    used: Mapping[Of, float],
    paused: Mapping[Of, tuple[int, float | None]],
    owner: str,
    own: Mapping[Of, OwnBatch],
    policy: Policy,
    next_: Sequence[tuple[str, QueueNext]],
) -> MeasuringStage:
    held: Counter[Of] = Counter()
    for supply in supplies:
        held.update(supply.held_by)
    amounts = {
        of: _Amounts(waits_[of], held[of], used.get(of, 0.0)) for of in {*waits_, *held, *used}
    }
    shares = _shares(amounts, owner, policy.weight)
    cpus = sum(supply.total[0] for supply in supplies)
    gpus = sum(supply.total[1] for supply in supplies)
    return MeasuringStage(
        hardware_class=hardware_class,
        unit="GPUs" if gpus or (not cpus and any(each.gpus for _, each in next_)) else "CPUs",
        total=gpus or cpus,
        under_way=held.total(),
        owners=shares,
        batches=_batches(amounts, own, shares[0].due, paused),
        next=[each for _, each in next_],
    )


class _Says:
    """What comes next, by hardware class, in words."""

    def __init__(
        self,
        context: Context,
        session: Session,
        found: Placing,
        owner: str,
        own: Mapping[Of, OwnBatch],
        scheduled: bool,
    ) -> None:
        self._context = context
        self._session = session
        self._found = found
        self._scheduled = scheduled
        self._names = _names(session, found.next)
        self._said: dict[Waiting, str] = {}
        experiments = _experiments(session, found.next, owner)
        places = Counter[str]()
        self.next: list[tuple[str, QueueNext]] = []
        for each in found.next:
            demand = each.demand
            places[demand.hardware_class] += 1
            batch = own.get(demand.batch)
            reason, why = self._why(each)
            yours = demand.owner == owner
            said = QueueNext(
                place=places[demand.hardware_class],
                yours=yours,
                batch=batch.id if batch else None,
                experiment=experiments.get(demand.measurement),
                measurement=demand.measurement if yours else None,
                gpus=demand.gpus,
                cpus=demand.cpus,
                reason=reason,
                why=why,
                at=_moment(each.at),
            )
            self.next.append((demand.hardware_class, said))

    def _why(self, each: Outlook) -> tuple[str, str]:
        if not self._scheduled:
            return "no_scheduler", "no scheduler runs; start one with `assay scheduler`"
        until = _moment(each.at)
        later = (
            f"; at the latest until {until:%H:%M:%S} UTC, if what runs uses its whole budget"
            if until
            else ""
        )
        name = self._names.get(each.worker or "", each.worker)
        said = {
            Reason.STARTS: f"it starts now on {name}",
            Reason.NEXT_DECISION: "it is placed by one of the next decisions",
            Reason.TURN: f"what was free went to others, whose turn came first{later}",
            Reason.RESERVED: f"{name} is held back for it{later}",
            Reason.HELD_BACK: "what is free is held back for one that was first",
            Reason.STARTING: "the workers with room are starting as many attempts as they may",
            Reason.BUSY: f"all that fits is in use{later}",
        }
        return each.reason.value, said.get(each.reason) or self._no_worker(each)

    def _no_worker(self, each: Outlook) -> str:
        """Why no worker that gets work could ever hold it."""
        demand = each.demand
        for shape in self._found.shapes.values():
            same = (shape.hardware_class, shape.gpus, shape.cpus, shape.memory_bytes)
            asked = (demand.hardware_class, demand.gpus, demand.cpus, demand.memory_bytes)
            if same == asked and shape.setting == demand.setting:
                if shape not in self._said:
                    self._said[shape] = self._why_none(shape)
                return self._said[shape]
        return "no worker can hold it"

    def _why_none(self, shape: Waiting) -> str:
        there = [s for s in self._found.free if s.hardware_class == shape.hardware_class]
        if not there:
            return f"no worker of {shape.hardware_class} can take work"
        setting, on = (
            (shape.environment_id, shape.profile, shape.hardware_class),
            shape.conditions_id,
        )
        if shape.setting and not any(shape.setting in s.settings for s in there):
            found = waiting.unmet(self._context.db, self._session, *setting, [on])
            said = waits.unmet(found[on]) if on in found else "no live worker has them"
            return f"under {on}: {said}"
        if shape.needs_isolation and not any(s.isolated for s in there):
            return f"it needs isolation, and no worker of {shape.hardware_class} isolates"
        gib = shape.memory_bytes / (1 << 30)
        return (
            f"no worker of {shape.hardware_class} has {shape.gpus} GPUs, {shape.cpus} CPUs and "
            f"{gib:.1f} GiB for it"
        )


def _names(session: Session, found: Sequence[Outlook]) -> dict[str, str]:
    ids = {each.worker for each in found if each.worker}
    table = schema.Worker
    rows = session.execute(select(table.id, table.name).where(table.id.in_(ids)))
    return dict(rows.all())


def _experiments(session: Session, found: Sequence[Outlook], owner: str) -> dict[str, str]:
    """An experiment of the owner that waits for each measurement."""
    link, experiment, batch = schema.ExperimentMeasurement, schema.Experiment, schema.Batch
    rows = session.execute(
        select(link.measurement_id, experiment.id)
        .join(experiment, experiment.id == link.experiment_id)
        .join(batch, batch.id == experiment.batch_id)
        .where(
            link.measurement_id.in_([each.demand.measurement for each in found]),
            batch.owner == owner,
        )
        .order_by(experiment.id.desc())
    )
    return dict(rows.all())

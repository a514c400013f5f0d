"""The page of a search: hill climb, epochs, lineage, experiments."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from assay.analysis.rows import leads, rank
from assay.analysis.standing import best_result, standing
from assay.contracts.base import ShortName
from assay.contracts.batch import ExperimentBody, Funnel
from assay.contracts.search import BestOfEpoch, ExtendRequest, ResumeRequest, SearchBody
from assay.domain.metrics import Direction, is_better
from assay.domain.states import BatchState, Driver, EpochState, ExperimentState, SearchState
from assay.domain.verdicts import Verdict
from assay.storage import environments, schema
from assay.storage.rows import get
from services.implementer.dependencies import ContextDep, IdPath, OwnerDep
from services.implementer.exporting import export_search
from services.implementer.pages.forms import annotation, checked, number
from services.implementer.pages.hill_climb import hill_climb
from services.implementer.pages.lineage import HEIGHT, WIDTH, lineage
from services.implementer.pages.rendering import HEADERS, render
from services.implementer.pages.routing import FormDep, page_router, see
from services.implementer.routers import searches as api
from services.implementer.views.batches import batch_body
from services.implementer.views.calls import total
from services.implementer.views.confirmations import experiment_bodies
from services.implementer.views.dashboard import (
    EpochSummary,
    OpenEpoch,
    epoch_summaries,
    implementation_costs,
    open_epochs,
    search_experiments,
    time_spent,
)

router = page_router()
#: Experiments that a page holds, of the first epochs on; and rows of its table, best first.
MOST_EXPERIMENTS, MOST_ROWS = 2_000, 40
StateQuery = Annotated[ExperimentState | None, Query()]


@router.get("/searches/{search_id}")
def search(
    search_id: IdPath,
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    state: StateQuery = None,
    idea: Annotated[ShortName | None, Query()] = None,
) -> Response:
    """Show a search. `idea` is the experiment whose lineage is drawn, by default the best."""
    body = api.read(search_id, context, owner)
    with context.db.read() as session:
        metric = environments.manifest(session, body.environment)
        profile, spec = metric.profiles[body.profile], metric.metric
        summaries = epoch_summaries(session, search_id)
        still_open = open_epochs(session, search_id)
        rows = search_experiments(session, search_id, MOST_EXPERIMENTS)
        bodies = experiment_bodies(session, rows)
        costs = implementation_costs(session, [epoch.batch for epoch in summaries])
        # Of an asynchronous search, earlier batches may end later.
        under_way = [epoch for epoch in summaries if epoch.state == BatchState.RUNNING.value]
        last = (under_way or summaries)[-1].batch if summaries else None
        spent = time_spent(session, search_id, body.environment, body.profile)
        latest = (
            batch_body(context, session, get(session, schema.Batch, last, "batch"))
            if last
            else None
        )
    epochs = {epoch.batch: epoch.number for epoch in summaries}
    direction = Direction(spec.direction)
    ranked = rank(bodies, direction)
    chosen = next((e for e in bodies if e.id == idea), ranked[0] if ranked else None)
    unit = ("GPU-hours", profile.gpus) if profile.gpus else ("CPU-hours", profile.cpus)
    best = best_result(bodies, direction)
    shown = [e for e in ranked if state is None or e.state == state.value]
    return render(
        request,
        "search.html",
        owner=owner,
        search=body,
        metric=spec,
        epochs=epochs,
        summaries=summaries,
        open_epochs=still_open,
        operators_of=_operators_of(bodies),
        latest=latest,
        chart=hill_climb(
            bodies,
            epochs,
            costs,
            latest.baseline if latest else None,
            direction,
            body.created_at,
            per_second=unit,
        ),
        counts=Counter(e.state for e in bodies),
        rows=shown[:MOST_ROWS],
        hidden_rows=max(0, len(shown) - MOST_ROWS),
        chosen_state=state,
        best=best,
        standing=None if best is None else standing(best),
        best_of=_best_of_epochs(body, summaries, bodies, direction),
        leads=leads(bodies),
        confirmed=sum(bool(e.confirmation and e.confirmation.claimed) for e in bodies),
        confirmations=Counter(e.confirmation.batch for e in bodies if e.confirmation),
        waits=_waits(body, summaries, still_open),
        funnel=_funnel(summaries),
        ended=sum(epoch.ended for epoch in summaries),
        operators=_by_operator(bodies),
        cost=total([body.ideator_usage, body.executor_usage]),
        spent=spent,
        total=sum(epoch.funnel.submitted for epoch in summaries),
        family=lineage(chosen, bodies, epochs) if chosen else None,
        chosen=chosen,
        box=(WIDTH, HEIGHT),
    )


def _funnel(summaries: list[EpochSummary]) -> Funnel:
    names = ("submitted", "applied", "patched", "started", "scored")
    return Funnel(**{name: sum(getattr(e.funnel, name) for e in summaries) for name in names})


def _best_of_epochs(
    body: SearchBody,
    summaries: list[EpochSummary],
    experiments: list[ExperimentBody],
    direction: Direction,
) -> dict[int, BestOfEpoch]:
    """The best of each submitted epoch, if any, and the best so far, also while it runs."""
    finished = {each.epoch: each for each in body.best}
    of_batch: dict[str, tuple[str, float]] = {}
    for each in experiments:
        top = of_batch.get(each.batch)
        if each.metric is not None and (top is None or is_better(direction, each.metric, top[1])):
            of_batch[each.batch] = each.id, each.metric
    so_far: float | None = None
    found = {}
    for epoch in summaries:
        experiment: str | None = None
        metric: float | None = None
        if epoch.number in finished:
            ended = finished[epoch.number]
            experiment, metric = ended.experiment, ended.metric
        elif epoch.batch in of_batch:
            experiment, metric = of_batch[epoch.batch]
        if metric is not None and (so_far is None or is_better(direction, metric, so_far)):
            so_far = metric
        found[epoch.number] = BestOfEpoch(
            epoch=epoch.number,
            batch=epoch.batch,
            experiment=experiment,
            metric=metric,
            best_so_far=so_far,
            scored=epoch.funnel.scored,
            total=epoch.funnel.submitted,
        )
    return found


def _waits(
    body: SearchBody, summaries: list[EpochSummary], still_open: list[OpenEpoch]
) -> str | None:
    """What a running search does while no batch of it is under way; None if it needs no word."""
    is_running = body.state == SearchState.RUNNING.value and body.open_pause is None
    if not is_running or any(epoch.state == BatchState.RUNNING.value for epoch in summaries):
        return None
    if still_open:
        first = still_open[0]
        if first.state == EpochState.PROPOSED:
            return f"epoch {first.number} has its ideas and is about to be submitted"
        return f"asking {body.ideator} for the ideas of epoch {first.number}: {first.asked}"
    if len(summaries) >= body.epochs:
        return None
    number = summaries[-1].number + 1 if summaries else 0
    loop = "the service" if body.driver == Driver.SERVICE.value else "the client that drives it"
    return f"asking for ideas: {loop} asks {body.ideator} for those of epoch {number}"


def _operators_of(bodies: list[ExperimentBody]) -> dict[str, str]:
    """The operators of each batch's ideas, in their order."""
    found: dict[str, dict[str, None]] = {}
    for body in bodies:
        found.setdefault(body.batch, {})[body.idea.operator] = None
    return {batch: ", ".join(operators) for batch, operators in found.items()}


def _by_operator(bodies: list[ExperimentBody]) -> list[tuple[str, int, int, int]]:
    """Of each operator: ideas, how many of them scored, how many are called better."""
    found: dict[str, tuple[int, int, int]] = {}
    for body in bodies:
        ideas, scored, better = found.get(body.idea.operator, (0, 0, 0))
        is_better = body.comparison is not None and body.comparison.verdict == Verdict.BETTER
        found[body.idea.operator] = (
            ideas + 1,
            scored + (body.metric is not None),
            better + is_better,
        )
    return [(name, *numbers) for name, numbers in sorted(found.items())]


@router.get("/searches/{search_id}/report")
def report(search_id: IdPath, request: Request, context: ContextDep, owner: OwnerDep) -> Response:
    """Answer with the report of a search as one file, which a browser keeps."""
    text = export_search(request.app, context, owner, search_id)
    kept = {"Content-Disposition": f'attachment; filename="{search_id}.html"'}
    return HTMLResponse(text, headers=HEADERS | kept)


@router.post("/searches/{search_id}/annotate")
def annotate(search_id: IdPath, context: ContextDep, owner: OwnerDep, fields: FormDep) -> Response:
    """Change the tags and the note of a search."""
    api.annotate(search_id, annotation(fields), context, owner)
    return see(f"/searches/{search_id}#annotation")


@router.post("/searches/{search_id}/cancel")
def cancel(search_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Cancel a search and the batches of its epochs."""
    api.cancel(search_id, context, owner)
    return see(f"/searches/{search_id}")


@router.post("/searches/{search_id}/pause")
def pause(search_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Have its loop stop before it asks for more ideas."""
    api.pause(search_id, context, owner)
    return see(f"/searches/{search_id}")


@router.post("/searches/{search_id}/resume")
def resume(search_id: IdPath, context: ContextDep, owner: OwnerDep) -> Response:
    """Have the service run its loop from now on."""
    api.resume(search_id, context, owner, ResumeRequest(driver="service"))
    return see(f"/searches/{search_id}")


@router.post("/searches/{search_id}/extend")
def extend(search_id: IdPath, context: ContextDep, owner: OwnerDep, fields: FormDep) -> Response:
    """Raise the number of epochs, or a cap.

    Raises:
        InvalidInput: a field cannot be what it says, or nothing is raised.
    """
    given: dict[str, int | str] = {name: text for name, text in fields.items() if text.strip()}
    if "epochs" in given:
        given["epochs"] = number(fields["epochs"])
    wanted = checked(ExtendRequest, given)
    api.extend(search_id, wanted, context, owner)
    return see(f"/searches/{search_id}")

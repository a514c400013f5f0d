"""`assay search …`."""

from __future__ import annotations

import os
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import annotating, completion, exporting, search_report
from assay.cli import options as opt
from assay.cli.batch import take
from assay.cli.command import (
    INTERRUPTED,
    PAUSED,
    AsJson,
    DryRun,
    Yes,
    cancel_one,
    command,
    full_conditions,
    full_id,
    report,
    root,
)
from assay.domain.errors import InvalidInput, NotFound, Unavailable
from assay.domain.states import Driver, SearchState

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.batch import BatchOptions, ExperimentBody
    from assay.contracts.caps import SearchSpending
    from assay.contracts.search import IdeatorCallBody, PauseBody, SearchBody, SearchRequest
    from assay.llm.ideation import Ideator
    from assay.llm.recorded_ideas import RecordedIdeas
    from assay.search import SearchConfig
    from assay.search.config import IdeatorOptions

app = typer.Typer(name="search", no_args_is_help=True, help="Search over ideas.")

app.command("report")(search_report.report)

Search = Annotated[
    str,
    typer.Argument(help="Id, or the beginning or end of one.", autocompletion=completion.searches),
]
PatienceSeconds = Annotated[
    float,
    typer.Option(
        "--patience", min=0, help="Seconds to wait for a service that is away; 0: do not wait."
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="The service runs the loop, with the keys that it has.")
]


@app.command()
@command
def start(
    context: typer.Context,
    env: Annotated[
        str,
        typer.Argument(
            help="Environment: name or name@hash.", autocompletion=completion.environments
        ),
    ],
    profile: opt.Profile,
    strategy: Annotated[
        str, typer.Option(help="evolution, best-of-n, random, greedy or thompson.")
    ] = "evolution",
    epochs: Annotated[
        int, typer.Option(min=1, max=10_000, help="Rounds; decisions of an asynchronous strategy.")
    ] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Ideas per round or decision.")] = 8,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Experiments that an asynchronous strategy keeps under way; thompson: 16.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed asks the same questions.")] = 0,
    ideator: opt.Ideator = "offline:ideator",
    executor: opt.Executor = "offline:literal",
    base: opt.Base = None,
    hardware_class: opt.HardwareClass = None,
    conditions: opt.Conditions = None,
    samples: opt.Samples = 10,
    revisions: opt.Revisions = 2,
    sampling: opt.Sampling = "staged",
    seeds: opt.Seeds = "0",
    baseline_seeds: opt.BaselineSeeds = None,
    warm_start: Annotated[
        list[str] | None,
        typer.Option(
            help="A search or batch whose experiments the ideator is told of; may be repeated.",
            show_default=False,
        ),
    ] = None,
    positives: Annotated[
        str | None, typer.Option(help="What exploitation builds on: by mean, or by verdict.")
    ] = None,
    temperature: opt.Temperature = None,
    max_tokens: opt.MaxTokens = None,
    effort: opt.Effort = None,
    ideator_temperature: opt.IdeatorTemperature = None,
    ideator_max_tokens: opt.IdeatorMaxTokens = None,
    ideator_effort: opt.IdeatorEffort = None,
    context_tokens: opt.ContextTokens = None,
    preflight: opt.Preflight = "compile",
    repairs: opt.Repairs = 1,
    novelty: opt.Novelty = "warn",
    max_cost: opt.MaxCost = None,
    max_ideator_cost: opt.MaxIdeatorCost = None,
    max_executor_cost: opt.MaxExecutorCost = None,
    max_gpu_hours: opt.MaxGpuHours = None,
    allow_unisolated: opt.AllowUnisolated = False,
    confirm: Annotated[
        int, typer.Option(min=0, max=1_000, help="Confirm so many of the best results at the end.")
    ] = 0,
    confirm_seeds: Annotated[
        int, typer.Option(min=1, max=64, help="Fresh seeds of each that is confirmed.")
    ] = 5,
    no_pause: opt.NoPause = False,
    detach: Detach = False,
    record: opt.Record = None,
    replay: opt.Replay = None,
    no_overlap: Annotated[
        bool,
        typer.Option("--no-overlap", help="Submit no epoch before the one before has ended."),
    ] = False,
    patience: PatienceSeconds = 3600.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Start a search and drive it.  Example: assay search start toy --profile tiny --epochs 3"""
    options = opt.batch_options(
        seeds,
        None,
        samples=samples,
        revisions=revisions,
        sampling=sampling,
        temperature=temperature,
        max_tokens=max_tokens,
        effort=effort,
        baseline_seeds=baseline_seeds,
        preflight=preflight,
        repairs=repairs,
        novelty=novelty,
        max_gpu_hours=max_gpu_hours,
        allow_unisolated=allow_unisolated,
    )
    asked = _ideator_options(
        temperature=ideator_temperature,
        max_tokens=ideator_max_tokens,
        effort=ideator_effort,
        context_tokens=context_tokens,
    )
    settings: dict[str, Any] = {} if positives is None else {"positives": positives}
    settings |= _slots(strategy, slots)
    config = _config(strategy, settings, options, asked, warm_start or [], pause=not no_pause)
    rest = {"confirm": confirm, "confirm_seeds": confirm_seeds, "overlap": not no_overlap}
    config = config.model_copy(update=rest)
    what = (env, profile, strategy, seed, epochs, batch_size)
    request = _request(*what, ideator, executor, hardware_class, config)
    request.caps = opt.search_caps(
        max_cost=max_cost, max_ideator_cost=max_ideator_cost, max_executor_cost=max_executor_cost
    )
    request.caps.max_gpu_hours, request.base = options.max_gpu_hours, base
    request.conditions = conditions
    request.driver = "service" if detach else "client"
    if detach:
        _refuse_folders(record, replay)
    if replay is not None and is_asynchronous(strategy):
        raise InvalidInput(f"--replay: what {strategy} asks depends on when results come")
    _start(context, request, config, _recorded(record, replay), patience, dry_run, yes, as_json)


def is_asynchronous(strategy: str) -> bool:
    """Whether a strategy decides whenever slots are free. Raises InvalidInput: there is none."""
    from assay.search import open_strategy

    return open_strategy(strategy).slots is not None


def _slots(strategy: str, slots: int | None) -> dict[str, int]:
    """The setting of a strategy for its slots. Raises InvalidInput: it has none."""
    if slots is None:
        return {}
    if not is_asynchronous(strategy):
        raise InvalidInput(f"--slots: {strategy} works in epochs; leave it out, or name thompson")
    return {"keep": slots}


def _refuse_folders(record: Path | None, replay: Path | None) -> None:
    """Folders of answers are on this machine. Raises InvalidInput."""
    if record is not None or replay is not None:
        raise InvalidInput("--record and --replay: not with --detach; leave one of them out")


def _recorded(record: Path | None, replay: Path | None) -> RecordedIdeas | None:
    """The folder that keeps the ideator's answers, or gives them. Raises InvalidInput."""
    from assay.llm.recorded_ideas import RecordedIdeas

    if record is not None and replay is not None:
        raise InvalidInput("--record and --replay exclude each other; leave one of them out")
    if replay is not None and not replay.is_dir():
        raise InvalidInput(f"--replay: {replay} is not a folder")
    folder = record or replay
    return None if folder is None else RecordedIdeas(folder, is_replay=replay is not None)


def _ideator_options(**values: Any) -> IdeatorOptions:
    """How the ideator is asked. Raises InvalidInput: a value is out of range."""
    from pydantic import ValidationError

    from assay.search.config import IdeatorOptions

    try:
        return IdeatorOptions.model_validate(values)
    except ValidationError as error:
        is_context = error.errors()[0]["loc"][0] == "context_tokens"
        raise opt.wrong_flag(error, "--" if is_context else "--ideator-") from None


def _config(
    strategy: str,
    settings: dict[str, Any],
    options: BatchOptions,
    ideator: IdeatorOptions,
    warm_start: list[str],
    *,
    pause: bool,
) -> SearchConfig:
    """Caps are the whole search's, so they leave the options of the single batch."""
    from assay.search import SearchConfig, open_strategy

    single = options.model_copy(update={"max_gpu_hours": None})
    made = SearchConfig.make(
        strategy,
        settings,
        single,
        pause=pause,
        ideator=ideator,
        warm_start=warm_start,
    )
    if warm_start and not open_strategy(strategy).needs_baseline:
        raise InvalidInput(f"--warm-start: {strategy} looks at no results, so leave it out")
    return made


def _request(
    env: str,
    profile: str,
    strategy: str,
    seed: int,
    epochs: int,
    batch_size: int,
    ideator: str,
    executor: str,
    hardware_class: str | None,
    config: SearchConfig,
) -> SearchRequest:
    from assay.contracts.search import SearchRequest

    return SearchRequest(
        environment=env,
        profile=profile,
        strategy=strategy,
        seed=seed,
        epochs=epochs,
        batch_size=batch_size,
        ideator=ideator,
        executor=executor,
        hardware_class=hardware_class,
        config=config.record(),
    )


def _start(
    context: typer.Context,
    request: SearchRequest,
    config: SearchConfig,
    recorded: RecordedIdeas | None,
    patience: float,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from assay.analysis.text import counted

    out = root(context).output(as_json)
    detach = request.driver == "service"
    ideator = None
    if not detach:
        ideator = open_ideator_named(request.ideator, config.ideator, recorded)
    rounds = "decision" if is_asynchronous(request.strategy) else "epoch"
    size = f"{counted(request.epochs, rounds)} of {counted(request.batch_size, 'idea')}"
    with root(context).client() as client:
        config = _with_sources(client, config, request.environment)
        request.config = config.record()
        request.conditions = full_conditions(client, request.conditions)
        _check_runs(client, out, request, config)
        if dry_run:
            target = client.environments.get(request.environment).id
            message = f"would search {target}, {request.profile}: {size}"
            out.changed(target, message, detail=request, dry_run=True)
            return
        request.caps = _agreed_caps(client, out, request, config, yes)
        search = client.searches.create(request)
        out.say(f"{search.id}: {request.strategy}, {size}")
    if ideator is None:
        _detached(search, out)
    else:
        _drive(context, search.id, ideator, out, patience, recorded=recorded)


@app.command()
@command
def resume(
    context: typer.Context,
    search: Search,
    no_pause: opt.NoPause = False,
    detach: Detach = False,
    record: opt.Record = None,
    replay: opt.Replay = None,
    patience: PatienceSeconds = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Go on with a search from wherever it stopped.  Example: assay search resume srch_01k8…"""
    from assay.cli.searching import patience as waiting
    from assay.search import SearchConfig

    if detach and no_pause:
        raise InvalidInput("--no-pause: not with --detach; leave one of them out")
    if detach:
        _refuse_folders(record, replay)
    out = root(context).output(as_json)
    with root(context).client(waiting(out, 0 if detach else patience)) as client:
        body = client.searches.get(full_id(search, client.searches.list()))
        if detach:
            _detached(client.searches.resume(body.id, "service"), out)
            return
        pause = False if no_pause else None
        recorded = _recorded(record, replay)
        options = SearchConfig.read(body.config).ideator
        ideator = open_ideator_named(body.ideator, options, recorded)
    _drive(context, body.id, ideator, out, patience, pause=pause, recorded=recorded)


@app.command()
@command
def pause(context: typer.Context, search: Search, as_json: AsJson = False) -> None:
    """Ask for no more epochs; what runs goes on.  Example: assay search pause srch_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.searches.pause(full_id(search, client.searches.list()))
    message = (
        f"paused {body.id}: it asks for no more, and what runs goes on\n"
        f"Go on with: assay search resume {body.id}"
    )
    out.changed(body.id, message, detail=body)


@app.command()
@command
def extend(
    context: typer.Context,
    search: Search,
    epochs: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Rounds in all.", show_default=False)
    ] = None,
    max_cost: opt.MaxCost = None,
    max_ideator_cost: opt.MaxIdeatorCost = None,
    max_executor_cost: opt.MaxExecutorCost = None,
    max_gpu_hours: opt.MaxGpuHours = None,
    as_json: AsJson = False,
) -> None:
    """Raise epochs or a cap, to new totals.  Example: assay search extend srch_01k8… --epochs 9"""
    from assay.contracts.search import ExtendRequest

    caps = {
        "max_cost_usd": max_cost,
        "max_ideator_cost_usd": max_ideator_cost,
        "max_executor_cost_usd": max_executor_cost,
        "max_gpu_hours": max_gpu_hours,
    }
    if epochs is None and not any(cap is not None for cap in caps.values()):
        raise InvalidInput("name what to raise: --epochs, --max-cost or another cap")
    out = root(context).output(as_json)
    request = ExtendRequest.model_validate({"epochs": epochs, **caps})
    with root(context).client() as client:
        id_ = full_id(search, client.searches.list())
        before = client.searches.get(id_)
        body = client.searches.extend(id_, request)
    message = f"extended {id_}: {body.epochs_finished} of {body.epochs} epochs finished"
    if before.state == body.state:
        message += "\nA client that drives it sees this at its next epoch."
    message += f"\nWhere none does, go on with: assay search resume {id_}"
    out.changed(id_, message, detail=body)


@app.command()
@command
def show(context: typer.Context, search: Search, as_json: AsJson = False) -> None:
    """Show a search.  Example: assay search show srch_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        _show(client, client.searches.get(full_id(search, client.searches.list())), out)


@app.command()
@command
def annotate(
    context: typer.Context,
    searches: Annotated[
        list[str],
        typer.Argument(
            help="Searches, by id.", metavar="SEARCH...", autocompletion=completion.searches
        ),
    ],
    tag: annotating.Add = None,
    untag: annotating.Remove = None,
    note: annotating.Note = None,
    as_json: AsJson = False,
) -> None:
    """Change tags and the note.  Example: assay search annotate srch_01k8… --tag keep"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        ids = [full_id(given, client.searches.list()) for given in searches]
        annotating.annotate(out, client.searches, ids, tag, untag, note)


@app.command()
@command
def watch(context: typer.Context, search: Search, as_json: AsJson = False) -> None:
    """Follow a search until it ends or pauses; --json prints its events, one per line."""
    from assay.cli.output import emit, to_plain
    from assay.cli.searching import follow_search

    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(search, client.searches.list())
        show_event = (lambda event: emit(to_plain(event))) if as_json else None
        try:
            paused = follow_search(client, id_, out, show_event)
        except KeyboardInterrupt:
            out.err.print(f"Detached; {id_} goes on. Follow it with: assay search watch {id_}")
            raise typer.Exit(INTERRUPTED) from None
        if not as_json:
            _show(client, client.searches.get(id_), out)
    if paused:
        raise typer.Exit(PAUSED)


@app.command()
@command
def decisions(context: typer.Context, search: Search, as_json: AsJson = False) -> None:
    """Show what an asynchronous search decided.  Example: assay search decisions srch_01k8…"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(search, client.searches.list())
        found = [epoch for epoch in client.searches.epochs(id_) if epoch.decision is not None]
    made = table("decision", "state", "asked for", "parents", "results", "pending")
    results = 0
    for epoch in found:
        decision = epoch.decision
        assert decision is not None
        results += len(decision.seen)
        parents = list(dict.fromkeys(id_ for ask in decision.asks for id_ in ask.parents))
        if decision.remeasure is not None:
            parents = decision.remeasure.experiments
        pending = ", ".join(map(str, decision.pending)) or "–"
        row = (epoch.number, epoch.state, decision.in_words, ", ".join(parents) or "–")
        made.add_row(*map(cell, (*row, results, pending)))
    out.data(found, made)
    if not found:
        out.say(f"{id_} has no decisions: its strategy works in epochs, or it has not begun.")


@app.command()
@command
def answers(
    context: typer.Context,
    search: Search,
    epoch: Annotated[int | None, typer.Option(min=0, help="Of this epoch alone.")] = None,
    unread: Annotated[
        bool, typer.Option("--unread", help="Only those that could not be read in whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the ideator answered.  Example: assay search answers srch_01k8… --unread"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(search, client.searches.list())
        calls = client.searches.calls(id_, epoch=epoch, answered=True, unread=unread)
        found = list(calls)
    out.data(found, "\n\n".join(map(_answer, found)))
    if not found:
        out.say(f"No such answers of {id_}. Offline ideators give none.")


@app.command()
@command
def export(
    context: typer.Context,
    searches: Annotated[list[str], typer.Argument(metavar="SEARCH…", help="Ids of searches.")],
    format_: exporting.Format = None,
    out: exporting.Out = None,
    curves: exporting.Curves = False,
    confirmations: exporting.Confirmations = False,
    as_json: AsJson = False,
) -> None:
    """Write its trajectories.  Example: assay search export srch_01k8… --out t.jsonl"""
    with root(context).client() as client:
        ids = list(dict.fromkeys(full_id(each, client.searches.list()) for each in searches))
        records = chain.from_iterable(
            client.searches.trajectories(id_, curves=curves, confirmations=confirmations)
            for id_ in ids
        )
        exporting.export(root(context).output(as_json), records, ", ".join(ids), format_, out)


@app.command("list")
@command
def list_(
    context: typer.Context,
    tag: annotating.OnlyTag = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List searches, newest first.  Example: assay search list"""
    from assay.analysis.sparklines import sparkline
    from assay.analysis.tables import cell, table
    from assay.analysis.text import format_number, short_id

    out = root(context).output(as_json)
    with root(context).client() as client:
        found, truncated = take(client.searches.list(tag=tag), limit)
    made = table("id", "environment", "strategy", "state", "epochs", "best so far", "")
    for body in found:
        best = format_number(body.best[-1].best_so_far) if body.best else "–"
        epochs = f"{body.epochs_finished}/{body.epochs}"
        curve = sparkline([entry.best_so_far for entry in body.best], 20)
        row = (short_id(body.id), body.environment, body.strategy, body.state, epochs, best, curve)
        made.add_row(*map(cell, row))
    out.data(found, made, truncated=truncated)
    if not found:
        out.say("No searches. Start one: assay search start toy --profile tiny")


@app.command()
@command
def cancel(
    context: typer.Context,
    search: Search,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel a search.  Example: assay search cancel srch_01k8… --yes"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(search, client.searches.list())
        cancel_one(
            out,
            id_,
            get=client.searches.get,
            cancel=client.searches.cancel,
            question=f"Cancel {id_} and what is unfinished of it?",
            dry_run=dry_run,
            yes=yes,
        )


def _check_runs(client: Client, out: Output, request: SearchRequest, config: SearchConfig) -> None:
    """Refuse a search whose first epoch would be refused, before anything is stored or asked.

    The service checks a batch as the search submits it. Without any worker, a warning is given:
    one may still be started.

    Raises:
        ClientError: the service would refuse the batch.
    """
    from assay.contracts.batch import BatchRequest, IdeaRequest

    batch = BatchRequest(
        environment=request.environment,
        profile=request.profile,
        ideas=[IdeaRequest(text="[Experiment] Not submitted: a check of the search.")],
        executor=request.executor,
        ideator=request.ideator,
        hardware_class=request.hardware_class,
        conditions=request.conditions,
        base=request.base,
        options=config.options.model_copy(update={"novelty": "allow"}),
    )
    client.batches.check(batch)
    if not any(worker.state == "active" for worker in client.workers.list()):
        out.say("warning: no worker is there yet; the search waits until one is started")


def open_ideator_named(
    name: str, options: IdeatorOptions, recorded: RecordedIdeas | None = None
) -> Ideator:
    """The ideator, opened here: its key is read from this process's environment.

    It needs none if its answers are `recorded`.

    Raises:
        InvalidInput: the name is wrong, or the context is larger than the model's window.
        Unavailable: its key or its package is missing.
    """
    from assay.llm import ModelError, open_ideator

    context = options.context_tokens
    try:
        return open_ideator(
            name,
            os.environ,
            limits=options.limits,
            context_tokens=context,
            is_replay=recorded is not None and recorded.is_replay,
        )
    except ModelError as error:
        raise Unavailable(str(error), code="model_unavailable") from None
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def _with_sources(client: Client, config: SearchConfig, environment: str) -> SearchConfig:
    """The config with whole ids of what the search is told of, checked."""
    from assay.search import warm_start

    if not config.warm_start:
        return config
    ids = [_source_id(client, given) for given in config.warm_start]
    warm_start.check(client, ids, environment)
    return config.model_copy(update={"warm_start": list(dict.fromkeys(ids))})


def _source_id(client: Client, given: str) -> str:
    """The id of a search, or else of a batch. Raises as `full_id`."""
    if given.startswith("bat"):
        return full_id(given, client.batches.list())
    try:
        return full_id(given, client.searches.list())
    except NotFound:
        return full_id(given, client.batches.list())


def _agreed_caps(
    client: Client, out: Output, request: SearchRequest, config: SearchConfig, yes: bool
) -> SearchSpending:
    from assay.cli.cost import agree_on_cost

    return agree_on_cost(
        client,
        out,
        environment=request.environment,
        ideas=request.batch_size,
        options=config.options,
        caps=request.caps,
        executor=request.executor,
        yes=yes,
        ideator=request.ideator,
        epochs=request.epochs,
        context_tokens=config.ideator.context_tokens,
    )


def _drive(
    context: typer.Context,
    search: str,
    ideator: Ideator,
    out: Output,
    seconds: float,
    *,
    pause: bool | None = None,
    recorded: RecordedIdeas | None = None,
) -> None:
    """Drive a search to its end and show it; wait `seconds` for a service that is away."""
    from assay.cli.searching import LineObserver, follow_batch, patience
    from assay.search import SearchPaused, drive

    wait = partial(follow_batch, out)
    with root(context).client(patience(out, seconds)) as client:
        observer = LineObserver(out, client)
        try:
            body = drive(
                client, search, ideator, observer, wait=wait, pause=pause, recorded=recorded
            )
        except SearchPaused as paused:  # its message says how to go on
            report(paused, out.as_json)
            raise typer.Exit(PAUSED) from None
        except KeyboardInterrupt:
            out.err.print(f"Stopped here. Go on with: assay search resume {search}")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if getattr(error, "code", "") != "driven_by_service":
                out.err.print(f"The search can be resumed: assay search resume {search}")
            raise
        _show(client, body, out)


def _detached(search: SearchBody, out: Output) -> None:
    """Say how to look at a search that the service drives, and how to end it."""
    if search.state != SearchState.RUNNING:
        out.data(search, f"{search.id} is {search.state} already.")
        return
    out.data(
        search,
        "The service drives it; this terminal is not needed.",
        f"Watch it: assay search watch {search.id}",
        f"Pause it: assay search pause {search.id}",
        f"End it:   assay search cancel {search.id}",
    )


def _show(client: Client, search: SearchBody, out: Output) -> None:
    from assay.analysis import best_table, worn_note
    from assay.analysis.sparklines import sparkline
    from assay.cli.searching import describe_best, read_progress

    note = worn_note(client.environments.get(search.environment))
    notes = [] if note is None else [note]
    notes += [_paused(pause, search) for pause in search.pauses]
    if search.answers_unread:
        notes.append(
            f"{search.answers_unread} of {search.answers} answers of the ideator could not be "
            f"read in whole: assay search answers {search.id} --unread"
        )
    line = (
        f"{search.id}: {search.state}, {search.strategy} on {search.environment}, "
        f"{search.profile}; {_round(search)} {search.epochs_finished} of {search.epochs} "
        f"finished; driven by "
        f"{'the service' if search.driver == Driver.SERVICE else 'a client'}"
    )
    line = "\n".join([line, *annotating.describe_annotation(search)])
    epochs = list(client.searches.epochs(search.id))
    confirmed = _confirmed(client, search)
    found = {"search": search, "epochs": epochs, "confirmed": confirmed}
    if out.as_json:
        out.data(found)
        return
    shown = _results(client, search, confirmed, out) if confirmed else []
    progress = read_progress(client, search)
    curve = sparkline([entry.best_so_far for entry in search.best])
    lines = [*progress.lines(), *([f"best so far by epoch: {curve}"] if curve else [])]
    lines += describe_best(client, progress)
    out.data(found, line, *lines, best_table(search.best), *shown, *notes)
    if search.state == "running" and search.open_pause is None:
        detached = search.driver == Driver.SERVICE
        how = "Watch it: assay search watch" if detached else "Go on with: assay search resume"
        out.say(f"{how} {search.id}")


def _round(search: SearchBody) -> str:
    return "epoch" if search.slots is None else "decision"


def _confirmed(client: Client, search: SearchBody) -> list[ExperimentBody]:
    """The results of a search that were confirmed, or are being."""
    batches = (b for b in client.batches.list(search=search.id) if b.kind == "confirm")
    confirming = (e for batch in batches for e in client.experiments.list(batch=batch.id))
    return [client.experiments.get(e.idea.confirms) for e in confirming if e.idea.confirms]


def _results(
    client: Client, search: SearchBody, experiments: list[ExperimentBody], out: Output
) -> list[RenderableType]:
    from assay.analysis import experiment_table

    of = client.environments.get(search.environment)
    title = "Confirmed on fresh seeds"
    width = out.out.width
    return [
        experiment_table(experiments, of.direction, metric=of.metric, title=title, width=width)
    ]


def _answer(answer: IdeatorCallBody) -> str:
    from assay.analysis.text import clean, counted

    unread = f", {counted(answer.unread, 'passage')} unread" if answer.unread else ""
    heading = (
        f"--- {answer.id}: epoch {answer.epoch}, {answer.operator}, "
        f"{counted(answer.ideas or 0, 'idea')}{unread}, {answer.stop}"
    )
    return f"{clean(heading)}\n{clean(answer.text or '')}"


def _paused(pause: PauseBody, search: SearchBody) -> str:
    from assay.analysis.text import clean

    if pause == search.open_pause:
        return f"paused: {clean(pause.message)}"
    then = "" if pause.resumed_at is None else ", then resumed"
    if pause.code is None:
        return f"paused by a person{then}"
    if pause.reason == "error":
        return f"paused in epoch {pause.epoch} ({clean(pause.code)}), then resumed"
    failed = f"{pause.failed} of {pause.total} ideas failed with {clean(pause.code)}"
    return f"paused after epoch {pause.epoch} ({failed}){then}"

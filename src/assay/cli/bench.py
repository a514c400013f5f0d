"""`assay bench …`: models compared by what comes of their ideas and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import options as opt
from assay.cli.command import INTERRUPTED, PAUSED, AsJson, DryRun, Yes, command, root
from assay.domain.errors import InvalidInput
from assay.domain.states import SearchState

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.search import SearchBody
    from assay.llm.ideation import Ideator
    from assay.search.ideation import Plan

app = typer.Typer(name="bench", no_args_is_help=True, help="Compare models.")


@app.callback()
def _bench() -> None:
    """A single verb would otherwise be the noun itself."""


@app.command()
@command
def ideation(
    context: typer.Context,
    env: Annotated[str, typer.Argument(help="Environment: name or name@hash.")],
    profile: opt.Profile,
    ideators: Annotated[str, typer.Option(help="Models that propose ideas, with commas.")],
    executors: Annotated[str, typer.Option(help="Models that implement them, with commas.")],
    ideas: Annotated[int, typer.Option(min=1, max=1_000, help="Ideas of each ideator.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Another seed asks for other ideas.")] = 0,
    hardware_class: opt.HardwareClass = None,
    samples: opt.Samples = 10,
    revisions: opt.Revisions = 2,
    sampling: opt.Sampling = "staged",
    seeds: opt.Seeds = "0",
    baseline_seeds: opt.BaselineSeeds = None,
    preflight: opt.Preflight = "compile",
    repairs: opt.Repairs = 1,
    max_cost: opt.MaxCost = None,
    allow_unisolated: opt.AllowUnisolated = False,
    patience: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for a service that is away; 0: do not wait."),
    ] = 3600.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have every executor implement every ideator's ideas.

    Example: assay bench ideation toy --profile tiny --ideators offline:ideator
    --executors offline:literal --ideas 8
    """
    from assay.cli.searching import patience as wait_for_service
    from assay.search.ideation import Plan, check, find

    options = opt.batch_options(
        seeds,
        None,
        samples=samples,
        revisions=revisions,
        sampling=sampling,
        baseline_seeds=baseline_seeds,
        preflight=preflight,
        repairs=repairs,
        novelty="allow",  # every executor gets the same ideas
        allow_unisolated=allow_unisolated,
    )
    out = root(context).output(as_json)
    with root(context).client(wait_for_service(out, patience)) as client:
        plan = Plan(
            environment=client.environments.get(env).id,
            profile=profile,
            ideators=_models("--ideators", ideators),
            executors=_models("--executors", executors),
            ideas=ideas,
            options=options,
            seed=seed,
            hardware_class=hardware_class,
            max_cost_usd=None if max_cost is None else Decimal(str(max_cost)),
        )
        known = find(client, plan)
        plan = _with_agreed_cap(client, out, plan, known, yes=yes or dry_run)
        check(client, plan, known)
        _check_keys(plan, known)
        if dry_run:
            pairs = len(plan.ideators) * len(plan.executors)
            message = f"would compare {pairs} pairs on {ideas} ideas of each ideator: {plan.id}"
            out.changed(plan.environment, message, detail={"benchmark": plan.id}, dry_run=True)
            return
        _run(client, out, plan, known)


def _models(flag: str, given: str) -> list[str]:
    """Names of models as the service writes them. Raises InvalidInput: none, twice, or wrong."""
    from assay.cli.cost import parse_model

    names = [str(parse_model(name.strip())) for name in given.split(",") if name.strip()]
    doubled = [name for name in names if names.count(name) > 1]
    if not names or doubled:
        wrong = f"{doubled[0]} is named twice" if doubled else "name at least one model"
        raise InvalidInput(f"{flag}: {wrong}")
    return names


def _with_agreed_cap(
    client: Client, out: Output, plan: Plan, known: Mapping[str, SearchBody], *, yes: bool
) -> Plan:
    from assay.cli.cost import DEFAULT_CAP, agree_on_benchmark_cost

    earlier = [search.caps.max_cost_usd for search in known.values()]

    most = agree_on_benchmark_cost(
        client,
        out,
        environment=plan.environment,
        ideators=plan.ideators,
        executors=plan.executors,
        ideas=plan.ideas,
        options=plan.options,
        most=plan.max_cost_usd,
        default=max([DEFAULT_CAP, *(cap for cap in earlier if cap is not None)]),
        yes=yes,
    )
    return replace(plan, max_cost_usd=most)


def _open(name: str) -> Ideator:
    from assay.cli.search import open_ideator_named
    from assay.search.config import IdeatorOptions

    return open_ideator_named(name, IdeatorOptions())


def _check_keys(plan: Plan, known: Mapping[str, SearchBody]) -> None:
    """Open every ideator that is still to be asked, before one is. Raises as `_open`."""
    import asyncio

    for name in plan.ideators:
        search = known.get(name)
        if search is None or search.state == SearchState.RUNNING:
            asyncio.run(_open(name).aclose())


def _run(client: Client, out: Output, plan: Plan, known: Mapping[str, SearchBody]) -> None:
    from assay.analysis.ideation import ideation_report, ideation_tables
    from assay.cli.searching import follow_batch
    from assay.search.ideation import run

    out.say(f"{plan.id}: {_state(known, plan.ideators)}")
    wait = partial(follow_batch, out)
    try:
        outcome = run(client, plan, known, _open, say=out.say, wait=wait)
    except KeyboardInterrupt:
        out.err.print("Stopped here; what runs goes on. The same command continues from there.")
        raise typer.Exit(INTERRUPTED) from None
    except Exception:
        out.err.print("The same command continues from here; nothing is paid for twice.")
        raise
    environment = client.environments.get(plan.environment)
    report = ideation_report(outcome, environment.metric, environment.direction)
    out.data(asdict(report), *ideation_tables(report))
    if report.unfinished:
        out.say("Not complete. To continue, run the same command with a higher --max-cost.")
        raise typer.Exit(PAUSED)


def _state(known: Mapping[str, SearchBody], ideators: Sequence[str]) -> str:
    if not known:
        return f"asking {len(ideators)} ideators"
    return f"continuing; {len(known)} of {len(ideators)} ideators were asked before"

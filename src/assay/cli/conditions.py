"""`assay conditions …`."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli import options as opt
from assay.cli.command import AsJson, DryRun, command, full_id, root

app = typer.Typer(
    name="conditions",
    no_args_is_help=True,
    help="What decides which results are compared: held-out data, torch, and so on.",
)

Id = Annotated[str, typer.Argument(help="Id, or the beginning or end of one.")]


@app.command("list")
@command
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List recorded conditions and who has them.  Example: assay conditions list"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        found = list(client.conditions.list())
    made = table("id", "facts", "workers")
    for body in found:
        facts = ", ".join(f"{name} {told}" for name, told in body.facts.items())
        made.add_row(*map(cell, (body.id, facts, ", ".join(body.workers) or "–")))
    out.data(found, made)
    if not found:
        out.say("None: no worker has registered yet.")


@app.command()
@command
def show(
    context: typer.Context,
    env: opt.Environment,
    profile: opt.Profile,
    as_json: AsJson = False,
) -> None:
    """Show which hosts and conditions are taken for equal, and why.
    Example: assay conditions show --env nanogpt --profile tiny"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        found = list(client.environments.conditions(env, profile))
    made = table("conditions", "state", "compared with", "because of", "evidence")
    for body in found:
        why = "; ".join(body.differences)
        evidence = _evidence(body.evidence, body.declared_by)
        cells = (body.conditions, body.state, body.equals, why, evidence)
        made.add_row(*map(cell, cells))
    out.data(found, made)
    if not found:
        out.say("No host was compared there yet: the first batch does that.")


def _evidence(evidence: dict[str, object], declared_by: str | None) -> str:
    said = [f"declared by {declared_by}"] if declared_by else []
    if "failed" in evidence:
        said.append(f"failed: {evidence['failed']}")
    if evidence.get("to_the_digit"):
        said.append("the same to the digit")
    elif "p" in evidence:
        said.append(f"effect {evidence['effect']}, p {evidence['p']}")
    return ", ".join(said) or "–"


@app.command()
@command
def equate(
    context: typer.Context,
    conditions: Id,
    equals: Id,
    env: opt.Environment,
    profile: opt.Profile,
    despite_difference: Annotated[
        bool,
        typer.Option(
            "--despite-difference", help="Also if chance does not explain how baselines differ."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take conditions for equal to others whose baseline is measured, too.
    Example: assay conditions equate cnd_1 cnd_2 --env nanogpt --profile tiny"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        conditions, equals = (
            full_id(given, client.conditions.list()) for given in (conditions, equals)
        )
        if dry_run:
            message = f"would take {conditions} for equal to {equals} for {env}, {profile}"
            out.changed(conditions, message, dry_run=True)
            return
        body = client.environments.equate(
            env, profile, conditions, equals, despite_difference=despite_difference
        )
    agrees = "agree" if body.evidence.get("agrees") else "DISAGREE"
    out.changed(
        body.conditions,
        f"{body.conditions} is taken for equal to {body.equals} for {body.environment}, "
        f"{body.profile}, from now on. Their baselines {agrees}: "
        f"{_evidence(body.evidence, None)}.\n"
        f"Take it back with: assay conditions separate {body.conditions} --env {env} --profile "
        f"{profile}",
        detail=body,
    )


@app.command()
@command
def separate(
    context: typer.Context,
    conditions: Id,
    env: opt.Environment,
    profile: opt.Profile,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take back what `equate` declared.
    Example: assay conditions separate cnd_1 --env nanogpt --profile tiny"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        conditions = full_id(conditions, client.conditions.list())
        if dry_run:
            message = f"would no longer take {conditions} for equal to others for {env}, {profile}"
            out.changed(conditions, message, dry_run=True)
            return
        body = client.environments.separate(env, profile, conditions)
    out.changed(
        body.conditions,
        f"{body.conditions} is no longer taken for equal to {body.equals} for "
        f"{body.environment}, {body.profile}. What was measured in between stays with the results "
        f"of {body.equals}.",
        detail=body,
    )

"""`assay compare`: any two codebases on the same seeds, under the same conditions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import options as opt
from assay.cli.command import AsJson, command, full_id, root
from assay.domain.codebases import BASELINE, is_hash
from assay.domain.errors import AssayError, InvalidInput

if TYPE_CHECKING:
    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.batch import BatchBody, ExperimentBody, PairBody, SideBody

_SIDE = "An experiment, `baseline`, a folder with a codebase, or a codebase's hash."


@command
def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(help=_SIDE, metavar="A")],
    b: Annotated[
        str, typer.Argument(help="What A is compared with, named likewise.", metavar="B")
    ],
    env: Annotated[
        str | None, typer.Option(help="Environment, where neither side is an experiment.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Profile, where neither side is an experiment.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Measure both on so many fresh seeds first, and wait."),
    ] = None,
    allow_unisolated: opt.AllowUnisolated = False,
    timeout: opt.Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Compare two codebases by seed.  Example: assay compare ./mine baseline --env toy --profile tiny --seeds 5"""  # noqa: E501 - one line of help
    out = root(context).output(as_json)
    with root(context).client() as client:
        sides = [_side(client, given) for given in (a, b)]
        where = _where(client, sides, env, profile)
        if seeds is None:
            names = [side.name for side in sides]
            asked = (None, None) if where.batch else (where.environment, where.profile)
            body = client.compare(*names, environment=asked[0], profile=asked[1])
        else:
            names = _measure(client, out, sides, where, seeds, allow_unisolated, timeout)
            body = client.compare(*names)
    out.data(body, _described(body, [side.title for side in sides]))


@dataclass(frozen=True)
class _Side:
    """One of the two. `name` is what the API calls it; `files` are those of a folder."""

    name: str
    title: str
    experiment: ExperimentBody | None = None
    files: Mapping[str, str] | None = None


@dataclass(frozen=True)
class _Where:
    """Where they are compared; `batch` is that of the first experiment."""

    environment: str
    profile: str
    batch: BatchBody | None = None


def _side(client: Client, given: str) -> _Side:
    """What an argument names. Raises NotFound, Ambiguous or InvalidInput."""
    from assay.analysis.text import idea_title
    from assay.domain.hashing import text_tree_hash

    if given == BASELINE:
        return _Side(BASELINE, "the baseline")
    if is_hash(given):
        return _Side(given, f"codebase {given[:12]}")
    if os.sep in given or Path(given).is_dir():
        files = read_codebase(Path(given))
        return _Side(text_tree_hash(files), f"the folder {given}", files=files)
    body = client.experiments.get(full_id(given, client.experiments.list()))
    return _Side(body.id, f"{body.id}, {idea_title(body.idea.text)}", experiment=body)


def read_codebase(folder: Path) -> dict[str, str]:
    """The text files below a folder; those of git and Python's caches are left out.

    Raises:
        InvalidInput: it is no folder, or holds a link, a file that is not UTF-8 text, or more
            files than a codebase may have.
    """
    from assay.environments.bundle import is_ignored
    from assay.patching.guard import MAX_FILES

    if not folder.is_dir():
        raise InvalidInput(f"{folder}: there is no such folder")
    files: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        for name in (*folders, *sorted(name for name in names if not is_ignored(name))):
            path = Path(place, name)
            if path.is_symlink():
                raise InvalidInput(f"{path}: a codebase holds no symbolic links")
            if name in folders:
                continue
            if not path.is_file():
                raise InvalidInput(f"{path}: a codebase holds text files alone")
            if len(files) == MAX_FILES:
                raise InvalidInput(f"{folder}: a codebase holds at most {MAX_FILES} files")
            files[path.relative_to(folder).as_posix()] = _text(path)
    if not files:
        raise InvalidInput(f"{folder}: holds no files")
    return files


def _text(path: Path) -> str:
    try:
        str(path).encode()
        return path.read_bytes().decode()
    except UnicodeError:
        raise InvalidInput(
            f"{path}: its name or content is not UTF-8; a codebase holds text"
        ) from None


def _where(client: Client, sides: list[_Side], env: str | None, profile: str | None) -> _Where:
    found = [side.experiment for side in sides if side.experiment is not None]
    if found:
        if env is not None or profile is not None:
            raise InvalidInput("--env and --profile are those of the experiment; leave them out")
        batch = client.batches.get(found[0].batch)
        return _Where(batch.environment, batch.profile, batch)
    if env is None or profile is None:
        raise InvalidInput("neither side is an experiment: name --env and --profile")
    return _Where(client.environments.get(env).id, profile)


def _measure(
    client: Client,
    out: Output,
    sides: list[_Side],
    where: _Where,
    seeds: int,
    allow_unisolated: bool,
    timeout: float | None,
) -> list[str]:
    """Measure both sides in one batch. Returns its experiments."""
    from assay.analysis.text import counted
    from assay.contracts.batch import BatchOptions, BatchRequest, IdeaRequest
    from assay.domain.isolation import NO_MODEL
    from assay.domain.seeds import fresh_seeds

    codebases = [_codebase(client, side, where) for side in sides]
    if len(set(codebases)) == 1:
        raise InvalidInput(f"both sides are the same codebase, {codebases[0]}")
    pinned = where.batch
    request = BatchRequest(
        environment=where.environment,
        profile=where.profile,
        hardware_class=pinned.hardware_class if pinned else None,
        conditions=pinned.conditions if pinned else None,
        executor=NO_MODEL,
        ideas=[
            IdeaRequest(
                text=side.experiment.idea.text if side.experiment else f"Measure {side.title}.",
                parents=[side.experiment.id] if side.experiment else [],
                codebase=codebase,
            )
            for side, codebase in zip(sides, codebases, strict=True)
        ],
        options=BatchOptions(
            seeds=fresh_seeds(codebases, seeds),
            novelty="allow",
            allow_unisolated=allow_unisolated,
        ),
    )
    batch = client.batches.create(request).id
    out.say(f"{batch}: both on {counted(seeds, 'fresh seed')}")
    client.batches.wait(batch, timeout=timeout)
    found = list(client.experiments.list(batch=batch))
    for side, experiment in zip(sides, found, strict=True):
        if experiment.failure is not None:
            said = f"{experiment.failure.code}: {experiment.failure.message}"
            raise AssayError(
                f"{side.title} has no result to compare ({experiment.id} failed: {said}); see "
                f"assay experiment logs {experiment.id}",
                code="no_result",
            )
    return [experiment.id for experiment in found]


def _codebase(client: Client, side: _Side, where: _Where) -> str:
    """The hash of a side's codebase, which is uploaded if it is a folder."""
    if side.files is not None:
        return client.environments.upload(where.environment, side.files).id
    if side.name == BASELINE:
        return client.environments.get(where.environment).codebase
    if side.experiment is None:
        return side.name
    if side.experiment.codebase is None:
        raise InvalidInput(
            f"{side.name} has no codebase to measure: it is {side.experiment.state}"
        )
    return side.experiment.codebase


def _described(body: PairBody, titles: list[str]) -> str:
    from assay.analysis.text import counted, format_number, format_verdict

    found = body.comparison
    effect = f"A against B: {format_number(found.effect)} (positive: A is better)"
    if found.low is not None:
        effect += f", 95 % interval {format_number(found.low)} to {format_number(found.high)}"
    lines = [
        *(
            f"{letter}: {title}{_side_text(side)}"
            for letter, title, side in zip("AB", titles, (body.a, body.b), strict=True)
        ),
        f"{body.metric_name} ({body.direction}) of {body.environment}, {body.profile}, on "
        f"{counted(len(body.seeds), 'seed')} that both have: {_ranges(body.seeds)}",
        effect,
        f"verdict on A: {format_verdict(found)}",
        f"conditions: {_conditions(body)}",
    ]
    if len(body.seeds) == 1 and found.p is None and not found.mismatch:
        lines.append("One seed shows no spread; measure both on more: --seeds 5")
    return "\n".join(lines)


def _side_text(side: SideBody) -> str:
    return f" ({side.codebase[:12]}{', unmodified' if side.is_baseline else ''})"


def _conditions(body: PairBody) -> str:
    each = [
        f"{side.conditions or 'not recorded'} ({side.hardware_class})" for side in (body.a, body.b)
    ]
    return each[0] if each[0] == each[1] else f"A {each[0]}, B {each[1]}"


def _ranges(seeds: list[int]) -> str:
    """Seeds in short: 0-4, 7."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], seed]
        else:
            parts.append([seed])
    return ", ".join("-".join(map(str, part)) for part in parts)

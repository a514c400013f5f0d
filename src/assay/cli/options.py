"""Flags that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import completion
from assay.domain.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic import ValidationError

    from assay.contracts.batch import BatchOptions
    from assay.contracts.caps import SearchSpending

# The bracket is escaped because help texts are rich markup.
_MODEL = "Who {}: provider:model\\[@base_url]."

Environment = Annotated[
    str,
    typer.Option(
        "--env",
        help="Environment: name or name@hash.",
        autocompletion=completion.environments,
    ),
]
#: Lists leave out other environments.
OnlyEnvironment = Annotated[
    str | None,
    typer.Option(
        "--env", help="Only of this environment.", autocompletion=completion.environments
    ),
]
Profile = Annotated[
    str, typer.Option(help="Size at which it runs.", autocompletion=completion.profiles)
]
Executor = Annotated[str, typer.Option(help=_MODEL.format("writes the diffs"))]
Ideator = Annotated[str, typer.Option(help=_MODEL.format("proposes ideas"))]
HardwareClass = Annotated[str | None, typer.Option(help="What to measure on.")]
Conditions = Annotated[
    str | None,
    typer.Option(
        help="Under which conditions, as `assay conditions list`; by default those of most live "
        "capacity."
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="What ideas that name no base change: as `assay env bases`, an experiment, a hash."
    ),
]
Samples = Annotated[int, typer.Option(help="Diffs per idea, at most.")]
Revisions = Annotated[int, typer.Option(help="Self-revisions per sample.")]
Sampling = Annotated[str, typer.Option(help="staged, or paper: all samples at once.")]
Seeds = Annotated[str, typer.Option(help="Seeds each idea is measured on, as 0,1,2 or 0-4.")]
BaselineSeeds = Annotated[
    int | None,
    typer.Option(
        help="Seeds the baseline is measured on; 20 without GPUs, 3 with them.",
        show_default=False,
    ),
]
MaxCost = Annotated[
    float | None,
    typer.Option(
        help="US dollars after which no model call starts; 5 if a model is asked.",
        show_default=False,
    ),
]
MaxIdeatorCost = Annotated[
    float | None,
    typer.Option(help="Of it, US dollars after which no ideas are asked for.", show_default=False),
]
MaxExecutorCost = Annotated[
    float | None,
    typer.Option(help="Of it, US dollars after which no code is asked for.", show_default=False),
]
Record = Annotated[
    Path | None,
    typer.Option(help="Folder in which the ideator's answers are kept.", show_default=False),
]
Replay = Annotated[
    Path | None,
    typer.Option(
        help="Folder from which the ideator's answers are taken: no key, no cost.",
        show_default=False,
    ),
]
MaxGpuHours = Annotated[
    float | None,
    typer.Option(help="GPU-hours beyond which no measurement is asked for.", show_default=False),
]
Temperature = Annotated[
    float | None, typer.Option(help="Of the executor; not sent if not given.", show_default=False)
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        help="Of an executor's answer, thinking included; by default the service's.",
        show_default=False,
    ),
]
Effort = Annotated[
    str | None,
    typer.Option(help="How hard the executor thinks: low, medium or high.", show_default=False),
]
IdeatorTemperature = Annotated[
    float | None, typer.Option(help="Of the ideator; not sent if not given.", show_default=False)
]
IdeatorMaxTokens = Annotated[
    int | None,
    typer.Option(help="Of an ideator's answer, thinking included.", show_default=False),
]
IdeatorEffort = Annotated[
    str | None,
    typer.Option(help="How hard the ideator thinks: low, medium or high.", show_default=False),
]
ContextTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens that prompt and answer of the ideator may have together; by default the "
        "model's window, at most 200,000.",
        show_default=False,
    ),
]
Preflight = Annotated[
    str,
    typer.Option(help="off, compile, or smoke: also start each codebase, briefly."),
]
Repairs = Annotated[
    int, typer.Option(help="How often a codebase that crashes early goes back to its model.")
]
Novelty = Annotated[
    str, typer.Option(help="Ideas in nearly the words of earlier ones: allow, warn or skip.")
]
Priority = Annotated[int, typer.Option(help="Higher goes first.")]
AllowUnisolated = Annotated[
    bool, typer.Option("--allow-unisolated", help="Also use workers without a sandbox.")
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Measure codebases again that failed in earlier batches."),
]
NoPause = Annotated[
    bool,
    typer.Option("--no-pause", help="Go on even if one code ended most of an epoch."),
]
Stream = Annotated[str, typer.Option(help="train or score.")]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="Submitting again with the same key changes nothing.")
]
Timeout = Annotated[
    float | None, typer.Option(help="Stop waiting after so many seconds (exit code 124).")
]


def batch_options(seeds: str, max_cost: float | None, **values: Any) -> BatchOptions:
    """Options from flags; `values` are those that go by the option's own name.

    Raises:
        InvalidInput: a value is out of range.
    """
    from pydantic import ValidationError

    from assay.contracts.batch import BatchOptions

    values["seeds"] = parse_seeds(seeds)
    values["max_cost_usd"] = None if max_cost is None else str(max_cost)
    try:
        return BatchOptions.model_validate(values)
    except ValidationError as error:
        raise wrong_flag(error) from None


def search_caps(**dollars: float | None) -> SearchSpending:
    """Caps of a search from flags, by the name of the cap without its unit.

    Raises:
        InvalidInput: a value is out of range.
    """
    from pydantic import ValidationError

    from assay.contracts.caps import SearchSpending

    given = {f"{name}_usd": str(value) for name, value in dollars.items() if value is not None}
    try:
        return SearchSpending.model_validate(given)
    except ValidationError as error:
        raise wrong_flag(error) from None


def wrong_flag(error: ValidationError, prefix: str = "--") -> InvalidInput:
    """What to say where the value of a flag is out of range."""
    first = error.errors()[0]
    flag = prefix + str(first["loc"][0]).removesuffix("_usd").replace("_", "-")
    return InvalidInput(f"{flag}: {first['msg']}")


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` or `0-4` or both.

    Raises:
        InvalidInput: something else, or a range of more than 64.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last) if dash else int(first)
        except ValueError:
            raise InvalidInput(f"--seeds: {text!r} is not a list such as 0,1,2 or 0-4") from None
        if not 0 <= high - low < 64:
            raise InvalidInput(f"--seeds: {part!r} must hold 1 to 64 seeds")
        seeds += range(low, high + 1)
    return sorted(set(seeds))

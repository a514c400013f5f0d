"""What the ideator reads in one epoch of a long search, and how much of it providers can cache.

    python -m benchmarks.prompts

An epoch of `nanogpt` tiny with 80 ideas after 640 experiments, asked for as `evolution` asks, in
two layouts of the prompt: `message`, where the experiments stand in the question behind the cached
codebase, a fresh sample for each (how Assay asked before it had a log); and `log`, where they are
part of what is cached. Nothing is sent and nothing is timed: tokens are those of
`assay.llm.tokens.estimate_tokens`, and a cache is taken to hold what an earlier call of the epoch
began with. Dollars are list prices of `--model` for the input alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.domain.hashing import derive_seed
from assay.environments.catalog import RULES, Catalog
from assay.llm import (
    Completion,
    IdeaText,
    IdeationRequest,
    ModelIdeator,
    ModelName,
    Prompt,
    Trajectory,
    Usage,
    format_idea,
    price,
    prompts,
)
from assay.llm.ideation import Baseline, CurveEnd, Standing
from assay.llm.ideator_context import environment_text
from assay.llm.tokens import estimate_tokens
from assay.llm.trajectory_text import describe
from assay.search import Situation, open_strategy

EDITS = Path(__file__).parents[1] / "tests/environments/nanogpt/edits"
BASELINE = Baseline(1.3617, 0.0132, 20)
#: Bounds of the layout `message`: characters of a strategy's choice, and of what was then shown.
CHOSEN, SHOWN = 200_000, 60_000 * 4
_COUNT = re.compile(r"Propose (\d+) ")
_TEXT = "the loss falls when every block adds its output scaled by a learned gain near zero"


@dataclass
class Scripted:
    """A model that answers as many ideas as it is asked for, and keeps its prompts."""

    name: ModelName
    prompts: list[Prompt]
    takes_temperature: bool = True

    async def complete(self, prompt: Prompt, **_: object) -> Completion:
        found = _COUNT.search(prompt.messages[0].text)
        assert found is not None
        self.prompts.append(prompt)
        number = len(self.prompts)
        text = "\n\n".join(idea(derive_seed(number, i)) for i in range(int(found[1])))
        return Completion(text, "", "end", Usage(), "scripted")

    async def aclose(self) -> None:
        """Nothing to close."""


def idea(seed: int) -> str:
    """An idea of about the length that models write."""
    rng = random.Random(seed)
    vocabulary = _TEXT.split()
    words = [rng.choice(vocabulary) for _ in range(300)]
    return format_idea(IdeaText(" ".join(words[:100]) + ".", " ".join(words[100:]) + "."))


def experiments(count: int, size: int) -> tuple[Trajectory, ...]:
    """Experiments as a search leaves them: a third fail, a third of the others are better."""
    diffs = [path.read_text() for path in sorted(EDITS.glob("*.diff"))]
    return tuple(_experiment(number, size, diffs) for number in range(count))


def _experiment(number: int, size: int, diffs: Sequence[str]) -> Trajectory:
    rng = random.Random(derive_seed("experiment", number))
    past = Trajectory(
        id=f"exp_{number:026d}",
        epoch=number // size,
        position=number % size,
        idea_text=idea(derive_seed("idea", number)),
        reward=0.0,
        state="failed",
        operator="explore",
        failure="train (crashed): RuntimeError: The size of tensor a (64) must match b (63)",
    )
    if rng.random() < 1 / 3:
        return past
    loss = rng.gauss(1.38, 0.05)
    verdict = "better" if loss < 1.335 else "worse" if loss > 1.39 else "undecided"
    return replace(
        past,
        state="succeeded",
        failure="",
        metric=loss,
        reward=1 / loss,
        diff=rng.choice(diffs),
        seeds=1,
        seconds=14.0,
        standing=Standing(verdict, BASELINE),
        curve=CurveEnd("train/loss", ((252.0, 1.47), (266.0, 1.45), (280.0, 1.44))),
    )


def questions(count: int, size: int) -> list[IdeationRequest]:
    """The questions of an epoch after `count` experiments, as the search puts them."""
    environment = Catalog().get("nanogpt")
    profile = environment.profile("tiny")
    known = experiments(count, size)
    asks = open_strategy("evolution").plan(
        Situation(count // size, size, 0, known, 1 / BASELINE.mean)
    )
    return [
        IdeationRequest(
            operator=ask.operator,
            count=ask.count,
            environment_title=environment.manifest.title,
            problem=environment.manifest.problem,
            metric_name="val_loss",
            metric_goal="lower is better",
            files=environment.codebase,
            seed=ask.seed,
            protected=environment.manifest.codebase.protected,
            budget=profile.in_words,
            profile=f"tiny: {profile.description}",
            profile_notes=environment.profile_notes("tiny"),
            rules=environment.prompt(RULES),
            trajectories=ask.known,
            parents=ask.parents,
            baseline=BASELINE,
        )
        for ask in asks
    ]


def log_prompts(model: ModelName, asked: Sequence[IdeationRequest]) -> list[Prompt]:
    """The prompts of an epoch with the log in the cached part."""
    scripted = Scripted(model, [])
    for request in asked:
        asyncio.run(ModelIdeator(scripted).propose(request))
    return scripted.prompts


def message_prompts(asked: Sequence[IdeationRequest]) -> list[Prompt]:
    """The prompts of an epoch with the experiments in the message."""
    made = []
    for request in asked:
        texts = _in_message(request)
        for first in range(0, request.count, 8):
            count = min(8, request.count - first)
            prompt = prompts.ideator_prompt(
                request.operator,
                environment_text(request),
                count=count,
                metric="val_loss",
                already=[idea(i) for i in range(first)],
            )
            question = prompt.messages[0]
            text = "\n\n".join([*texts, question.text])
            made.append(replace(prompt, messages=(replace(question, text=text),)))
    return made


def _in_message(request: IdeationRequest) -> list[str]:
    exploits = request.operator == "exploit"
    pool = sorted(request.parents, key=lambda t: -t.reward)
    if not exploits:
        pool = list(request.trajectories)
        random.Random(request.seed).shuffle(pool)
    texts: list[str] = []
    chosen = shown = 0
    for past in pool:
        text = describe(past, "val_loss", with_diff=exploits)
        chosen += len(past.idea_text) + len(past.diff) + len(past.failure) + 100
        shown += len(text)
        if chosen > CHOSEN or shown > SHOWN:
            break
        texts.append(text)
    return texts


@dataclass(frozen=True)
class Cost:
    """Tokens of an epoch: all, in parts that are marked to be cached, and read from a cache."""

    calls: int
    tokens: int
    prefix: int
    read: int
    usd: float


def cost(made: Sequence[Prompt], model: ModelName, before: Sequence[Prompt] = ()) -> Cost:
    """What an epoch costs; `before` are prompts that are still in the cache."""
    known = {_parts(prompt)[: n + 1] for prompt in before for n in range(len(_parts(prompt)))}
    total = Usage()
    for prompt in made:
        parts = _parts(prompt)
        read = written = 0
        for n, part in enumerate(parts):
            size = estimate_tokens(part)
            if parts[: n + 1] in known:
                read += size
            else:
                written += size
        known |= {parts[: n + 1] for n in range(len(parts))}
        rest = estimate_tokens(prompt.messages[0].text)
        total = Usage(
            total.input_tokens + rest,
            0,
            total.cached_input_tokens + read,
            total.cache_write_tokens + written,
        )
    prefix = total.cached_input_tokens + total.cache_write_tokens
    dollars = price(model, total)
    return Cost(
        len(made), total.all_input_tokens, prefix, total.cached_input_tokens, float(dollars or 0)
    )


def _parts(prompt: Prompt) -> tuple[str, ...]:
    return (prompt.system, *prompt.cached_parts)


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ideas", type=int, default=80)
    parser.add_argument("--experiments", type=int, default=640)
    parser.add_argument("--model", default="anthropic:claude-opus-4-5")
    options = parser.parse_args()
    model = ModelName.parse(options.model)
    asked = questions(options.experiments, options.ideas)
    earlier = questions(options.experiments - options.ideas, options.ideas)
    layouts = {
        "message": (message_prompts(asked), message_prompts(earlier)),
        "log": (log_prompts(model, asked), log_prompts(model, earlier)),
    }
    print(f"{'layout':<9}{'calls':>6}{'shown':>7}{'tokens':>11}{'in prefix':>11}"
          f"{'read':>8}{'USD':>7}{'USD, warm':>11}")  # fmt: skip
    report = {}
    for name, (made, before) in layouts.items():
        cold, warm = cost(made, model), cost(made, model, before)
        shown = max(len(set(re.findall(r"id (exp_\d+),", _whole(prompt)))) for prompt in made)
        shares = cold.prefix / cold.tokens, cold.read / cold.tokens
        print(f"{name:<9}{cold.calls:>6}{shown:>7}{cold.tokens:>11,}{shares[0]:>11.0%}"
              f"{shares[1]:>8.0%}{cold.usd:>7.2f}{warm.usd:>11.2f}")  # fmt: skip
        report[name] = {
            "calls": cold.calls,
            "most_experiments_shown": shown,
            "input_tokens": cold.tokens,
            "share_in_prefix": round(shares[0], 4),
            "share_read_from_cache": round(shares[1], 4),
            "usd": round(cold.usd, 2),
            "usd_if_the_epoch_before_is_cached": round(warm.usd, 2),
        }
    print(json.dumps({"benchmark": "prompts", **vars(options), **report}))


def _whole(prompt: Prompt) -> str:
    return "\n".join((*prompt.cached_parts, prompt.messages[0].text))


if __name__ == "__main__":
    main()

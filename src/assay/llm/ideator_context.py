"""What an ideator is shown of past experiments, within the tokens that its model can read.

A prompt is put together so that providers can cache most of it. It begins with what never changes
(rules, environment, codebase), then comes the log of experiments, oldest first, in one part per
epoch: byte for byte the same in all questions of an epoch, and the beginning of the log of the
next epoch. Last comes what only one question says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from assay.domain.hashing import derive_seed
from assay.llm import prompts
from assay.llm.ideation import BUILDING, IdeationRequest, Operator, Trajectory
from assay.llm.interface import Prompt
from assay.llm.tokens import estimate_tokens
from assay.llm.trajectory_text import baseline_sentence, describe, recall

#: Share of the room that the log may take; the rest is for the diffs of what is built on.
_LOG_SHARE = 2 / 3
#: Kept for the question itself and for the ideas that earlier calls of it had.
_QUESTION_TOKENS, _QUESTION_SHARE = 8_000, 1 / 8
#: Characters of an answer that a repair shows even where there is no room for it.
_LEAST_SHOWN = 2_500
_LARGEST_SEED = 2**63
#: Which prompt introduces what is built on, and the mark of each such experiment.
_PARENTS: dict[Operator, tuple[str, str]] = {
    "exploit": ("ideator_positives", "POSITIVE"),
    "refine": ("ideator_promising", "PROMISING"),
    "combine": ("ideator_promising", "PROMISING"),
    "ablate": ("ideator_promising", "PROMISING"),
    "rescue": ("ideator_failed", "FAILED"),
}


@dataclass(frozen=True)
class Shown:
    """What is in front of a question. `shown` are the trajectories that it describes."""

    block: str
    log: tuple[str, ...] = ()
    shown: tuple[Trajectory, ...] = ()


def environment_text(request: IdeationRequest) -> str:
    """Return the first part: the environment with its rules, and the codebase."""
    return prompts.environment_block(
        title=request.environment_title,
        problem=request.problem,
        budget=request.budget,
        protected=request.protected,
        files=request.files,
        rules=request.rules,
        profile=request.profile,
        profile_notes=request.profile_notes,
    )


def build(request: IdeationRequest, context: int, answer: int) -> Shown:
    """Return what a question is preceded by, in at most `context` tokens less the `answer`.

    Tokens are counted by `estimate_tokens`. Every question of an epoch gets the same log. One that
    builds on experiments gets another part behind it: these, best first, with diffs.
    """
    block = environment_text(request)
    fixed = estimate_tokens(block) + estimate_tokens(prompts.template("ideator_system"))
    question = min(_QUESTION_TOKENS, int(_QUESTION_SHARE * context))
    room = context - answer - fixed - question
    log, logged = _log(request, int(_LOG_SHARE * room))
    if request.operator not in BUILDING:
        return Shown(block, log, logged)
    room -= sum(map(estimate_tokens, log))
    own, built_on = _built_on(request, {past.id for past in logged}, room)
    known = {past.id: past for past in (*built_on, *logged)}
    return Shown(block, (*log, own) if own else log, tuple(known.values()))


def repair(first: Prompt, answer: str, unread: Sequence[str], room: int) -> Prompt:
    """Return the question that shows an answer and what could not be read of it: see `prompts`.

    In at most `room` tokens, as far as that can be: the last parts of the log are left out until
    it fits, so that what is sent still begins as `first` does and providers have it cached. Then
    the answer is shortened.
    """
    log, most = first.log, prompts.MAX_PREVIOUS
    while True:
        again = prompts.ideas_again_prompt(replace(first, log=log), answer, unread, most)
        if _tokens(again) <= room or (not log and most <= _LEAST_SHOWN):
            return again
        log, most = (log[:-1], most) if log else ((), most // 2)


def _tokens(prompt: Prompt) -> int:
    said = (message.text for message in prompt.messages)
    return sum(map(estimate_tokens, (prompt.system, *prompt.cached_parts, *said)))


def sample_within(sizes: Sequence[int], ids: Sequence[str], limit: int, seed: int) -> list[int]:
    """Return the indices of a random sample whose sizes add up to at most `limit`, in order.

    All are taken if they fit; else each with the same probability, the first of 1/2, 1/4, 1/8 …
    for which they do. Who is taken at a probability depends on `seed` and its id alone. So a
    longer list has a sample that begins with that of the shorter one until the probability falls,
    which it does once per doubling: what a provider has cached stays of use in between.
    """
    draws = [derive_seed(seed, "log", each) / _LARGEST_SEED for each in ids]
    share = 1.0
    while True:
        taken = [index for index, draw in enumerate(draws) if draw < share]
        if sum(sizes[index] for index in taken) <= limit:
            return taken
        share /= 2


def _log(request: IdeationRequest, limit: int) -> tuple[tuple[str, ...], tuple[Trajectory, ...]]:
    """The log in parts, and the trajectories in it."""
    past = request.trajectories
    head = prompts.log_head(baseline_sentence(request.metric_name, request.baseline))
    texts = [describe(each, request.metric_name) for each in past]
    sizes = [estimate_tokens(text) + 1 for text in texts]
    room = max(0, limit - estimate_tokens(head))
    taken = sample_within(sizes, [each.id for each in past], room, request.sample_seed)
    if not taken:
        return (), ()
    epochs = groupby(taken, key=lambda index: (past[index].source, past[index].epoch))
    parts = ["\n\n".join(texts[index] for index in group) for _, group in epochs]
    return (head, *parts), tuple(past[index] for index in taken)


def _built_on(
    request: IdeationRequest, logged: set[str], limit: int
) -> tuple[str, tuple[Trajectory, ...]]:
    """The part that says what to build on, and the trajectories in it: the best that fit."""
    metric = request.metric_name
    introduction, mark = _PARENTS[request.operator]
    texts: list[str] = []
    chosen: list[Trajectory] = []
    left = limit - estimate_tokens(prompts.template(introduction))
    for past in sorted(request.parents, key=lambda t: (-t.reward, t.id)):
        known = past.id in logged
        text = recall(past, metric, mark) if known else describe(past, metric, with_diff=True)
        left -= estimate_tokens(text) + 1
        if left < 0:
            break
        texts.append(text)
        chosen.append(past)
    if not texts:
        return "", ()
    return prompts.render(introduction, parents="\n\n".join(texts)), tuple(chosen)

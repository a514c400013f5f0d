"""Made-up records of searches, as large and as odd as a test wants them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from assay.analysis.report import EpochRecord, Payment, SearchRecord
from assay.contracts.batch import BatchBody, ComparisonBody, ExperimentBody, IdeaRequest
from assay.contracts.environment import EnvironmentBody
from assay.contracts.search import SearchBody

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASELINE = 3.255
_TOPICS = (
    "normalisation of layers", "momentum of the optimiser", "warmup schedule", "gated attention",
    "weight decay", "embedding scale", "averaged checkpoints", "logit softcap",
)  # fmt: skip


def environment(**changes: Any) -> EnvironmentBody:
    """An environment as the API shows it."""
    profile = {"name": "tiny", "description": "", "cpus": 1, "gpus": 0, "memory_gb": 2.0,
               "budget": {}, "baseline_seeds": 5}  # fmt: skip
    body = {"id": "nanogpt@abc", "name": "nanogpt", "title": "nanoGPT", "problem": "",
            "metric": "val_loss", "unit": "nats", "direction": "minimize", "reward": "reciprocal",
            "protected": [], "profiles": [profile], "codebase": "0" * 64}  # fmt: skip
    return EnvironmentBody.model_validate({**body, **changes})


def search(number: int = 1, **changes: Any) -> SearchBody:
    """The record of a finished search."""
    body = {"id": f"srch_{number:026d}", "owner": "local", "environment": "nanogpt@abc",
            "profile": "tiny", "strategy": "evolution", "seed": 0, "epochs": 10, "batch_size": 80,
            "ideator": "anthropic:claude-opus-4-5", "executor": "anthropic:claude-opus-4-5",
            "hardware_class": "cpu-bf16", "config": {}, "state": "finished", "epochs_finished": 10,
            "best": [], "metadata": {}, "created_at": START, "finished_at": None}  # fmt: skip
    return SearchBody.model_validate({**body, **changes})


def batch(number: int, epoch: int, **changes: Any) -> BatchBody:
    """The batch of an epoch."""
    baseline = {"mean": BASELINE, "spread": 0.012, "n": 20, "pending": 0}
    body = {"id": f"bat_{number:018d}{epoch:08d}", "owner": "local", "environment": "nanogpt@abc",
            "profile": "tiny", "hardware_class": "cpu-bf16", "executor": "x", "ideator": "x",
            "state": "finished", "counts": {}, "funnel": {}, "usage": {}, "baseline": baseline,
            "best": None, "options": {}, "search": None, "epoch": epoch, "metadata": {},
            "created_at": START, "finished_at": START,
            "links": {"self": "", "experiments": "", "events": ""}}  # fmt: skip
    return BatchBody.model_validate({**body, **changes})


def comparison(effect: float, **changes: Any) -> ComparisonBody:
    """A comparison with a standard error of 0.01."""
    verdict = "better" if effect > 0.02 else "worse" if effect < -0.02 else "undecided"
    body = {"baseline_mean": BASELINE, "baseline_spread": 0.012, "baseline_n": 20, "n": 1,
            "effect": effect, "standard_error": 0.01, "sigmas": effect / 0.01,
            "degrees_of_freedom": 19.0, "low": effect - 0.021, "high": effect + 0.021,
            "p": 0.01 if verdict != "undecided" else 0.4, "posterior": effect,
            "p_improves": 0.9, "verdict": verdict}  # fmt: skip
    return ComparisonBody.model_validate({**body, **changes})


def experiment(
    id_: str, batch_id: str, position: int, text: str, metric: float | None, **changes: Any
) -> ExperimentBody:
    """An experiment with this metric; without one, a failed experiment."""
    idea = {"id": f"idea_{id_}", "text": text, "client_key": None, "operator": "seed",
            "parents": []} | changes.pop("idea", {})  # fmt: skip
    failure = {"stage": "train", "code": "crashed", "message": "Traceback\nValueError: no"}
    has_result = metric is not None and metric == metric
    body = {"id": id_, "batch": batch_id, "position": position, "idea": idea,
            "state": "failed" if metric is None else "succeeded", "is_terminal": True,
            "failure": failure if metric is None else None, "implementation": f"impl_{id_}",
            "codebase": "1" * 64, "measurements": [f"mea_{id_}"], "metric_name": "val_loss",
            "metric": metric, "reward": 1 / metric if metric and has_result else 0.0,
            "comparison": comparison(BASELINE - metric) if metric and has_result else None,
            "seconds": 90.0, "created_at": START, "finished_at": START}  # fmt: skip
    return ExperimentBody.model_validate({**body, **changes})


def edit(name: str, before: Sequence[str], after: Sequence[str]) -> str:
    """A unified diff of one file that replaces some lines by others."""
    lines = [f"diff --git a/{name} b/{name}", f"--- a/{name}", f"+++ b/{name}",
             f"@@ -3,{len(before) + 1} +3,{len(after) + 1} @@", " import torch"]  # fmt: skip
    return "\n".join([*lines, *(f"-{b}" for b in before), *(f"+{a}" for a in after), ""])


def record(
    number: int = 1,
    *,
    epochs: int = 10,
    size: int = 80,
    gain: float = 0.012,
    private: int = 0,
    dollars: str | None = "0.0213",
    confirmed: int = 0,
    **changes: Any,
) -> SearchRecord:
    """A search whose ideas improve by `gain` per epoch, converge, and fail one time in five."""
    chance = random.Random(number)
    of = search(number, epochs=epochs, epochs_finished=epochs, batch_size=size, **changes)
    found, diffs, payments = [], {}, []
    parents: list[str] = []
    for epoch in range(epochs):
        belongs = batch(number, epoch)
        made, ideas = [], []
        for place in range(size):
            ended = START + timedelta(minutes=epoch * size + place + 1)
            topic = _TOPICS[chance.randrange(max(2, len(_TOPICS) - epoch))]
            rate = round(chance.uniform(0.0005, 0.004), 5)
            text = (
                f"[Experiment] Improve {topic} with a rate of {rate} in step {place}: a longer "
                f"sentence says why {topic} should help at this size of the model.\n"
                f"[Code Changes] In `train.py` change `learning_rate` to {rate} and "
                f"{topic}.\n[End]"
            )
            thinking = "Because " * chance.randrange(40, 120 - 6 * epoch)
            operator = "seed" if epoch == 0 or of.strategy == "best-of-n" else "exploit"
            of_idea = {"operator": operator, "parents": parents[:3] if operator != "seed" else []}
            ideas.append(
                IdeaRequest(text=text, operator=operator, thinking=thinking if private else None)
            )
            is_failed = chance.random() < 0.2
            metric = BASELINE + chance.gauss(0.03 - gain * epoch, 0.03)
            if chance.random() < 0.03:
                metric += 4
            id_ = f"exp_{number:06d}{epoch:08d}{place:012d}"
            one = experiment(
                id_, belongs.id, place, text, None if is_failed else round(metric, 4),
                idea=of_idea, finished_at=ended, seconds=chance.uniform(60, 140),
            )  # fmt: skip
            made.append(one)
            if chance.random() < 0.3:
                diffs[id_] = edit("train.py", ["rate = 0.001"], [f"rate = {rate}"])
            elif not is_failed or chance.random() < 0.7:
                diffs[id_] = edit("train.py", ["x = norm(x)"], ["x = gate(norm(x)) * scale"])
            cost = None if dollars is None else Decimal(dollars)
            payments.append(Payment(ended - timedelta(minutes=2), cost, "executor"))
        cost = None if dollars is None else Decimal(dollars) * 10
        begun = START + timedelta(minutes=epoch * size)
        payments.append(Payment(begun, cost, "ideator"))
        scored = sorted((e for e in made if e.metric), key=lambda e: e.metric or 0.0)
        parents = [e.id for e in scored[:3]]
        found.append(EpochRecord(epoch, belongs, made, ideas, private * size))
    record = SearchRecord(of, environment(), found, diffs, sorted(payments, key=lambda p: p.at))
    return confirm(record, confirmed) if confirmed else record


def confirm(record: SearchRecord, number: int) -> SearchRecord:
    """The record with its best results confirmed: the effects of half of them hold."""
    best = sorted(
        (e for e in record.experiments if e.metric is not None), key=lambda e: e.metric or 0.0
    )
    again = {}
    for place, one in enumerate(best[:number]):
        effect = one.comparison.effect if one.comparison else 0.0
        holds = place % 2 == 0
        found = comparison(effect * (0.8 if holds else 0.1))
        again[one.id] = one.model_copy(
            update={"confirmation": confirmation(found, one, is_claimed=holds)}
        )
    epochs = [
        EpochRecord(
            e.number, e.batch, [again.get(x.id, x) for x in e.experiments], e.ideas,
            e.private_thinking,
        )
        for e in record.epochs
    ]  # fmt: skip
    return SearchRecord(record.search, record.environment, epochs, record.diffs, record.payments)


def confirmation(found: ComparisonBody, one: ExperimentBody, *, is_claimed: bool | None) -> Any:
    """What a confirmation says of an experiment."""
    from assay.contracts.batch import ConfirmationBody

    claimed = one.comparison.effect if one.comparison else 0.0
    body = {"experiment": f"exp_c{one.id[5:]}", "batch": "bat_confirm", "state": "succeeded",
            "metric_name": "val_loss", "metric": BASELINE - found.effect, "comparison": found,
            "claimed": is_claimed, "gap": claimed - found.effect}  # fmt: skip
    return ConfirmationBody.model_validate(body)

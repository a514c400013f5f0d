"""The implement loop: samples, revisions, the first that applies wins, every call recorded."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.contracts.batch import BatchRequest
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import Failure
from assay.llm import Completion, ImplementRequest, RetryPolicy, Usage, open_executor
from assay.storage import batches, environments, schema
from assay.storage import samples as stored
from assay.storage.implementations import Work
from services.implementer.asking import NoLongerWantedError
from services.implementer.context import Context
from services.implementer.judging import Judge, Judgement, Patched, Rejected
from services.implementer.limits import LONGEST_WARM_UP_S, Gates
from services.implementer.loop import Loop, Shared, conclude, take_up
from services.implementer.smoke import Waiter
from tests.implementer.conftest import batch
from tests.implementer.scripted import Scripted, judge_here
from tests.support.provider import anthropic
from tests.support.provider.server import serve

GOOD = "```diff\n--- a/train.py\n+++ b/train.py\n@@ -3,1 +3,1 @@\n-STEP = 1\n+STEP = 4\n```"
MISFIT = GOOD.replace("-STEP = 1", "-STEP = 99")
BROKEN = GOOD.replace("+STEP = 4", "+STEP = (4")
RETURN = GOOD.replace("+STEP = 4", "+return 4")
FORBIDDEN = (
    "```diff\n--- a/sealed.py\n+++ b/sealed.py\n@@ -1 +1 @@\n"
    "-# no diff may touch this\n+# touched\n```"
)


def loop_of(
    context: Context,
    work: Work,
    executor: Any,
    baseline: dict[str, str],
    *,
    judge: Judge = judge_here,
    longest_warm_up_s: float = LONGEST_WARM_UP_S,
) -> Loop:
    gates = Gates(context.settings.models, longest_warm_up_s=longest_warm_up_s)
    return Loop(context, work, executor, baseline, Shared(gates, Waiter(context)), judge)


def submit(context: Context, executor: str = "anthropic:claude-opus-4-5", **options: Any) -> str:
    """A batch of one idea; the experiment's id."""
    request = BatchRequest.model_validate(
        batch("Count in fours.", executor=executor, options={"baseline_seeds": 0, **options})
    )
    environment = environments.register(context.db, context.store, context.catalog.get("count"))
    with context.db.write() as session:
        batch_id = batches.create(
            context.db, session, request, "local", environment, Conditions("cpu")
        )
        return session.scalars(
            select(schema.Experiment.id).where(schema.Experiment.batch_id == batch_id)
        ).one()


def implement(
    context: Context, experiment: str, executor: Any, **options: Any
) -> Patched | Failure:
    """Take the experiment up, go through the loop, store what came of it."""
    taken = take_up(context, experiment)
    assert taken is not None
    work, baseline = taken

    async def run() -> Patched | Failure:
        try:
            return await loop_of(context, work, executor, baseline, **options).run()
        finally:
            await executor.aclose()

    outcome = asyncio.run(run())
    conclude(context, work, outcome)
    return outcome


def samples(context: Context, experiment: str) -> list[schema.Sample]:
    with context.db.read() as session:
        implementation = session.scalars(
            select(schema.Implementation).where(schema.Implementation.experiment_id == experiment)
        ).one()
        return stored.of(session, implementation.id)


def test_the_first_answer_that_applies_wins_and_one_call_suffices(context: Context) -> None:
    experiment = submit(context)
    executor = Scripted(lambda _: GOOD)
    outcome = implement(context, experiment, executor)
    assert isinstance(outcome, Patched)
    assert "STEP = 4" in outcome.files["train.py"]
    assert len(executor.asked) == 1
    (row,) = samples(context, experiment)
    assert (row.state, row.input_tokens, row.output_tokens) == ("applied", 1000, 100)
    assert row.cost_usd == Decimal("0.0075")  # 1000 × $5 + 100 × $25 per million
    assert row.diff is not None
    assert "+STEP = 4" in row.diff
    with context.db.read() as session:
        assert session.get_one(schema.Experiment, experiment).state == "queued"


@pytest.mark.parametrize(
    ("first", "code", "says"),
    [
        (MISFIT, "no_match", "STEP = 99"),
        (BROKEN, "syntax_error", "train.py"),
        (RETURN, "does_not_compile", "'return' outside function"),
        (FORBIDDEN, "protected", "sealed.py"),
        ("I cannot do that.", "no_diff", ""),
    ],
)
def test_a_failure_is_revised_with_its_log(
    context: Context, first: str, code: str, says: str
) -> None:
    experiment = submit(context)
    executor = Scripted(lambda request: GOOD if request.revision else first)
    assert isinstance(implement(context, experiment, executor), Patched)
    assert executor.asked[1].previous_answer == first
    assert says in (executor.asked[1].patch_log or "")
    refused, applied = samples(context, experiment)
    assert (refused.state, refused.code, applied.state) == ("refused", code, "applied")


COMMENT = GOOD.replace("+STEP = 4", "+STEP = 1  # counts in ones")
COMMENTED = GOOD.replace("+STEP = 4", "+STEP = 4  # counts in fours")


def test_an_edit_of_comments_is_revised_and_not_measured(context: Context) -> None:
    experiment = submit(context)
    executor = Scripted(lambda request: GOOD if request.revision else COMMENT)
    assert isinstance(implement(context, experiment, executor), Patched)
    assert "comments, docstrings or formatting alone" in (executor.asked[1].patch_log or "")
    refused, _ = samples(context, experiment)
    assert (refused.state, refused.code, refused.fitted) == ("refused", "unchanged", True)
    only = submit(context, samples=1, revisions=0)
    outcome = implement(context, only, Scripted(lambda _: COMMENT))
    assert isinstance(outcome, Failure)
    assert outcome.code == "unchanged"


def measured(context: Context, experiment: str) -> tuple[str | None, list[str]]:
    """The codebase of an experiment and its measurements."""
    with context.db.read() as session:
        link = schema.ExperimentMeasurement
        found = session.scalars(
            select(link.measurement_id).where(link.experiment_id == experiment)
        ).all()
        return session.get_one(schema.Experiment, experiment).codebase_id, sorted(found)


@pytest.mark.parametrize("order", [[GOOD, COMMENTED, GOOD], [COMMENTED, GOOD, COMMENTED]])
def test_ideas_with_the_same_code_share_one_measurement(
    context: Context, order: list[str]
) -> None:
    experiments = []
    for answer in order:
        experiments.append(submit(context))
        assert isinstance(
            implement(context, experiments[-1], Scripted(lambda _, said=answer: said)), Patched
        )
    other = submit(context)
    implement(context, other, Scripted(lambda _: GOOD.replace("= 4", "= 5")))
    first, *others = [measured(context, experiment) for experiment in experiments]
    assert others == [first, first]
    assert len(first[1]) == 1
    assert measured(context, other)[1] != first[1]


def test_ideas_of_a_batch_with_the_same_code_name_each_other(
    api: TestClient, context: Context
) -> None:
    body = batch("Count in fours.", "Count by four.")
    made = api.post("/v1/batches", json=body | {"options": {"baseline_seeds": 0}})
    assert made.status_code == 202, made.text
    listed = api.get("/v1/experiments", params={"batch": made.json()["id"]}).json()["data"]
    first, second = sorted(each["id"] for each in listed)
    for experiment, answer in ((first, GOOD), (second, COMMENTED)):
        implement(context, experiment, Scripted(lambda _, said=answer: said))
    shown = api.get(f"/v1/experiments/{second}").json()
    assert shown["shared_with"] == [first]
    assert shown["measurements"] == api.get(f"/v1/experiments/{first}").json()["measurements"]


def test_staged_sampling_widens_until_all_samples_are_used(context: Context) -> None:
    experiment = submit(context, samples=10, revisions=2)
    executor = Scripted(lambda request: BROKEN if request.sample == 3 else MISFIT)
    outcome = implement(context, experiment, executor)
    assert isinstance(outcome, Failure)
    assert (outcome.stage.value, outcome.code) == ("implement", "no_match")
    assert len(executor.asked) == 30
    assert len(samples(context, experiment)) == 30
    with context.db.read() as session:
        row = session.get_one(schema.Experiment, experiment)
        assert row.state == "failed"
        assert row.failure is not None
        assert "STEP = 99" in row.failure["message"]


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"revisions": 2}, 12),
        ({"revisions": 2, "samples": 4}, 12),
        ({"revisions": 0}, 10),  # four answers say less
        ({"revisions": 2, "sampling": "paper"}, 30),
    ],
)
def test_staged_sampling_stops_when_every_answer_fails_for_one_cause(
    context: Context, options: dict[str, Any], asked: int
) -> None:
    experiment = submit(context, **options)
    executor = Scripted(lambda _: MISFIT)
    outcome = implement(context, experiment, executor)
    assert isinstance(outcome, Failure)
    assert (outcome.code, len(executor.asked)) == ("no_match", asked)
    assert "STEP = 99" in outcome.message
    is_cut_short = asked == 12 and "samples" not in options
    assert ("6 more samples were not asked for" in outcome.message) is is_cut_short


def test_after_a_crash_staged_sampling_stops_for_the_same_cause(context: Context) -> None:
    experiment = submit(context)
    taken = take_up(context, experiment)
    assert taken is not None
    first = asyncio.run(loop_of(context, taken[0], Scripted(lambda _: MISFIT), taken[1]).run())
    executor = Scripted(lambda _: GOOD)
    assert implement(context, experiment, executor) == first
    assert executor.asked == []


def test_an_offline_executor_is_not_asked_twice_for_the_same(context: Context) -> None:
    experiment = submit(context, executor="offline:literal", samples=10)
    executor = Scripted(lambda _: MISFIT, name="offline:literal")
    implement(context, experiment, executor)
    assert {request.sample for request in executor.asked} == {0}


def test_paper_sampling_starts_all_and_cancels_the_siblings_of_the_winner(
    context: Context,
) -> None:
    experiment = submit(context, samples=4, sampling="paper")
    started = 0

    async def answer(request: ImplementRequest) -> str:
        nonlocal started
        started += 1
        while started < 4:
            await asyncio.sleep(0.001)
        if request.sample != 2:
            await asyncio.Event().wait()
        return GOOD

    executor = Scripted(answer)
    # The first one does not answer by itself.
    outcome = implement(context, experiment, executor, longest_warm_up_s=0.05)
    assert isinstance(outcome, Patched)
    assert outcome.sample == 2
    assert executor.cancelled == 3
    states = [row.state for row in samples(context, experiment)]
    assert sorted(states) == ["applied", "cancelled", "cancelled", "cancelled"]


def test_a_cut_off_answer_is_never_applied(context: Context) -> None:
    experiment = submit(context, samples=1, revisions=0)
    cut = Completion(GOOD, "", "truncated", Usage(1, 1), "m")
    outcome = implement(context, experiment, Scripted(lambda _: cut))
    assert isinstance(outcome, Failure)
    assert outcome.code == "truncated"


@pytest.mark.parametrize(
    ("text", "stop", "code", "says"),
    [
        ("", "refused", "refused", "declined"),
        (GOOD, "truncated", "truncated", "cut off"),
        ("  ", "end", "empty_answer", "empty"),
    ],
)
def test_an_answer_that_is_none_is_revised_with_the_reason(
    context: Context, text: str, stop: Any, code: str, says: str
) -> None:
    experiment = submit(context, samples=1, revisions=1)
    bad = Completion(text, "", stop, Usage(1, 1), "m")
    executor = Scripted(lambda request: GOOD if request.revision else bad)
    assert isinstance(implement(context, experiment, executor), Patched)
    assert says in (executor.asked[1].patch_log or "")
    assert [row.code for row in samples(context, experiment)] == [code, None]


def test_a_crash_repeats_at_most_the_call_that_was_in_flight(context: Context) -> None:
    experiment = submit(context, samples=1, revisions=2)

    class CrashError(BaseException):
        """The process dies."""

    def dies(request: ImplementRequest) -> str:
        if request.revision == 1:
            raise CrashError
        return MISFIT

    taken = take_up(context, experiment)
    assert taken is not None
    with pytest.raises(CrashError):
        asyncio.run(loop_of(context, taken[0], Scripted(dies), taken[1]).run())
    assert [row.state for row in samples(context, experiment)] == ["refused", "calling"]

    executor = Scripted(lambda _: GOOD)
    assert isinstance(implement(context, experiment, executor), Patched)
    assert [request.revision for request in executor.asked] == [1]
    assert executor.asked[0].previous_answer == MISFIT
    rows = samples(context, experiment)
    assert [(row.state, row.interrupted) for row in rows] == [("refused", 0), ("applied", 1)]


def test_a_recorded_answer_is_used_again_instead_of_being_asked_for(context: Context) -> None:
    experiment = submit(context)
    taken = take_up(context, experiment)
    assert taken is not None
    first = asyncio.run(loop_of(context, taken[0], Scripted(lambda _: GOOD), taken[1]).run())
    executor = Scripted(lambda _: MISFIT)
    assert [row.state for row in samples(context, experiment)] == ["answered"]
    outcome = implement(context, experiment, executor)
    assert isinstance(first, Patched)
    assert isinstance(outcome, Patched)
    assert (outcome.sample, outcome.files) == (first.sample, first.files)
    assert executor.asked == []
    assert [row.state for row in samples(context, experiment)] == ["applied"]


def test_an_answer_that_was_paid_for_is_recorded_though_the_idea_was_cancelled(
    context: Context,
) -> None:
    experiment = submit(context)
    taken = take_up(context, experiment)
    assert taken is not None
    loop = loop_of(context, taken[0], Scripted(lambda _: GOOD), taken[1])
    judge = loop.judge

    async def cancelled(*args: Any, **options: Any) -> Judgement:
        task.cancel()
        return await judge(*args, **options)

    async def run() -> None:
        nonlocal task
        task = asyncio.ensure_future(loop.run())
        await task

    task: asyncio.Future[Any]
    loop.judge = cancelled
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert [row.state for row in samples(context, experiment)] == ["applied"]


def test_siblings_of_a_winner_are_not_asked_again_after_a_crash(context: Context) -> None:
    experiment = submit(context, samples=3, sampling="paper")

    async def answer(request: ImplementRequest) -> str:
        while request.sample != 2:
            await asyncio.sleep(1)
        return GOOD

    taken = take_up(context, experiment)
    assert taken is not None
    loop = loop_of(context, taken[0], Scripted(answer), taken[1], longest_warm_up_s=0.05)
    outcome = asyncio.run(loop.run())
    # The process dies here, in the middle of one sibling's call and before another is judged.
    with context.db.write() as session:
        for sample, state in ((0, "calling"), (1, "answered")):
            row = session.get_one(schema.Sample, (taken[0].implementation, sample, 0))
            row.state, row.finished_at = state, None
    executor = Scripted(lambda _: MISFIT)
    assert implement(context, experiment, executor) == outcome
    assert executor.asked == []
    rows = samples(context, experiment)
    assert [row.state for row in rows] == ["cancelled", "cancelled", "applied"]
    assert all(row.finished_at for row in rows)


def test_no_call_starts_once_the_cap_is_spent(context: Context) -> None:
    experiment = submit(context, samples=10, revisions=2, max_cost_usd="0.02")
    executor = Scripted(lambda _: MISFIT)
    outcome = implement(context, experiment, executor)
    assert isinstance(outcome, Failure)
    assert outcome.code == "spend_cap"
    assert "raise the cap" in outcome.message
    assert 3 <= len(executor.asked) <= 5  # 0.0075 each: reached after three, few in flight


def test_a_cancelled_experiment_makes_no_further_call(context: Context) -> None:
    experiment = submit(context, samples=1, revisions=2)

    def cancel(_: ImplementRequest) -> str:
        with context.db.write() as session:
            batches.cancel_experiment(context.db, session, experiment)
        return MISFIT

    executor = Scripted(cancel)
    taken = take_up(context, experiment)
    assert taken is not None
    with pytest.raises(NoLongerWantedError):
        asyncio.run(loop_of(context, taken[0], executor, taken[1]).run())
    assert len(executor.asked) == 1
    assert take_up(context, experiment) is None


def test_the_anthropic_path_against_a_server_that_speaks_its_wire_format(
    context: Context,
) -> None:
    async def at_once(_seconds: float) -> None:
        """No real waiting between tries."""

    replies = [
        anthropic.error(429, retry_after="2"),
        anthropic.message(MISFIT),
        anthropic.error(500),
        anthropic.message(GOOD, stop_reason="max_tokens"),
        anthropic.message(GOOD, thinking="Fours it is."),
    ]
    experiment = submit(context)
    with serve(*replies) as provider:
        variables = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": provider.url}
        policy = RetryPolicy(sleep=at_once)
        executor = open_executor("anthropic:claude-opus-4-5", variables, policy=policy)
        outcome = implement(context, experiment, executor)
    assert isinstance(outcome, Patched)
    first, second, third = samples(context, experiment)
    assert [first.state, second.state, third.state] == ["refused", "refused", "applied"]
    assert [first.code, second.code] == ["no_match", "truncated"]
    assert [first.tries, second.tries, third.tries] == [2, 2, 1]
    assert third.thinking == "Fours it is."


def test_a_model_is_asked_as_the_batch_says_and_told_of_the_profile(context: Context) -> None:
    experiment = submit(context, temperature=0.5, max_tokens=9_000)
    with serve(anthropic.message(GOOD)) as provider:
        variables = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": provider.url}
        executor = open_executor("anthropic:claude-opus-4-5", variables)
        implement(context, experiment, executor)
        (sent,) = provider.requests
    assert (sent.body["temperature"], sent.body["max_tokens"]) == (0.5, 9_000)
    assert "thinking" not in sent.body
    assert "Profile: tiny\n" in sent.texts("user")[0]
    assert "Budget of an experiment: 1 CPU core, no GPU and" in sent.texts("user")[0]


def test_an_answer_that_was_paid_for_is_recorded_though_the_idea_is_cancelled(
    context: Context,
) -> None:
    experiment = submit(context, samples=1, revisions=0)
    taken = take_up(context, experiment)
    assert taken is not None

    async def run() -> None:
        judging, go_on = asyncio.Event(), asyncio.Event()

        async def slow(*_: object, compiles: bool) -> Judgement:
            judging.set()
            await asyncio.wait_for(go_on.wait(), 10)
            return Judgement(None, Rejected("refused", "no"))

        task = asyncio.create_task(
            loop_of(context, taken[0], Scripted(lambda _: GOOD), taken[1], judge=slow).run()
        )
        await asyncio.wait_for(judging.wait(), 10)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    (row,) = samples(context, experiment)
    assert row.state == "refused"
    assert row.cost_usd

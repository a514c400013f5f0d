"""What holds for every provider: answers are streamed, and every try is accounted for."""

import asyncio
import datetime
import email.utils

import pytest

from assay.llm import BadRequest, ProviderUnavailable, RateLimited, Usage
from tests.llm.calls import PROMPT, RecordingGate, call
from tests.llm.wires import THINKING, WIRES
from tests.support.provider.reply import Reply
from tests.support.provider.server import ProviderServer, serve

pytestmark = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
TEXT = "Hello wörld, and\u2028on."


def test_every_event_of_a_try_has_its_id_and_so_has_the_request(wire):
    with serve(wire.failure(500), wire.answer(TEXT)) as provider:
        outcome = wire.ask(provider)
    assert outcome.completion.text == TEXT
    assert outcome.phases == ["started", "failed", "started", "answering", "returned"]
    assert [event.number for event in outcome.tries] == [1, 1, 2, 2, 2]
    first, second = outcome.tries[0].id, outcome.tries[2].id
    assert [event.id for event in outcome.tries] == [first] * 2 + [second] * 3
    assert first != second
    assert [request.id for request in provider.requests] == [first, second]
    assert [event.usage for event in outcome.tries] == [None, Usage(), None, None, Usage(12, 5)]
    assert outcome.tries[1].error.usage == Usage()
    seconds = [event.seconds for event in outcome.tries[2:]]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < seconds[2] < 20


def test_a_provider_that_is_given_a_text_sends_it_in_its_format(wire):
    with ProviderServer(lambda request: TEXT) as provider:
        assert wire.ask(provider).completion.text == TEXT


def test_thinking_is_kept_apart(wire):
    with serve(wire.thoughtful("42")) as provider:
        outcome = wire.ask(provider)
    assert (outcome.completion.text, outcome.completion.thinking) == ("42", THINKING)
    assert outcome.phases == ["started", "answering", "returned"]


def test_truncated_and_refused_answers(wire):
    with serve(wire.truncated, wire.refused) as provider:
        assert wire.ask(provider).completion.stop == "truncated"
        assert wire.ask(provider).completion.stop == "refused"


def test_cached_tokens_are_counted_once(wire):
    with serve(wire.cached, wire.cached.plain()) as provider:
        for _ in range(2):
            done = wire.ask(provider).completion
            assert done.usage == Usage(10, 3, 900, 40)
            assert done.usage.all_input_tokens == 950


def test_a_server_that_does_not_stream(wire):
    with serve(wire.thoughtful("42").plain()) as provider:
        outcome = wire.ask(provider)
    done = outcome.completion
    assert (done.text, done.thinking, done.usage) == ("42", THINKING, Usage(12, 5))
    assert (done.stop, done.request_id) == ("end", "req_1")
    assert outcome.phases == ["started", "answering", "returned"]


@pytest.mark.parametrize(
    ("header", "value", "wait"),
    [
        ("retry_after", "7", 7),
        ("retry_after_ms", "1500", 1.5),
        ("retry_after", "date", 59),
    ],
)
def test_rate_limits_wait_as_told(wire, header, value, wait):
    value = _in_a_minute() if value == "date" else value
    with serve(wire.failure(429, **{header: value}), wire.answer()) as provider:
        outcome = wire.ask(provider)
    assert isinstance(outcome.tries[1].error, RateLimited)
    (pause,) = outcome.pauses
    assert wait - 4 <= pause <= wait + 2
    assert outcome.tries[1].wait_s == pause


@pytest.mark.parametrize("status", [500, 503, 529])
def test_passing_troubles(wire, status):
    with serve(wire.failure(status), wire.answer()) as provider:
        outcome = wire.ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[1].error, ProviderUnavailable)
    assert outcome.tries[1].usage == Usage()


def test_a_connection_dropped_before_anything_came_may_have_cost_anything(wire):
    with serve(Reply(drop=True), wire.answer()) as provider:
        outcome = wire.ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[1].error, ProviderUnavailable)
    assert outcome.tries[1].usage is None


@pytest.mark.parametrize("then", ["close", "end"])
def test_an_answer_that_breaks_off_is_no_answer(wire, then):
    whole = wire.answer("x" * 50)
    ends = len(whole.events) - 3
    broken = [whole.until(0, then), whole.until(wire.head, then)]
    broken += [whole.until(count, then) for count in (ends - 1, ends)]
    with serve(*broken, whole) as provider:
        outcome = wire.ask(provider)
    assert outcome.completion.text == "x" * 50
    failed = [event for event in outcome.tries if event.phase == "failed"]
    assert all(isinstance(event.error, ProviderUnavailable) for event in failed)
    assert [event.usage for event in failed][:2] == [
        None,
        Usage(wire.prompt_tokens, wire.told, estimated=True),
    ]
    assert failed[-1].usage == Usage(wire.prompt_tokens, 13, estimated=True)
    assert failed[-1].error.usage == failed[-1].usage
    assert outcome.phases[-6:-3] == ["started", "answering", "failed"]


def test_a_stream_that_stalls_in_the_middle(wire):
    whole = wire.answer("x" * 50)
    with serve(whole.until(len(whole.events) - 3, "wait"), whole) as provider:
        outcome = wire.ask(provider, model={"idle_s": 0.2})
        assert provider.client_left.wait(10)
    assert outcome.completion.text == "x" * 50
    assert outcome.phases[:3] == ["started", "answering", "failed"]
    assert "stalled" in str(outcome.tries[2].error)
    assert outcome.tries[2].usage == Usage(wire.prompt_tokens, 13, estimated=True)


def test_silence_before_the_first_content_is_thinking(wire):
    with serve(wire.answer().until(wire.head, "wait")) as provider:
        outcome = wire.ask(provider, model={"idle_s": 0.01}, timeout_s=1, gate=_Once())
        assert provider.client_left.wait(10)
    assert "No answer within 1 s." in str(outcome.tries[1].error)
    assert outcome.tries[1].usage == Usage(wire.prompt_tokens, wire.told, estimated=True)
    assert 1 <= outcome.tries[1].seconds < 15


def test_malformed_json_in_an_event(wire):
    whole = wire.answer()
    bad = [whole.put(0, "data: {\n\n"), whole.put(3, 'data: {"type": \n\n')]
    bad += [whole.put(2, 'data: ["type"]\n\n'), whole.put(wire.head, "data: 7\n\n")]
    with serve(*bad, whole) as provider:
        outcome = wire.ask(provider)
    assert outcome.completion.text == "Hello."
    failed = [event.error for event in outcome.tries if event.phase == "failed"]
    assert len(failed) == 4
    assert all("cannot be read" in str(error) for error in failed)
    assert all(error.retryable for error in failed)


@pytest.mark.parametrize("body", ["{", '"text"', "{}", "[]", "<html>"])
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_answers_that_are_neither_a_stream_nor_an_answer(wire, body, kind):
    with serve(Reply(200, body, {"content-type": kind}), wire.answer()) as provider:
        outcome = wire.ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[1].error, ProviderUnavailable)
    assert "cannot be read" in str(outcome.tries[1].error)
    assert outcome.tries[1].usage is None


def test_an_error_in_the_middle_of_a_stream(wire):
    whole = wire.answer("x" * 50)
    at = len(whole.events) - 3
    kinds = (
        wire.overloaded,
        "rate_limit_error",
        "an_error_of_the_future",
        "invalid_request_error",
    )
    with serve(*(whole.put(at, wire.failed(kind)) for kind in kinds)) as provider:
        outcome = wire.ask(provider)
    failed = [event for event in outcome.tries if event.phase == "failed"]
    assert [type(event.error) for event in failed] == [
        ProviderUnavailable,
        RateLimited,
        ProviderUnavailable,
        BadRequest,
    ]
    assert [event.error.retryable for event in failed] == [True, True, True, False]
    assert all(event.usage == Usage(wire.prompt_tokens, 13, estimated=True) for event in failed)
    assert isinstance(outcome.error, BadRequest)


def test_an_error_instead_of_an_answer_costs_nothing(wire):
    with serve(wire.answer().put(0, wire.failed(wire.overloaded)), wire.answer()) as provider:
        outcome = wire.ask(provider)
    assert isinstance(outcome.tries[1].error, ProviderUnavailable)
    assert outcome.tries[1].usage == Usage()


def test_connections_are_used_again(wire):
    async def twice(model):
        for _ in range(2):
            await model.complete(PROMPT, max_tokens=100)
        await model.aclose()

    with serve(wire.answer(), wire.answer()) as provider:
        asyncio.run(twice(wire.open(provider.url)))
        assert len({request.client for request in provider.requests}) == 1


def test_what_comes_after_the_end_is_not_waited_for(wire):
    whole = wire.answer()
    whole = whole.put(len(whole.events), "data: {\n\n")
    with serve(whole.until(len(whole.events), "wait")) as provider:
        assert wire.ask(provider).completion.text == "Hello."
        assert provider.client_left.wait(10)


def test_cancelling_closes_the_connection_and_reports_what_was_used(wire):
    whole, gate, seen = wire.answer("x" * 50), RecordingGate(), []
    answering = asyncio.Event()

    async def on_try(event):
        await asyncio.sleep(0)
        seen.append(event)
        if event.phase == "answering":
            answering.set()

    async def main(address):
        model = wire.open(address)
        task = asyncio.create_task(
            model.complete(PROMPT, max_tokens=100, on_try=on_try, gate=gate)
        )
        async with asyncio.timeout(30):  # a call that fails never answers
            await answering.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(provider.client_left.wait, 10)
        await model.aclose()

    with serve(whole.until(len(whole.events) - 3, "wait")) as provider:
        asyncio.run(main(provider.url))
    assert [event.phase for event in seen] == ["started", "answering", "cancelled"]
    spent = seen[-1].usage
    assert spent.estimated
    assert spent.input_tokens == wire.prompt_tokens
    assert 1 <= spent.output_tokens <= 13
    assert gate.left == [(None, spent)]
    assert gate.entered == [6]


def test_an_exception_of_on_try_goes_through_and_closes_the_connection(wire):
    gate = RecordingGate()

    async def on_try(event):
        if event.phase == "answering":
            raise ValueError("the ledger is full")  # not a malformed answer

    with serve(wire.answer("x" * 50).until(5, "wait")) as provider:
        with pytest.raises(ValueError, match="the ledger is full"):
            call(lambda p: wire.open(provider.url, policy=p), on_try=on_try, gate=gate)
        assert provider.client_left.wait(10)
    ((error, usage),) = gate.left
    assert error is None
    assert usage.estimated


class _Once(RecordingGate):
    """Lets one try in, and the next raise."""

    async def enter(self, tokens):
        if self.entered:
            raise BadRequest("once")
        await super().enter(tokens)


def _in_a_minute():
    now = datetime.datetime.now(datetime.UTC)
    return email.utils.format_datetime(now + datetime.timedelta(seconds=60), usegmt=True)

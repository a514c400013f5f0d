"""The OpenAI provider against its wire format."""

import pytest

from assay.llm import (
    BadRequest,
    Message,
    MissingKey,
    ModelName,
    Prompt,
    ProviderUnavailable,
    RateLimited,
    Usage,
)
from assay.llm.openai import OpenAIModel
from tests.llm.calls import call
from tests.support.provider.openai import completion, error, error_event, event
from tests.support.provider.reply import Reply
from tests.support.provider.server import serve


def ask(provider, model="qwen3", **options):
    name = ModelName.parse(f"openai:{model}@{provider.url}/v1")
    return call(lambda p: OpenAIModel(name, {}, policy=p), **options)


def test_success_and_what_was_sent():
    with serve(completion()) as provider:
        done = ask(provider, temperature=0.5).completion
    assert (done.text, done.stop, done.usage) == ("Hello.", "end", Usage(12, 5))
    assert (done.model, done.request_id) == ("gpt-test-1", "req_1")
    assert [request.path for request in provider.requests] == ["/v1/chat/completions"]
    assert provider.requests[0].body == {
        "model": "qwen3",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "the codebase\n\nHi."},
        ],
        "max_tokens": 100,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_nothing_is_sent_that_was_not_set():
    with serve(completion()) as provider:
        ask(provider, max_tokens=None)
    sent = set(provider.requests[0].body)
    assert sent == {"model", "messages", "stream", "stream_options"}


def test_an_effort_is_sent_as_the_effort_of_reasoning():
    with serve(completion()) as provider:
        ask(provider, effort="low")
    assert provider.requests[0].body["reasoning_effort"] == "low"


def test_the_log_stands_between_codebase_and_question():
    prompt = Prompt("Be brief.", (Message("user", "Hi."),), "the codebase", ("head", "epoch 0"))
    with serve(completion()) as provider:
        ask(provider, prompt=prompt)
    sent = provider.requests[0].body["messages"][1]["content"]
    assert sent == "the codebase\n\nhead\n\nepoch 0\n\nHi."


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_says_whether_it_was_streamed(streams):
    reply = completion() if streams else completion().plain()
    with serve(reply) as provider:
        assert ask(provider).completion.streamed is streams


@pytest.mark.parametrize(
    ("reply", "text", "thinking", "stop"),
    [
        (completion("half", finish_reason="length"), "half", "", "truncated"),
        (completion("", finish_reason="content_filter"), "", "", "refused"),
        (completion(None, refusal="I will not."), "I will not.", "", "refused"),
        (completion("42", reasoning_content="6 * 7"), "42", "6 * 7", "end"),
        (completion("42", reasoning="6 * 7"), "42", "6 * 7", "end"),
        (completion("42", reasoning_content="6 * 7", reasoning="6 * 7"), "42", "6 * 7", "end"),
        (completion("<think>6 * 7</think>\n\n42"), "42", "6 * 7", "end"),
        (completion("<think>6 *", finish_reason="length"), "", "6 *", "truncated"),
    ],
)
def test_answers(reply, text, thinking, stop):
    with serve(reply) as provider:
        done = ask(provider).completion
    assert (done.text, done.thinking, done.stop) == (text, thinking, stop)


def test_cached_tokens_are_not_counted_twice():
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 900},
    }
    with serve(completion(usage=usage)) as provider:
        assert ask(provider).completion.usage == Usage(100, 5, 900)


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (error(429, retry_after="3"), RateLimited),
        (error(500), ProviderUnavailable),
        (Reply(200, "{"), ProviderUnavailable),
        (Reply(200, {"choices": []}), ProviderUnavailable),
        (Reply(drop=True), ProviderUnavailable),
    ],
)
def test_passing_troubles_are_tried_again(trouble, kind):
    with serve(trouble, completion()) as provider:
        outcome = ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[1].error, kind)
    assert len(outcome.pauses) == 1


def test_bad_requests_are_not():
    with serve(error(404, "no such model")) as provider:
        outcome = ask(provider)
    assert isinstance(outcome.error, BadRequest)
    assert "no such model" in str(outcome.error)


def test_the_key_is_asked_for_early():
    with pytest.raises(MissingKey, match="OPENAI_API_KEY"):
        OpenAIModel(ModelName.parse("openai:gpt-5"), {})


def without_usage(reply):
    body = {name: value for name, value in reply.body.items() if name != "usage"}
    events = [text for text in reply.events if '"usage": {' not in text]
    return Reply(200, body, events=tuple(events))


def test_small_servers_may_leave_out_the_usage_and_the_end():
    whole = without_usage(completion("x" * 50, reasoning_content="yyyy"))
    endless = whole.until(len(whole.events) - 1, "end")
    broken = whole.until(len(whole.events) - 1, "close")
    replies = (whole, whole.plain(), endless, broken)
    with serve(*replies) as provider:
        for _ in replies:
            done = ask(provider).completion
            assert (done.text, done.thinking) == ("x" * 50, "yyyy")
            assert done.usage == Usage(6, 14, estimated=True)


def test_openai_itself_may_not():
    def make(policy):
        name = ModelName.parse(f"openai:m@{provider.url}/v1")
        return OpenAIModel(name, {}, policy=policy, own_server=False)

    whole = without_usage(completion("x" * 50))
    with serve(whole, completion(), whole.plain(), completion()) as provider:
        streamed, plain = call(make), call(make)
    assert streamed.completion.usage == Usage(12, 5)
    assert streamed.tries[2].usage == Usage(6, 13, estimated=True)
    assert isinstance(plain.tries[1].error, ProviderUnavailable)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (error_event("tokens", code="rate_limit_exceeded"), RateLimited),
        (error_event("TooMany", code=429), RateLimited),
        (error_event("BadRequestError", code=400), BadRequest),
        (error_event("ServerError", code=502), ProviderUnavailable),
        (event({"error": "out of memory"}), ProviderUnavailable),
    ],
)
def test_error_events_have_several_forms(text, kind):
    with serve(completion("x" * 50).put(3, text), completion()) as provider:
        outcome = ask(provider)
    failed = outcome.tries[2]
    assert type(failed.error) is kind
    assert failed.usage == Usage(6, 13, estimated=True)


def test_chunks_may_report_the_usage_so_far():
    chunks = list(completion("x" * 50).events)
    first = chunks[1].replace(
        '"usage": null', '"usage": {"prompt_tokens": 9, "completion_tokens": 20}'
    )
    with serve(Reply(200, events=(chunks[0], first)), completion()) as provider:
        outcome = ask(provider)
    assert outcome.tries[2].usage == Usage(9, 20, estimated=True)

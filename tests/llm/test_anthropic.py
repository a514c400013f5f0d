"""The Anthropic provider against its wire format."""

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
from assay.llm.anthropic import AnthropicModel
from tests.llm.calls import call
from tests.support.provider.anthropic import error, event, message
from tests.support.provider.reply import Reply
from tests.support.provider.server import serve

ENV = {"ANTHROPIC_API_KEY": "sk-test"}


def ask(provider, model="claude-opus-4-5", thinking="default", **options):
    name = ModelName.parse(f"anthropic:{model}@{provider.url}")
    return call(lambda p: AnthropicModel(name, ENV, policy=p, thinking=thinking), **options)


def test_success_and_what_was_sent():
    with serve(message("Hello.")) as provider:
        outcome = ask(provider)
    done = outcome.completion
    assert (done.text, done.thinking, done.stop) == ("Hello.", "", "end")
    assert done.usage == Usage(12, 5)
    assert (done.model, done.request_id) == ("claude-test-1", "req_1")
    sent = provider.requests[0].body
    assert sent["model"] == "claude-opus-4-5"
    assert sent["max_tokens"] == 100
    assert sent["system"] == "Be brief."
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "the codebase", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Hi."},
            ],
        }
    ]
    assert sent["stream"] is True
    assert "temperature" not in sent
    assert [request.path for request in provider.requests] == ["/v1/messages"]
    assert provider.requests[0].headers["authorization"] == "Bearer sk-test"
    assert provider.requests[0].headers["x-api-key"] == "sk-test"
    assert [event.phase for event in outcome.tries] == ["started", "answering", "returned"]


def test_thinking_is_kept_apart():
    with serve(message("42", thinking="6 * 7")) as provider:
        done = ask(provider).completion
    assert (done.text, done.thinking) == ("42", "6 * 7")


@pytest.mark.parametrize(
    ("model", "thinking", "sent_temperature", "sent_thinking"),
    [
        ("claude-opus-4-5", "default", 0.5, None),
        ("claude-sonnet-4-5-20250929", "summarized", 0.5, None),
        ("claude-3-haiku-20240307", "default", 0.5, None),
        ("claude-opus-4-7", "default", None, None),
        ("claude-opus-5", "default", None, None),
        ("claude-opus-4-6", "summarized", None, {"type": "adaptive", "display": "summarized"}),
        ("some-other-model", "default", 0.5, None),
    ],
)
@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")
def test_temperature_and_thinking_go_to_models_that_take_them(
    model, thinking, sent_temperature, sent_thinking
):
    with serve(message()) as provider:
        ask(provider, model, thinking, temperature=0.5)
    sent = provider.requests[0].body
    assert sent.get("temperature") == sent_temperature
    assert sent.get("thinking") == sent_thinking
    old_version = provider.requests[0].headers["anthropic-version"] == "2023-06-01"
    assert old_version == (sent_temperature is not None)


@pytest.mark.parametrize(
    ("model", "max_tokens", "sent"),
    [
        ("claude-opus-4-5", 8_000, {"thinking": {"type": "enabled", "budget_tokens": 6_000}}),
        ("some-other-model", 8_000, {"thinking": {"type": "enabled", "budget_tokens": 6_000}}),
        ("claude-opus-4-5", None, {"thinking": {"type": "enabled", "budget_tokens": 18_000}}),
        ("claude-opus-4-6", 8_000, {"output_config": {"effort": "high"}}),
        ("claude-opus-5", None, {"output_config": {"effort": "high"}}),
    ],
)
def test_an_effort_is_sent_as_the_model_takes_it(model, max_tokens, sent):
    with serve(message()) as provider:
        ask(provider, model, effort="high", max_tokens=max_tokens)
    body = provider.requests[0].body
    assert {k: v for k, v in body.items() if k in ("thinking", "output_config")} == sent
    assert body["max_tokens"] == (max_tokens or 24_000)
    assert "temperature" not in body


def test_an_effort_goes_with_a_summary_of_the_thinking():
    with serve(message()) as provider:
        ask(provider, "claude-opus-5", "summarized", effort="low")
    body = provider.requests[0].body
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effort": "low", "temperature": 0.5}, "a temperature or an effort, not both"),
        ({"effort": "low", "max_tokens": 1_000}, "max tokens of at least 2048"),
    ],
)
def test_what_no_version_takes_is_not_sent(options, said):
    with serve(message()) as provider:
        outcome = ask(provider, **options)
    assert isinstance(outcome.error, BadRequest)
    assert said in str(outcome.error)
    assert provider.requests == []


def test_the_log_is_cached_part_by_part():
    """Earlier parts are found again by a request that adds some, wherever it marks them."""
    log = ("head", "epoch 0", "epoch 1", "epoch 2")
    prompt = Prompt("Be brief.", (Message("user", "Hi."),), "the codebase", log)
    with serve(message()) as provider:
        ask(provider, prompt=prompt)
    (sent,) = provider.requests[0].body["messages"]
    texts = [block["text"] for block in sent["content"]]
    assert texts == ["the codebase", *log, "Hi."]
    marked = [block["text"] for block in sent["content"] if "cache_control" in block]
    assert marked == ["the codebase", "epoch 1", "epoch 2"]


def test_rate_limit_waits_as_told():
    with serve(error(429, retry_after="7"), message()) as provider:
        outcome = ask(provider)
    assert outcome.completion.text == "Hello."
    assert len(outcome.pauses) == 1
    assert 7 <= outcome.pauses[0] <= 8
    first = outcome.tries[1]
    assert (first.number, first.phase, first.wait_s) == (1, "failed", outcome.pauses[0])
    assert isinstance(first.error, RateLimited)
    assert [event.number for event in outcome.tries] == [1, 1, 2, 2, 2]


def test_a_long_retry_after_is_left_to_the_caller():
    with serve(error(429, retry_after="600")) as provider:
        outcome = ask(provider)
    assert isinstance(outcome.error, RateLimited)
    assert outcome.error.retry_after_s == 600
    assert outcome.error.retryable
    assert outcome.pauses == []


@pytest.mark.parametrize("status", [408, 409, 500, 503, 529])
def test_passing_troubles_are_tried_again(status):
    with serve(error(status), message()) as provider:
        outcome = ask(provider)
    assert outcome.completion.text == "Hello."
    assert len(outcome.pauses) == 1
    assert 0.5 <= outcome.pauses[0] <= 1.0


def test_five_tries_at_most_with_growing_pauses():
    with serve(*[error(529)] * 5) as provider:
        outcome = ask(provider)
    assert isinstance(outcome.error, ProviderUnavailable)
    assert "529" in str(outcome.error)
    assert len(provider.requests) == 5
    for pause, bound in zip(outcome.pauses, (1, 2, 4, 8), strict=True):
        assert bound / 2 <= pause <= bound


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("max_tokens", "truncated"),
        ("model_context_window_exceeded", "truncated"),
        ("refusal", "refused"),
        ("stop_sequence", "end"),
        ("a_reason_of_the_future", "end"),
    ],
)
def test_stop_reasons(reason, stop):
    with serve(message("half", stop_reason=reason)) as provider:
        assert ask(provider).completion.stop == stop


@pytest.mark.parametrize("body", ["{", '"text"', "{}", '{"content": null, "usage": {}}', "<html>"])
def test_malformed_answers_are_tried_again(body):
    with serve(Reply(200, body), message()) as provider:
        outcome = ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[1].error, ProviderUnavailable)


def test_dropped_connection_is_tried_again():
    with serve(Reply(drop=True), message()) as provider:
        outcome = ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[1].error, ProviderUnavailable)


def test_nobody_there():
    with serve() as provider:
        pass
    outcome = ask(provider)
    assert isinstance(outcome.error, ProviderUnavailable)
    assert len(outcome.pauses) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_refused_requests_are_not_tried_again(status):
    with serve(error(status, "prompt is too long")) as provider:
        outcome = ask(provider)
    assert isinstance(outcome.error, BadRequest)
    assert not outcome.error.retryable
    assert "prompt is too long" in str(outcome.error)
    assert ("ANTHROPIC_API_KEY" in str(outcome.error)) == (status in (401, 403))
    assert outcome.pauses == []


def test_a_provider_may_say_not_to_retry():
    with serve(error(500, x_should_retry="false")) as provider:
        assert isinstance(ask(provider).error, BadRequest)


def test_cached_tokens():
    usage = {
        "input_tokens": 10,
        "output_tokens": 3,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 40,
    }
    with serve(message(usage=usage)) as provider:
        done = ask(provider).completion
    assert done.usage == Usage(10, 3, 900, 40)
    assert done.usage.all_input_tokens == 950


def test_slow_answers_time_out():
    with serve() as provider:
        provider.hold()
        outcome = ask(provider, timeout_s=0.01)
    assert isinstance(outcome.error, ProviderUnavailable)
    assert "0.01 s" in str(outcome.error)


def test_keys():
    name = ModelName.parse("anthropic:claude-opus-5")
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        AnthropicModel(name, {})
    with serve(message()) as provider:
        env = {"ANTHROPIC_BASE_URL": provider.url, **ENV}
        outcome = call(lambda p: AnthropicModel(name, env, policy=p))
    assert outcome.completion.text == "Hello."


def streamed(*events):
    return Reply(200, events=events)


def test_events_of_the_future_are_passed_over():
    whole = message("42", thinking="6 * 7")
    odd = (
        event(
            "content_block_start", index=7, content_block={"type": "server_tool_use", "id": "x"}
        ),
        event("content_block_delta", index=7, delta={"type": "input_json_delta", "x": "{"}),
        event("what_is_this", value=1),
        ": a comment\n\n",
    )
    with serve(streamed(*whole.events[:-2], *odd, *whole.events[-2:])) as provider:
        done = ask(provider).completion
    assert (done.text, done.thinking) == ("42", "6 * 7")


def test_without_its_last_event_an_answer_is_broken_off_but_its_usage_is_known():
    whole = message(stop_reason="end_turn")
    with serve(whole.until(len(whole.events) - 1, "end"), whole) as provider:
        outcome = ask(provider)
    assert outcome.completion.text == "Hello."
    assert isinstance(outcome.tries[2].error, ProviderUnavailable)
    assert outcome.tries[2].usage == Usage(12, 5)


def test_the_last_word_on_usage_counts_but_zeros_for_the_input_do_not():
    first = {"input_tokens": 10, "cache_read_input_tokens": 900, "output_tokens": 4}
    last = {"input_tokens": 0, "cache_read_input_tokens": 950, "output_tokens": 3}
    whole = list(message(usage=first).events)
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    whole[-2] = event("message_delta", delta=end, usage=last)
    with serve(streamed(*whole)) as provider:
        assert ask(provider).completion.usage == Usage(10, 3, 950)


def test_gateways_that_report_no_usage_get_an_estimate():
    whole = message("x" * 50, thinking="y" * 4, usage={"output_tokens": 0})
    with serve(whole, whole.plain()) as provider:
        for _ in range(2):
            assert ask(provider).completion.usage == Usage(6, 14, estimated=True)

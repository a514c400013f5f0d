"""Names of models, and what calls cost."""

from decimal import Decimal

import pytest

from assay.llm import (
    MissingKey,
    ModelName,
    Provider,
    Usage,
    estimate,
    open_executor,
    open_ideator,
    open_model,
    price,
    price_table,
)
from assay.llm.retry import retry_after_s


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("anthropic:claude-opus-4-5", (Provider.ANTHROPIC, "claude-opus-4-5", None)),
        ("openai:gpt-5", (Provider.OPENAI, "gpt-5", None)),
        ("openai:Qwen/Q3@http://h:80/v1", (Provider.OPENAI, "Qwen/Q3", "http://h:80/v1")),
        ("anthropic:m@20250805@https://h/", (Provider.ANTHROPIC, "m@20250805", "https://h")),
        ("openai:llama3:8b", (Provider.OPENAI, "llama3:8b", None)),
        ("offline", (Provider.OFFLINE, "", None)),
        ("offline:", (Provider.OFFLINE, "", None)),
        ("offline:knobs", (Provider.OFFLINE, "knobs", None)),
    ],
)
def test_names(text, parsed):
    name = ModelName.parse(text)
    assert name == ModelName(*parsed)
    assert ModelName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "claude-opus-4-5",
        "google:gemini",
        "openai:",
        "openai:@http://h",
        "openai:a b",
        "openai:m@http://",
        "openai:m@http://h:port",
        "openai:m@http://user:pass@h",
        "openai:m@http://h/?key=1",
        "offline:x@http://h",
    ],
)
def test_bad_names(text):
    with pytest.raises(ValueError, match=r"."):
        ModelName.parse(text)


def test_price_by_kind():
    usage = Usage(1_000_000, 100_000, 2_000_000, 500_000)
    name = ModelName.parse("anthropic:claude-opus-4-5")
    assert price(name, usage) == Decimal("5") + Decimal("2.5") + Decimal("1") + Decimal("3.125")
    dated = ModelName.parse("anthropic:claude-opus-4-5-20251101")
    assert price(dated, usage) == price(name, usage)


def test_long_inputs_have_their_own_price():
    name = ModelName.parse("anthropic:claude-haiku-5-5")
    assert price(name, Usage(100_000)) == Decimal("0.01")
    assert price(name, Usage(100_000, 0, 1)) > Decimal("0.05")


def test_unknown_is_not_free_and_offline_is():
    usage = Usage(10, 10)
    assert price(ModelName.parse("anthropic:claude-of-tomorrow"), usage) is None
    assert price(ModelName.parse("openai:gpt-5@http://localhost:1"), usage) is None
    assert price(ModelName.parse("offline"), usage) == Decimal(0)


def test_every_entry_of_the_table_is_complete():
    table = price_table()
    assert "check" in table.note
    for key in table.models:
        assert price(ModelName.parse(key), Usage(1, 1, 1, 1)) > 0
        assert price(ModelName.parse(key), Usage(10**6, 1, 1, 1)) > 0


def test_estimates():
    name = ModelName.parse("anthropic:claude-opus-4-5")
    guess = estimate(name, ideas=10, samples=10, codebase_characters=40_000)
    assert (guess.calls_low, guess.calls_high) == (10, 300)
    assert Decimal(0) < guess.low < guess.high
    # One call of the high end: 40k and 3k characters in, two thirds of them revisions.
    assert guess.tokens_high.output_tokens == 300 * 8_000
    assert guess.high / 300 < 1
    unknown = estimate(ModelName.parse("openai:x"), ideas=1, samples=1, codebase_characters=9)
    assert (unknown.low, unknown.high) == (None, None)
    offline = estimate(ModelName.parse("offline"), ideas=5, samples=2, codebase_characters=9)
    assert (offline.low, offline.high) == (Decimal(0), Decimal(0))


def test_opening_by_name():
    assert open_executor("offline", {}).name == "offline:literal"
    assert open_ideator("offline", {}).name == "offline:knobs"
    env = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
    for name in ("anthropic:claude-opus-5", "openai:gpt-5"):
        assert open_executor(name, env).name == name
        assert open_ideator(name, env).name == name
        with pytest.raises(MissingKey, match="_API_KEY"):
            open_executor(name, {})
        with pytest.raises(MissingKey, match="_API_KEY"):
            open_ideator(name, {})
    with pytest.raises(ValueError, match="not a model"):
        open_model("offline", {})


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "300", "retry-after": "9"}, 0.3),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after_s(headers, now=60.0) == pytest.approx(seconds)

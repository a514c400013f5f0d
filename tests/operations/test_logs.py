"""Log lines of the services: JSON with ids, and no credentials whatever is logged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from assay.telemetry import LogSettings, bind, configure_logging
from assay.telemetry.secrets import redactor, secrets_of

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines go. Loggers are put back as pytest needs them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def lines(stream: io.StringIO) -> Lines:
    configure_logging("scheduler", LogSettings(), handlers=[logging.StreamHandler(stream)])
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_ids_in_front_of_what_was_said(lines: Lines) -> None:
    with bind(attempt="att_1", lease_token=7):
        logging.getLogger("a.b").warning("lost %d", 3, extra={"worker": "wrk_1"})
    logging.getLogger("a.b").info("after")
    first, second = lines()
    assert list(first)[:5] == ["time", "level", "service", "module", "event"]
    assert (first["service"], first["module"], first["event"]) == ("scheduler", "a.b", "lost 3")
    assert (first["attempt"], first["lease_token"], first["worker"]) == ("att_1", 7, "wrk_1")
    assert "attempt" not in second


def test_a_traceback_and_a_newline_stay_in_one_line(lines: Lines) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception('said: {"event": "forged"}\n{"event": "forged"}')
    (line,) = lines()
    assert line["event"].startswith("said: ")
    assert line["exception"].endswith("ValueError: two\nlines")


def test_text_and_level_are_settings(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_LOG_FORMAT", "text")
    monkeypatch.setenv("ASSAY_LOG_LEVEL", "warning")
    configure_logging("api", handlers=[logging.StreamHandler(stream)])
    with bind(batch="bat_1"):
        logging.getLogger("x").info("quiet")
        logging.getLogger("x").warning("loud")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("WARNING x: loud (batch=bat_1)")


def test_a_wrong_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_LOG_LEVELS", "info")
    with pytest.raises(ValidationError, match="did you mean ASSAY_LOG_LEVEL"):
        LogSettings()


SECRETS = {
    "ASSAY_WORKER_TOKEN": "asw_0123456789abcdefghij",
    "ASSAY_WORKER_HELD_OUT_KEY": "feedfacefeedface",
    "ANTHROPIC_API_KEY": "any-form-of-a-key",
    "AWS_SECRET_ACCESS_KEY": "abc/def+ghi=secret",
    "ASSAY_IMPLEMENTER_API_KEYS": '{"me": "owner-secret-1", "you": "owner\\"secret-2"}',
    "ASSAY_IMPLEMENTER_WORKERS": '{"gpu-0": "asw_zyxwvutsrqponmlkjihg"}',
    "ASSAY_SERVER_DATABASE_URL": "postgresql+psycopg://assay:p%40ss-word@db:5432/assay",
    "ASSAY_SERVER_BROKER_URL": "redis://:redis-password@broker:6379/0",
}
VALUES = (
    "asw_0123456789abcdefghij",
    "feedfacefeedface",
    "any-form-of-a-key",
    "abc/def+ghi=secret",
    "owner-secret-1",
    'owner"secret-2',
    "asw_zyxwvutsrqponmlkjihg",
    "p%40ss-word",
    "p@ss-word",
    "redis-password",
)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("value", VALUES)
def test_what_this_process_was_given_as_a_secret_is_blacked_out(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, value: str, form: str
) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    settings = LogSettings.model_validate({"format": form})
    configure_logging("api", settings, handlers=[logging.StreamHandler(stream)])
    log = logging.getLogger("x")
    log.warning("in the message %s", value)
    log.warning("as a value", extra={"found": value})
    log.warning("inside", extra={"found": {"deep": [value]}})
    try:
        raise RuntimeError(f"cannot connect with {value}")
    except RuntimeError:
        log.exception("in a traceback")
    written = stream.getvalue()
    assert written.count("***") >= 4
    assert value not in written
    assert json.dumps(value)[1:-1] not in written


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefgh12345678",
        "asw_ABCDEFGHIJKLMNOPQRSTUVWX",
        "sk-" + "a1b2c3d4" * 4,
        "redis://worker.wrk_1:hunter2hunter2@10.0.0.1:6379/0",
        "https://s3/x?X-Amz-Credential=AKIAX%2F1&X-Amz-Signature=0badcafe&X-Amz-Expires=60",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_looks_like_a_credential_is_blacked_out(text: str) -> None:
    shown = redactor([])(f"before {text} after")
    assert "***" in shown
    for secret in ("abcdefgh12345678", "ABCDEFGHIJ", "a1b2c3", "hunter2", "0badcafe", "IOSFODNN"):
        assert secret not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


def test_ids_paths_and_plain_addresses_are_no_secrets() -> None:
    text = "att_01k8 http://127.0.0.1:8000/v1/batches lease_token=12 s3://bucket/prefix"
    assert redactor(secrets_of(SECRETS))(text) == text


def test_short_values_black_out_nothing() -> None:
    assert secrets_of({"MY_KEY": "a", "MY_TOKEN": ""}) == set()

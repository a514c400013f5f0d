"""Logs of the services: one line per event, with the ids it is about.

Modules use `logging` as everywhere in Python; this is the one place that says how lines look.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal

import structlog
from pydantic_settings import SettingsConfigDict
from structlog.typing import EventDict, Processor, WrappedLogger

from assay.settings import ServiceSettings
from assay.telemetry.secrets import redactor, secrets_of

#: One line per request; what workers and probes ask all the time is a matter for debugging.
ACCESS = "assay.access"
_CHATTY = (
    "alembic.runtime",
    "boto3",
    "botocore",
    "celery",
    "httpcore2",
    "httpx2",
    "kombu",
    "s3transfer",
    "urllib3",
    "uvicorn",
)


class LogSettings(ServiceSettings):
    """How log lines look."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_LOG_", extra="forbid")

    format: Literal["json", "text"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"


def configure_logging(
    service: str,
    settings: LogSettings | None = None,
    *,
    handlers: Iterable[logging.Handler] | None = None,
    secrets: Iterable[str] = (),
) -> None:
    """Send every log line of this process to stderr (or `handlers`), without credentials.

    Call it before secrets are taken out of the environment: those found there are blacked out.
    """
    settings = settings or LogSettings()
    formatter = _formatter(service, settings.format, {*secrets, *secrets_of(os.environ)})
    chosen = list(handlers) if handlers is not None else [logging.StreamHandler(sys.stderr)]
    for handler in chosen:
        handler.setFormatter(formatter)
    level = settings.level.upper()
    logging.basicConfig(level=level, handlers=chosen, force=True)
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def bind(**ids: Any) -> AbstractContextManager[None]:
    """Add ids (`batch`, `experiment`, `attempt`, …) to every line logged inside the block.

    They follow tasks and threads that are started with a copy of the context, as those of an
    endpoint are; a plain thread binds its own.
    """
    return structlog.contextvars.bound_contextvars(**ids)


def keep(**ids: Any) -> None:
    """Add ids to every line that the current task or thread logs from now on."""
    structlog.contextvars.bind_contextvars(**ids)


class RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Blacks out credentials in the finished line: arguments, tracebacks and all."""

    def __init__(self, secrets: Iterable[str], **settings: Any) -> None:
        super().__init__(**settings)
        self._redact = redactor(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


def _formatter(service: str, form: str, secrets: set[str]) -> RedactingFormatter:
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper("iso", utc=True, key="time"),
    ]
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
    ]
    if form == "json":
        last += [_named(service), structlog.processors.JSONRenderer(default=str)]
    else:
        last.append(_as_text)
    return RedactingFormatter(secrets, foreign_pre_chain=before, processors=last)


def _named(service: str) -> Processor:
    """Puts what every line has in front, so that a person finds it."""

    def add(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        first = {key: line.pop(key) for key in ("time", "level") if key in line}
        module = line.pop("logger", None)
        event = line.pop("event", "")
        return {**first, "service": service, "module": module, "event": event, **line}

    return add


def _as_text(_logger: WrappedLogger, _method: str, line: EventDict) -> str:
    """`2026-01-02T03:04:05.678901Z INFO services.scheduler.clock: leading (epoch=2)`"""
    moment, level = line.pop("time", ""), str(line.pop("level", "")).upper()
    module, event = line.pop("logger", ""), line.pop("event", "")
    trace = line.pop("exception", None)
    ids = " ".join(f"{key}={value}" for key, value in line.items())
    text = f"{moment} {level} {module}: {event}" + (f" ({ids})" if ids else "")
    return f"{text}\n{trace}" if trace else text

"""Whether the servers of server mode can be used: database, broker, objects, and who works."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import redis
from pydantic import ValidationError
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from assay.cli.doctor import Finding
from assay.domain.errors import AssayError, Unavailable
from assay.storage.database import Database
from assay.storage.health import check_leader, check_schema
from assay.storage.mirror import open_address
from assay.storage.s3 import S3Store
from assay.storage.settings import PREFIX, ServerSettings
from assay.storage.statistics import present

if TYPE_CHECKING:
    from assay.broker import BrokerAddress

#: Presigned addresses and certificates bear more; what is written in logs does not.
_SKEW_SECONDS = 2.0
_OUTBOX_SECONDS = 60.0
_BROKER_SECONDS = 5.0
_OLDEST_REDIS = (7, 0)


def examine() -> list[Finding]:
    """Every check, as far as the one before allows it."""
    try:
        settings = ServerSettings()
    except ValidationError as error:
        return [_wrong(problem) for problem in error.errors()]
    found = _database(settings)
    found += _broker(settings.broker) if settings.broker else [_no_broker()]
    return [*found, *_objects(settings)]


def _wrong(problem: Any) -> Finding:
    where = PREFIX + "_".join(map(str, problem["loc"])).upper() if problem["loc"] else "settings"
    text = problem["msg"].removeprefix("Value error, ")
    return Finding(where, "missing", text, "see docs/operations.md, Settings")


# -- Database -------------------------------------------------------------------------------------


def _database(settings: ServerSettings) -> list[Finding]:
    db = Database(settings.database_url.get_secret_value())
    try:
        with db.read() as session:
            began = time.perf_counter()
            now = db.now(session)
            milliseconds = (time.perf_counter() - began) * 1000
            version = session.connection().exec_driver_sql("SHOW server_version").scalar_one()
        detail = f"PostgreSQL {version}, {milliseconds:.1f} ms"
        found = [Finding("database", "ok", detail), _clock(now)]
        return found + _rows(db)
    except Unavailable as error:
        remedy = f"start PostgreSQL, or correct {PREFIX}DATABASE_URL"
        return [Finding("database", "missing", _line(error), remedy)]
    finally:
        db.dispose()


def _clock(now: datetime) -> Finding:
    skew = abs((datetime.now(UTC) - now).total_seconds())
    detail = f"{skew:.1f} s from the database's"
    remedy = "set both clocks by NTP: leases use the database's alone, logs and addresses do not"
    return Finding("clock", "ok" if skew < _SKEW_SECONDS else "note", detail, remedy)


def _rows(db: Database) -> list[Finding]:
    with db.read() as session:
        try:
            schema = Finding("schema", "ok", f"revision {check_schema(session)}")
        except Unavailable as error:
            return [Finding("schema", "missing", _line(error), "run `assay migrate`")]
        try:
            holder = check_leader(db, session)
            leader = Finding("scheduler", "ok", f"{holder} leads")
        except Unavailable as error:
            leader = Finding("scheduler", "note", _line(error), "start `assay scheduler`")
        now = present(db, session)
    return [schema, leader, _outbox(now.outbox, now.outbox_seconds), _workers(now.workers)]


def _outbox(messages: int, seconds: float) -> Finding:
    detail = f"{messages} messages wait, the oldest for {seconds:.0f} s"
    good = seconds < _OUTBOX_SECONDS
    remedy = "the broker does not take messages; work goes on by the clock, and slower"
    return Finding("outbox", "ok" if good else "note", detail, remedy)


def _workers(states: dict[str, int]) -> Finding:
    if not states:
        remedy = "admit one: `assay worker admit NAME`"
        return Finding("workers", "note", "none has registered", remedy)
    detail = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    idle = {state for state in states if state != "active"}
    remedy = "`assay worker list` says which and why"
    return Finding("workers", "note" if idle else "ok", detail, remedy)


# -- Broker ---------------------------------------------------------------------------------------


def _no_broker() -> Finding:
    remedy = f"set {PREFIX}BROKER_URL: without a broker everybody looks every few seconds only"
    return Finding("broker", "note", "not set", remedy)


def _broker(address: BrokerAddress) -> list[Finding]:
    client = redis.Redis.from_url(
        address.url, socket_timeout=_BROKER_SECONDS, socket_connect_timeout=_BROKER_SECONDS
    )
    try:
        info: Any = client.info()
        checks = (_eviction, _persistence, _users)
        return [_redis_version(info), *(_asked(check, client) for check in checks)]
    except (RedisError, OSError) as error:
        remedy = (
            f"start Redis, or correct {PREFIX}BROKER_URL; until then everybody looks by the clock"
        )
        return [Finding("broker", "missing", f"{address}: {_line(error)}", remedy)]
    finally:
        client.close()


def _asked(check: Callable[[Any], Finding], client: Any) -> Finding:
    """A check, where a managed Redis may refuse the question."""
    try:
        return check(client)
    except ResponseError as error:
        return Finding("broker", "note", f"cannot be asked: {_line(error)}", "ask its provider")


def _redis_version(info: Any) -> Finding:
    number = str(info["redis_version"])
    good = tuple(int(part) for part in number.split(".")[:2]) >= _OLDEST_REDIS
    remedy = "use Redis 7 or newer: users of workers are limited by rules that older ones lack"
    return Finding("broker", "ok" if good else "missing", f"Redis {number}", remedy)


def _eviction(client: Any) -> Finding:
    policy = client.config_get("maxmemory-policy")["maxmemory-policy"]
    remedy = "set `maxmemory-policy noeviction`: else messages vanish silently when it is full"
    return Finding("broker memory", "ok" if policy == "noeviction" else "note", policy, remedy)


def _persistence(client: Any) -> Finding:
    on = client.config_get("appendonly")["appendonly"] == "yes"
    remedy = "set `appendonly yes`: else a restart of Redis loses messages, and work waits a clock"
    return Finding("broker log", "ok" if on else "note", "on" if on else "off", remedy)


def _users(client: Any) -> Finding:
    """Whether this user may let workers in."""
    try:
        workers = [name for name in client.acl_users() if str(name).startswith("worker.")]
    except NoPermissionError as error:
        remedy = f"{PREFIX}BROKER_URL must name a user who may set users (ACL SETUSER)"
        return Finding("broker users", "missing", _line(error), remedy)
    return Finding("broker users", "ok", f"{len(workers)} workers may listen")


# -- Objects --------------------------------------------------------------------------------------


def _objects(settings: ServerSettings) -> list[Finding]:
    try:
        store = open_address(settings.objects_url)
        store.check()
        found = [Finding("objects", "ok", f"{settings.objects_url} can be written")]
        if isinstance(store, S3Store):
            found.append(_conditional(store))
        return found
    except AssayError as error:
        remedy = f"correct {PREFIX}OBJECTS_URL, {PREFIX}S3_… or the AWS credentials"
        return [Finding("objects", "missing", _line(error), remedy)]


def _conditional(store: S3Store) -> Finding:
    good = store.conditional
    detail = "refuses to overwrite" if good else "does not know If-None-Match"
    remedy = "keys are looked up before they are written; a server that refuses is safer"
    return Finding("objects, conditional put", "ok" if good else "note", detail, remedy)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

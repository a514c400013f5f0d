"""Server mode as separate processes: API, scheduler, implement workers, workers, Redis, S3.

For tests and benchmarks that need the real thing, and that kill parts of it:

    with Stack(folder, postgres="postgresql+psycopg://postgres@127.0.0.1/postgres") as stack:
        with stack.client() as client: ...     # assay.client over HTTP
        stack.scheduler.kill()                 # kill -9
        stack.scheduler.start()                # again, with the same settings
        stack.worker("w-0").pause()            # SIGSTOP; resume() is SIGCONT
        stack.redis.flush(); stack.redis.kill(); stack.redis.start()

`Stack(...)` makes a database of its own on the Postgres server (or takes `database_url`, which it
leaves alone), a Redis with a password on a free port, an S3 server (moto, in memory; without it a
folder), and then starts the API (which migrates), scheduler, implement workers, workers.
`start()`/`stop()` do that by hand; `stack.parts` are all processes by name:

    stack.api  stack.scheduler  stack.implementers[i]  stack.workers[name]  stack.redis  stack.s3

Every part is a `Part`: `start()`, `stop()` (SIGTERM, returns the exit code), `kill()`, `pause()`,
`resume()`, `running`, `pid`, `log` (a file with its stderr), `ready` (its line of JSON) and `env`
(its own variables: change it between `kill()` and `start()`). `stack.add_scheduler()`,
`add_implementer()` and `add_worker(name, **settings)` add parts to a running stack.

`settings` are variables for all parts: `ASSAY_WORKER_*` reach the workers alone, everything else
the servers alone. `worker_api` and `worker_broker` may be set to a proxy's address before
`add_worker` to put a bad network between a worker and its servers. `spawn` may
be that of a `tests.support.warm_start.WarmStart`, so that parts start in a fraction of a second.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import redis
from sqlalchemy import create_engine, make_url, text

from assay.client import Client
from tests.support.ports import free_port
from tests.support.warm_start import Process, Spawn, spawn

READY_SECONDS = 90
BUCKET = "assay"
OWNER = "tester"


class Part:
    """A process that can be started, stopped, killed and started again."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        env: Mapping[str, str],
        is_ready: Callable[[], bool] | None = None,
        *,
        spawn: Spawn = spawn,
    ) -> None:
        """Without `is_ready`, it is ready when it has printed a line of JSON."""
        self.name = name
        self.command = command
        self.log = folder / f"{name}.log"
        self.env = dict(env)
        self.ready: dict[str, Any] = {}
        self._is_ready = is_ready
        self._spawn = spawn
        self._process: Process | None = None

    def start(self, *, wait: bool = True) -> Part:
        """Start it, and wait until it is ready.

        Raises:
            RuntimeError: it ended instead, or was not ready in time; the message holds its log.
        """
        assert not self.running, f"{self.name} is running"
        out = self.log.with_suffix(".out")
        with self.log.open("ab") as log, out.open("wb") as stdout:
            self._process = self._spawn(self.command, self.env, stdout.fileno(), log.fileno())
        return self.wait_ready() if wait else self

    def wait_ready(self, seconds: float = READY_SECONDS) -> Part:
        """Wait until a started process is ready; see `start`."""
        deadline = time.monotonic() + seconds
        while not self._looks_ready():
            if not self.running or time.monotonic() > deadline:
                state = "is not ready" if self.running else f"ended with {self.exit_code}"
                raise RuntimeError(f"{self.name} {state}:\n{self.tail()}")
            time.sleep(0.02)
        return self

    def _looks_ready(self) -> bool:
        if self._is_ready is not None:
            return self._is_ready()
        line = self.log.with_suffix(".out").read_text().partition("\n")
        if not line[1]:
            return False
        self.ready = json.loads(line[0])
        return True

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None
        return self._process.pid

    def tail(self, characters: int = 6000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM; returns the exit code. See `wait`."""
        self.signal_end()
        return self.wait(seconds)

    def signal_end(self) -> None:
        """SIGTERM, also to a paused process, without waiting."""
        assert self._process is not None
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            self.resume()

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end; a process that does not end is killed, and raises."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """`kill -9`: nothing of the process gets to clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


class Redis(Part):
    """A Redis server of its own: with a password, on a free port, keeping nothing on disk."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self.url = f"redis://:{self.password}@127.0.0.1:{self.port}/0"
        #: What workers are told: the address without credentials.
        self.address = f"redis://127.0.0.1:{self.port}/0"
        settings = folder / "redis.conf"
        settings.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\ndir {folder}\n"
            'save ""\nappendonly no\nmaxmemory-policy noeviction\n'
        )
        settings.chmod(0o600)
        super().__init__("redis", ["redis-server", str(settings)], folder, env, self._answers)

    def connection(self) -> redis.Redis:
        """A connection as the administrator."""
        return redis.Redis.from_url(self.url, socket_timeout=5)

    def flush(self) -> None:
        """Lose every key, and every user but the default one."""
        with self.connection() as connection:
            connection.flushall()
            for user in connection.acl_users():
                if user != "default":
                    connection.acl_deluser(user)

    def _answers(self) -> bool:
        try:
            with self.connection() as connection:
                return bool(connection.ping())
        except redis.RedisError:
            return False


class ObjectServer(Part):
    """An S3 server in memory (moto): its objects live as long as its process."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__("s3", command, folder, env, self._answers)

    def start(self, *, wait: bool = True) -> Part:
        super().start(wait=wait)
        if wait:
            self._make_bucket()
        return self

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _make_bucket(self) -> None:
        import boto3

        boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        ).create_bucket(Bucket=BUCKET)


class Stack:
    """Server mode on this machine. See the module's text."""

    def __init__(
        self,
        folder: Path,
        *,
        postgres: str = "",
        database_url: str | None = None,
        broker: bool = True,
        s3: bool = True,
        implementers: int = 1,
        workers: int = 1,
        sandbox: str = "subprocess",
        settings: Mapping[str, str] | None = None,
        spawn: Spawn = spawn,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._postgres = postgres
        self._own_database = database_url is None
        self.database_url = database_url or ""
        self._settings = dict(settings or {})
        self._sandbox = sandbox
        self._spawn = spawn
        self._base = {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")}
        self.key = secrets.token_urlsafe(24)
        self.tokens = {f"w-{n}": f"asw_{secrets.token_urlsafe(32)}" for n in range(workers)}
        self.port = free_port()
        self.api_url = f"http://127.0.0.1:{self.port}"
        self.apis = [self.api_url]
        self.worker_api = self.api_url
        self.redis = Redis(folder, self._base) if broker else None
        self.worker_broker = self.redis.address if self.redis is not None else None
        self.s3 = ObjectServer(folder, self._base) if s3 else None
        self.parts: dict[str, Part] = {}
        self.implementers: list[Part] = []
        self.schedulers: list[Part] = []
        self.workers: dict[str, Part] = {}
        self._counts = {"implement-worker": implementers}
        self.started = False

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop(check=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.stop(check=kind is None)

    @property
    def api(self) -> Part:
        """The API's process."""
        return self.parts["api"]

    @property
    def scheduler(self) -> Part:
        """The first scheduler."""
        return self.schedulers[0]

    def worker(self, name: str) -> Part:
        """A worker's process by its name."""
        return self.workers[name]

    def start(self) -> None:
        """Start everything, and wait until it is ready."""
        if self._own_database:
            self._make_database()
        for server in (self.redis, self.s3):
            if server is not None:
                self.parts[server.name] = server
                server.start()
        self._add("api", "serve")
        self.api.wait_ready()
        # The others start side by side: each takes a second to import what it needs.
        self.schedulers.append(self._add("scheduler", "scheduler"))
        for number in range(self._counts["implement-worker"]):
            self.implementers.append(self._add(f"implementer-{number}", "implement-worker"))
        for name in self.tokens:
            self._add_worker(name, {})
        for part in self.parts.values():
            part.wait_ready()
        self.started = True

    def configure(self, settings: Mapping[str, str]) -> None:
        """Variables for parts that are added from now on."""
        self._settings |= settings

    def add_api(self) -> str:
        """One more API over the same database; returns its address."""
        name, port = f"api-{len(self.apis) + 1}", free_port()
        part = Part(
            name,
            _assay("serve"),
            self.folder,
            self._server_env() | {"ASSAY_IMPLEMENTER_PORT": str(port)},
            spawn=self._spawn,
        )
        self.parts[name] = part
        self.apis.append(f"http://127.0.0.1:{port}")
        part.start()
        return self.apis[-1]

    def add_scheduler(self) -> Part:
        """One more scheduler, which waits to become the leader."""
        part = self._add(f"scheduler-{len(self.schedulers)}", "scheduler")
        self.schedulers.append(part)
        return part.wait_ready()

    def add_implementer(self) -> Part:
        """One more implement worker."""
        part = self._add(f"implementer-{len(self.implementers)}", "implement-worker")
        self.implementers.append(part)
        return part.wait_ready()

    def add_worker(self, name: str, **settings: str) -> Part:
        """One more worker, admitted over HTTP. `settings` are `ASSAY_WORKER_*` variables."""
        import httpx2

        answer = httpx2.post(
            f"{self.api_url}/v1/workers",
            json={"name": name},
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=60,
        )
        answer.raise_for_status()
        self.tokens[name] = answer.json()["token"]
        return self._add_worker(name, settings).wait_ready()

    def forget(self, part: Part) -> None:
        """Stop a part that was added, for good."""
        if part.running:
            part.resume()
            part.stop()
        del self.parts[part.name]
        for group in (self.schedulers, self.implementers):
            if part in group:
                group.remove(part)
        self.workers.pop(part.name, None)

    def client(self) -> Client:
        """A client of the API with the owner's key."""
        return Client(self.api_url, api_key=self.key)

    def stop(self, *, check: bool = True) -> None:
        """Stop everything that runs; drop the database this made.

        Raises:
            AssertionError: a part that ran did not end with code 0 (only with `check`).
        """
        servers = [part for part in (self.redis, self.s3) if part is not None]
        ours = [part for part in self.parts.values() if part not in servers]
        hosts = list(self.workers.values())
        wrong: dict[str, tuple[int, str]] = {}
        # Workers first: they tell the API how what they held ended.
        for group in (hosts, [part for part in ours if part not in hosts]):
            running = [part for part in group if part.running]
            for part in running:
                part.signal_end()
            for part in running:
                try:
                    code = part.wait(60)
                except subprocess.TimeoutExpired:
                    code = -9
                if code != 0:
                    wrong[part.name] = (code, part.tail())
        for server in servers:
            server.kill()
        if self._own_database and self.database_url:
            self._drop_database()
        assert not check or not wrong, wrong

    def _server_env(self) -> dict[str, str]:
        env = self._base | {
            "ASSAY_SERVER_DATABASE_URL": self.database_url,
            "ASSAY_SERVER_OBJECTS_URL": str(self.folder / "objects"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "ASSAY_IMPLEMENTER_PORT": str(self.port),
            "ASSAY_IMPLEMENTER_API_KEYS": json.dumps({OWNER: self.key}),
            "ASSAY_IMPLEMENTER_WORKERS": json.dumps(self.tokens),
        }
        if self.redis is not None:
            env["ASSAY_SERVER_BROKER_URL"] = self.redis.url
        if self.s3 is not None:
            env["ASSAY_SERVER_OBJECTS_URL"] = f"s3://{BUCKET}/server-mode"
            env["ASSAY_SERVER_S3_ENDPOINT_URL"] = self.s3.endpoint
            env["ASSAY_SERVER_S3_REGION"] = "us-east-1"
        own = {k: v for k, v in self._settings.items() if not k.startswith("ASSAY_WORKER_")}
        return env | own

    def _add(self, name: str, command: str) -> Part:
        part = Part(name, _assay(command), self.folder, self._server_env(), spawn=self._spawn)
        self.parts[name] = part
        part.start(wait=False)
        return part

    def _add_worker(self, name: str, settings: Mapping[str, str]) -> Part:
        env = self._base | {
            "ASSAY_WORKER_API_URL": self.worker_api,
            "ASSAY_WORKER_TOKEN": self.tokens[name],
            "ASSAY_WORKER_NAME": name,
            "ASSAY_WORKER_CPUS": "2",
            "ASSAY_WORKER_SANDBOX": self._sandbox,
            "ASSAY_WORKER_PROBE": "quick",
            "ASSAY_WORKER_CACHE": str(self.folder / "cache"),
            "ASSAY_WORKER_SCRATCH": str(self.folder / f"scratch-{name}"),
            "ASSAY_WORKER_DRAIN_SECONDS": "5",
        }
        if self.worker_broker is not None:
            env["ASSAY_WORKER_BROKER_URL"] = self.worker_broker
        own = {k: v for k, v in self._settings.items() if k.startswith("ASSAY_WORKER_")}
        env = env | own | dict(settings)
        part = Part(name, _assay("worker"), self.folder, env, spawn=self._spawn)
        self.parts[name] = self.workers[name] = part
        part.start(wait=False)
        return part

    def _make_database(self) -> None:
        name = f"assay_stack_{uuid.uuid4().hex[:12]}"
        self._on_server(f"CREATE DATABASE {name}")
        url = make_url(self._postgres).set(database=name)
        self.database_url = url.render_as_string(hide_password=False)

    def _drop_database(self) -> None:
        name = urlsplit(self.database_url).path.lstrip("/")
        self._on_server(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _on_server(self, statement: str) -> None:
        engine = create_engine(self._postgres, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()


def _assay(command: str) -> list[str]:
    return [sys.executable, "-m", "assay.cli", command]

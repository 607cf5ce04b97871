"""The database that holds Dagster's history for teams: MILLRACE_POSTGRES, postgresql://millrace:PASSWORD@db.example:5432/millrace.

The URL, which holds a password, is written into no file: dagster.yaml names the variable."""

import importlib.util
import os
import time
from urllib.parse import urlsplit

from model_ops.jobs import Misuse

VARIABLE = "MILLRACE_POSTGRES"
SCHEME = "postgresql+psycopg2"
"""SQLAlchemy 2.1 takes a plain postgresql:// for psycopg 3, and dagster-postgres brings psycopg 2."""
TRIES = 4
"""Times that a database is tried which is being started."""
STORAGE = f"""
storage:
  postgres:            # the URL holds a password, so it stays in the environment
    postgres_url:
      env: {VARIABLE}
"""


class PostgresError(Misuse):
    """MILLRACE_POSTGRES cannot be used; the message says why, without the password."""


def url() -> str:
    """The database's URL, as SQLAlchemy takes it; "" if the history is not in Postgres. Raises PostgresError."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return ""
    try:
        parts = urlsplit(given)
        usable = bool(parts.hostname or parts.query) and len(parts.path) > 1 and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.scheme not in ("postgres", "postgresql", SCHEME):
        raise PostgresError(
            f"{VARIABLE} is no address of a database: it looks like postgresql://USER:PASSWORD@HOST:5432/DATABASE"
        )
    return given.replace(f"{parts.scheme}://", f"{SCHEME}://", 1)


def require() -> None:
    """Raises PostgresError for a database that cannot be reached, or refuses the user. Its own message quotes no password."""
    import sqlalchemy as sa

    engine = sa.create_engine(url(), poolclass=sa.pool.NullPool, connect_args={"connect_timeout": 5})
    for left in reversed(range(TRIES)):
        try:
            engine.connect().close()
            return
        except sa.exc.DBAPIError as error:
            if not left:
                said = " ".join(str(error.orig).split())
                raise PostgresError(f"the database of {VARIABLE} cannot be used: {said}") from error
        time.sleep(1)


def use() -> bool:
    """Whether the history is in Postgres; then the variable gets the form that Dagster's processes need. Raises
    PostgresError."""
    address = url()
    if not address:
        return False
    if importlib.util.find_spec("dagster_postgres") is None or importlib.util.find_spec("psycopg2") is None:
        raise PostgresError(f"{VARIABLE} is set, and its driver is not installed: pip install 'millrace[postgres]'")
    os.environ[VARIABLE] = address
    return True

"""Sends OpenLineage events to a collector or appends them to a file, without ever failing or delaying a run.

    settings = OpenLineageSettings.of(os.environ)     # None: no events
    with destination(settings, say) as send: send(event)

A thread of its own sends events in order. A collector that is away costs no time; when the run has ended, the thread has a few
seconds to finish. `say` is called once with a sentence if events were lost.

Settings are the environment variables that OpenLineage's own clients read:

| variable | meaning |
|---|---|
| OPENLINEAGE_URL | the collector (http://marquez:5000), or a file (file:///srv/events.ndjson, or a path); not set: no events |
| OPENLINEAGE_ENDPOINT | path at the collector, by default api/v1/lineage |
| OPENLINEAGE_API_KEY | sent as a bearer token; never logged |
| OPENLINEAGE_NAMESPACE | namespace of the jobs, by default millrace |
| OPENLINEAGE_DISABLED | true: no events |
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import urllib3
from pydantic import BaseModel, ConfigDict, SecretStr

SECONDS = 5.0
"""Time for a collector to answer one event, and for the last events after a run."""
MOST_REFUSED = 3
"""After so many events in a row that could not be sent, the rest of the run's are not tried."""


@contextmanager
def destination(settings: OpenLineageSettings, say: Callable[[str], None]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that takes events while the block lasts."""
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    lost: list[str] = []
    deliver = _to_file(settings) if settings.file is not None else _to_collector(settings)

    def work() -> None:
        refused = 0
        while (body := waiting.get()) is not None:
            if refused >= MOST_REFUSED:
                lost.append(lost[-1])
                continue
            try:
                deliver(body)
                refused = 0
            except Exception as error:
                refused += 1
                lost.append(_reason(error))

    thread = threading.Thread(target=work, name="openlineage", daemon=True)
    thread.start()
    sent = 0

    def send(event: Mapping[str, Any]) -> None:
        nonlocal sent
        sent += 1
        waiting.put(json.dumps(event).encode())

    try:
        yield send
    finally:
        waiting.put(None)
        thread.join(SECONDS)
        if lost or thread.is_alive():
            where = settings.file or settings.url
            say(
                f"{len(lost) or 'some'} of {sent} OpenLineage events did not reach {where} "
                f"({lost[-1] if lost else 'it does not answer'}); the run does not depend on them"
            )


def _to_file(settings: OpenLineageSettings) -> Callable[[bytes], None]:
    def deliver(body: bytes) -> None:
        assert settings.file is not None
        handle = os.open(settings.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, body + b"\n")  # one write: lines of several runs do not mix
        finally:
            os.close(handle)

    return deliver


def _to_collector(settings: OpenLineageSettings) -> Callable[[bytes], None]:
    pool = urllib3.PoolManager(timeout=SECONDS, retries=urllib3.Retry(1, redirect=0, raise_on_redirect=True))
    headers = {"Content-Type": "application/json"}
    if settings.api_key is not None:
        headers["Authorization"] = f"Bearer {settings.api_key.get_secret_value()}"

    def deliver(body: bytes) -> None:
        answer = pool.request("POST", settings.url, body=body, headers=headers)
        if answer.status >= 300:
            raise OSError(f"the collector answered with status {answer.status}")

    return deliver


def _reason(error: Exception) -> str:
    """An error in a few words, without addresses of the machine's insides."""
    if isinstance(error, urllib3.exceptions.HTTPError):
        return "no connection"
    return error.strerror or str(error) if isinstance(error, OSError) else type(error).__name__


ENDPOINT = "api/v1/lineage"
NAMESPACE = "millrace"


class OpenLineageError(Exception):
    """The environment names no usable destination; the message says which variable to change."""


class OpenLineageSettings(BaseModel):
    """A destination: `url` of a collector, or `file`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = ""
    file: Path | None = None
    api_key: SecretStr | None = None
    namespace: str = NAMESPACE

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> OpenLineageSettings | None:
        """The settings that an environment gives; None if it wants no events. Raises OpenLineageError."""
        given = environment.get("OPENLINEAGE_URL", "").strip()
        if not given or environment.get("OPENLINEAGE_DISABLED", "").strip().lower() in ("true", "1", "yes"):
            return None
        namespace = environment.get("OPENLINEAGE_NAMESPACE", "").strip() or NAMESPACE
        parts = urlsplit(given)
        if parts.username or parts.password:
            raise OpenLineageError("OPENLINEAGE_URL carries credentials: put the key into OPENLINEAGE_API_KEY")
        if parts.scheme in ("http", "https"):
            if not parts.hostname:
                raise OpenLineageError(f"OPENLINEAGE_URL {given} names no host: give http://HOST:PORT")
            endpoint = environment.get("OPENLINEAGE_ENDPOINT", "").strip() or ENDPOINT
            key = environment.get("OPENLINEAGE_API_KEY", "").strip()
            return cls(
                url=f"{given.rstrip('/')}/{endpoint.lstrip('/')}", api_key=SecretStr(key) if key else None, namespace=namespace
            )
        if parts.scheme and parts.scheme != "file":
            raise OpenLineageError(f"OPENLINEAGE_URL {given}: give an http:// or https:// address, or a file")
        place = Path(url2pathname(parts.path) if parts.scheme else given).expanduser().absolute()
        if place.is_dir() or not place.parent.is_dir():
            raise OpenLineageError(f"OPENLINEAGE_URL {given}: give a file in an existing folder")
        return cls(file=place, namespace=namespace)

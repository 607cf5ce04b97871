"""Where OpenLineage events go: the environment variables that OpenLineage's own clients read.

    settings = OpenLineageSettings.of(os.environ)     # None: no events
    OPENLINEAGE_URL=http://marquez:5000               # a collector, or file:///srv/events.ndjson, or a path: a line per event

| variable | meaning |
|---|---|
| OPENLINEAGE_URL | the collector, or a file; not set: no events |
| OPENLINEAGE_ENDPOINT | path at the collector, by default api/v1/lineage |
| OPENLINEAGE_API_KEY | sent as a bearer token; never logged |
| OPENLINEAGE_NAMESPACE | namespace of the jobs, by default millrace |
| OPENLINEAGE_DISABLED | true: no events |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import BaseModel, ConfigDict, SecretStr

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
            return cls(url=f"{given.rstrip('/')}/{endpoint.lstrip('/')}", api_key=SecretStr(key) if key else None,
                       namespace=namespace)
        if parts.scheme and parts.scheme != "file":
            raise OpenLineageError(f"OPENLINEAGE_URL {given}: give an http:// or https:// address, or a file")
        place = Path(url2pathname(parts.path) if parts.scheme else given).expanduser().absolute()
        if place.is_dir() or not place.parent.is_dir():
            raise OpenLineageError(f"OPENLINEAGE_URL {given}: give a file in an existing folder")
        return cls(file=place, namespace=namespace)

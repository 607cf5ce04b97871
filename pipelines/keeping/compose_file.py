"""The compose file of `millrace deploy`: `millrace up` and a Postgres for its history, in containers.

    compose_file(deployment)          # a dictionary, as compose.yaml has it

The lake, the recipes and the files that they name have the same paths in the container as outside, so the lake's records of
them hold in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.keeping.up_servers import UpSettings

EVERYWHERE = "0.0.0.0"
"""The address inside of the container; outside, ports are published on the address that was asked for."""


def compose_file(name: str, settings: UpSettings, words: list[str], lake: str, read: list[Path], written: list[Path],
                 stop_s: int, version: str, gpus: bool, environment: Mapping[str, str]) -> dict[str, Any]:
    """words: arguments of `millrace`. lake: where it is, as --lake takes it. read, written: folders of this machine.
    environment: variables that are no secret."""
    ports = [settings.port, *(serving.port for serving in settings.serve), *([settings.capture_port] if settings.to else [])]
    volumes = [{**_mounted(path), "read_only": True} for path in read] + [_mounted(path) for path in written]
    service: dict[str, Any] = {
        "build": {"context": ".", "dockerfile": "Dockerfile"},
        "image": f"millrace:{version}",
        "hostname": name,  # it distinguishes runs of this machine from others', and a container's own name changes
        "init": True,
        "command": [_escaped(word) for word in words],
        "env_file": [{"path": ".env", "required": False}],
        "environment": {
            "MILLRACE_POSTGRES": "postgresql://millrace@postgres:5432/millrace",
            "PGPASSWORD": "${MILLRACE_POSTGRES_PASSWORD:?set it in .env}",  # some letters would not be right in an address
            **{name: _escaped(value) for name, value in environment.items()}},
        "volumes": volumes,
        "ports": [f"{settings.host}:{port}:{port}" for port in ports],
        "depends_on": {"postgres": {"condition": "service_healthy"}},
        "restart": "unless-stopped",
        "stop_grace_period": f"{stop_s}s",
        "healthcheck": {"test": ["CMD", "millrace", "up", "--check", "--lake", _escaped(lake)], "interval": "60s",
                        "timeout": "30s", "start_period": "180s", "retries": 3},
    }
    if gpus:
        service["deploy"] = {"resources": {"reservations": {"devices": [
            {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}
    postgres = {
        "image": "postgres:17",
        "environment": {"POSTGRES_USER": "millrace", "POSTGRES_DB": "millrace",
                        "POSTGRES_PASSWORD": "${MILLRACE_POSTGRES_PASSWORD:?set it in .env}"},
        "volumes": [{"type": "volume", "source": "history", "target": "/var/lib/postgresql/data"}],
        "healthcheck": {"test": ["CMD-SHELL", "pg_isready --username millrace --dbname millrace"], "interval": "10s",
                        "timeout": "5s", "retries": 10},
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
    }
    return {"name": name, "services": {"millrace": service, "postgres": postgres}, "volumes": {"history": {}}}


def _mounted(path: Path) -> dict[str, str]:
    return {"type": "bind", "source": _escaped(str(path)), "target": _escaped(str(path))}


def _escaped(word: str) -> str:
    """Compose reads $ as the beginning of a variable."""
    return word.replace("$", "$$")

"""What `millrace up` keeps running on a lake: `<DAGSTER_HOME>/up/state.json`, for people and monitors."""

import json
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.files import write_json
from resources.launching import is_same_process

FOLDER, STATE = "up", "state.json"


@dataclass(frozen=True)
class ServerState:
    name: str
    process: str
    """Stamp of its process (resources/launching/processes.py); "" while it does not run."""
    since: str
    """When it started or ended, ISO 8601."""
    restarts: int
    """Number of restarts."""
    why_not: str
    """Why it does not run now, or why it ended last."""
    log: str
    """Path of its log."""

    @property
    def is_running(self) -> bool:
        return bool(self.process) and is_same_process(self.process)

    @property
    def pid(self) -> int | None:
        return int(self.process.partition("@")[0]) if self.process else None


@dataclass(frozen=True)
class UpState:
    process: str
    """Stamp of `millrace up` itself."""
    host: str
    """The machine it ran on."""
    since: str
    lake: str
    servers: tuple[ServerState, ...] = ()
    ui: str = ""
    """Address of its webserver there."""

    @property
    def is_running(self) -> bool:
        return self.host == socket.gethostname() and is_same_process(self.process)

    def pid_of(self, name: str) -> int | None:
        """The process of a server; None while it does not run."""
        return next((server.pid for server in self.servers if server.name == name and server.is_running), None)

    @property
    def all_run(self) -> bool:
        """Whether `millrace up` and all its servers run."""
        return self.is_running and all(server.is_running for server in self.servers)


def now() -> str:
    """The time in UTC, as the state shows it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder_of(home: Path) -> Path:
    """The folder of state, workspace and logs in a DAGSTER_HOME."""
    return home / FOLDER


def write_state(home: Path, state: UpState) -> None:
    write_json(folder_of(home) / STATE, asdict(state))


def read_state(home: Path) -> UpState | None:
    """The state last written; None if there is none or it cannot be read."""
    try:
        content: dict[str, Any] = json.loads((folder_of(home) / STATE).read_text(encoding="utf-8"))
        return UpState(**{**content, "servers": tuple(ServerState(**server) for server in content["servers"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def shown_state(state: UpState) -> dict[str, Any]:
    """The state for programs: what --check --format json prints."""
    servers = []
    for server in state.servers:
        shown = asdict(server) | {"running": server.is_running, "pid": server.pid}
        del shown["process"]
        servers.append(shown | ({"why_not": ""} if server.is_running else {}))
    shown = {name: value for name, value in asdict(state).items() if name in ("lake", "host", "since")}
    return shown | {"running": state.is_running, "pid": int(state.process.partition("@")[0]), "servers": servers}

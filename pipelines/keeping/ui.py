"""`millrace ui`: the Dagster UI and daemon on a lake, until one of them ends. A second UI on a lake starts no second daemon."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from rich.console import Console

from assets.ownership import MODELS
from pipelines.keeping.daemon_lock import DaemonLock
from pipelines.keeping.dagster_servers import (
    ServerEnded,
    daemon_command,
    require_port,
    require_recipes,
    require_ui,
    server_environment,
    shown_recipes,
    webserver_command,
    writable_home,
    write_workspace,
)
from pipelines.keeping.launched_runs import end_launched_runs
from pipelines.keeping.managed_process import ManagedProcess
from pipelines.storage import lake_location, location_name
from resources.lake import LakeError, LakeLayout

LAKES_HERE = ("lake", "demo/lake", "demo/quick/lake")
"""Paths in the current folder that are searched for a lake if none is named."""
SECONDS_TO_END = 20


def serve(recipes: Sequence[Path], lake: str | Path | None, host: str, port: int, console: Console) -> int:
    """Runs webserver and daemon until one of them ends or Ctrl-C; stops both by their pids."""
    require_ui()
    require_recipes(recipes)
    place = ui_lake(recipes, lake)
    shown = shown_recipes(recipes, place)
    require_port(host, port)
    home = writable_home(place)
    with tempfile.TemporaryDirectory(prefix="millrace-ui-") as folder, DaemonLock(home) as lock:
        workspace, environment = write_workspace(Path(folder), shown), server_environment(home, place)
        servers = [ManagedProcess(webserver_command(workspace, host, port), environment)]
        if not (reason := lock.why_not()):
            servers.append(ManagedProcess(daemon_command(workspace), environment, held=lock.files))
        else:
            console.print(f"This UI only shows, and runs no schedules and sensors: {reason}.", soft_wrap=True, markup=False)
        try:
            for server in servers:
                server.start()
            while all(server.is_running for server in servers) and not _answers(host, port):
                time.sleep(0.5)
            if all(server.is_running for server in servers):
                console.print(
                    f"Dagster UI on [bold]http://{host}:{port}[/] for the lake {place.place}; Ctrl-C ends it\n"
                    f"Its graph: http://{host}:{port}/asset-groups, where a click unfolds a group; the models alone: "
                    f"http://{host}:{port}/locations/{location_name(shown[0])}/asset-groups/{MODELS}/lineage",
                    soft_wrap=True,
                )
            while all(server.is_running for server in servers):
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        finally:
            _end(servers)
        raise ServerEnded("a server of the UI ended by itself; its last lines above say why")


def _answers(host: str, port: int) -> bool:
    with suppress(OSError, HTTPException), closing(HTTPConnection(host, port, timeout=2)) as connection:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == 200
    return False


def ui_lake(recipes: Sequence[Path], given: str | Path | None) -> LakeLayout:
    """The lake to show. Raises LakeError if none is named and the current folder has none, or if the named one does not
    exist."""
    named = given or os.environ.get("MILLRACE_LAKE")
    if recipes:
        return LakeLayout.open(lake_location(recipes[0], named), create=True)
    if named:
        return LakeLayout.open(Path(named) if "://" not in str(named) else named, create=False)
    for place in LAKES_HERE:
        if (Path(place) / "lake.json").is_file():
            return LakeLayout.open(place, create=False)
    raise LakeError(f"no lake is named and there is none in ./{', ./'.join(LAKES_HERE)}: give a recipe, or --lake DIR")


def _end(servers: Sequence[ManagedProcess]) -> None:
    """Stops servers that still run, even if Ctrl-C is pressed again."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for server in servers:
        if server.is_running and server.pid is not None:
            end_launched_runs(server.pid)
        server.stop(SECONDS_TO_END)
    signal.signal(signal.SIGINT, before)

"""What `millrace ui` and `millrace up` need to run Dagster's webserver and daemon on a lake."""

import importlib.util
import os
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import yaml
from rich.console import Console

from assets.ownership import MODELS
from model_ops.files import write_text
from model_ops.jobs import CheckFailed, Misuse
from pipelines.contract import load_recipe
from pipelines.keeping.daemon_lock import DaemonLock
from pipelines.keeping.managed_process import ManagedProcess, end_launched_runs
from pipelines.storage import StorageError, lake_location, location_name, remembered_recipes, require_writable, storage_sentence
from resources.digests import PROJECT
from resources.lake import LakeError, LakeLayout
from resources.launching import child_environment, python_module


class UiError(Misuse):
    """The UI cannot be started; the message says what to change."""


class ServerEnded(CheckFailed):
    """Webserver or daemon ended unexpectedly."""


def require_ui() -> None:
    """Raises UiError if Dagster's webserver is not installed."""
    if importlib.util.find_spec("dagster_webserver") is None:
        raise UiError("the UI is not installed: pip install 'millrace[ui]'")


def require_recipes(recipes: Sequence[Path]) -> None:
    """Raises RecipeError here, not in a server that cannot load, and UiError for two recipes of one workload."""
    workloads: dict[str, Path] = {}
    for path in recipes:
        other = workloads.setdefault(load_recipe(path).workload, path)
        if other.resolve() != path.resolve():
            raise UiError(f"{other} and {path} are recipes of the same workload: their assets would have the same keys")


def shown_recipes(recipes: Sequence[Path], lake: LakeLayout, command: str = "ui") -> list[Path]:
    """The recipes to show: those named, else those last run on the lake. Raises UiError if there are none."""
    return list(recipes) or _recipes_of(lake, command)


def code_locations(recipes: Sequence[Path]) -> list[dict[str, dict[str, str]]]:
    """A workspace's code locations, one for each recipe, named after its file. Raises UiError for two recipes of the same
    name."""
    places: dict[str, Path] = {}
    for path in (recipe.resolve() for recipe in recipes):
        name = location_name(path)
        if places.setdefault(name, path) != path:
            raise UiError(f"{places[name]} and {path} would have the same name in the UI: rename one of the files")
    return [
        {
            "python_module": {
                "module_name": "pipelines.definitions",
                "attribute": str(path),
                "location_name": name,
                "working_directory": str(PROJECT),
            }
        }
        for name, path in places.items()
    ]


def write_workspace(folder: Path, recipes: Sequence[Path]) -> Path:
    """Writes workspace.yaml into a folder, and returns its path."""
    path = folder / "workspace.yaml"
    write_text(path, yaml.safe_dump({"load_from": code_locations(recipes)}))
    return path


def webserver_command(workspace: Path, host: str, port: int) -> list[str]:
    return python_module("dagster_webserver", "-w", str(workspace), "-h", host, "-p", str(port))


def daemon_command(workspace: Path) -> list[str]:
    return python_module("pipelines.running.daemon", str(workspace))


def server_environment(home: Path, lake: LakeLayout) -> dict[str, str]:
    return child_environment(DAGSTER_HOME=str(home), MILLRACE_LAKE=str(lake.root))


def writable_home(lake: LakeLayout) -> Path:
    """The lake's DAGSTER_HOME, with databases that are ready: webserver and daemon, which start at the same time, would both
    create them, and break them. Raises StorageError if it cannot be written, and PostgresError."""
    from pipelines.running import dagster_home, open_instance

    try:
        home = dagster_home(lake)
        require_writable(home)
        open_instance(lake).dispose()
    except (OSError, StorageError) as error:
        said = storage_sentence(error, lake.root) or str(error)
        raise StorageError(f"{said} Or set MILLRACE_HOME to a folder for Dagster's history that can be written.") from error
    return home


def require_port(host: str, port: int, option: str = "--port") -> None:
    """Raises UiError if the port cannot be used. option: with which another port is chosen."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)  # fails if a server already listens there
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such port"
        raise UiError(f"{host}:{port} cannot be listened on ({reason}): give another {option} or --host") from error


def _recipes_of(lake: LakeLayout, command: str) -> list[Path]:
    noted = remembered_recipes(lake)
    there = [path for path in noted if path.is_file()]
    if not there:
        gone = f"; {noted[0]}, which was run on it last, is gone" if noted else ""
        raise UiError(f"the lake {lake.place} names no recipe to show{gone}: millrace {command} RECIPE {lake.option}")
    return there


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
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for server in servers:
        if server.is_running and server.pid is not None:
            end_launched_runs(server.pid)
        server.stop(SECONDS_TO_END)
    signal.signal(signal.SIGINT, before)

"""What `millrace ui` and `millrace up` need to run Dagster's webserver and daemon on a lake."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Sequence
from pathlib import Path

import yaml

from model_ops.files import write_text
from model_ops.jobs import CheckFailed, Misuse
from pipelines.contract import load_recipe
from pipelines.storage import StorageError, location_name, remembered, require_writable, storage_sentence
from resources.digests import PROJECT
from resources.lake import LakeLayout
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
    noted = remembered(lake)
    there = [path for path in noted if path.is_file()]
    if not there:
        gone = f"; {noted[0]}, which was run on it last, is gone" if noted else ""
        raise UiError(f"the lake {lake.place} names no recipe to show{gone}: millrace {command} RECIPE {lake.option}")
    return there

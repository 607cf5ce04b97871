"""The Dagster UI and daemon on a lake: `millrace ui`.

    serve([Path("math-tutor.yaml")], None, "127.0.0.1", 3000, console)

Only the named lake is opened; a lake that does not exist is created only if a recipe is named. One daemon
serves a lake: a second UI on it starts no second daemon, which Dagster does not support.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from rich.console import Console

from pipelines.contract.recipe import load_recipe
from pipelines.storage.lake_recipes import remembered
from pipelines.storage.locations import lake_location
from pipelines.storage.storage_errors import StorageError, require_writable, storage_sentence
from resources.artefacts.source_digest import PROJECT
from resources.lake import Lake, LakeError
from resources.launching.python_process import child_environment, python_module, python_script

LAKES_HERE = ("lake", "demo/lake", "demo/quick/lake")
"""Paths in the current folder that are searched for a lake if none is named."""
SECONDS_TO_END = 20


class UiError(Exception):
    """The UI cannot be started; the message says what to change."""


def serve(recipes: Sequence[Path], lake: str | Path | None, host: str, port: int, console: Console) -> int:
    """Runs webserver and daemon until one of them ends or Ctrl-C; stops both by their pids."""
    if importlib.util.find_spec("dagster_webserver") is None:
        raise UiError("the UI is not installed: pip install 'millrace[ui]'")
    for path in recipes:
        load_recipe(path)  # report an error here, not in a server that cannot load
    place = ui_lake(recipes, lake)
    shown = recipes or _recipes_of(place)
    _check_port(host, port)
    home = _writable_home(place)
    environment = child_environment(DAGSTER_HOME=str(home), MILLRACE_LAKE=str(place.root))
    with tempfile.TemporaryDirectory(prefix="millrace-ui-") as folder, _only_daemon(home) as daemon_here:
        workspace = Path(folder) / "workspace.yaml"
        workspace.write_text(yaml.safe_dump({"load_from": code_locations(shown)}), encoding="utf-8")
        commands = [python_module("dagster_webserver", "-w", str(workspace), "-h", host, "-p", str(port))]
        if daemon_here:
            commands.append(python_script("dagster-daemon", "run", "-w", str(workspace)))
        else:
            console.print("Another UI on this lake runs its schedules and sensors; this one only shows.")
        # A session of their own: Ctrl-C reaches only this process, which then ends them in order.
        servers = [subprocess.Popen(command, env=environment, start_new_session=True) for command in commands]
        try:
            console.print(f"Dagster UI on [bold]http://{host}:{port}[/] for the lake {place.place}; Ctrl-C ends it",
                          soft_wrap=True)
            while all(server.poll() is None for server in servers):
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        finally:
            _end(servers)
        raise ServerEnded("a server of the UI ended by itself; its last lines above say why")


class ServerEnded(Exception):
    """Webserver or daemon ended unexpectedly."""


def ui_lake(recipes: Sequence[Path], given: str | Path | None) -> Lake:
    """The lake to show. Raises LakeError if none is named and the current folder has none, or if the named one does not
    exist."""
    named = given or os.environ.get("MILLRACE_LAKE")
    if recipes:
        return Lake.open(lake_location(recipes[0], named), create=True)
    if named:
        return Lake.open(Path(named) if "://" not in str(named) else named, create=False)
    for place in LAKES_HERE:
        if (Path(place) / "lake.json").is_file():
            return Lake.open(place, create=False)
    raise LakeError(f"no lake is named and there is none in ./{', ./'.join(LAKES_HERE)}: give a recipe, or --lake DIR")


def code_locations(recipes: Sequence[Path]) -> list[dict[str, dict[str, str]]]:
    """A workspace's code locations, one for each recipe, named after its file. Raises UiError for two recipes of the same
    name."""
    places: dict[str, Path] = {}
    for path in (recipe.resolve() for recipe in recipes):
        name = path.stem.replace("-", "_")
        if places.setdefault(name, path) != path:
            raise UiError(f"{places[name]} and {path} would have the same name in the UI: rename one of the files")
    return [{"python_module": {"module_name": "pipelines.definitions", "attribute": str(path), "location_name": name,
                               "working_directory": str(PROJECT)}} for name, path in places.items()]


def _recipes_of(lake: Lake) -> list[Path]:
    noted = remembered(lake)
    there = [path for path in noted if path.is_file()]
    if not there:
        gone = f"; {noted[0]}, which was run on it last, is gone" if noted else ""
        raise UiError(f"the lake {lake.place} names no recipe to show{gone}: millrace ui RECIPE --lake {lake.place}")
    return there


def _writable_home(lake: Lake) -> Path:
    from pipelines.running.instance import dagster_home

    try:
        home = dagster_home(lake)
        require_writable(home)
    except (OSError, StorageError) as error:
        said = storage_sentence(error, lake.root) or str(error)
        raise StorageError(f"{said} Or set MILLRACE_HOME to a folder for Dagster's history that can be written.") from error
    return home


def _check_port(host: str, port: int) -> None:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)  # fails if a server already listens there
    except OSError as error:
        raise UiError(f"{host}:{port} cannot be listened on ({error.strerror}): give another --port or --host") from error


@contextmanager
def _only_daemon(home: Path) -> Iterator[bool]:
    """Whether this is the only `millrace ui` on a DAGSTER_HOME, by a kernel lock that ends with the process."""
    with (home / ".daemon-lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _end(servers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stops servers that still run, even if Ctrl-C is pressed again."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for server in servers:
        server.terminate()
    for server in servers:
        try:
            server.wait(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    signal.signal(signal.SIGINT, before)

"""The Dagster UI and daemon on a lake: `millrace ui`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml
from rich.console import Console

from pipelines.instance import dagster_home
from pipelines.recipe import load_recipe
from pipelines.settings import RECIPES, lake_location
from resources.lake import Lake
from resources.source_digest import PROJECT


def serve(recipes: list[Path], lake: str | Path | None, host: str, port: int, console: Console) -> int:
    """Runs webserver and daemon until one of them ends or Ctrl-C; stops both by their pids."""
    for path in recipes:
        load_recipe(path)  # a mistake is said here, not by a server that cannot load
    demo_lake = None if recipes or os.environ.get("MILLRACE_LAKE") else PROJECT / "demo" / "lake"
    first = recipes[0] if recipes else RECIPES / "demo.yaml"
    place = Lake.open(lake_location(first, lake or demo_lake), create=True)
    home = dagster_home(place)
    environment = {
        **os.environ, "DAGSTER_HOME": str(home), "MILLRACE_LAKE": str(place.root),
        "MILLRACE_RECIPES": os.pathsep.join(
            [*(str(path.resolve()) for path in recipes), os.environ.get("MILLRACE_RECIPES", "")]
        ),
    }
    workspace = _workspace(recipes, home) if recipes else PROJECT / "workspace.yaml"
    python = [sys.executable, "-m"]
    commands = [
        [*python, "dagster_webserver", "-w", str(workspace), "-h", host, "-p", str(port)],
        [*python, "dagster._daemon", "run", "-w", str(workspace)],
    ]
    servers = [subprocess.Popen(command, cwd=PROJECT, env=environment) for command in commands]
    console.print(f"Dagster UI on [bold]http://{host}:{port}[/] for the lake {place.root}; Ctrl-C ends it")
    try:
        while all(server.poll() is None for server in servers):
            time.sleep(0.5)
        return 1  # one of them ended by itself, and said why
    except KeyboardInterrupt:
        return 0
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            _wait_or_kill(server)


def _wait_or_kill(server: subprocess.Popen[bytes]) -> None:
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _workspace(recipes: list[Path], home: Path) -> Path:
    """A workspace file with one code location per recipe."""
    names = [path.stem.replace("-", "_") for path in recipes]
    places = [
        {"python_module": {"module_name": "pipelines.definitions", "attribute": name, "location_name": name}}
        for name in names
    ]
    file = home / "workspace.yaml"
    file.write_text(yaml.safe_dump({"load_from": places}))
    return file

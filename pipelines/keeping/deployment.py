"""Writes files that start `millrace up` with a machine: systemd units, a compose file with a Postgres, and README.md. Paths are
absolute and the same in the container as outside, so the lake's records hold in both; no secret is written."""

import getpass
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from model_ops.files import write_text
from pipelines.contract import load_recipe
from pipelines.keeping.dagster_servers import UiError, code_locations, require_recipes
from pipelines.keeping.managed_process import CHECKPOINT_S
from pipelines.keeping.up_servers import DRAIN_S, UpSettings, require_choice, require_known_workloads
from pipelines.storage import lake_location
from resources.digests import PROJECT
from resources.lake import LakeLayout
from resources.launching import child_environment, python_module
from stores.mirror.location import is_bucket

TEMPLATES = Path(__file__).with_name("templates")
_GLOB = re.compile(r"[*?\[{]")
EVERYWHERE = "0.0.0.0"
"""The address inside of the container; outside, ports are published on the address that was asked for."""
_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)


def write_deployment(folder: Path, settings: UpSettings, version: str, gpus: bool = False) -> list[Path]:
    """Writes the files. gpus: the container gets the machine's GPUs. Raises RecipeError, UiError, CaptureError, LakeError."""
    if not settings.recipes:
        raise UiError("millrace deploy needs the recipes that it deploys: millrace deploy DIR RECIPE")
    require_recipes(settings.recipes)
    code_locations(settings.recipes)  # refuses two files of one name
    require_choice(settings)
    lake = _lake(settings)
    if not is_bucket(lake):
        there = LakeLayout.open(lake, create=False) if (Path(lake) / "lake.json").is_file() else None
        require_known_workloads(settings, settings.recipes, there)
    if folder.exists() and not folder.is_dir():
        raise UiError(f"{folder} is a file: name a folder for the files of the deployment")
    workloads = [load_recipe(path).workload for path in settings.recipes]
    name = f"millrace-{workloads[0]}" if len(workloads) == 1 else "millrace"
    unit, words = f"{name}.service", _words(settings, lake, settings.host)
    stop_s = int(CHECKPOINT_S + (DRAIN_S + 40) * (len(settings.serve) + bool(settings.to)) + 90)
    values: dict[str, Any] = {
        "what": f"millrace up for {', '.join(workloads)}",
        "unit": unit,
        "description": f"millrace: {', '.join(workloads)}",
        "account": getpass.getuser(),
        "folder": Path(settings.recipes[0]).resolve().parent,
        "environment": _environment(),
        "secrets": f"/etc/millrace/{name}.env",
        "command": [*_program(), *words],
        "stop_s": stop_s,
        "version": version,
        "typed": shlex.join(["deploy", str(folder.absolute()), *words[1:], *(["--gpus"] if gpus else [])]),
        "check": shlex.join(["up", "--check", "--lake", lake]),
        "uid": os.getuid(),
        "variables": _named_variables(settings),
        "project": name,
        "container_words": _words(settings, lake, EVERYWHERE),
        "lake": lake,
        "chosen": _chosen(),
        "read": sorted(_read(settings)),
        "written": sorted(_written(settings, lake)),
        "host": settings.host,
        "ports": require_choice(settings).values(),
        "gpus": gpus,
    }
    files = {
        unit: _rendered("millrace.service", user=False, **values),
        f"user/{unit}": _rendered("millrace.service", user=True, **{**values, "secrets": f"%h/.config/millrace/{name}.env"}),
        "compose.yaml": _rendered("compose.yaml", **values),
        "Dockerfile": _rendered("Dockerfile", **values),
        "millrace.env": _rendered("millrace.env", **values),
        "README.md": _rendered("README.md", **values),
    }
    for path, text in files.items():
        write_text(folder / path, text)
    return [folder / path for path in files]


def systemd_word(word: str) -> str:
    """A word of a command, as systemd reads it: variables begin with $, and quotes group."""
    return systemd_assignment(word).replace("$", "$$")


def systemd_assignment(word: str) -> str:
    """NAME=VALUE of `Environment=`, as systemd reads it."""
    escaped = systemd_text(word.replace("\\", "\\\\").replace('"', '\\"'))
    return escaped if _PLAIN.fullmatch(word) else f'"{escaped}"'


def systemd_text(text: str) -> str:
    """A whole line of a unit: only specifiers, which begin with %, have a meaning."""
    if any(ord(letter) < 32 for letter in text):
        raise UiError(f"{text!r} has a line end or another control character, which a unit of systemd cannot hold")
    return text.replace("%", "%%")


def compose_text(value: object) -> str:
    """A text of compose.yaml, in quotes: Compose reads $ as the beginning of a variable."""
    return json.dumps(str(value).replace("$", "$$"), ensure_ascii=False)


def _rendered(name: str, **values: Any) -> str:
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)
    environment.filters |= {"word": systemd_word, "assignment": systemd_assignment, "line": systemd_text, "text": compose_text}
    return environment.get_template(f"{name}.j2").render(**values)


def _lake(settings: UpSettings) -> str:
    given = settings.lake or os.environ.get("MILLRACE_LAKE")
    return str(given) if given and is_bucket(given) else str(lake_location(settings.recipes[0], given))


def _program() -> list[str]:
    script = Path(sys.executable).with_name("millrace")
    return [str(script)] if script.exists() else python_module("pipelines.cli")


def _chosen() -> dict[str, str]:
    """Variables of millrace that are set now and are no secret."""
    return {name: os.environ[name] for name in ("MILLRACE_HOME", "MILLRACE_DEVICES") if os.environ.get(name)}


def _environment() -> list[tuple[str, str]]:
    """Those, and where a checkout that is not installed lies."""
    variables = _chosen()
    if "PYTHONPATH" in child_environment() and not Path(sys.executable).with_name("millrace").exists():
        variables["PYTHONPATH"] = str(PROJECT)
    return sorted(variables.items())


def _words(settings: UpSettings, lake: str, host: str) -> list[str]:
    """The arguments of `millrace` that mean these settings, with absolute paths."""
    recipes = [str(Path(path).resolve()) for path in settings.recipes]
    words = ["up", *recipes, "--lake", lake, "--host", host, "--port", str(settings.port)]
    for serving in settings.serve:
        words += ["--serve", f"{serving.workload}:{serving.port}"]
    if settings.capture:
        words += ["--capture", settings.capture if is_bucket(settings.capture) else str(Path(settings.capture).absolute())]
    if settings.to:
        words += ["--to", settings.to, "--capture-port", str(settings.capture_port)]
    if settings.program:
        words += ["--program", settings.program]
    words += [f"--argument={argument}" for argument in settings.arguments]
    words += ["--keys", str(settings.keys.expanduser().absolute())] if settings.keys else []
    words += [f"--serve-option={option}" for option in settings.serve_options]
    return words + (["--logs", str(settings.logs.absolute())] if settings.logs else [])


def _written(settings: UpSettings, lake: str) -> set[Path]:
    folders = {Path(lake)} if not is_bucket(lake) else {Path.home() / ".millrace"}
    if settings.capture and not is_bucket(settings.capture):
        folders.add(Path(settings.capture).absolute())
    if settings.logs:
        folders.add(settings.logs.absolute())
    if home := os.environ.get("MILLRACE_HOME"):
        folders.add(Path(home).expanduser().absolute())
    return folders


def _read(settings: UpSettings) -> set[Path]:
    """Folders of the recipes and of the files that they name, without those inside of others."""
    folders = {Path(path).resolve().parent for path in settings.recipes}
    for path in settings.recipes:
        folders |= {_folder(text) for text in _texts(json.loads(load_recipe(path).as_text())) if text.startswith("/")}
    if settings.keys:
        folders.add(settings.keys.expanduser().absolute().parent)
    return {path for path in folders if path != Path("/") and not any(other in path.parents for other in folders)}


def _named_variables(settings: UpSettings) -> list[str]:
    """Environment variables that the recipes name for secrets (api_key_env, url_env, password_env), sorted."""
    return sorted({name for path in settings.recipes for name in _values_of_env_keys(json.loads(load_recipe(path).as_text()))})


def _values_of_env_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key.endswith("_env") and isinstance(inner, str):
                yield inner
            else:
                yield from _values_of_env_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _values_of_env_keys(inner)


def _folder(place: str) -> Path:
    """The folder to mount for a path, which may be a pattern."""
    path = Path(place[: match.start()].rpartition("/")[0] or "/") if (match := _GLOB.search(place)) else Path(place)
    return path if path.is_dir() else path.parent


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.removeprefix("file://")
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)

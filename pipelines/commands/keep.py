"""Commands for a machine that stays: `up`, `deploy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.terminal import LakeOption, ReportFormat, app, console, say_error

if TYPE_CHECKING:
    from pipelines.keeping import UpSettings

PANEL = "Run"
Recipes = Annotated[list[Path] | None, typer.Argument(help="recipes to show and run (default: those last run on the lake)")]
Host = Annotated[str, typer.Option(help="address to listen on")]
Port = Annotated[int, typer.Option(help="port of the UI", min=1, max=65535)]
Serve = Annotated[
    list[str] | None,
    typer.Option(help="workload whose champion is served and followed, or WORKLOAD:PORT; may be repeated", show_default=False),
]
Capture = Annotated[
    str,
    typer.Option(
        help="directory or s3://BUCKET/PREFIX into which the traffic of --serve or --to is written", show_default=False
    ),
]
To = Annotated[str, typer.Option(help="address of another server whose traffic is captured", show_default=False)]
CapturePort = Annotated[int, typer.Option(help="with --to: port of the capture layer", min=1, max=65535)]
Program = Annotated[
    str,
    typer.Option(
        help="with --serve: interpreter of an environment that has the server, or the command vllm", show_default=False
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--argument",
        help="with --serve: passed on to the server, as --argument=--max-model-len; may be repeated",
        show_default=False,
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        help="with --capture: YAML file of sampling rates and zero retention by the sha256 of a key",
        show_default="everything is kept",
    ),
]
ServeOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--serve-option",
        help="with --serve: passed on to millrace serve, as --serve-option=--wait=60; may be repeated",
        show_default=False,
    ),
]
Logs = Annotated[Path | None, typer.Option(help="folder of the logs", show_default="<lake>/.dagster/up")]


@app.command(rich_help_panel=PANEL)
def up(
    recipe: Recipes = None,
    lake: LakeOption = None,
    port: Port = 3000,
    host: Host = "127.0.0.1",
    serve: Serve = None,
    capture: Capture = "",
    to: To = "",
    capture_port: CapturePort = 8080,
    program: Program = "",
    argument: Arguments = None,
    keys: Keys = None,
    serve_option: ServeOptions = None,
    logs: Logs = None,
    check: Annotated[bool, typer.Option("--check", help="show what runs, and end: 0 if all of it does, else 1")] = False,
    format: Annotated[ReportFormat, typer.Option(help="of --check")] = ReportFormat.table,
) -> None:
    """Keeps UI, daemon and, where asked, servers and the capture layer of a lake running: starts again what ends."""
    if check:
        raise typer.Exit(_checked(lake, recipe or [], format is ReportFormat.json))
    from pipelines.keeping import up as keep_up

    settings = _settings(
        recipe, lake, host, port, serve, capture, to, capture_port, program, argument, keys, serve_option, logs
    )
    raise typer.Exit(keep_up(settings, lambda sentence: console.print(sentence, markup=False, highlight=False, soft_wrap=True)))


@app.command(rich_help_panel=PANEL)
def deploy(
    directory: Annotated[Path, typer.Argument(help="folder for the files; files of the same names are replaced")],
    recipe: Annotated[list[Path] | None, typer.Argument(help="recipes to show and run; at least one")] = None,
    lake: LakeOption = None,
    port: Port = 3000,
    host: Host = "127.0.0.1",
    serve: Serve = None,
    capture: Capture = "",
    to: To = "",
    capture_port: CapturePort = 8080,
    program: Program = "",
    argument: Arguments = None,
    keys: Keys = None,
    serve_option: ServeOptions = None,
    logs: Logs = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="in compose.yaml: give the machine's GPUs to the container")] = False,
) -> None:
    """Writes systemd units and a compose file that start `millrace up` with these recipes and options."""
    from pipelines.commands.version import own_version
    from pipelines.keeping import write_deployment

    settings = _settings(
        recipe, lake, host, port, serve, capture, to, capture_port, program, argument, keys, serve_option, logs
    )
    for path in write_deployment(directory, settings, own_version(), gpus):
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)


def _settings(
    recipe: list[Path] | None,
    lake: str | None,
    host: str,
    port: int,
    serve: list[str] | None,
    capture: str,
    to: str,
    capture_port: int,
    program: str,
    argument: list[str] | None,
    keys: Path | None,
    serve_option: list[str] | None,
    logs: Path | None,
) -> UpSettings:
    from pipelines.commands.serve import passed_options
    from pipelines.keeping import SET_BY_UP, UpSettings, serving_of

    return UpSettings(
        tuple(recipe or ()),
        lake,
        host,
        port,
        serving_of(serve or ()),
        capture,
        to,
        capture_port,
        program,
        tuple(argument or ()),
        keys,
        passed_options(serve_option or (), "--serve-option", SET_BY_UP),
        logs,
    )


def _checked(lake: str | None, recipes: list[Path], as_json: bool) -> int:
    """Prints what runs on a lake; returns the exit code."""
    from pipelines.keeping import location_errors, read_state, shown_state, ui_lake
    from pipelines.storage import lake_location
    from pipelines.terminal import print_table, shortened, text_table
    from resources.launching import home_of

    place = ui_lake([], lake or (lake_location(recipes[0]) if recipes else None))
    state = read_state(home_of(place).expanduser().absolute())
    if state is None:
        say_error(f"millrace up was never started on {place.place}")
        return 1
    errors = (location_errors(state.ui) if state.ui and state.is_running else None) or {}
    content, exit_code = shown_state(state) | {"not_loaded": errors}, int(not state.all_run or bool(errors))
    if as_json:
        console.print(json.dumps(content, indent=2), markup=False, highlight=False, soft_wrap=True)
        return exit_code
    if not state.is_running:
        say_error(f"millrace up does not run on {place.place}; it was started last on {state.host} at {state.since}")
    rows = [
        [
            server["name"],
            "runs" if server["running"] else shortened(server["why_not"] or "it has ended"),
            str(server["pid"] or ""),
            server["since"],
            str(server["restarts"]),
        ]
        for server in content["servers"]
    ]
    print_table(text_table(["server", "state", "pid", "since", "restarts"], rows), console)
    for name, error in errors.items():
        say_error(f"the recipe of {name} cannot be loaded, so it has no sensors and no jobs: {error}")
    return exit_code

"""Commands for a machine that stays: `up`, `deploy`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.terminal import HostOption, KeysOption, LakeOption, ReportFormat, app, console, print_line, say_error

if TYPE_CHECKING:
    from pipelines.keeping import UpSettings

PANEL = "Run"


def _settings(
    recipe: Annotated[
        list[Path] | None, typer.Argument(help="recipes to show and run (default of `up`: those last run on the lake)")
    ] = None,
    lake: LakeOption = None,
    port: Annotated[int, typer.Option(help="port of the UI", min=1, max=65535)] = 3000,
    host: HostOption = "127.0.0.1",
    serve: Annotated[
        list[str] | None, typer.Option(help="workload whose champion is served and followed, or WORKLOAD:PORT; may be repeated")
    ] = None,
    capture: Annotated[
        str,
        typer.Option(
            help="directory or s3://BUCKET/PREFIX into which the traffic of --serve or --to is written", show_default=False
        ),
    ] = "",
    to: Annotated[str, typer.Option(help="address of another server whose traffic is captured", show_default=False)] = "",
    capture_port: Annotated[int, typer.Option(help="with --to: port of the capture layer", min=1, max=65535)] = 8080,
    program: Annotated[
        str,
        typer.Option(
            help="with --serve: interpreter of an environment that has the server, or the command vllm", show_default=False
        ),
    ] = "",
    argument: Annotated[
        list[str] | None,
        typer.Option(help="with --serve: passed on to the server, as --argument=--max-model-len; may be repeated"),
    ] = None,
    keys: KeysOption = None,
    serve_option: Annotated[
        list[str] | None,
        typer.Option(help="with --serve: passed on to millrace serve, as --serve-option=--wait=60; may be repeated"),
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="folder of the logs", show_default="<lake>/.dagster/up")] = None,
) -> UpSettings:
    from pipelines.commands.serve import passed_options
    from pipelines.keeping import SET_BY_UP, UpSettings, serving_of

    options = passed_options(serve_option or (), "--serve-option", SET_BY_UP)
    return UpSettings(
        recipes=tuple(recipe or ()),
        lake=lake,
        host=host,
        port=port,
        serve=serving_of(serve or ()),
        capture=capture,
        to=to,
        capture_port=capture_port,
        program=program,
        arguments=tuple(argument or ()),
        keys=keys,
        serve_options=options,
        logs=logs,
    )


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `_settings` in place of its parameter `settings`."""
    own, shared = (
        inspect.signature(function, eval_str=True, locals={"UpSettings": object}).parameters
        for function in (command, _settings)
    )
    after = [parameter for parameter in own.values() if parameter.default is not parameter.empty]
    first = [parameter for name, parameter in own.items() if parameter not in after and name != "settings"]

    @wraps(command)
    def run(**given: Any) -> None:
        command(settings=_settings(**{name: given.pop(name) for name in shared}), **given)

    parameters = [*first, *shared.values(), *after]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}  # what typer reads
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@app.command(rich_help_panel=PANEL)
@with_settings
def up(
    settings: UpSettings,
    check: Annotated[bool, typer.Option("--check", help="show what runs, and end: 0 if all of it does, else 1")] = False,
    format: Annotated[ReportFormat, typer.Option(help="of --check")] = ReportFormat.table,
) -> None:
    """Keeps UI, daemon and, where asked, servers and the capture layer of a lake running: starts again what ends."""
    if check:
        raise typer.Exit(_checked(settings.lake, settings.recipes, format is ReportFormat.json))
    from pipelines.keeping import up as keep_up

    raise typer.Exit(keep_up(settings, print_line))


@app.command(rich_help_panel=PANEL)
@with_settings
def deploy(
    directory: Annotated[Path, typer.Argument(help="folder for the files; files of the same names are replaced")],
    settings: UpSettings,
    gpus: Annotated[bool, typer.Option("--gpus", help="in compose.yaml: give the machine's GPUs to the container")] = False,
) -> None:
    """Writes systemd units and a compose file that start `millrace up` with these recipes and options."""
    from pipelines.commands.version import own_version
    from pipelines.keeping import write_deployment

    for path in write_deployment(directory, settings, own_version(), gpus):
        print_line(str(path))


def _checked(lake: str | None, recipes: Sequence[Path], as_json: bool) -> int:
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
        print_line(json.dumps(content, indent=2))
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

"""Commands that build and keep running: `demo`, `run`, `retrain`, `ui`, `up`, `deploy`."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.terminal import (
    HostOption,
    KeysOption,
    LakeOption,
    RecipeArgument,
    ReportFormat,
    app,
    console,
    print_line,
    say_error,
)

if TYPE_CHECKING:
    from pipelines.checks import Forecast
    from pipelines.contract import Recipe
    from pipelines.keeping import UpSettings
    from pipelines.running import Outcome

PANEL = "Run"


@app.command(rich_help_panel=PANEL)
def demo(
    lake: LakeOption = None,
    approve: Annotated[bool, typer.Option(help="approve the release if its gates hold")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="a small run of every stage, in about three minutes")] = False,
) -> None:
    """Runs the full pipeline in ./demo on made logs, with a small real model that it fetches (93 MB). Needs no GPU."""
    from pipelines.demo import QUICK, REAL, run_demo

    raise typer.Exit(run_demo(console, lake, approve, QUICK if quick else REAL))


@app.command(rich_help_panel=PANEL)
def run(
    recipe: RecipeArgument,
    lake: LakeOption = None,
    select: Annotated[
        list[str] | None, typer.Option(help="part of the graph, Dagster's selection syntax: sft_model, or +sft_dataset,+best")
    ] = None,
    partition: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="one day of traffic (default: all days found)")
    ] = None,
) -> None:
    """Runs a recipe, or part of it, from logs to a release. Finished steps are not repeated."""
    from pipelines.contract import load_recipe
    from pipelines.running import follow, submit

    began, content = time.monotonic(), load_recipe(recipe)  # once: the run is of this text, whatever the file says later
    started = submit(recipe, lake, select, partition.date() if partition else None)
    try:
        predicted = _say_forecast(content, recipe, lake, select)  # while the run's process starts
    except BaseException:  # a run does not go on alone
        started.stop()
        started.wait()
        raise
    outcome = follow(started, console, {line.stage: line.seconds for line in predicted.lines} if predicted else None)
    for message in outcome.messages:
        say_error(message)
    if outcome.state != "refused":
        try:
            _say_closing(content, recipe, lake, outcome, predicted, time.monotonic() - began)
        except Exception as error:  # the run is over, and its exit code counts
            say_error(f"what the run made cannot be told here ({error}): millrace status shows it")
    raise typer.Exit(outcome.exit_code)


def _say_forecast(content: Recipe, recipe: Path, lake: str | None, select: list[str] | None) -> Forecast | None:
    """Prints what the run takes; nothing for a selection in which Dagster has to look for the stages."""
    from pipelines.checks import forecast_of_run, print_forecast
    from pipelines.storage import lake_location

    names = None if select is None else [name.strip() for item in select for name in item.split(",")]
    predicted = forecast_of_run(content, lake_location(recipe, lake))
    if names is not None and not all(name.isidentifier() for name in names):
        return predicted
    if predicted is not None and names is not None:
        predicted = predicted.of(names) if any(line.stage in names for line in predicted.lines) else None
    if predicted is not None:
        print_forecast(predicted, console)
        console.print()
    return predicted


def _say_closing(
    content: Recipe, recipe: Path, lake: str | None, outcome: Outcome, predicted: Forecast | None, seconds: float
) -> None:
    from pipelines.checks import keep_measured
    from pipelines.status import print_closing
    from pipelines.storage import lake_location
    from resources.lake import LakeLayout

    took = keep_measured(predicted, outcome, seconds) if predicted else ""
    print_closing(LakeLayout.open(lake_location(recipe, lake)), content, recipe, outcome, console, took)


@app.command(rich_help_panel=PANEL)
def retrain(
    workload: Annotated[str, typer.Argument(help="a workload of the lake")],
    because: Annotated[
        str, typer.Option(help="why, in one line that is recorded; with --withdraw: why not any more", show_default=False)
    ] = "",
    action: Annotated[
        str, typer.Option(help="what is made again: drafter_continued, drafter_new, sft_continued, preference or full")
    ] = "full",
    despite: Annotated[
        list[str] | None,
        typer.Option(
            help="what does not apply to this request: budget, quiet or cool_down; may be repeated", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be decided; nothing is kept or started")] = False,
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="the recipe's YAML file, whose settings tell what will be done",
            show_default="the one last run for the workload",
        ),
    ] = None,
    withdraw: Annotated[
        str, typer.Option(metavar="REQUEST", help="take back a request that is not decided yet", show_default=False)
    ] = "",
    lake: LakeOption = None,
) -> None:
    """Asks for a retraining, with a reason. The sensor `decide` starts it at its next tick, within budget and quiet hours."""
    from pipelines.running import preview_retraining, request_retraining
    from pipelines.status import known_workload
    from pipelines.terminal import open_lake
    from resources.deciding import RequestError, Requests, RetrainingRequest
    from resources.endpoints import Actor

    if withdraw and dry_run:
        raise RequestError("--dry-run shows what a request would do, and --withdraw takes one back: give one of them")
    place = open_lake(lake)
    known, by = known_workload(place, workload), Actor.of_command(because, "--because")
    if withdraw:
        request = Requests(place, known).withdraw(withdraw, by, datetime.now(UTC))
        print_line(request.withdrawn_sentence)
        return
    wanted = RetrainingRequest.of(known, by, action, despite or [])
    if not dry_run:
        print_line(request_retraining(place, wanted, recipe))
        return
    from pipelines.status import print_decisions

    decision, said = preview_retraining(place, wanted, recipe)
    print_decisions([decision], console, 1)
    print_line(f"\n{said}")


@app.command(rich_help_panel=PANEL)
def ui(
    recipe: Annotated[list[Path] | None, typer.Argument(help="recipes to show (default: those last run on the lake)")] = None,
    lake: LakeOption = None,
    port: Annotated[int, typer.Option(help="port of the web page", min=1, max=65535)] = 3000,
    host: HostOption = "127.0.0.1",
) -> None:
    """Opens the Dagster UI on a lake: the graph, its history, its schedules."""
    from pipelines.keeping import serve

    raise typer.Exit(serve(recipe or [], lake, host, port, console))


def _settings(
    recipe: Annotated[
        list[Path] | None,
        typer.Argument(
            help="recipes to show and run; `deploy` needs at least one (default of `up`: those last run on the lake)"
        ),
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
    from pipelines.commands.describe import own_version
    from pipelines.keeping import write_deployment

    for path in write_deployment(directory, settings, own_version(), gpus):
        print_line(str(path))


def _checked(lake: str | None, recipes: Sequence[Path], as_json: bool) -> int:
    from pipelines.keeping import location_errors, read_state, shown_state, ui_lake
    from pipelines.storage import lake_location
    from pipelines.terminal import print_table, shorten, text_table
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
            "runs" if server["running"] else shorten(server["why_not"] or "it has ended"),
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

"""Commands that build: `demo`, `run`, `ui`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from pipelines.terminal.shared_options import LakeOption, app, console, say_error

PANEL = "Run"


@app.command(rich_help_panel=PANEL)
def demo(
    lake: LakeOption = None,
    approve: Annotated[bool, typer.Option(help="approve the release if its gates hold")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="a small run of every stage, in one or two minutes")] = False,
) -> None:
    """Runs the full pipeline in ./demo, on logs made from Python's own source. Needs no network and no GPU."""
    from pipelines.demo.run_demo import FULL, QUICK, run_demo

    raise typer.Exit(run_demo(console, lake, approve, QUICK if quick else FULL))


@app.command(rich_help_panel=PANEL)
def run(
    recipe: Annotated[Path, typer.Argument(help="the recipe's YAML file")],
    lake: LakeOption = None,
    select: Annotated[
        list[str] | None, typer.Option(help="part of the graph, Dagster's selection syntax: sft_model, or +sft_dataset,+best")
    ] = None,
    partition: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="one day of traffic (default: all days found)")
    ] = None,
) -> None:
    """Runs a recipe, or part of it, from logs to a release. Finished steps are not repeated."""
    from pipelines.running.follow import follow
    from pipelines.running.submit import submit

    started = submit(recipe, lake, select, partition.date() if partition else None)
    outcome = follow(started, console)
    for message in outcome.messages:
        say_error(message)
    raise typer.Exit(outcome.exit_code)


@app.command(rich_help_panel=PANEL)
def ui(
    recipe: Annotated[list[Path] | None, typer.Argument(help="recipes to show (default: those last run on the lake)")] = None,
    lake: LakeOption = None,
    port: Annotated[int, typer.Option(help="port of the web page", min=1, max=65535)] = 3000,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
) -> None:
    """Opens the Dagster UI on a lake: the graph, its history, its schedules."""
    from pipelines.keeping.ui import serve

    raise typer.Exit(serve(recipe or [], lake, host, port, console))

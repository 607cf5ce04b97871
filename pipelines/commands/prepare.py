"""Commands before a run: `inspect`, `init`, `check`, `show`, `plan`, `taskset`."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from pipelines.terminal import LakeOption, RecipeArgument, ReportFormat, WidthOption, app, console, errors

PANEL = "Before a run"


@app.command(rich_help_panel=PANEL)
def inspect(
    uris: Annotated[list[str], typer.Argument(help="files, directories, globs or s3:// prefixes of logs and feedback")],
    html: Annotated[Path | None, typer.Option(help="write the report as one HTML file too", dir_okay=False)] = None,
    log_format: Annotated[str, typer.Option("--format", help="format of the logs; auto detects it")] = "auto",
    sample: Annotated[int, typer.Option(help="with more rows than this, measure a sample of this size", min=100)] = 50_000,
    limit_objects: Annotated[int | None, typer.Option(help="read only this many objects, spread evenly", min=1)] = None,
    width: WidthOption = None,
) -> None:
    """Reports what logs hold: formats, errors, duplicates, and whether a drafter is worth training. Needs no recipe."""
    from pipelines.storage import require_writable
    from pipelines.terminal import print_inspection
    from resources.inspecting import inspect as look
    from resources.inspecting import write_page

    if html is not None:
        require_writable(html.absolute().parent)  # fail before minutes are spent on a report that cannot be written
    with errors.status("") as status:
        inspection = look(uris, log_format, sample, limit_objects, lambda doing: status.update(f"{doing} ..."))
    print_inspection(inspection, console, width)
    if html is not None:
        write_page(inspection, html)
        console.print(Text.assemble("\n", ("✓", "green"), f" {html}"), soft_wrap=True)


@app.command(rich_help_panel=PANEL)
def init(
    uris: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URI]...", help="files, directories, globs or s3:// prefixes of logs (default: ask)"),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="file to write", show_default="WORKLOAD.yaml here")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="a directory, a Hugging Face id, or tiny (a toy, built by the run)", show_default="tiny")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="name of the workload", show_default="after the logs")] = None,
    limit_objects: Annotated[
        int | None,
        typer.Option(
            help="read at most this many log objects, spread evenly", min=1, show_default="about 500 MB, at most 1,000"
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="replace a recipe that exists")] = False,
) -> None:
    """Writes a recipe for your logs, with the reason for each value in a comment."""
    import sys

    from pipelines.init import RecipeWishes, ask, print_new_recipe, write_recipe

    wanted = RecipeWishes(list(uris or []), output, base_model or "tiny", workload, force, limit_objects)
    if not wanted.uris:
        wanted = ask(wanted, base_model is not None, console, sys.stdin.isatty() and sys.stdout.isatty())
    with errors.status("") as status:
        new_recipe = write_recipe(wanted, lambda doing: status.update(f"{doing} ..."))
    print_new_recipe(new_recipe, console)
    raise typer.Exit(0 if new_recipe.trainable else 1)


@app.command(rich_help_panel=PANEL)
def check(
    recipe: RecipeArgument,
    lake: LakeOption = None,
    plan: Annotated[
        bool, typer.Option(help="also count rows and steps, and predict memory and time of the stages (some seconds more)")
    ] = True,
    format: Annotated[ReportFormat, typer.Option(help="lines to read, or everything as JSON")] = ReportFormat.table,
) -> None:
    """Checks logs, base model, template, disk, memory and servers before a run. Writes nothing."""
    from pipelines.checks import check as look
    from pipelines.checks import leave, print_check
    from pipelines.storage import lake_location

    with errors.status("") as status:
        report = look(recipe, lake_location(recipe, lake), plan, lambda doing: status.update(f"looking at {doing} ..."))
    if format == ReportFormat.json:
        print(report.as_json())
    else:
        print_check(report, console)
    leave(1 if report.problems else 0)


@app.command(rich_help_panel=PANEL)
def show(
    recipe: RecipeArgument,
    row: Annotated[str | None, typer.Option(help="only the row of this id")] = None,
    count: Annotated[int, typer.Option(help="rows to show, and as many of those left out", min=1, max=10_000)] = 3,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="split of the dataset")] = "train",
    html: Annotated[Path | None, typer.Option(help="write the picture as one HTML file too", dir_okay=False)] = None,
    preference: Annotated[bool, typer.Option("--preference", help="pairs of the preference dataset instead")] = False,
    lake: LakeOption = None,
) -> None:
    """Shows rows of the dataset as they are rendered: context, learnt tokens, and rows that are left out with the reason."""
    from model_ops.jobs import Misuse
    from pipelines.storage import lake_location, require_writable
    from resources.lake import LakeLayout

    if preference and html is not None:
        raise Misuse("--html is a picture of rendered rows: leave it out, or leave --preference out")
    if html is not None:
        require_writable(html.absolute().parent)
    place = LakeLayout.open(lake_location(recipe, lake), create=False)
    from model_ops.files import write_text  # an error above loads none of these
    from pipelines.asking import picture_of, preferences_of, print_picture, print_preferences
    from pipelines.contract import load_recipe

    if preference:
        print_preferences(preferences_of(load_recipe(recipe), place, split, count, row), console)
        return
    with errors.status("rendering ..."):
        picture = picture_of(load_recipe(recipe), place, split, count, row)
    print_picture(picture, console)
    if html is not None:
        write_text(html, picture.page())
        console.print(Text.assemble("\n", ("✓", "green"), f" {html}"), soft_wrap=True)


@app.command(rich_help_panel=PANEL)
def plan(
    recipe: RecipeArgument,
    gpus: Annotated[str, typer.Option(help="devices: 8xH100, A100-40, 4x24GB (memory only), or cpu")],
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="sft or student, may be repeated (default: the first one that the recipe trains)", show_default=False
        ),
    ] = None,
    format: Annotated[ReportFormat, typer.Option(help="a table, or a line of JSON for each stage")] = ReportFormat.table,
    lake: LakeOption = None,
) -> None:
    """Predicts a stage's memory and speed on given devices and prints settings that fit, with reasons."""
    from pipelines.contract import load_recipe
    from pipelines.planning import as_json, dataset_tokens, plan_recipe, planned_stage, print_plan
    from pipelines.storage import lake_location
    from resources.lake import LakeLayout
    from resources.stages import planned_sections

    read = load_recipe(recipe)
    stages = [planned_stage(read, each) for each in stage] if stage else [planned_stage(read, None)]
    place = lake_location(recipe, lake)
    is_named = lake is not None and lake != os.environ.get("MILLRACE_LAKE")  # that of the environment may be made later
    holds_rows = LakeLayout.open(place, create=False) if is_named or (place / "lake.json").exists() else None
    for each in stages:
        with errors.status("looking at the model ..."):
            chosen = plan_recipe(read, gpus, each)
            tokens = dataset_tokens(holds_rows, read.workload, read.policy.rows_of(planned_sections()[each].name))
        if format == ReportFormat.json:
            print(as_json(chosen, read, each, tokens), flush=True)
        else:
            print_plan(chosen, read, each, console, tokens)


@app.command(rich_help_panel=PANEL)
def taskset(
    name: Annotated[str, typer.Argument(help="id of a taskset of prime-rl's verifiers, such as reverse-text")],
    output: Annotated[Path, typer.Option(help="file to write, for datasets.rl_prompts.tasks", dir_okay=False)],
    python: Annotated[
        Path | None, typer.Option(help="interpreter of an environment that has verifiers and the taskset")
    ] = None,
    count: Annotated[int, typer.Option(help="take the first tasks, at most this many", min=1)] = 1_000,
    env: Annotated[str, typer.Option(help="further configuration of the environment, as verifiers takes it: JSON")] = "{}",
) -> None:
    """Writes the tasks of a taskset of prime-rl's `verifiers` as prompts, which `rft.agent: verifiers` plays."""
    import json

    from model_ops.environments import write_taskset
    from model_ops.jobs import Misuse
    from pipelines.storage import require_writable

    try:
        given = json.loads(env)
        given["taskset"] = {**given.get("taskset", {}), "id": name}
    except (ValueError, TypeError, AttributeError) as error:
        raise Misuse('--env is a JSON object, such as {"agent": {"harness": {"id": "null"}}}') from error
    require_writable(output.absolute().parent)
    with errors.status(f"reading tasks of {name} ..."):
        tasks = write_taskset(given, output, count, None if python is None else str(python.absolute()))
    console.print(Text.assemble(("✓", "green"), f" {output}: {tasks:,} tasks"), soft_wrap=True)

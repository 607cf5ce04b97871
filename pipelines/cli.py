"""The `millrace` command. Exit codes: 0 fine, 1 found wrong, 2 misuse.

Every error a person can mend is one sentence that names the thing and the remedy; anything else is a bug and shows its
traceback. Heavy libraries are imported by the command that needs them.
"""

from __future__ import annotations

import signal
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    name="millrace",
    help="From a product's own LLM logs to endpoint-ready weights, in one declared Dagster graph.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

LakeOption = Annotated[
    str | None, typer.Option("--lake", envvar="MILLRACE_LAKE", help="the lake's directory", show_default="./lake")
]


class Format(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"


class PlanFormat(StrEnum):
    table = "table"
    json = "json"


def main() -> None:
    """Entry point: turns the errors that a person can mend into one sentence and an exit code."""
    from pipelines.mistakes import FOUND_WRONG, MISUSE

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # also where a shell started this in the background
    try:
        app()
    except MISUSE as error:
        errors.print(f"millrace: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except FOUND_WRONG as error:
        errors.print(f"millrace: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        errors.print(f"millrace: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.command()
def demo(
    lake: LakeOption = None,
    approve: Annotated[bool, typer.Option(help="let the release through when its gates hold")] = True,
) -> None:
    """Sees the whole way on text that every Python has: logs in, a served-ready release out. Needs no network."""
    from pipelines.demo import run_demo

    raise typer.Exit(run_demo(console, lake, approve))


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="the recipe's YAML file")],
    lake: LakeOption = None,
    select: Annotated[
        list[str] | None, typer.Option(help="part of the graph, in Dagster's syntax: sft_model, +curated_interactions")
    ] = None,
    partition: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="one day of traffic; all days found when left out")
    ] = None,
) -> None:
    """Runs a recipe, or part of it. What is finished already is not repeated."""
    from pipelines.follow import follow
    from pipelines.recipe import load_recipe
    from pipelines.settings import lake_location

    load_recipe(recipe)  # a mistake in the recipe is said at once, before anything is started
    request = {
        "recipe": recipe.resolve(), "lake": lake_location(recipe, lake), "select": select,
        "partition": partition.date() if partition else None,
    }
    outcome = follow(request, console)
    for message in outcome.messages:
        errors.print(f"millrace: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(outcome.exit_code)


@app.command()
def plan(
    recipe: Annotated[Path, typer.Argument(help="the recipe's YAML file")],
    gpus: Annotated[str, typer.Option(help="how many of which: 8xH100, A100-40, 4x24GB (by memory alone), or cpu")],
    stage: Annotated[str, typer.Option(help="sft or student")] = "sft",
    format: Annotated[PlanFormat, typer.Option(help="a table, or everything as JSON")] = PlanFormat.table,
) -> None:
    """Predicts a stage's memory and speed on given devices, picks mesh, micro-batch and checkpointing, and says why."""
    from pipelines.planning import as_json, plan_recipe, print_plan
    from pipelines.recipe import load_recipe

    read = load_recipe(recipe)
    with errors.status("looking at the model ..."):
        chosen = plan_recipe(read, gpus, stage)
    if format == PlanFormat.json:
        print(as_json(chosen, read, stage))
    else:
        print_plan(chosen, read, stage, console)


@app.command()
def sweep(
    recipe: Annotated[Path, typer.Argument(help="the recipe's YAML file")],
    stage: Annotated[str, typer.Option(help="sft or student")] = "sft",
    learning_rates: Annotated[str | None, typer.Option(help="those to try, such as 1e-5,3e-5,1e-4")] = None,
    around: Annotated[float | None, typer.Option(help="try rates around this one; open: around the recipe's own")] = None,
    points: Annotated[int, typer.Option(help="how many rates around it", min=2, max=25)] = 5,
    steps: Annotated[int | None, typer.Option(help="optimizer steps of each training; open: 100, or the stage's own if fewer")]
    = None,
    lake: LakeOption = None,
) -> None:
    """Tries learning rates in short trainings on the lake's own data, and says which is best and how sure that is."""
    from pipelines.recipe import load_recipe
    from pipelines.settings import lake_location
    from pipelines.sweep import STAGES, SweepError, rates_around, read_rates
    from pipelines.sweep import sweep as try_rates
    from pipelines.sweep_text import print_sweep
    from resources.lake import Lake

    read = load_recipe(recipe)
    if stage not in STAGES:
        raise SweepError(f"--stage {stage}: stages that can be swept are {', '.join(STAGES)}")
    if learning_rates is not None and around is not None:
        raise SweepError("give --learning-rates or --around, not both")
    centre = around or getattr(read, stage).resolved().learning_rate
    rates = read_rates(learning_rates) if learning_rates is not None else rates_around(centre, points)
    place = Lake.open(lake_location(recipe, lake), create=False)
    with errors.status("") as status:
        report = try_rates(read, place, stage, rates, steps, lambda doing: status.update(f"{doing} ..."))
    print_sweep(report, console)
    if report.best is None:
        raise typer.Exit(1)


@app.command()
def inspect(
    uris: Annotated[list[str], typer.Argument(help="files, directories, globs or s3:// prefixes of logs and feedback")],
    html: Annotated[Path | None, typer.Option(help="write the report as one HTML file too", dir_okay=False)] = None,
    log_format: Annotated[str, typer.Option("--format", help="the logs' format; auto looks at each file")] = "auto",
    sample: Annotated[int, typer.Option(help="rows that are cleaned, compared and drafted on where there are more", min=100)]
    = 50_000,
    limit_objects: Annotated[int | None, typer.Option(help="read only this many objects, spread evenly", min=1)] = None,
) -> None:
    """Looks at logs before anything is built: formats, errors, duplicates, and whether a drafter would pay. No recipe."""
    from pipelines.inspection_text import print_inspection
    from resources.inspecting.inspection import inspect as look
    from resources.inspecting.inspection_page import write_page

    with errors.status("") as status:
        found = look(uris, log_format, sample, limit_objects, lambda doing: status.update(f"{doing} ..."))
    print_inspection(found, console)
    if html is not None:
        write_page(found, html)
        console.print(f"\n[green]✓[/] {html}", highlight=False)


@app.command()
def measure(
    server: Annotated[str, typer.Argument(help="address of an OpenAI-compatible server, such as http://localhost:8000")],
    prompts: Annotated[Path, typer.Argument(help="a dataset (its test rows) or a JSONL file of messages", exists=True)],
    against: Annotated[str | None, typer.Option(help="a second server, say without the drafter: ratios are to it")] = None,
    count: Annotated[int, typer.Option("--prompts", help="at most this many, a seeded choice", min=1)] = 64,
    concurrency: Annotated[str, typer.Option(help="requests at a time, one or several: 1,8")] = "1,8",
    max_tokens: Annotated[int, typer.Option(help="of an answer", min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    model: Annotated[str | None, typer.Option(help="the name it is served by; its first one when left out")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="environment variable that holds the key")] = None,
    format: Annotated[PlanFormat, typer.Option(help="a table, or everything as JSON")] = PlanFormat.table,
) -> None:
    """Times a server on held-out prompts: tokens/s, latency, and how many drafts it accepts. Shows what it says, too."""
    from pipelines.measuring import as_json, compare, print_comparison, read_concurrency, read_prompts

    asked = read_prompts(prompts, count)
    levels = read_concurrency(concurrency)
    with errors.status("asking the server ..."):
        found = compare([server, *([against] if against else [])], asked, levels, max_tokens, temperature, model, api_key_env)
    if format == PlanFormat.json:
        print(as_json(found))
    else:
        print_comparison(found, console)


@app.command()
def sql(
    statement: Annotated[str, typer.Argument(help="what to ask the lake's catalog")],
    lake: LakeOption = None,
    format: Annotated[Format, typer.Option(help="how to print the rows")] = Format.table,
) -> None:
    """Asks the lake in SQL, read-only. Works while a run is writing."""
    from pipelines.printing import print_rows
    from resources.catalog import query

    print_rows(query(_lake(lake), statement), format.value, console)


@app.command()
def lineage(
    artefact: Annotated[str, typer.Argument(help="workload/name, workload/name@version, a version, or a directory")],
    lake: LakeOption = None,
    format: Annotated[Format, typer.Option(help="a tree, or the edges as JSON or CSV")] = Format.table,
) -> None:
    """What an artefact was made from, down to the tables of log lines."""
    from pipelines.printing import print_lineage
    from resources.catalog import lineage_of, log_lines_of

    place = _lake(lake)
    print_lineage(lineage_of(place, artefact), format.value, console)
    if format is Format.table:
        lines = log_lines_of(place, artefact)
        console.print(
            f"{lines.interactions:,} interactions from {lines.objects:,} log objects are behind it. "
            f"Line by line: millrace sql \"from log_lines_in('{lines.artefact}')\"", soft_wrap=True, highlight=False,
        )


@app.command()
def why(
    identifier: Annotated[
        str, typer.Argument(help="id of an interaction (8 or more digits), request, trace or session, a log object, or its "
                                 "line URI:ROW")
    ],
    lake: LakeOption = None,
    format: Annotated[Format, typer.Option(help="the story, or its steps as JSON or CSV")] = Format.table,
) -> None:
    """The fate of one request or log line: through tables, decisions, datasets, models, releases and endpoints."""
    from pipelines.story import print_fate
    from resources.why import fate_of

    print_fate(fate_of(_lake(lake), identifier), format.value, console)


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="a model, drafter, dataset or release directory")],
    lake: LakeOption = None,
) -> None:
    """Checks a directory: files against digests, tensors against config, tokenizer and template, a drafter's traps."""
    from pipelines.verification import verify_directory

    if lake is not None and not directory.is_absolute() and not directory.exists():
        directory = Path(lake) / directory
    problems = verify_directory(directory)
    for problem in problems:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    if not problems:
        console.print(f"[green]✓[/] {directory}: files, digests and contents agree")
    raise typer.Exit(1 if problems else 0)


@app.command()
def approve(
    release: Annotated[str, typer.Argument(help="version of a release, or its directory")],
    lake: LakeOption = None,
) -> None:
    """Lets a release through: re-checks its gates and digests, records who approved, moves the endpoint's alias."""
    from resources.releasing.endpoints import Endpoint
    from resources.releasing.release import approve as record_approval
    from resources.releasing.release import find_release, person, read_release

    place = _lake(lake)
    directory = find_release(place, release)
    record_approval(place, directory, by=person())
    aliases = Endpoint(place, read_release(directory).workload).promote(directory.name, by=person())
    _report_endpoint(place, aliases)
    console.print(f"[green]✓[/] {aliases.workload}: champion is {aliases.champion}, previous {aliases.previous}")


@app.command()
def rollback(workload: str, lake: LakeOption = None) -> None:
    """Makes the previous release the champion again."""
    from resources.releasing.endpoints import Endpoint
    from resources.releasing.release import ReleaseError, find_release, person, recheck, withdraw

    place = _lake(lake)
    seen = Endpoint(place, workload).read()
    if seen.previous and (problems := recheck(place, find_release(place, f"{workload}/{seen.previous}"))):
        raise ReleaseError(f"release {seen.previous} cannot be served again: " + "; ".join(problems))
    aliases = Endpoint(place, workload).roll_back(by=person())
    withdraw(place, find_release(place, f"{workload}/{aliases.previous}"), by=person())
    _report_endpoint(place, aliases)
    console.print(f"[green]✓[/] {workload}: champion is {aliases.champion}, previous {aliases.previous}")


@app.command()
def ui(
    recipe: Annotated[list[Path] | None, typer.Argument(help="recipes to show; those of workspace.yaml if none")] = None,
    lake: LakeOption = None,
    port: Annotated[int, typer.Option(help="of the web page")] = 3000,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
) -> None:
    """Opens the Dagster UI on a lake: the graph, its history, its schedules."""
    from pipelines.ui import serve

    raise typer.Exit(serve(recipe or [], lake, host, port, console))


def _lake(given: str | None):
    from resources.lake import Lake

    return Lake.open(given or "lake", create=False)


def _report_endpoint(lake, aliases) -> None:
    """Tells Dagster's history that the endpoint moved, so that the UI shows it."""
    import dagster as dg

    from pipelines.instance import open_instance

    open_instance(lake).report_runless_asset_event(
        dg.AssetMaterialization(
            asset_key=[aliases.workload, "endpoint"],
            metadata={"champion": aliases.champion or "", "previous": aliases.previous or "", "by": aliases.changed_by},
        )
    )


if __name__ == "__main__":
    main()

"""Commands that ask a lake: `status`, `decisions`, `sql`, `why`, `diff`, `rescore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.terminal import (
    LakeOption,
    LimitOption,
    OutputFormat,
    PageOption,
    ReportFormat,
    RowFormat,
    VerticalOption,
    WidthOption,
    app,
    console,
    errors,
    open_lake,
)

PANEL = "Ask a lake"


@app.command(rich_help_panel=PANEL)
def status(
    recipe: Annotated[
        Path | None, typer.Argument(help="the recipe's YAML file: also shows what a run would make again")
    ] = None,
    lake: LakeOption = None,
    format: Annotated[ReportFormat, typer.Option(help="tables, or everything as JSON for monitors")] = ReportFormat.table,
) -> None:
    """Shows what is current, stale (and why), running, or waiting for approval. Writes nothing."""
    from pipelines.status import print_status, status_of

    read = None
    if recipe is not None:
        from pipelines.contract import load_recipe
        from pipelines.storage import lake_location

        read = load_recipe(recipe)
        lake = str(lake_location(recipe, lake))
    report = status_of(open_lake(lake), read)
    if format == ReportFormat.json:
        print(report.as_json())
    else:
        print_status(report, console)


@app.command(rich_help_panel=PANEL)
def decisions(
    workload: Annotated[str, typer.Argument(help="a workload of the lake")],
    lake: LakeOption = None,
    count: Annotated[int, typer.Option(help="newest decisions to show", min=1, max=100_000)] = 20,
    format: Annotated[ReportFormat, typer.Option(help="tables, or every decision as JSON")] = ReportFormat.table,
) -> None:
    """Shows what was decided about retraining and why, predicted and real costs and gains. Writes nothing."""
    from pipelines.status import decisions_json, known_workload, print_decisions, print_requests
    from resources.deciding import Decisions, Requests

    place = open_lake(lake)
    entries = Decisions(place, known_workload(place, workload)).seen()
    if format == ReportFormat.json:
        print(decisions_json(entries))
    else:
        print_decisions(entries, console, count)
        print_requests(Requests(place, workload).waiting(entries), console)


@app.command(rich_help_panel=PANEL)
def sql(
    statement: Annotated[str, typer.Argument(help='one SQL query; "from relations" lists the tables and views')],
    lake: LakeOption = None,
    format: Annotated[
        RowFormat | None,
        typer.Option(help="how to print or write the rows", show_default="table; of --out, by the file's ending"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write all rows to this file: .csv, .json, .parquet or .arrow")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="value of $NAME in the query; may be repeated")
    ] = None,
    limit: LimitOption = None,
    page: PageOption = 1,
    width: WidthOption = None,
    vertical: VerticalOption = False,
    timeout: Annotated[float, typer.Option(help="time limit of the query in seconds; 0: no limit", min=0, max=1e8)] = 300,
    memory: Annotated[
        float | None,
        typer.Option(help="memory limit of the query in GiB", min=0.1, max=1e6, show_default="4, or half of the machine's"),
    ] = None,
) -> None:
    """Runs one read-only SQL query on the lake's tables, datasets and lineage. Works during a run."""
    from pipelines.asking import Bounds, named_parameters, print_answer, showing

    place = open_lake(lake)
    show = showing(place, format and format.value, out, limit, page, console, width, statement, vertical)
    print_answer(place, statement, named_parameters(param or []), Bounds(timeout, memory), show)


@app.command(rich_help_panel=PANEL)
def why(
    identifier: Annotated[
        str,
        typer.Argument(
            help="id of an interaction (8 or more digits), request, trace or session, a log object, or its line URI:ROW"
        ),
    ],
    lake: LakeOption = None,
    format: Annotated[OutputFormat, typer.Option(help="text for people, or the steps as JSON or CSV")] = OutputFormat.table,
    width: WidthOption = None,
) -> None:
    """Shows what happened to one request or log line: tables, decisions, datasets, models, releases, endpoints."""
    from pipelines.asking import print_history
    from resources.catalog import history_of

    print_history(history_of(open_lake(lake), identifier), format.value, console, width)


@app.command(rich_help_panel=PANEL)
def diff(
    dataset: Annotated[str, typer.Argument(help="workload/name, or the name alone if one workload has it")],
    old: Annotated[str | None, typer.Argument(help="a version, current or previous; left out: the one before NEW")] = None,
    new: Annotated[str | None, typer.Argument(help="a version, current or previous; left out: current")] = None,
    lake: LakeOption = None,
    rows: Annotated[bool, typer.Option("--rows", help="every changed row instead of numbers")] = False,
    format: Annotated[OutputFormat, typer.Option(help="how to print the changes")] = OutputFormat.table,
    width: WidthOption = None,
    vertical: VerticalOption = False,
) -> None:
    """Shows how two versions of a dataset differ: rows added, removed, moved between splits, by source and reason."""
    from model_ops.jobs import counted
    from pipelines.terminal import print_rows
    from resources.reporting import compare_versions, diff_summary

    difference = compare_versions(open_lake(lake), dataset, old, new, each_row=rows)
    shown = difference.each_row if difference.each_row is not None else difference.changes
    if format is not OutputFormat.table:
        print_rows(shown, format.value, console, width)
        return
    summary = (
        ", ".join(f"{counted(count, 'row')} {change}" for change, count in diff_summary(difference).items()) or "the same rows"
    )
    console.print(
        f"{difference.name} {difference.old} -> {difference.new}: {summary}", soft_wrap=True, highlight=False, markup=False
    )
    if len(shown):
        print_rows(shown, format.value, console, width, vertical)


@app.command(rich_help_panel=PANEL)
def rescore(
    recipe: Annotated[Path, typer.Argument(help="the recipe's YAML file, with the grader of today under rft.grader")],
    version: Annotated[
        str | None, typer.Option(help="version of rft_model whose answers are graded again", show_default="current")
    ] = None,
    lake: LakeOption = None,
    format: Annotated[OutputFormat, typer.Option(help="how to print the means")] = OutputFormat.table,
) -> None:
    """Grades the answers of reinforcement fine-tuning again with a changed grader, without sampling: old and new means by part,
    and how many pass now or no longer. Old grades stay; new ones are the dataset rescored_answers."""
    from pipelines.asking import print_rescored, rescored
    from pipelines.contract import load_recipe
    from pipelines.storage import lake_location

    read = load_recipe(recipe)
    place = open_lake(str(lake_location(recipe, lake)))
    with errors.status("grading ..."):
        rescoring = rescored(read, place, version)
    print_rescored(*rescoring, format.value, console)

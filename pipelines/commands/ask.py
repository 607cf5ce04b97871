"""Commands that ask a lake: `status`, `sql`, `lineage`, `why`, `diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.terminal.shared_options import Format, LakeOption, ReportFormat, WidthOption, app, console, open_lake

PANEL = "Ask a lake"


@app.command(rich_help_panel=PANEL)
def status(
    recipe: Annotated[Path | None, typer.Argument(
        help="the recipe's YAML file: also shows what a run would make again")] = None,
    lake: LakeOption = None,
    format: Annotated[ReportFormat, typer.Option(help="tables, or everything as JSON for monitors")] = ReportFormat.table,
) -> None:
    """Shows what is current, stale (and why), running, or waiting for approval. Writes nothing."""
    from pipelines.status.lake_status import status_of
    from pipelines.status.status_text import print_status

    read = None
    if recipe is not None:
        from pipelines.contract.recipe import load_recipe
        from pipelines.storage.locations import lake_location

        read = load_recipe(recipe)
        lake = str(lake_location(recipe, lake))
    found = status_of(open_lake(lake), read)
    if format == ReportFormat.json:
        print(found.as_json())
    else:
        print_status(found, console)


@app.command(rich_help_panel=PANEL)
def sql(
    statement: Annotated[str, typer.Argument(help="one SQL query; \"from relations\" lists the tables and views")],
    lake: LakeOption = None,
    format: Annotated[Format, typer.Option(help="how to print the rows")] = Format.table,
    width: WidthOption = None,
    timeout: Annotated[float, typer.Option(help="time limit of the query in seconds; 0: no limit", min=0, max=1e8)]
    = 300,
    memory: Annotated[float | None, typer.Option(help="memory limit of the query in GiB", min=0.1, max=1e6,
                                                 show_default="4, or half of the machine's")] = None,
) -> None:
    """Runs one read-only SQL query on the lake's tables, datasets and lineage. Works during a run."""
    from pipelines.asking.sql_answer import print_answer
    from pipelines.terminal.printing import print_rows

    print_answer(open_lake(lake), statement, timeout, memory, lambda answer: print_rows(answer, format.value, console, width))


@app.command(rich_help_panel=PANEL)
def lineage(
    artefact: Annotated[str, typer.Argument(help="workload/name, workload/name@version, a version, or a directory")],
    lake: LakeOption = None,
    format: Annotated[Format, typer.Option(help="a tree, or the edges as JSON or CSV")] = Format.table,
    width: WidthOption = None,
) -> None:
    """Shows what an artefact was made from, down to the tables of log lines."""
    from model_ops.wording import counted
    from pipelines.terminal.printing import print_lineage
    from resources.catalog.catalog import lineage_of, log_lines_of

    place = open_lake(lake)
    print_lineage(lineage_of(place, artefact), format.value, console, width)
    if format is Format.table:
        lines = log_lines_of(place, artefact)
        console.print(
            f"Behind it: {counted(lines.interactions, 'interaction')} from {counted(lines.objects, 'log object')}. "
            f"Line by line: millrace sql \"from log_lines_in('{lines.artefact}')\"", soft_wrap=True, highlight=False,
            markup=False,
        )


@app.command(rich_help_panel=PANEL)
def why(
    identifier: Annotated[
        str, typer.Argument(help="id of an interaction (8 or more digits), request, trace or session, a log object, or its "
                                 "line URI:ROW")
    ],
    lake: LakeOption = None,
    format: Annotated[Format, typer.Option(help="text for people, or the steps as JSON or CSV")] = Format.table,
    width: WidthOption = None,
) -> None:
    """Shows what happened to one request or log line: tables, decisions, datasets, models, releases, endpoints."""
    from pipelines.asking.why_text import print_history
    from resources.catalog.why import history_of

    print_history(history_of(open_lake(lake), identifier), format.value, console, width)


@app.command(rich_help_panel=PANEL)
def diff(
    dataset: Annotated[str, typer.Argument(help="workload/name, or the name alone if one workload has it")],
    old: Annotated[str | None, typer.Argument(help="a version, current or previous; left out: the one before NEW")] = None,
    new: Annotated[str | None, typer.Argument(help="a version, current or previous; left out: current")] = None,
    lake: LakeOption = None,
    rows: Annotated[bool, typer.Option("--rows", help="every changed row instead of numbers")] = False,
    format: Annotated[Format, typer.Option(help="how to print the changes")] = Format.table,
    width: WidthOption = None,
) -> None:
    """Shows how two versions of a dataset differ: rows added, removed, moved between splits, by source and reason."""
    from model_ops.wording import counted
    from pipelines.terminal.printing import print_rows
    from resources.composing.dataset_diff import compare_versions, summary

    found = compare_versions(open_lake(lake), dataset, old, new, each_row=rows)
    shown = found.each_row if found.each_row is not None else found.changes
    if format is not Format.table:
        print_rows(shown, format.value, console, width)
        return
    told = ", ".join(f"{counted(count, 'row')} {change}" for change, count in summary(found).items()) or "the same rows"
    console.print(f"{found.name} {found.old} -> {found.new}: {told}", soft_wrap=True, highlight=False, markup=False)
    if len(shown):
        print_rows(shown, format.value, console, width)

"""Commands that ask a lake: `status`, `decisions`, `sql`, `why`, `diff`, `rescore`, `lineage`, `rebuild`, `copy`, `report`."""

from enum import StrEnum
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
    print_line,
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
    from pipelines.asking import Bounds, named_parameters, print_answer, result_printer

    place = open_lake(lake)
    show = result_printer(place, format and format.value, out, limit, page, console, width, statement, vertical)
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
    said = f"{difference.name} {difference.old} -> {difference.new}: {summary}"
    console.print(said, soft_wrap=True, highlight=False, markup=False)
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
    from pipelines.asking import print_rescored, rescore_answers
    from pipelines.contract import load_recipe
    from pipelines.storage import lake_location

    read = load_recipe(recipe)
    place = open_lake(str(lake_location(recipe, lake)))
    with errors.status("grading ..."):
        rescoring = rescore_answers(read, place, version)
    print_rescored(*rescoring, format.value, console)


class Origin(StrEnum):
    """Down to what a lineage goes."""

    log_lines = "log-lines"
    users = "users"


ArtefactArgument = Annotated[str, typer.Argument(help="workload/name, workload/name@version, a version, or a directory")]


@app.command(rich_help_panel=PANEL)
def lineage(
    artefact: ArtefactArgument,
    lake: LakeOption = None,
    to: Annotated[Origin | None, typer.Option("--to", help="list the log lines, or the hashed users, behind it")] = None,
    users: Annotated[bool, typer.Option("--users", help="the same as --to users")] = False,
    descendants: Annotated[bool, typer.Option("--descendants", help="show what was made from it instead")] = False,
    format: Annotated[
        RowFormat | None,
        typer.Option(help="a tree or a table, or rows as JSON or CSV; log lines and users also as Parquet or Arrow"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write log lines or users to this file, as in `sql`")] = None,
    limit: LimitOption = None,
    page: PageOption = 1,
    width: WidthOption = None,
) -> None:
    """Shows what an artefact was made from, down to the tables of log lines, single log lines, or users."""
    from pipelines.asking import print_origin, print_tree, result_printer
    from resources.catalog import CatalogError

    place = open_lake(lake)
    origin = Origin.users if users else to
    if users and to is Origin.log_lines:
        raise CatalogError("--users and --to log-lines exclude each other: give one of them")
    if origin is not None and descendants:
        raise CatalogError("--descendants shows artefacts, and --to what is behind one: give one of them")
    if origin is not None:
        chosen = format and format.value
        print_origin(
            place,
            artefact,
            origin.value,
            result_printer(place, chosen, out, limit, page, console, width),
            console,
            quiet=out is not None or format not in (None, RowFormat.table),
        )
        return
    if out is not None or limit is not None or page > 1 or format in (RowFormat.parquet, RowFormat.arrow):
        raise CatalogError("--out, --limit, --page, and the formats parquet and arrow are for --to log-lines and --to users")
    print_tree(place, artefact, OutputFormat(format.value) if format else OutputFormat.table, console, width, descendants)


@app.command(rich_help_panel=PANEL)
def rebuild(
    artefact: ArtefactArgument,
    lake: LakeOption = None,
    recipe: Annotated[
        Path | None, typer.Option(help="the recipe that made it", show_default="the one last run in the lake")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="a new or empty folder to make it in, which is kept", show_default="a temporary one")
    ] = None,
    format: Annotated[OutputFormat, typer.Option(help="how to print the comparison")] = OutputFormat.table,
) -> None:
    """Makes an artefact again from its manifest, beside the lake, and says file by file whether the bytes match."""
    from tempfile import TemporaryDirectory

    from pipelines.rebuilding import print_rebuilt
    from pipelines.rebuilding import rebuild as make_again

    place = open_lake(lake)
    if into is not None:
        matches = print_rebuilt(make_again(place, artefact, recipe, into), format.value, console, stays=True)
    else:
        with TemporaryDirectory(prefix="millrace-rebuild-") as folder:
            matches = print_rebuilt(make_again(place, artefact, recipe, Path(folder)), format.value, console, stays=False)
    raise typer.Exit(0 if matches else 1)


@app.command(rich_help_panel=PANEL)
def copy(
    artefact: ArtefactArgument,
    to: Annotated[str, typer.Argument(metavar="LAKE", help="the lake to copy it to: a directory or s3://BUCKET/PREFIX")],
    lake: LakeOption = None,
) -> None:
    """Copies an artefact, and the manifests of all it was made from, to another lake. Continues a copy that was stopped."""
    from pipelines.rebuilding import copy_artefact, sentences
    from resources.lake import LakeLayout

    place = open_lake(lake)
    other = LakeLayout.open(to)
    for sentence in sentences(copy_artefact(place, artefact, other), other):
        print_line(sentence)


@app.command(rich_help_panel=PANEL)
def report(
    what: Annotated[
        str,
        typer.Argument(
            help="a workload, or LAKE/WORKLOAD: its dashboard; or data: statistics of every table and dataset",
            show_default="the lake's only workload",
        ),
    ] = "",
    lake: LakeOption = None,
    out: Annotated[Path | None, typer.Option(help="the HTML file to write", show_default="WORKLOAD.html, or data.html")] = None,
    previews: Annotated[
        bool, typer.Option("--previews/--no-previews", help="of data: show some rows, cut, and values of text columns")
    ] = True,
) -> None:
    """Writes one HTML page without network: the dashboard of a workload, or statistics and previews of all data."""
    from pipelines.status import workloads_of
    from pipelines.terminal import require_file_place
    from resources.catalog import CatalogError
    from resources.reporting import write_dashboard, write_data_report

    if lake is None and "/" in what:
        lake, _, what = what.rstrip("/").rpartition("/")
    place = open_lake(lake)
    known = workloads_of(place)
    if not what and len(known) == 1:
        what = known[0]
    if what != "data" and what not in known:
        named = f"there is no workload {what!r} in {place.place}" if what else "name a workload"
        raise CatalogError(f"{named}: give data, or one of {', '.join(known) or 'none yet: the lake has read nothing'}")
    out = out or Path(f"{what}.html")
    require_file_place(out)
    if out.resolve().is_relative_to(place.root.resolve()):
        raise CatalogError(f"--out {out} lies in the lake, which holds only what runs make: give a file elsewhere")
    if what == "data":
        write_data_report(place, out, previews)
    else:
        write_dashboard(place, what, out)
    print_line(f"wrote {out}")

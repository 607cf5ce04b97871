"""Commands that follow an artefact to its origin or take it elsewhere, and describe a lake's data: `lineage`, `rebuild`,
`copy`, `report`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.ask import PANEL
from pipelines.terminal import (
    LakeOption,
    LimitOption,
    OutputFormat,
    PageOption,
    RowFormat,
    WidthOption,
    app,
    console,
    open_lake,
    print_line,
)


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
    from pipelines.asking import print_origin, print_tree, showing
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
            showing(place, chosen, out, limit, page, console, width),
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
        matches = print_rebuilt(make_again(place, artefact, recipe, into), format.value, console, kept=True)
    else:
        with TemporaryDirectory(prefix="millrace-rebuild-") as folder:
            matches = print_rebuilt(make_again(place, artefact, recipe, Path(folder)), format.value, console, kept=False)
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

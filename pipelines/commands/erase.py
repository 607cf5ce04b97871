"""Commands that take data out of a lake: `forget`, `retain`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.terminal import LakeOption, ReportFormat, app, console, open_lake

PANEL = "Erase"


@app.command(rich_help_panel=PANEL)
def forget(
    user: Annotated[str | None, typer.Option(help="a user, by id or by user_hash")] = None,
    session: Annotated[str | None, typer.Option(help="a session, by id")] = None,
    interaction: Annotated[
        str | None, typer.Option(help="an interaction, by id, its first 8 digits, or its request's id")
    ] = None,
    reason: Annotated[str, typer.Option(help="one line that is recorded with the tombstone")] = "",
    apply: Annotated[bool, typer.Option("--apply", help="erase; without it only what would be touched is shown")] = False,
    vacuum: Annotated[
        bool,
        typer.Option("--vacuum", help="also remove old files of the tables, which still hold the rows; time travel ends there"),
    ] = False,
    even_unseen: Annotated[
        bool,
        typer.Option(
            "--even-unseen", help="write the tombstone even if the lake has no such row, for records that are read later"
        ),
    ] = False,
    lake: LakeOption = None,
    format: Annotated[ReportFormat, typer.Option(help="sentences, or everything as JSON")] = ReportFormat.table,
) -> None:
    """Erases a user, a session or an interaction from every table, dataset, cache and report. A dry run without --apply."""
    from pipelines.asking import plan_as_json, print_hints, print_plan
    from pipelines.storage import require_writable
    from resources.endpoints import Actor
    from resources.erasing import ForgetError, ask_for, complete_unfinished, named_in_logs, near_ids, plan_erasure, vacuum_only
    from resources.erasing import forget as erase
    from resources.lake import Tables

    if sum(given is not None for given in (user, session, interaction)) != 1:
        raise ForgetError("say what to forget with one of --user, --session and --interaction")
    kind: Literal["user", "session", "interaction"] = "user" if user is not None else "session"
    if interaction is not None:
        kind = "interaction"
    identifier = user or session or interaction or ""
    place, by = open_lake(lake), Actor.of_command(reason)
    completed = complete_unfinished(place) if apply else 0
    asked = ask_for(Tables(place), kind, identifier)
    plan = plan_erasure(place, asked)
    nothing, near, unmapped = plan.is_empty, list(near_ids(Tables(place), kind, identifier)), []
    if kind == "user":
        unmapped = list(named_in_logs(place, identifier.strip(), everywhere=nothing and not plan.is_known))
    if apply and (not nothing or (even_unseen and not plan.is_known)):
        require_writable(place.root)
        if format == ReportFormat.table:  # while a person can still stop it
            print_hints([*near, *unmapped], console)
        plan = erase(place, asked, by, vacuum)
    elif apply and vacuum and plan.is_known:
        vacuum_only(place)
        plan.vacuumed = True
    plan.completed, plan.near, plan.unmapped = plan.completed + completed, near, unmapped
    if format == ReportFormat.json:
        print(plan_as_json(plan))
    else:
        print_plan(plan, place, console)
    raise typer.Exit(1 if nothing and not plan.is_known and not plan.erasure else 0)


@app.command(rich_help_panel=PANEL)
def retain(
    recipe: Annotated[Path, typer.Argument(help="the recipe's YAML file, with `retention`")],
    apply: Annotated[bool, typer.Option("--apply", help="remove; without it only what would go is shown")] = False,
    lake: LakeOption = None,
) -> None:
    """Removes rows, versions and old table files that the recipe's `retention` no longer keeps. A dry run without --apply."""
    from model_ops.jobs import counted, size
    from pipelines.contract import load_recipe
    from pipelines.storage import lake_location, require_writable
    from pipelines.terminal import say
    from resources.erasing import ForgetError, old_data, remove_old_data
    from resources.lake import LakeLayout, Tables
    from resources.sources import workloads_of

    loaded = load_recipe(recipe)
    if loaded.retention is None:
        raise ForgetError(f"{recipe} has no retention, so nothing is too old: add retention: {{rows_days: 90}}, for example")
    place = LakeLayout.open(lake_location(recipe, lake), create=False)
    if apply:
        require_writable(place.root)
    report = (remove_old_data if apply else old_data)(place, loaded.workload, loaded.retention)
    verb = "Removed" if apply else "Would remove"
    tables = ", ".join(f"{rows:,} of {table}" for table, rows in report.rows.items())
    say(console, f"{verb} rows: {tables or 'none'}.")
    if report.emptied:
        emptied = ", ".join(f"{rows:,} of {table}" for table, rows in report.emptied.items())
        say(console, f"{'Emptied' if apply else 'Would empty'} rows of what they say: {emptied}.")
    if report.chats:
        say(console, f"{verb} rated chats: {counted(report.chats, 'answer')}.")
    say(console, f"{verb} versions: {', '.join(report.versions) or 'none'}.")
    if report.counts_only:
        by_table = ", ".join(f"{rows:,} of {table}" for table, rows in report.counts_only.items())
        why = ", which stay until a model has learnt them" if report.unlearnt else ""
        what = "Left" if apply and report.unlearnt else verb
        say(console, f"{what} texts of sources that keep only counts: {by_table}{why}.")
    state = "were removed" if apply else f"exist; those older than {loaded.retention.old_files_days:g} days would go"
    say(console, f"Old files of the tables: {size(report.old_bytes)} {state}.")
    for other in sorted(workloads_of(loaded.workload, loaded.sources) - {loaded.workload}):
        if rows := sum(Tables(place).rows_by_day("interactions", other).values()):
            say(
                console,
                f"! Rows of {other} stay ({rows:,} of interactions): sources of this recipe are read for it too, and "
                f"only a recipe with workload: {other} removes them, by its own retention.",
                "yellow",
            )
    if not apply:
        say(console, "This was a dry run: nothing was written. Add --apply to remove.")

"""Prints the status of a lake: a table for each workload, why stages are stale, the endpoint, active runs."""

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.status.lake_status import EndpointStatus, RunStatus, StageStatus, Status, WorkloadStatus
from pipelines.terminal import say
from resources.monitoring import DECISION_JOBS

MARKS = {"current": ("✓", "green"), "stale": ("!", "yellow"), "missing": ("·", "dim"), "off": ("-", "dim")}


def print_status(status: Status, console: Console) -> None:
    if not status.workloads:
        say(console, f"{status.lake} holds no workload yet: millrace run RECIPE --lake {status.lake} makes one.")
    for place, workload in enumerate(status.workloads):
        if place:
            console.print()
        _print_workload(workload, status.at, console)
    for run in status.running:
        _print_run(run, status.at, console)
    if not status.running:
        say(console, "No run is in progress.")
    last = status.last_run
    if last is not None and last.status != "SUCCESS":
        how = {"FAILURE": "failed", "CANCELED": "was stopped"}.get(last.status, f"ended as {last.status.lower()}")
        say(
            console,
            f"! the last run, {last.run_id[:8]} ({last.job}), {how} {_ago(last.ended_at, status.at)}: "
            + (
                "its page in the Dagster UI says why."
                if last.job in DECISION_JOBS
                else "millrace run goes on from what it finished."
            ),
            "yellow",
        )
    for workload in status.workloads if not status.running else ():
        say(console, f"next: {workload.next}")


def _print_workload(workload: WorkloadStatus, now: datetime, console: Console) -> None:
    counts = {state: sum(stage.state == state for stage in workload.stages) for state in MARKS}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count and state != "off")
    console.print(Text.assemble((workload.workload, "bold"), f"   {said}"), soft_wrap=True)
    for table in workload.tables:
        days = f", {table.first_day} to {table.last_day}" if table.first_day else ""
        say(console, f"  {table.table}: {table.note or f'{table.rows:,} rows{days}'}")
    if workload.unread_objects is not None:
        more = " in the part that was listed" if workload.unread_more else ""
        say(console, f"  sources: {workload.unread_objects:,} objects not read yet{more}")
    elif workload.sources_problem:
        say(console, f"  sources: {workload.sources_problem}", "yellow")
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column, right in (("", False), ("stage", False), ("version", False), ("made", False), ("took", True), ("run", False)):
        grid.add_column(column, justify="right" if right else "left", no_wrap=True)
    for stage in workload.stages:
        if stage.state == "off" and not stage.version:
            continue
        mark, style = MARKS[stage.state]
        shown = stage.version or "not made yet"
        grid.add_row(
            Text(mark, style=style),
            Text(stage.stage, style="dim" if stage.state in ("missing", "off") else ""),
            Text(shown, style="" if stage.version else "dim"),
            _ago(stage.finished_at, now),
            _seconds(stage.seconds),
            stage.run_id[:8],
        )
    console.print(grid)
    if off := [stage.stage for stage in workload.stages if stage.state == "off"]:
        say(console, f"  switched off by the recipe: {', '.join(off)}", "dim")
    through = [stage.stage for stage in workload.stages if stage.state == "stale" and not _own_reasons(stage)]
    for stage in workload.stages:
        if _own_reasons(stage):
            _print_reasons(stage, console)
    for stage in workload.stages:
        if stage.erased:
            soft_wrap = not console.is_terminal
            console.print(Text.assemble(("! ", "yellow"), (stage.stage, "bold"), f": {stage.erased}"), soft_wrap=soft_wrap)
    if through:
        say(console, f"! {', '.join(through)}: made from what is stale", "yellow")
    _print_endpoint(workload.endpoint, console)


def _own_reasons(stage: StageStatus) -> list[str]:
    """Reasons except stale parents, whose reasons are shown with the parents."""
    inherited = {str(item) for item in stage.inputs if item.reason == "stale"}
    return [reason for reason in stage.reasons if reason not in inherited]


def _print_reasons(stage: StageStatus, console: Console) -> None:
    is_stale = stage.state == "stale"
    console.print(
        Text.assemble(
            ("! " if is_stale else "? ", "yellow" if is_stale else "dim"),
            (stage.stage, "bold"),
            ": ",
            "; ".join(_own_reasons(stage)),
        ),
        soft_wrap=not console.is_terminal,
    )


def _print_endpoint(ends: EndpointStatus, console: Console) -> None:
    if ends.problem:
        say(console, f"endpoint: {ends.problem}", "red")
        return
    parts = [
        f"{name} {version}"
        for name, version in (("champion", ends.champion), ("candidate", ends.candidate), ("previous", ends.previous))
        if version
    ]
    by = f" (moved {ends.changed_at:%Y-%m-%d %H:%M} UTC by {ends.changed_by})" if ends.changed_at and ends.champion else ""
    say(console, f"endpoint: {', '.join(parts) or 'nothing is served'}{by}")
    if ends.rolled_back:
        say(console, f"! {ends.rolled_back}", "yellow")
    if ends.tainted:
        said = f"! weights that learnt erased rows: {', '.join(ends.tainted)}. Run the recipe again and approve its release"
        say(console, said, "yellow")
    release = ends.candidate or ends.not_offered
    if ends.worth:
        say(console, f"  {release or ends.champion}: {ends.worth}")
    for state, what in (("holds", "that hold"), ("too few to tell", "that have too few items to tell")):
        if names := [gate["name"] for gate in ends.gates if gate["state"] == state]:
            say(console, f"  gates of {release} {what}: {', '.join(names)}")
    if ends.failed_gates:
        gates = "; ".join(f"{gate['name']}: {gate['why']}" for gate in ends.failed_gates)
        say(console, f"! release {ends.not_offered} is not offered, because it missed its gates: {gates}", "yellow")
    elif ends.faults:
        say(console, f"! candidate {ends.candidate} cannot be approved: {'; '.join(ends.faults)}", "yellow")
    elif ends.waiting_for:
        ask = f": {ends.command}" if ends.command else ""
        say(console, f"! candidate {ends.candidate} waits for {ends.waiting_for}{ask}", "yellow")


def _print_run(run: RunStatus, now: datetime, console: Console) -> None:
    since = f", began {_ago(run.started_at, now)}" if run.started_at else ""
    at = f", at {', '.join(run.steps)}" if run.steps else ""
    process = run.process.partition("@")[0]
    if run.is_alive is False:
        lost = "works on the lake that this one is a copy of" if run.is_copied else "is gone"
        say(
            console,
            f"! run {run.run_id[:8]} ({run.job}) ended without a word: its process {process} {lost}{since}{at}. "
            "millrace run continues its work.",
            "yellow",
        )
    else:
        how = {"STARTED": "is at work", "QUEUED": "waits", "CANCELING": "is being stopped"}.get(run.status, "is starting")
        who = f" (process {process})" if run.process else ""
        say(console, f"Run {run.run_id[:8]} ({run.job}) {how}{who}{since}{at}.")


def _ago(moment: datetime | None, now: datetime) -> str:
    """Minutes, hours or days ago; a date if more than a month ago."""
    if moment is None:
        return ""
    seconds = max(0.0, (now - moment.astimezone(UTC)).total_seconds())
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {word} ago" if seconds < 31 * 86_400 else f"{moment:%Y-%m-%d}"
    return "just now"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7_200 else f"{seconds / 3_600:,.1f} h"

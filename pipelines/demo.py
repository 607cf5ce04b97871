"""`millrace demo`: the whole way on text that every Python has, within a written budget of seconds.

Writes the traffic beside the recipe (demo/traffic), runs recipes/demo.yaml through Dagster, lets the release through if
its gates hold, and closes with a table: rows, losses, recovery, acceptance, seconds against the budget, what to try next.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from model_ops.wording import counted
from pipelines.demo_traffic import write_traffic
from pipelines.follow import Outcome, follow
from pipelines.settings import RECIPES, lake_location
from resources.atomic import write_json
from resources.lake import Lake
from resources.registry import Registry
from resources.releasing.approvals import approve, is_approved
from resources.releasing.endpoints import Endpoint
from resources.releasing.signature import Signature, sign
from resources.releasing.summary import Section, Summary, summarise

BUDGET = {
    "traffic": 10,
    "interactions": 10,
    "cleaned_interactions": 8,
    "eval_suite": 2,
    "seed_examples": 2,
    "curated_interactions": 8,
    "sft_dataset": 5,
    "base_model": 165,
    "sft_model": 175,
    "student_model": 70,
    "quantized_model": 3,
    "served_answers": 2,
    "speculator_dataset": 58,
    "speculator": 85,
    "evaluation_report": 85,
    "release_candidate": 3,
    "endpoint": 3,
    "around the steps": 26,
}
"""Seconds per stage on 2 cores, 12 minutes in all. The last line is everything outside the steps: interpreters starting,
definitions loading, history being written."""

WORKLOAD = "code-assistant"
QUERIES = (
    "select stage, rule, kept, count(*) as interactions from decisions group by all order by all",
    "select dt, source, count(*) as interactions, round(avg(latency_ms)) as latency_ms from interactions "
    "group by all order by all",
    "select name, version, op, created_at from artefacts order by created_at",
)


def run_demo(console: Console, lake: str | Path | None, approved: bool) -> int:
    """Runs the demo and prints its closing table. Returns the exit code."""
    began = time.monotonic()
    by = sign("demo --approve") if approved else None  # refuses an unknown person now, and not after the last step
    recipe, home = RECIPES / "demo.yaml", RECIPES.parent / "demo"
    place = lake_location(recipe, lake or os.environ.get("MILLRACE_LAKE") or home / "lake")
    Lake.open(place)
    console.print(f"[bold]millrace demo[/]: from logs to a release, on this machine, in {place}")
    traffic_there = (home / "traffic" / "planted.json").exists()
    traffic_seconds = 0.0 if traffic_there else _write_traffic_timed(home / "traffic", console)
    outcome = follow({"recipe": recipe, "lake": place, "select": None, "partition": None}, console, BUDGET)
    outcome.seconds = {"traffic": traffic_seconds, **outcome.seconds}
    outcome.reused |= {"traffic"} if traffic_there else set()
    if outcome.exit_code != 0:
        for message in outcome.messages:
            console.print(f"millrace: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
        if outcome.exit_code == 130:
            console.print("Stopped. Run [bold]millrace demo[/] again: it continues, and repeats nothing that is finished.")
        return outcome.exit_code
    if by and (code := _let_through(Lake.open(place), recipe, outcome, console, by)):
        return code
    outcome.seconds["around the steps"] = time.monotonic() - began - sum(outcome.seconds.values())
    summary = summarise(Lake.open(place), WORKLOAD)
    _close(console, place, summary, outcome)
    return 0


def _write_traffic_timed(directory: Path, console: Console) -> float:
    """Writes the demo's logs, which are the same on every run; returns the seconds that took."""
    began = time.monotonic()
    report = write_traffic(directory)
    seconds = time.monotonic() - began
    console.print(f"[green]✓[/] {'traffic':<22} {seconds:7.1f} s  {counted(report.records, 'log record')}")
    return seconds


def _let_through(lake: Lake, recipe: Path, outcome: Outcome, console: Console, by: Signature) -> int:
    """What a person does with `millrace approve`: approves the candidate, then the endpoint's asset moves the alias."""
    registry = Registry(lake, WORKLOAD)
    directory = registry.directory(registry.current("release", "release"))
    if not is_approved(lake, directory):
        approve(lake, directory, by)
    console.print(f"[green]✓[/] {'approved':<22} release {directory.name}: its gates hold")
    moved = follow({"recipe": recipe, "lake": lake.root, "select": ["endpoint"], "partition": None}, console, BUDGET)
    outcome.seconds["endpoint"] = outcome.seconds.get("endpoint", 0.0) + moved.seconds.get("endpoint", 0.0)
    for message in moved.messages:
        console.print(f"millrace: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    return moved.exit_code


def _close(console: Console, lake: Path, summary: Summary, outcome: Outcome) -> None:
    sections = [*summary.sections(), _time_section(outcome)]
    for section in sections:
        console.print()
        console.print(_as_table(section))
    release = Registry(Lake.open(lake), summary.workload).current("release", "release")
    place = lake / "releases" / summary.workload / release.version
    aliases = Endpoint(Lake.open(lake), summary.workload).read()
    option = f"--lake {os.path.relpath(lake)}"
    console.print(f"\n[bold]The release[/]        {os.path.relpath(place)}", soft_wrap=True)
    console.print(f"  endpoint alias     champion {aliases.champion or 'none yet'}, candidate {aliases.candidate or 'none'}")
    console.print(f"  its report         {os.path.relpath(place / 'report.html')}", soft_wrap=True)
    console.print(f"[bold]Serve it[/]           bash {os.path.relpath(place / 'serve-vllm.sh')} --port 8000", soft_wrap=True)
    console.print("[bold]Ask in SQL[/]")
    for query in QUERIES:
        console.print(f'  millrace sql {option} "{query}"', soft_wrap=True, markup=False, highlight=False)
    console.print(f"[bold]Where it came from[/] millrace lineage {summary.workload}/speculator {option}", soft_wrap=True)
    console.print(f"[bold]See the graph[/]      make ui      (or: millrace ui {option})", soft_wrap=True)
    record = {"seconds": outcome.seconds, "budget": BUDGET, "peak_memory_mb": outcome.peak_memory_mb,
              "step_peak_memory_mb": outcome.step_peak_memory_mb, "reused": sorted(outcome.reused)}
    write_json(lake / "demo-run.json", json.loads(json.dumps(record)))


def _time_section(outcome: Outcome) -> Section:
    """Seconds against the budget. A step that was reused has no time to judge, and its budget is in no sum."""
    rows = []
    for stage, budget in BUDGET.items():
        if stage in outcome.reused:
            rows.append([stage, "reused", "", ""])
            continue
        seconds = outcome.seconds.get(stage, 0.0)
        memory = outcome.step_peak_memory_mb.get(stage)
        rows.append([stage, f"{seconds:.1f}", f"{budget}", f"{memory:,.0f}" if memory else ""])
    total = sum(outcome.seconds.values())
    judged = sum(budget for stage, budget in BUDGET.items() if stage not in outcome.reused)
    rows.append(["in all", f"{total:.1f}", f"{judged}", f"{outcome.peak_memory_mb:,.0f}"])
    note = "Memory is that of the run and its worker together."
    if outcome.reused:
        one = len(outcome.reused) == 1
        note = (f"{counted(len(outcome.reused), 'stage')} {'was' if one else 'were'} finished by an earlier run and reused: "
                f"{'its budget is' if one else 'their budgets are'} not counted. {note}")
    return Section("Time and memory", ["stage", "seconds", "budget", "peak memory (MB)"], rows, note)


def _as_table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", title_style="bold", caption=section.note,
                  caption_justify="left")
    for column in section.columns:
        words = column in ("stage", "rule", "model", "drafter", "version")
        table.add_column(column, justify="left" if words else "right")
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table

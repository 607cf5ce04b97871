"""`millrace demo`: the whole way on text that every Python has, within a written budget of seconds.

Writes the traffic beside the recipe (demo/traffic), runs recipes/demo.yaml through Dagster, lets the release through if
its gates hold, and closes with a table: rows, losses, recovery, acceptance, seconds against budget, what to try next.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelines.demo_traffic import write_traffic
from pipelines.follow import Outcome, follow
from pipelines.settings import RECIPES
from resources.atomic import write_json
from resources.endpoints import Endpoint
from resources.lake import Lake
from resources.release import approve, find_release, person, recheck
from resources.summary import Summary, summarise

BUDGET = {
    "traffic": 10,
    "start": 20,
    "interactions": 20,
    "cleaned_interactions": 15,
    "eval_suite": 2,
    "seed_examples": 2,
    "curated_interactions": 15,
    "sft_dataset": 8,
    "base_model": 150,
    "sft_model": 110,
    "student_model": 90,
    "quantized_model": 8,
    "speculator_dataset": 60,
    "speculator": 100,
    "evaluation_report": 100,
    "release_candidate": 5,
    "endpoint": 5,
}
"""Seconds per stage on 2 cores; `start` is everything outside the steps (interpreters, definitions, history)."""

TWELVE_MINUTES = 720
QUERIES = (
    "select stage, rule, kept, count(*) as interactions from decisions group by all order by all",
    "select dt, source, count(*) as interactions, round(avg(latency_ms)) as latency_ms from interactions group by all",
    "select drafter, temperature, round(1 + sum(accepted) / sum(drafts), 3) as tau from acceptance group by all",
)


def run_demo(console: Console, lake: Path | None, approved: bool) -> int:
    """Runs the demo and prints its closing table. Returns the exit code."""
    began = time.monotonic()
    recipe = RECIPES / "demo.yaml"
    place = (lake or RECIPES.parent / "demo" / "lake").expanduser().resolve()
    free = shutil.disk_usage(RECIPES.parent).free
    console.print(f"[bold]millrace demo[/]: logs to a release, on this machine, in {place}")
    traffic_seconds = _write_traffic_once(RECIPES.parent / "demo" / "traffic", console)
    outcome = follow({"recipe": recipe, "lake": place, "select": None, "partition": None}, console, BUDGET)
    if outcome.exit_code != 0:
        for message in outcome.messages:
            console.print(f"millrace: {message}", style="red", markup=False, highlight=False)
        if outcome.exit_code == 130:
            console.print("Stopped. [bold]millrace demo[/] continues where it was; nothing that is finished is repeated.")
        return outcome.exit_code
    return 0

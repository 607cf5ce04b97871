"""`millrace demo`: runs the full pipeline within a budget of seconds: on a real model and the mail of a shop, or, where that
model cannot be had and for `--quick`, on a made model and Python's own standard-library source. Works in ./demo of the current
folder (`--quick`: in ./demo/quick) and ends with what was gained and tables of rows, losses, acceptance and seconds."""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from model_ops.files import write_json, write_text
from model_ops.jobs import counted, duration
from pipelines.contract import TINY, Recipe, read_recipe
from pipelines.demo.model import LICENCE, LICENCE_FILE, NoModelError, fetch_model
from pipelines.demo.traffic import write_traffic
from pipelines.planning import Speed, TrafficSize, speed_of, stage_seconds
from pipelines.running import Outcome, follow, submit
from pipelines.storage import RECIPES, lake_location
from resources.artefacts import Registry
from resources.endpoints import Actor, Endpoint, approvals_of, record_approval
from resources.lake import LakeLayout
from resources.releases import GateVerdict, ReportSection, read_release
from resources.releasing import SIDE_BY_SIDE, Summary, summarise

SHORTENED = (
    ("tiny", "steps"),
    ("sft", "steps"),
    ("student", "steps"),
    ("speculator", "steps"),
    ("speculator", "prompts"),
    ("evaluation", "prompts"),
)
"""(section of the recipe, key): what a slow machine does less of, if the recipe has it. The first such key of the section
counts. Rows of the evaluation stay: on a few of them the intervals of the gates are too wide to hold."""
BESIDE_TUNING = tuple(each for each in SHORTENED if each[0] != "sft")
SHARES = tuple(round(1 - 0.05 * step, 2) for step in range(19))
"""From the whole recipe to a tenth of it, less than which no model learns anything."""
USED = 0.85
"""Share of the budget that the prediction may fill: the rest is what a prediction cannot know."""
FEWEST = {"steps": 8, "prompts": 16}
KEPT = "demo-steps.json"
"""File of the lake with the share that was chosen for it."""


@dataclass(frozen=True)
class FittedSteps:
    share: float
    """Share of the recipe's steps."""
    text: str
    seconds: dict[str, float]
    """Predicted seconds, by stage."""
    whole: float
    """Seconds of the whole recipe."""
    left_out: list[str]
    """What is left out, in words."""
    speed: Speed


def fit_steps(
    path: Path, budget: float, traffic: TrafficSize, speed: Speed | None = None, share: float | None = None
) -> FittedSteps:
    """The largest share of the recipe's steps that is predicted to end within `budget` seconds, or the given one. A recipe on a
    real model keeps its fine-tuning whole: what it gains is what the demo shows."""
    text = path.read_text(encoding="utf-8")
    whole = _read(text)
    speed = speed or speed_of(whole)
    predicted = {}
    for each in SHARES if share is None else (1.0, share):
        changed, left_out = shortened(text, each, SHORTENED if whole.base_model == TINY else BESIDE_TUNING)
        predicted[each] = stage_seconds(_read(changed), speed, traffic)
        if share is None and sum(predicted[each].values()) <= USED * budget:
            break
    return FittedSteps(each, changed, predicted[each], sum(predicted[1.0].values()), left_out, speed)


def shortened(text: str, share: float, keys: Sequence[tuple[str, str]] = SHORTENED) -> tuple[str, list[str]]:
    """The recipe's text with a share of what `keys` list, and what was left out."""
    left_out = []
    for section, key in keys if share < 1 else ():
        match = re.search(rf"^{section}:(?:.|\n(?!\S))*?\b{key}: (\d+)", text, re.MULTILINE)
        if match is None:
            continue
        before = int(match[1])
        after = min(before, max(FEWEST[key], round(before * share)))
        text = text[: match.start(1)] + str(after) + text[match.end(1) :]
        left_out += [f"{section} {after} of {before} {key}"] if after < before else []
    return text, left_out


def stored_share(lake: Path) -> float | None:
    """The share that was chosen for this lake; None for a new one."""
    try:
        return float(json.loads((lake / KEPT).read_text())["share"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(lake: Path, choice: FittedSteps) -> None:
    write_json(
        lake / KEPT,
        {
            "share": choice.share,
            "seconds": choice.seconds,
            "gflops": choice.speed.gflops,
            "precision": choice.speed.precision,
            "left_out": choice.left_out,
        },
    )


def _read(text: str) -> Recipe:
    """Paths begin with ../demo: they start from any folder beside the current one's ./demo."""
    return read_recipe(text, Path.cwd() / RECIPES.name)


@dataclass(frozen=True)
class DemoSize:
    """One size of the demo: its recipe, its folder below the current one, its traffic, and its budget in seconds on 2 cores."""

    recipe: str
    folder: str
    interactions: int
    days: int
    budget: float
    command: str
    workload: str = "code-assistant"
    product: Literal["code", "mail"] = "code"
    logs: str = "traffic"
    """Folder of the logs."""
    tokens: int = 200
    """Of a typical record."""

    @property
    def traffic(self) -> TrafficSize:
        return TrafficSize(round(1.1 * self.interactions), self.tokens)


SHOWN, CHARACTERS = 3, 200
"""Held-out requests whose answers are printed, and the most characters of each."""
SECONDS_BEFORE = 5
"""Seconds in which the logs are written."""
REAL = DemoSize("mail.yaml", "demo", 1500, 7, 900, "millrace demo", "mail-desk", "mail", "mail", 85)
FULL = DemoSize("demo.yaml", "demo", 6000, 7, 900, "millrace demo")
QUICK = DemoSize("quick.yaml", "demo/quick", 400, 2, 180, "millrace demo --quick")

QUERIES = (
    "select stage, rule, kept, count(*) as interactions from decisions group by all order by all",
    "select dt, source, count(*) as interactions, round(avg(latency_ms)) as latency_ms from interactions "
    "group by all order by all",
    "select name, version, op, created_at from artefacts order by created_at",
)


def run_demo(console: Console, lake: str | Path | None, approved: bool, size: DemoSize = REAL) -> int:
    """Runs the demo in the current folder and prints its closing tables. Returns the exit code."""
    began = time.monotonic()
    size = _with_its_model(size, console)
    by = Actor.of_command("demo --approve") if approved else None  # fails for an unknown person now, not after the last step
    home = Path.cwd() / size.folder
    place = lake_location(home / size.recipe, lake or os.environ.get("MILLRACE_LAKE") or home / "lake")
    share = stored_share(place)
    choice = fit_steps(RECIPES / size.recipe, size.budget - SECONDS_BEFORE, size.traffic, share=share)
    recipe = demo_recipe(size, choice)
    console.print(f"[bold]millrace demo[/]: from logs to a release, on this machine, in {LakeLayout.open(place).place}")
    if size is QUICK:
        console.print("This is the quick demo: its models are too small to mean anything. `millrace demo` trains larger ones.")
    _say(choice, size, share is not None, console)
    traffic_there = (home / size.logs / "planted.json").exists()
    traffic_seconds = 0.0 if traffic_there else _write_traffic_timed(home / size.logs, size, console)
    run = submit(recipe, place)
    keep(place, choice)
    outcome = follow(run, console, choice.seconds)
    outcome.seconds = {"traffic": traffic_seconds, **outcome.seconds}
    outcome.reused |= {"traffic"} if traffic_there else set()
    if outcome.exit_code != 0:
        for message in outcome.messages:
            console.print(f"millrace: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
        if outcome.exit_code == 130:
            console.print(f"Stopped. Run [bold]{size.command}[/] again: it continues, and repeats nothing that is finished.")
        return outcome.exit_code
    if by and (code := _let_through(LakeLayout.open(place), size.workload, recipe, outcome, console, by)):
        return code
    outcome.seconds["around the steps"] = time.monotonic() - began - sum(outcome.seconds.values())
    registry = Registry(LakeLayout.open(place), size.workload)
    release = read_release(registry.directory(registry.current("release", "release")))
    summary = summarise(registry.lake, size.workload, gates=release.gates)
    _close(console, place, summary, outcome, size, choice)
    return 0


def _with_its_model(size: DemoSize, console: Console) -> DemoSize:
    """The size whose model can be had: fetches the real one."""
    if size is not REAL:
        return size
    try:
        file = fetch_model(Path.cwd() / size.folder / "model")
    except NoModelError as error:
        console.print(f"[yellow]No real model[/]: {escape(str(error))}. The demo takes one that it makes.", soft_wrap=True)
        return FULL
    licence = os.path.relpath(file.with_name(LICENCE_FILE))
    console.print(f"The model: {file.stem}, {LICENCE} ({licence})", soft_wrap=True, highlight=False)
    return REAL


def demo_recipe(size: DemoSize, choice: FittedSteps) -> Path:
    """The recipe to run in the current folder: in a checkout's root its own, where nothing is left out; else a copy in the
    demo's folder."""
    if Path.cwd() == RECIPES.parent and not choice.left_out:
        return RECIPES / size.recipe
    own = Path.cwd() / size.folder / size.recipe
    text = "# Written by `millrace demo`, again on every run: copy this file before you change it.\n" + choice.text
    text = text.replace(f"../{size.folder}/", "")
    if not own.is_file() or own.read_text(encoding="utf-8") != text:
        write_text(own, text)
    return own


def _say(choice: FittedSteps, size: DemoSize, was_chosen: bool, console: Console) -> None:
    """Prints what each stage will take, and what was left out so that the demo ends in its budget."""
    total = sum(choice.seconds.values())
    rows = [[stage, f"{seconds:.0f}"] for stage, seconds in (choice.seconds | {"in all": total}).items()]
    console.print(_as_table(ReportSection("About how long", ["stage", "about seconds"], rows, "")))
    console.print(
        f"Predicted from {choice.speed.gflops:,.0f} GFLOP/s in {choice.speed.precision}, measured on this machine.",
        soft_wrap=True,
        highlight=False,
    )
    budget = duration(size.budget)
    if choice.left_out:
        why = (
            "as chosen when this lake was new"
            if was_chosen
            else f"because all of the recipe would take about {duration(choice.whole)} here, and the budget is {budget}"
        )
        console.print(f"[yellow]Left out[/], {why}: {', '.join(choice.left_out)}.", soft_wrap=True, highlight=False)
    if total > size.budget:
        console.print(f"[yellow]Longer than {budget}[/]: nothing more can be left out.", soft_wrap=True, highlight=False)


def _write_traffic_timed(directory: Path, size: DemoSize, console: Console) -> float:
    """Writes the demo's logs, the same on every run; returns the seconds taken."""
    began = time.monotonic()
    report = write_traffic(directory, size.interactions, size.days, product=size.product)
    seconds = time.monotonic() - began
    console.print(f"[green]✓[/] {'traffic':<22} {seconds:7.1f} s  {counted(report.records, 'log record')}")
    return seconds


def _let_through(lake: LakeLayout, workload: str, recipe: Path, outcome: Outcome, console: Console, by: Actor) -> int:
    """Does what `millrace approve` does: approves the candidate, then runs the endpoint asset, which moves the alias."""
    registry = Registry(lake, workload)
    directory = registry.directory(registry.current("release", "release"))
    if approvals_of(lake, directory).missing:
        record_approval(lake, directory, by)
    said = GateVerdict.of(read_release(directory).gates).sentence
    console.print(f"[green]✓[/] {'approved':<22} release {directory.name}: {said}", soft_wrap=True, highlight=False)
    moved = follow(submit(recipe, lake.root, ["endpoint"]), console)
    outcome.seconds["endpoint"] = outcome.seconds.get("endpoint", 0.0) + moved.seconds.get("endpoint", 0.0)
    for message in moved.messages:
        console.print(f"millrace: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    return moved.exit_code


def _print_answers(file: Path, console: Console) -> None:
    """Some held-out requests, with what the base, or the champion where there is one, and the release answer greedily."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    for row in rows[:SHOWN]:
        console.print()
        others = [(name, row[name]) for name in ("base", "champion") if name in row]
        for name, text in (("asked", row["prompt"][-1]["text"]), *others, ("release", row["target"])):
            folded = " ".join(text.split())
            line = folded if len(folded) <= CHARACTERS else folded[:CHARACTERS] + "..."
            console.print(f"  [bold]{name:<8}[/] {escape(line)}", highlight=False)


def _close(console: Console, lake: Path, summary: Summary, outcome: Outcome, size: DemoSize, choice: FittedSteps) -> None:
    opened = LakeLayout.open(lake)
    registry = Registry(opened, summary.workload)
    release = registry.current("release", "release")
    console.print(f"\n{escape(read_release(registry.directory(release)).worth)}", soft_wrap=True, highlight=False)
    if size is REAL:  # a toy's answers are noise
        _print_answers(registry.directory(registry.current("dataset", "evaluation_report")) / SIDE_BY_SIDE, console)
    sections = [*summary.sections(), _time_section(outcome, choice.seconds, size.budget)]
    for section in sections:
        console.print()
        console.print(_as_table(section))
    place = lake / "releases" / summary.workload / release.version
    aliases = Endpoint(opened, summary.workload).read()
    option = opened.typed_option
    console.print(f"\n[bold]The release[/]        {os.path.relpath(place)}", soft_wrap=True)
    console.print(f"  endpoint alias     champion {aliases.champion or 'none yet'}, candidate {aliases.candidate or 'none'}")
    console.print(f"  its report         {os.path.relpath(place / 'report.html')}", soft_wrap=True)
    console.print(f"[bold]Serve it[/]           bash {os.path.relpath(place / 'serve-vllm.sh')} --port 8000", soft_wrap=True)
    console.print("[bold]Ask in SQL[/]")
    for query in QUERIES:
        console.print(f'  millrace sql {option} "{query}"', soft_wrap=True, markup=False, highlight=False)
    console.print(f"[bold]Where it came from[/] millrace lineage {summary.workload}/speculator {option}", soft_wrap=True)
    console.print(f"[bold]See the graph[/]      millrace ui {option}", soft_wrap=True)
    record = {
        "seconds": outcome.seconds,
        "predicted": choice.seconds,
        "budget": size.budget,
        "share_of_steps": choice.share,
        "left_out": choice.left_out,
        "peak_memory_mb": outcome.peak_memory_mb,
        "step_peak_memory_mb": outcome.step_peak_memory_mb,
        "reused": sorted(outcome.reused),
    }
    write_json(lake / "demo-run.json", json.loads(json.dumps(record)))


def _time_section(outcome: Outcome, predicted: dict[str, float], budget: float) -> ReportSection:
    """Seconds of each step, measured and predicted. A reused step has no time, and its prediction is not counted."""
    rows = []
    for stage in {"traffic": 0, **predicted, **outcome.seconds}:
        if stage in outcome.reused:
            rows.append([stage, "reused", "", ""])
            continue
        memory = outcome.step_peak_memory_mb.get(stage)
        about = f"{predicted[stage]:.0f}" if stage in predicted else ""
        rows.append([stage, f"{outcome.seconds.get(stage, 0.0):.1f}", about, f"{memory:,.0f}" if memory else ""])
    whole = sum(seconds for stage, seconds in predicted.items() if stage not in outcome.reused)
    rows.append(["in all", f"{sum(outcome.seconds.values()):.1f}", f"{whole:.0f}", f"{outcome.peak_memory_mb:,.0f}"])
    note = f"The budget is {budget:.0f} s. Memory is that of the run and its worker together."
    if outcome.reused:
        one = len(outcome.reused) == 1
        which = f"{counted(len(outcome.reused), 'stage')} {'was' if one else 'were'} finished by an earlier run and reused"
        note = f"{which}: {'its prediction is' if one else 'their predictions are'} not counted. {note}"
    return ReportSection("Time and memory", ["stage", "seconds", "predicted", "peak memory (MB)"], rows, note)


def _as_table(section: ReportSection) -> Table:
    table = Table(title=section.title, title_justify="left", title_style="bold", caption=section.note, caption_justify="left")
    for column in section.columns:
        words = column in ("stage", "rule", "model", "drafter", "version", "gate", "state", "wanted", "of", "suite", "sampling")
        table.add_column(column, justify="left" if words else "right")
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table

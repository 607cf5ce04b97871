"""Predicts what a run takes, stage by stage: time, memory, disk, money; the planner's estimate times what the stage took over
its own estimate when this lake last made it. Both are in forecasts/<workload>.json beside Dagster's history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from model_ops.files import write_json
from model_ops.jobs import duration, size
from model_ops.machine import DEVICES
from pipelines.checks.environment import accelerators
from pipelines.checks.finding import CheckFinding, CheckStep, ok, run_checks
from pipelines.checks.inputs import check_source
from pipelines.checks.place import bytes_needed, logged_bytes
from pipelines.checks.worth import CHARACTERS_A_TOKEN
from pipelines.contract import BaseModelError, Recipe, look_at_base
from pipelines.planning import Speed, TrafficSize, speed_of, stage_seconds
from pipelines.running import Outcome
from pipelines.terminal import say
from resources.deciding import WORKERS
from resources.inspecting import FirstLook
from resources.lake import LakeLayout
from resources.launching import home_of
from resources.stages import stage
from stores.lake_error import LakeError

AROUND = "around the steps"
CHEAP_S = 60.0
CHEAPER = (
    "Cheaper, with wider intervals: lower evaluation.prompts, max_new_tokens and temperatures, evaluation.tasks.items and "
    "max_new_tokens, or evaluation.rows."
)
LEAST, MOST = 0.1, 30.0
"""Bounds of a correction: a run beside other work says little about the next."""


@dataclass(frozen=True)
class StageForecast:
    """One stage."""

    stage: str
    estimated: float
    """Seconds by the planner alone."""
    seconds: float
    memory_bytes: float | None = None
    disk_bytes: float | None = None
    money: float | None = None
    """None where no price is known."""
    planned_bytes: float | None = None
    """Memory by the planner alone."""

    @property
    def does(self) -> str:
        return "processes that start, pages" if self.stage == AROUND else stage(self.stage).does


@dataclass(frozen=True)
class Forecast:
    lines: list[StageForecast]
    basis: str
    """Number of records, and what they were counted on."""
    checkpoints: float = 0.0
    """Bytes that come and go while a stage trains."""
    last: str = ""
    """How well the last run was predicted; "" for a first one."""
    file: Path | None = None
    """Where the outcome is kept, below the key `conditions`; None without a lake."""
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    """What exists already."""
    speed: Speed | None = None
    conditions: str = ""

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    @property
    def money(self) -> float | None:
        known = [line.money for line in self.lines if line.money is not None]
        return sum(known) if known else None

    def of(self, names: list[str]) -> Forecast:
        """The forecast of some stages."""
        return replace(self, lines=[line for line in self.lines if line.stage in (*names, AROUND)])

    def as_dict(self) -> dict[str, Any]:
        return {
            "basis": self.basis,
            "seconds": round(self.seconds, 1),
            "money": self.money,
            "last": self.last,
            "stages": [
                {
                    "stage": line.stage,
                    "does": line.does,
                    "seconds": round(line.seconds, 1),
                    "memory_bytes": line.memory_bytes,
                    "disk_bytes": line.disk_bytes,
                    "money": line.money,
                }
                for line in self.lines
            ],
        }


def forecast_of_run(recipe: Recipe, place: Path) -> Forecast | None:
    """The forecast at the beginning of a run. Sources that do not answer in some seconds cost no more than these."""
    looks: dict[str, FirstLook] = {}
    forecasts: list[Forecast | None] = []
    run_checks(
        [CheckStep(name, partial(check_source, "source", name, source, looks)) for name, source in recipe.sources.items()],
        seconds=10,
    )

    def predict() -> list[CheckFinding]:
        forecasts.append(forecast(recipe, dict(looks), place))
        return []

    run_checks([CheckStep("time", predict)], seconds=60)
    return forecasts[0] if forecasts else None


def forecast(recipe: Recipe, looks: Mapping[str, FirstLook], place: Path) -> Forecast | None:
    characters = [count for look in looks.values() if look.holds_logs for count in look.characters]
    file = _file_of(recipe, place)
    devices = accelerators()
    conditions = _conditions(recipe, devices)
    past = _read(file).get(conditions, {})
    try:
        known = _speed(recipe, devices, past.get("speed")) if characters else None
    except BaseModelError:
        return None  # reported with the base model
    if known is None:
        return None
    speed, measured_by = known
    typical = median(characters)
    traffic = TrafficSize(
        max(1, round(sum(logged_bytes(look) for look in looks.values() if look.holds_logs) / typical)),
        max(1, round(typical / CHARACTERS_A_TOKEN)),
    )
    try:
        base = look_at_base(recipe.base_model)
        estimated = stage_seconds(recipe, speed, traffic)
    except BaseModelError:
        return None  # reported with the base model
    if not estimated:
        return None
    disk = bytes_needed(recipe, base, dict(looks))
    lines = [
        _line(recipe, name, each, past.get("stages", {}).get(name, {}), speed.memory.get(name), disk, traffic)
        for name, each in estimated.items()
    ]
    at_least = "at least " if any(look.has_more for look in looks.values()) else ""
    basis = f"for {at_least}about {traffic.records:,} records of {traffic.tokens:,} tokens, {measured_by}"
    return Forecast(lines, basis, disk["checkpoints"], past.get("said", ""), file, past.get("stages", {}), speed, conditions)


def _conditions(recipe: Recipe, devices: Mapping[str, int]) -> str:
    """What seconds and memory depend on, as one key: those of other devices or of another base model say nothing."""
    precisions = sorted({settings.resolved().precision for settings in recipe.trained.values()})
    where = [f"{count}x{name}" for name, count in devices.items()] or ["cpu"]
    return " ".join([*where, *precisions, f"{recipe.threads} threads", recipe.base_model])


def _speed(recipe: Recipe, devices: Mapping[str, int], earlier: Mapping[str, Any] | None) -> tuple[Speed, str] | None:
    """The speed, of an earlier run where it is known, and its source; None for an accelerator that no table names."""
    if devices:
        name, count = next(iter(devices.items()))
        device = DEVICES.get(name.lower())
        return None if device is None else (speed_of(recipe, device), f"one of {count}x{name} by its data sheet, not measured")
    speed = speed_of(recipe)
    with suppress(TypeError, KeyError, AttributeError):
        speed = replace(Speed.read(earlier or {}), memory=speed.memory)
    return speed, f"{speed.gflops:,.0f} GFLOP/s in {speed.precision}, measured here"


def _line(
    recipe: Recipe,
    name: str,
    estimated: float,
    past: Mapping[str, float],
    memory: float | None,
    on_disk: Mapping[str, float],
    traffic: TrafficSize,
) -> StageForecast:
    factor = min(MOST, max(LEAST, past["took"] / past["estimated"])) if past.get("estimated") else 1.0
    seconds = estimated * factor
    price, devices = None, 1
    if (decide := recipe.automation.decide) is not None:
        price, devices = decide.price_per_device_hour, decide.devices
    money = price * devices * seconds / 3600 if price is not None and name in WORKERS else None
    if name == "teacher_answers" and recipe.teacher is not None and recipe.teacher.price is not None:
        asked = traffic.records * traffic.tokens / 1e6
        money = min(asked * (recipe.teacher.price.input + recipe.teacher.price.output), recipe.teacher.max_cost or float("inf"))
    peak, planned = past.get("memory_bytes"), past.get("planned_bytes")
    corrected = peak if memory is None else memory * peak / planned if peak and planned else memory
    return StageForecast(name, estimated, seconds, corrected, on_disk.get(name), money, memory)


def print_forecast(predicted: Forecast, console: Console) -> None:
    """Prints the table. Stages of a second or so that hold no model share one line."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("stage", "what it does"):
        table.add_column(column, overflow="fold")
    for column in ("about", "memory", "disk", *(("money",) if predicted.money is not None else ())):
        table.add_column(column, justify="right", no_wrap=True)
    short = [line for line in predicted.lines if line.seconds < 2 and line.stage not in WORKERS and not line.disk_bytes]
    for line in predicted.lines:
        if line not in short:
            _row(table, line.stage, line.does, line.seconds, line.memory_bytes, line.disk_bytes, line.money)
    if short:
        _row(table, f"{len(short)} more", "short ones", sum(line.seconds for line in short), None, None, None)
    disk = sum(line.disk_bytes or 0 for line in predicted.lines)
    memory = max((line.memory_bytes or 0 for line in predicted.lines), default=0)
    _row(table, Text("in all", style="bold"), "", predicted.seconds, memory, disk, predicted.money)
    console.print(table)
    say(
        console,
        f"Predicted {predicted.basis}; steps that are current are reused and take seconds."
        + (f" While a stage trains, checkpoints take {size(predicted.checkpoints)} more." if predicted.checkpoints else "")
        + (f" {predicted.last}" if predicted.last else ""),
        "dim",
    )
    measured = sum(line.seconds for line in predicted.lines if line.stage == "evaluation_report")
    if measured > max(CHEAP_S, predicted.seconds / 3):
        say(console, f"evaluation_report takes {measured / predicted.seconds:z.0%} of the time. {CHEAPER}")


def _row(
    table: Table, name: str | Text, does: str, seconds: float, memory: float | None, disk: float | None, money: float | None
) -> None:
    cells = [name, does, duration(seconds), size(memory) if memory else "", size(disk) if disk else ""]
    table.add_row(*cells, *([f"{money:,.2f}" if money is not None else ""] if len(table.columns) > 5 else []))


def time_finding(predicted: Forecast) -> CheckFinding:
    """The whole time as a finding of `check`."""
    return ok("time", f"about {duration(predicted.seconds)} in all, estimated {predicted.basis}")


def keep_measured(expected: Forecast, outcome: Outcome, whole_s: float) -> str:
    """Keeps what the stages took, and returns how long the run took and what was predicted. whole_s: of the run."""
    took = {name: outcome.seconds[name] for name in outcome.finished if name not in outcome.reused}
    took[AROUND] = max(0.0, whole_s - sum(outcome.seconds.values()))
    lines = [line for line in expected.lines if line.stage in took and (line.stage != AROUND or outcome.exit_code == 0)]
    said = f"the run took {duration(whole_s)}"
    if len(lines) > 1:
        predicted, real = sum(line.seconds for line in lines), sum(took[line.stage] for line in lines)
        ratio = real / predicted
        how = f"{ratio:.1f} times as long" if ratio >= 1.05 else f"{ratio:z.0%} of that" if ratio <= 0.95 else "as predicted"
        said = f"{duration(real)} for what was made; {duration(predicted)} were predicted ({how})"
        worst = max((line for line in lines if line.stage != AROUND), key=lambda line: abs(took[line.stage] - line.seconds))
        said += f", most of it {worst.stage}: predicted {duration(worst.seconds)}, took {duration(took[worst.stage])}"
    if expected.file is not None and lines:
        new: dict[str, dict[str, float]] = {}
        for line in lines:
            new[line.stage] = {"estimated": line.estimated, "predicted": line.seconds, "took": round(took[line.stage], 2)}
            if line.planned_bytes is not None and line.memory_bytes is not None:
                new[line.stage] |= {"planned_bytes": line.planned_bytes, "predicted_memory_bytes": line.memory_bytes}
            if (peak := outcome.step_peak_memory_mb.get(line.stage)) is not None:
                new[line.stage]["memory_bytes"] = peak * 2**20
        last = f"The last run took {said}." if len(lines) > 1 else expected.last
        content = {"speed": expected.speed and expected.speed.as_dict(), "stages": {**expected.measured, **new}, "said": last}
        content = {**_read(expected.file), expected.conditions: content}
        with suppress(OSError):  # the run is over: its work counts, not this note
            expected.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(expected.file, content)
    return said


def _file_of(recipe: Recipe, place: Path) -> Path | None:
    try:
        return home_of(LakeLayout.open(place, create=False)) / "forecasts" / f"{recipe.workload}.json"
    except LakeError:
        return None


def _read(place: Path | None) -> dict[str, Any]:
    if place is not None:
        with suppress(OSError, ValueError):
            content = json.loads(place.read_text(encoding="utf-8"))
            return content if isinstance(content, dict) else {}
    return {}

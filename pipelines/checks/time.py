"""Predicts how long a run of the recipe takes here, stage by stage."""

from __future__ import annotations

from statistics import median

from model_ops.devices import DEVICES
from model_ops.wording import duration
from pipelines.checks.environment import accelerators
from pipelines.checks.finding import Finding, ok
from pipelines.checks.lengths import CHARACTERS_A_TOKEN
from pipelines.checks.place import logged_bytes
from pipelines.contract.base_choice import BaseModelError
from pipelines.contract.recipe import Recipe
from pipelines.planning.stage_seconds import Traffic, speed_of, stage_seconds
from resources.deciding.past_costs import WORKERS
from resources.inspecting.first_look import FirstLook

REST = "all other stages"


def check_time(recipe: Recipe, looks: dict[str, FirstLook]) -> list[Finding]:
    """The time of each stage that works with a model, and of all others together. Nothing where the base model's size, the logs
    or the accelerator's speed are not known."""
    characters = [size for look in looks.values() if look.holds_logs for size in look.characters]
    if not characters:
        return []
    typical = median(characters)
    traffic = Traffic(max(1, round(sum(logged_bytes(look) for look in looks.values() if look.holds_logs) / typical)),
                      max(1, round(typical / CHARACTERS_A_TOKEN)))
    devices = accelerators()
    if devices:
        name, count = next(iter(devices.items()))
        device = DEVICES.get(name.lower())
        if device is None:
            return []
        gflops, measured = device.bf16_tflops * 1e3, f"one of {count}x{name} by its data sheet, not measured"
    else:
        speed = speed_of(recipe)
        gflops, measured = speed.gflops, f"{speed.gflops:,.0f} GFLOP/s in {speed.precision}, measured here"
    try:
        seconds = stage_seconds(recipe, gflops, traffic)
    except BaseModelError:
        return []  # reported with the base model
    if not seconds:
        return []
    parts = {name: each for name, each in seconds.items() if name in WORKERS}
    parts[REST] = sum(seconds.values()) - sum(parts.values())
    at_least = "at least " if any(look.has_more for look in looks.values()) else ""
    total = (f"{at_least}about {duration(sum(seconds.values()))} in all, estimated for about {traffic.records:,} records "
             f"({measured})")
    return [ok("time", total), *(ok("time", f"{name}: about {duration(each)}") for name, each in parts.items())]

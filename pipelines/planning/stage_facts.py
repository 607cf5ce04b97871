"""What stages need on this machine before they run: memory of the worker, speed of the recipe's models. Imports no torch.

    facts = stage_facts(recipe, None)           # from the user's cache folder; else of a process of its own, in some seconds
    facts.memory["sft_model"], facts.rates["lora"].step_s

worker_memory.py is that process.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import CalledProcessError

from model_ops.machine import Device, cached_measurement, measured_apart
from model_ops.planning import ShapeRates
from pipelines.contract import Recipe, look_at_base
from resources.digests import source_digest

WORKER = "pipelines/planning/worker_memory.py"


@dataclass(frozen=True)
class StageFacts:
    memory: dict[str, float] = field(default_factory=dict)
    """Peak bytes of the worker, by stage."""
    rates: dict[str, ShapeRates] = field(default_factory=dict)
    """Measured speed, by method of training; empty for an accelerator and for a model that does not run."""


def stage_facts(recipe: Recipe, device: Device | None) -> StageFacts:
    """device: None for this machine's CPU. Raises BaseModelError if the base model cannot be looked up."""
    base = look_at_base(recipe.base_model)
    asked = json.dumps({"recipe": recipe.as_text(), "gpu": device and device.name})
    known = [source_digest(WORKER), recipe.threads, asked, base.config, base.weight_bytes]
    with suppress(CalledProcessError, ValueError):
        numbers: dict[str, float] = cached_measurement(
            "stage_facts",
            known,
            lambda: measured_apart("pipelines.planning.worker_memory", recipe.threads, asked),
            dict[str, float],
        )
        memory = {name.removeprefix("memory "): each for name, each in numbers.items() if name.startswith("memory ")}
        rates: dict[str, dict[str, float]] = {}
        for name, each in numbers.items():
            kind, method, part = name.split(" ", 2) if name.startswith("rates ") else ("", "", "")
            if kind:
                rates.setdefault(method, {})[part] = each
        return StageFacts(memory, {method: ShapeRates(**each) for method, each in rates.items()})
    return StageFacts()

"""Measures what stages of a recipe need on this machine: memory of their workers (by the formulas of `millrace plan`, or a
model's weights, a pass and a cache), speed of their models. `python -m pipelines.planning.worker_memory < asked.json` prints
what stage_times.py reads."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from model_ops.jobs import ModelError, filled
from model_ops.machine import DEVICES, Device, Precision, cached_measurement, parse_devices, set_torch_environment
from model_ops.planning import (
    BYTES_FROZEN,
    BYTES_TRAINED,
    CPU_PROCESS_GIB,
    GIB,
    HEAP_FRAGMENTATION,
    MICRO_BATCH_TOKENS,
    READ_WIDTHS,
    MeshSizes,
    Setup,
    memory_of,
)
from model_ops.reinforcement import RftSettings
from model_ops.training import TrainingSettings, TuningSettings
from pipelines.contract import Recipe, read_recipe
from pipelines.planning.stage_times import tries_blocks
from pipelines.planning.training_plan import PlanError, config_of, needs_of_stage, student_of
from resources.stages import trained_sections

DRAFTED_STATES, EVALUATED_TOKENS = 12, 2_048
"""Widths of the residual stream that a drafter holds for a token and a draft step: three states of the target, and what a
block keeps for the backward pass; and tokens whose float32
distributions an evaluation is assumed to hold. Both were set after one run of a model of 135M, and not traced."""


OF_METHOD = {"step_s", "head_step_s", "update_s"}
"""Rates that depend on what is trained. Of the others, measured with each method, the fastest counts."""


def measured(recipe: Recipe, device: Device | None) -> Iterator[tuple[str, float]]:
    """`memory STAGE` and `rates METHOD PART` with their numbers. Imports torch."""
    where = device or parse_devices("cpu")[1]
    config, _ = config_of(recipe)
    for name, each in worker_memory(recipe, config, where):
        yield f"memory {name}", each
    if device is not None:
        return
    by_method: dict[str, dict[str, float]] = {}
    ranks = {getattr(settings.resolved(), "method", "full"): settings for settings in recipe.trained.values()}
    for method, settings in (ranks or {"full": TrainingSettings()}).items():
        given = settings.resolved()
        rank = given.lora.rank if isinstance(given, TuningSettings) and given.lora else 0
        with suppress(ModelError, PlanError, RuntimeError, ValueError, AttributeError, TypeError):
            rates = cached_measurement(
                "shape_rates",
                [recipe.threads, config.to_dict(), given.precision, rank],
                partial(_rates, config.to_dict(), given.precision, rank),
                dict[str, float],
            )
            by_method[method] = rates
    for method, rates in by_method.items():
        for part, value in rates.items():
            seen = [other[part] for other in by_method.values()] if part not in OF_METHOD else [value]
            yield f"rates {method} {part}", min(seen)


def _rates(config: dict[str, Any], precision: Precision, rank: int) -> dict[str, float]:
    from model_ops.planning import measure_shapes

    return measure_shapes(config, precision, rank)._asdict()


def worker_memory(recipe: Recipe, config: Any, device: Device) -> Iterator[tuple[str, float]]:
    """Stage and peak bytes of its worker."""
    from model_ops.planning import count_weights, decoding_bytes

    served = student_of(recipe, config, "")[0] if recipe.student.enabled else config
    process, counts = CPU_PROCESS_GIB * GIB, count_weights(served)
    for section, settings in recipe.trained.items():
        stage = trained_sections()[section]
        if stage.group == "models":
            resolved = settings.resolved()
            yield stage.name, memory_of(needs_of_stage(recipe, section, resolved, device), own_setup(resolved), device).total
    width = served.hidden_size + (getattr(served, "intermediate_size", None) or 4 * served.hidden_size)
    passing = MICRO_BATCH_TOKENS * width * READ_WIDTHS * BYTES_TRAINED * (1 + HEAP_FRAGMENTATION)
    weights = BYTES_FROZEN * counts.all

    def decoding(prompts: int | None, batch_size: int, new_tokens: int) -> float:
        rows = min(prompts or batch_size, batch_size)
        return weights + (decoding_bytes(served, counts, rows, new_tokens) - weights) * (1 + HEAP_FRAGMENTATION)

    read = (BYTES_TRAINED + BYTES_FROZEN) * max(counts.all, count_weights(config).all)  # while it is loaded, the file as well
    read += BYTES_TRAINED * counts.all * tries_blocks(recipe)  # beside its unquantized form
    reading = read + passing + EVALUATED_TOKENS * served.vocab_size * BYTES_TRAINED
    asked = recipe.evaluation
    yield "evaluation_report", process + max(reading, decoding(asked.prompts, asked.batch_size, asked.max_new_tokens))
    answers = recipe.speculator.answers
    yield "speculator_dataset", process + decoding(answers.prompts, answers.batch_size, answers.max_new_tokens)
    yield "quantized_model", process + BYTES_TRAINED * counts.all + recipe.quantize.calibrates * passing
    drafter = counts.block + 2 * served.vocab_size * served.hidden_size
    settings = recipe.speculator.resolved()
    states = filled(settings.tokens_per_step) * served.hidden_size * DRAFTED_STATES * (settings.ttt_steps or 1) * BYTES_TRAINED
    yield "speculator", process + BYTES_FROZEN * counts.all + 4 * BYTES_TRAINED * drafter + states * (1 + HEAP_FRAGMENTATION)
    yield "merged_model", process + 2 * BYTES_TRAINED * counts.all


def own_setup(settings: TrainingSettings) -> Setup:
    """The setup that a stage trains with, as its resolved settings say."""
    mesh = MeshSizes(**{axis.name: getattr(settings.mesh, axis.name) or 1 for axis in fields(MeshSizes)})
    longest, step = filled(settings.max_length), filled(settings.tokens_per_step)
    tokens = settings.micro_batch_tokens or max(MICRO_BATCH_TOKENS, longest)
    if isinstance(settings, RftSettings):  # a step is of answers, not of tokens
        step = settings.prompts_per_step * settings.answers * settings.max_new_tokens
    return Setup(mesh, min(tokens, max(step, longest)), settings.activation_checkpointing, settings.offload_activations)


if __name__ == "__main__":
    set_torch_environment()
    given = json.loads(sys.stdin.read())
    gpu = given["gpu"] and DEVICES[given["gpu"].lower()]
    print(json.dumps(dict(measured(read_recipe(given["recipe"], Path()), gpu))))

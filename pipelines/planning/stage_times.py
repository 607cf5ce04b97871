"""Predicts the seconds of each stage on this machine: fixed seconds, and what its tokens take in each block and in the head, as
measured on blocks of the model's shape (ShapeRates) or, on an accelerator, assumed from the speed of products. Memory and speed
are measured once, by a process of its own (worker_memory.py), and cached. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import ceil
from subprocess import CalledProcessError
from typing import Any

from model_ops.jobs import filled
from model_ops.machine import Device, cached_measurement, cpu_speeds, measured_apart
from model_ops.planning import MICRO_BATCH_TOKENS, ShapeRates
from model_ops.training import TrainingSettings
from pipelines.contract import Base, BaseModelError, Recipe, look_at_base
from resources.deciding import AROUND_S
from resources.digests import source_digest
from resources.stages import STAGES, Stage

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


ATTENTION, MEASURED_TOKENS = 4, 256
"""Operations of attention, per width, layer, token and token before it; tokens of the documents that rates were measured on."""
LABELLED, PROMPT, REWARDED, VALIDATED = 0.7, 0.7, 0.5, 0.1
"""Assumed shares: of tokens with a label, which alone pass the head; of a record's tokens that are its prompt; of
max_new_tokens that an answer to a prompt with a reward has on average; and validation's tokens, of those of the training."""
IMPORTANCE_TOKENS, REFERENCE_TOKENS, BLOCK_TOKENS, LONG_CONTEXTS = 8_192, 32_768, 4_096, 8
"""What is read to measure the importance of a layer, to compare a model with its reference, and to try each block."""
VALIDATIONS, VALIDATION_TOKENS = 4, 8_000
"""Most validations of a training, and tokens from which there is one more."""
DRAFTER_BLOCKS = 2
"""Blocks of the target that take as long as a step of a drafter: its own, and what leads to it."""
DRAFTED_SHARE = 0.6
"""Rounds with a drafter, of those without."""
CALIBRATION_PASSES = 3
"""Forward passes that GPTQ's rows take: one for what layers read, as much for its products, one with the new weights."""


RFT_VALIDATIONS = 5
"""Measurements of held-out prompts, at most: before the training and four times in it."""
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True)
class TrafficSize:
    records: int
    """Records of all logs."""
    tokens: int
    """Tokens of a typical record."""


@dataclass(frozen=True)
class Speed:
    """GFLOP/s of products in the precision that the recipe's models are trained in, and what was measured of these models."""

    gflops: float
    precision: str
    rates: Mapping[str, ShapeRates] = field(default_factory=dict)
    """By method of training; assumed where empty."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """Peak bytes of the worker, by stage."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"rates": {method: rates._asdict() for method, rates in self.rates.items()}}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Speed:
        """Raises TypeError or KeyError for values that `as_dict` did not write."""
        return cls(**{**values, "rates": {method: ShapeRates(**rates) for method, rates in values["rates"].items()}})


def speed_of(recipe: Recipe, device: Device | None = None) -> Speed:
    """This machine's speed with the recipe's threads, measured in some seconds once; an accelerator's by its data sheet. Raises
    BaseModelError."""
    asked = {settings.resolved().precision for settings in recipe.trained.values()} - {"auto"}
    facts = stage_facts(recipe, device)
    if device is not None:
        return Speed((device.bf16_tflops or 0) * 1e3, "bfloat16", memory=facts.memory)
    speeds = cpu_speeds(recipe.threads)
    precision = asked.pop() if len(asked) == 1 else speeds.precision
    return Speed(getattr(speeds, precision), precision, facts.rates, facts.memory)


def stage_seconds(recipe: Recipe, speed: Speed, traffic: TrafficSize) -> dict[str, float]:
    """Predicted seconds of each stage that the recipe has, in order of execution, and of what is around them. Raises
    BaseModelError if the base model cannot be looked up. Without its size, only fixed costs are known, and {} is returned."""
    base = look_at_base(recipe.base_model)
    sizes = model_sizes(recipe, base)
    if not sizes.base:
        return {}
    work, seconds = _Work(recipe, sizes, traffic, base.context or recipe.evaluation.max_length, speed), {}
    for stage in STAGES:
        if stage.kind == "outside" or stage.name == "feedback" or stage.name in recipe.disabled:
            continue
        seconds[stage.name] = stage.fixed_seconds + stage.record_seconds * traffic.records + work.of(stage)
    return seconds | {"around the steps": AROUND_S}


def tries_blocks(recipe: Recipe) -> bool:
    """Whether the evaluation asks what each block's quantization costs: with 8 bits the whole costs too little."""
    return recipe.quantize.enabled and not recipe.quantize.scheme.startswith(("w8", "fp8"))


class _Work:
    def __init__(self, recipe: Recipe, sizes: ModelSizes, traffic: TrafficSize, context: int, speed: Speed):
        self.recipe, self.sizes, self.traffic, self.context, self.speed = recipe, sizes, traffic, context, speed
        self.student_share = sizes.student / sizes.base if sizes.student else 1.0

    def rates(self, method: str = "full") -> ShapeRates:
        """Those of a method of training; of any, for what all have in common."""
        known = self.speed.rates
        if known:
            return known.get(method) or next(iter(known.values()))
        return ShapeRates.assumed(self.speed.gflops, self.sizes.block, self.sizes.head)

    def of(self, stage: Stage) -> float:
        """By the method of the stage's name; a training without one takes the seconds of its tokens."""
        if (predicted := getattr(self, f"_{stage.name}", None)) is not None:
            return predicted()
        return self._training(getattr(self.recipe, stage.section).resolved()) if stage.section else 0.0

    def _base_model(self) -> float:
        return self._training(self.recipe.tiny.resolved()) if self.recipe.base_model == "tiny" else 0.0

    def _preference_model(self) -> float:
        """The reference reads each row once, unless the model answers prompts."""
        settings = filled(self.recipe.preference).resolved()
        if (sampling := settings.on_policy) is None:
            rows = self.traffic.records * 2 * self.traffic.tokens
            return self._training(settings) + self._read(min(self._tokens(settings), rows), self.traffic.tokens)
        steps = settings.steps_over(self.traffic.records, sampling.prompts_per_step)
        answers = steps * sampling.prompts_per_step * sampling.answers
        return self._training(settings) + self._decoding(answers, sampling.max_new_tokens, sampling.batch_size, 1)

    def _rft_model(self) -> float:
        settings = filled(self.recipe.rft).resolved()
        steps = settings.steps_over(self.traffic.records, settings.prompts_per_step)
        asked, held_out = settings.prompts_per_step * settings.answers, settings.held_out_prompts * settings.held_out_answers
        answers = steps * asked + min(steps + 1, RFT_VALIDATIONS) * held_out
        rows = min(settings.batch_size, asked)
        sampled = self._decoding(answers, settings.max_new_tokens, rows, 1, self.sizes.base / self.sizes.served, REWARDED)
        tokens = steps * (asked * REWARDED * settings.max_new_tokens + settings.prompts_per_step * PROMPT * self.traffic.tokens)
        return sampled + self._stepping(self.rates(settings.method), tokens, self.traffic.tokens, labelled=1.0)

    def _student_model(self) -> float:
        settings, layers = self.recipe.student.resolved(), self.sizes.layers
        left = layers * self.student_share
        passes = sum(layers - gone for gone in range(round(layers - left)))
        read = passes * min(IMPORTANCE_TOKENS, 4 * self._tokens(settings) / max(1, passes))
        return self._training(settings, self.student_share) + self._read(self._tokens(settings) + read, self.traffic.tokens)

    def _quantized_model(self) -> float:
        settings, rates = self.recipe.quantize, self.rates()
        if not settings.calibrates:
            return 0.0
        rows = min(settings.calibration_rows, self.traffic.records) * min(self.traffic.tokens, settings.calibration_length)
        columns = sum(inputs * (rates.column_s + outputs * rates.output_s) for inputs, outputs in self.sizes.matrices)
        passes = CALIBRATION_PASSES * rows * rates.exact_s + columns * ("gptq" in settings.resolved().method)
        return self.sizes.layers * self.student_share * passes

    def _speculator_dataset(self) -> float:
        answers = self.recipe.speculator.answers
        if answers.endpoint is not None:
            return 0.0
        prompts = min(answers.prompts or self.traffic.records, self.traffic.records)
        counts = prompts, ceil(prompts * self.recipe.datasets.sft.validation_share)  # validation's are a batch of their own
        return sum(self._decoding(count, answers.max_new_tokens, answers.batch_size, 1) for count in counts)

    def _speculator(self) -> float:
        settings, rates = self.recipe.speculator.resolved(), self.rates()
        answers = self.recipe.speculator.answers
        tokens, steps = self._tokens(settings), settings.ttt_steps or 1
        labelled = tokens * answers.max_new_tokens / (answers.max_new_tokens + self.traffic.tokens)
        drafted = tokens * DRAFTER_BLOCKS * rates.step_s + labelled * rates.head_step_s
        read = self.sizes.layers * self.student_share * rates.prefill_s * tokens + labelled * rates.head_forward_s
        return drafted * steps + read

    def _evaluation_report(self) -> float:
        settings, records = self.recipe.evaluation, self.traffic.records
        policy = self.recipe.policy
        models = len(policy.models)
        rows = min(settings.rows or records, records) * self.traffic.tokens
        compared = min(REFERENCE_TOKENS, rows) + min(LONG_CONTEXTS * min(settings.max_length, self.context), rows)
        tried = self.sizes.layers * min(BLOCK_TOKENS, rows) * tries_blocks(self.recipe)
        read = self._read(models * rows + 2 * compared + tried, self.traffic.tokens, exact=True)
        answering = 1 + len(policy.measured_rows)
        ways = (1 + len(settings.temperatures)) * (1 + DRAFTED_SHARE * self.recipe.speculator.enabled)
        ways += 2 * answering  # side by side with another model; what preferences and rewards changed
        prompts = (min(settings.prompts, records), settings.max_new_tokens, ways)
        asked = [suite for suite in self.recipe.evals.values() if (suite.task, suite.format) != ("auto", "auto")]
        items = (settings.tasks.items * len(asked), settings.tasks.max_new_tokens, 2)
        parts = (self._decoding(count, tokens, settings.batch_size, ways) for count, tokens, ways in (prompts, items))
        return read + sum(parts)

    def _tokens(self, settings: TrainingSettings) -> float:
        settings = self._fitted(settings)
        if settings.steps is not None:
            return settings.steps * filled(settings.tokens_per_step)
        return filled(settings.epochs) * self.traffic.records * self._length(settings)

    def _length(self, settings: TrainingSettings) -> int:
        return min(self.traffic.tokens, filled(settings.max_length))

    def _fitted(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings with the step and the passes that a training takes over so few records."""
        length = self._length(settings)
        return settings.fitted(self.traffic.records * length, length)

    def _training(self, settings: TrainingSettings, share: float = 1.0) -> float:
        """Training on this share of the base model's blocks, its trial of a micro-batch, its validation."""
        settings, method = self._fitted(settings), getattr(settings, "method", "full")
        tokens, rates, length = self._tokens(settings), self.rates(method), self._length(settings)
        step, longest = filled(settings.tokens_per_step), filled(settings.max_length)
        micro_batch = min(step, settings.micro_batch_tokens or max(MICRO_BATCH_TOKENS, longest))
        updates = tokens / step * rates.update_s * self.sizes.base * share if method == "full" else 0.0
        tried = tokens + micro_batch * settings.dry_run
        validations = max(1, min(VALIDATIONS, VALIDATED * tokens // VALIDATION_TOKENS))
        validated = VALIDATED * tokens * (1 + 2 / validations)  # before the first step, and as saved
        return self._stepping(rates, tried, length, share) + updates + share * self._read(validated, length)

    def _stepping(self, rates: ShapeRates, tokens: float, length: int, share: float = 1.0, labelled: float = LABELLED) -> float:
        in_blocks = self.sizes.layers * share * rates.step_s * self._longer(length)
        return tokens * (in_blocks + labelled * rates.head_step_s)

    def _read(self, tokens: float, length: int, exact: bool = False) -> float:
        """A forward pass of the base model over documents of one length. exact: in float32."""
        rates = self.rates()
        block_s, head_s = (rates.exact_s, rates.head_exact_s) if exact else (rates.forward_s, rates.head_forward_s)
        return tokens * (self.sizes.layers * block_s * self._longer(length) + LABELLED * head_s)

    def _longer(self, length: int) -> float:
        """Time of a block over documents of this length, relative to those that were measured."""
        return 1 + ATTENTION * self.sizes.width * max(0, length - MEASURED_TOKENS) / 2 / max(1.0, 2 * self.sizes.block)

    def _decoding(
        self, prompts: int, new_tokens: int, batch: int, ways: float, share: float = 1.0, length: float = 1.0
    ) -> float:
        """share: of the served model; length: mean share of new_tokens. Rows leave a batch as they end."""
        rates, rows = self.rates(), length * min(batch, prompts)
        rounds = ways * ceil(prompts / max(1, batch)) * new_tokens
        layers = self.sizes.layers * self.student_share * share
        read = ways * prompts * PROMPT * self.traffic.tokens * layers * rates.prefill_s
        in_blocks = layers * (rates.round_s + rows * rates.row_s)
        return read + rounds * (in_blocks + rates.head_round_s + rows * rates.head_row_s)


@dataclass(frozen=True)
class ModelSizes:
    """Parameters of each model."""

    base: int
    student: float
    served: float
    drafter: float
    layers: int
    """Layers of the base model."""
    block: float
    """Parameters of one layer."""
    width: int
    """Heads x head_dim of its attention; 0 if unknown."""
    head: float
    matrices: tuple[tuple[int, int], ...]
    """Inputs and outputs of the matrices of a layer."""


def model_sizes(recipe: Recipe, base: Base) -> ModelSizes:
    """The sizes, as far as the config says."""
    config = tiny_config(recipe.tiny) if base.kind == "tiny" else base.config
    sizes = {name: int(config.get(name) or 0) for name in SIZES}
    hidden, heads, mlp = sizes["hidden_size"], sizes["num_attention_heads"], sizes["intermediate_size"]
    layers, width = sizes["num_hidden_layers"] or 1, heads * (sizes["head_dim"] or hidden // max(1, heads))
    kv_width = width * (sizes["num_key_value_heads"] or heads) // max(1, heads)
    matrices = (
        (hidden, width),
        (hidden, kv_width),
        (hidden, kv_width),
        (width, hidden),
        (hidden, mlp),
        (hidden, mlp),
        (mlp, hidden),
    )
    head = sizes["vocab_size"] * hidden
    outer = head if config.get("tie_word_embeddings") else 2 * head
    if base.kind == "tiny":
        parameters = outer + layers * sum(inputs * outputs for inputs, outputs in matrices)
    else:
        parameters = base.parameters or 0
    share = _share_of_student(recipe, parameters, layers)
    block = max(0, parameters - outer) / layers
    return ModelSizes(
        parameters,
        parameters * share if recipe.student.enabled else 0,
        parameters * (share if recipe.student.enabled else 1),
        block + 2 * head if recipe.speculator.enabled else 0,
        layers,
        block,
        width,
        head,
        matrices,
    )


def tiny_config(tiny: Any) -> dict[str, Any]:
    """The config of the toy model. tiny: the recipe's section."""
    tiny = tiny.resolved()
    return {
        "model_type": "qwen3",
        "vocab_size": tiny.vocab_size,
        "hidden_size": tiny.hidden_size,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "intermediate_size": tiny.mlp_size,
        "max_position_embeddings": tiny.max_position_embeddings,
        "tie_word_embeddings": True,
    }


def _share_of_student(recipe: Recipe, parameters: int, layers: int) -> float:
    """Parameters of the student relative to those of the base model; 1 if its own base cannot be read."""
    if recipe.student.base is not None:
        with suppress(BaseModelError):
            return (look_at_base(recipe.student.base).parameters or parameters) / max(1, parameters)
        return 1.0
    layers_left = recipe.student.asked_layers
    return layers_left if layers_left < 1 else min(1.0, layers_left / layers)

"""Predicts the seconds of each stage on this machine from measured speed and estimated sizes of models. Imports no torch.

    speed = speed_of(recipe)                                        # measured (model_ops.machine.precision)
    seconds = stage_seconds(recipe, speed.gflops, TrafficSize(records=6_600, tokens=200))     # {"interactions": 6.0, ...}
    sizes = model_sizes(recipe, look_at_base(recipe.base_model))    # from the recipe and the base model's config
    sizes.base, sizes.student, sizes.served, sizes.drafter          # parameters; 0 where unknown or switched off

A stage takes fixed seconds (a process that starts, files that are read), its operations at the share of the measured speed of
matrix products that such products reached, and overhead for each pass through a layer, which decides where models are small.
The constants are those of the demo's two sizes on 2 cores with AVX2 and with AVX-512; predictions are for planning a day, not a
minute.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import ceil

from model_ops.machine import precision as processor
from model_ops.training import TrainingSettings
from pipelines.contract import Base, BaseModelError, Recipe, look_at_base
from resources.deciding import AROUND_S
from resources.stages import STAGES

FORWARD, ATTENTION, STEP = 2, 4, 3
"""Operations per weight and token; of attention, per width, layer, token and token before it; a step, in forward passes."""
REACHED, REACHED_DECODING = 0.35, 0.10
"""Share of the measured speed: in training and scoring, and in rounds of decoding."""
PASS_SECONDS, ROUND_SECONDS = 0.010, 0.0025
"""Overhead of a layer: forward and backward of a micro-batch, and a round of decoding of up to 64 rows."""
MICRO_BATCH_TOKENS = 4_096
IMPORTANCE_TOKENS, REFERENCE_TOKENS, LONG_CONTEXTS = 8_192, 32_768, 8
"""What is read to measure the importance of a layer, and to compare a model with its reference."""
DRAFTER_BLOCKS = 2
"""Blocks of the target that take as long as a step of a drafter: its own, what leads to it, and a small head."""
DRAFTED_SHARE, STUDENT_WAYS = 0.6, 8
"""Rounds with a drafter, of those without; and what the student as its teacher's drafter takes, in answers without drafts."""


@dataclass(frozen=True)
class TrafficSize:
    records: int
    """Records of all logs."""
    tokens: int
    """Tokens of a typical record."""


@dataclass(frozen=True)
class Speed:
    """GFLOP/s of products in the precision that the recipe's models are trained in."""

    gflops: float
    precision: str


def speed_of(recipe: Recipe) -> Speed:
    """This machine's speed with the recipe's threads, measured in a second or two."""
    asked = {settings.resolved().precision for settings in recipe.trained.values()} - {"auto"}
    speeds = processor.best_speeds(recipe.threads)
    precision = asked.pop() if len(asked) == 1 else speeds.precision
    return Speed(getattr(speeds, precision), precision)


def stage_seconds(recipe: Recipe, gflops: float, traffic: TrafficSize) -> dict[str, float]:
    """Predicted seconds of each stage that the recipe has, in order of execution, and of what is around them. Raises
    BaseModelError if the base model cannot be looked up. Without its size, only fixed costs are known, and {} is returned."""
    base = look_at_base(recipe.base_model)
    sizes = model_sizes(recipe, base)
    if not sizes.base:
        return {}
    work, found = _Work(recipe, sizes, traffic, base.context or recipe.evaluation.max_length), {}
    for stage in STAGES:
        if stage.kind == "outside" or stage.module or stage.name in recipe.disabled:
            continue
        operations, overhead = work.of(stage.name)
        found[stage.name] = (
            stage.fixed_seconds + stage.record_seconds * traffic.records + operations / (gflops * 1e9) + overhead
        )
    return found | {"around the steps": AROUND_S}


class _Work:
    """What the stages compute: (operations / share of the speed that they reach, seconds of overhead) by stage."""

    def __init__(self, recipe: Recipe, sizes: ModelSizes, traffic: TrafficSize, context: int):
        self.recipe, self.sizes, self.traffic, self.context = recipe, sizes, traffic, context
        self.student_layers = sizes.layers * (sizes.student / sizes.base if sizes.student else 1)

    def of(self, stage: str) -> tuple[float, float]:
        found = getattr(self, f"_{stage}", None)
        return (0.0, 0.0) if found is None else found()

    def _base_model(self) -> tuple[float, float]:
        tiny = self.recipe.tiny.resolved()
        return self._training(tiny, self.sizes.base, tiny.max_length) if self.recipe.base_model == "tiny" else (0.0, 0.0)

    def _sft_model(self) -> tuple[float, float]:
        return self._training(self.recipe.sft.resolved(), self.sizes.base, self.traffic.tokens)

    def _second_sft_model(self) -> tuple[float, float]:
        return self._training(self.recipe.second_sft.resolved(), self.sizes.base, self.traffic.tokens)

    def _preference_model(self) -> tuple[float, float]:
        return self._training(self.recipe.preference.resolved(), self.sizes.base, self.traffic.tokens)

    def _rft_model(self) -> tuple[float, float]:
        settings, prompts = self.recipe.rft.resolved(), self.traffic.records
        steps = settings.steps or max(1, round((settings.epochs or 0) * prompts / settings.prompts_per_step))
        answers = steps * settings.prompts_per_step * settings.answers
        operations, overhead = self._decoding(answers, settings.max_new_tokens, settings.batch_size, 1)
        learnt = answers * settings.max_new_tokens
        return operations + STEP * self._forward(self.sizes.base, learnt, self.traffic.tokens), overhead

    def _student_model(self) -> tuple[float, float]:
        settings, layers = self.recipe.student.resolved(), self.sizes.layers
        operations, overhead = self._training(settings, self.sizes.student, self.traffic.tokens, teacher=self.sizes.base)
        passes = sum(layers - gone for gone in range(round(layers - self.student_layers)))
        read = passes * min(IMPORTANCE_TOKENS, 4 * self._tokens(settings) / max(1, passes))
        return operations + self._forward(self.sizes.base, read, self.traffic.tokens), overhead

    def _speculator_dataset(self) -> tuple[float, float]:
        answers = self.recipe.speculator.answers
        if answers.endpoint is not None:
            return 0.0, 0.0
        return self._decoding(
            min(answers.prompts or self.traffic.records, self.traffic.records), answers.max_new_tokens, answers.batch_size, 1
        )

    def _speculator(self) -> tuple[float, float]:
        settings = self.recipe.speculator.resolved()
        tokens, steps = self._tokens(settings), settings.ttt_steps or 1
        operations = tokens * STEP * FORWARD * DRAFTER_BLOCKS * self.sizes.block * steps / REACHED
        return (
            operations + self._forward(self.sizes.served, tokens, self.traffic.tokens),
            tokens / settings.tokens_per_step * steps * PASS_SECONDS,
        )

    def _evaluation_report(self) -> tuple[float, float]:
        settings, records = self.recipe.evaluation, self.traffic.records
        models = 1 + sum(getattr(self.recipe, name).enabled for name in ("sft", "student", "quantize"))
        rows = min(settings.rows or records, records) * self.traffic.tokens
        compared = min(REFERENCE_TOKENS, rows) + min(LONG_CONTEXTS * min(settings.max_length, self.context), rows)
        read = self._forward(self.sizes.base, models * rows + 2 * compared, self.traffic.tokens)
        ways = (1 + len(settings.temperatures)) * (1 + DRAFTED_SHARE * self.recipe.speculator.enabled)
        prompts = (min(settings.prompts, records), settings.max_new_tokens, ways)
        asked = [suite for suite in self.recipe.evals.values() if (suite.task, suite.format) != ("auto", "auto")]
        items = (settings.tasks.items * len(asked), settings.tasks.max_new_tokens, 2)
        student = (settings.student_drafts.prompts, settings.max_new_tokens, STUDENT_WAYS * self.recipe.student.enabled)
        parts = [self._decoding(count, tokens, settings.batch_size, ways) for count, tokens, ways in (prompts, items, student)]
        return read + sum(part[0] for part in parts), sum(part[1] for part in parts)

    def _tokens(self, settings: TrainingSettings) -> float:
        """Tokens that a stage trains on. settings: resolved."""
        if settings.steps is not None:
            return settings.steps * settings.tokens_per_step
        return settings.epochs * self.traffic.records * min(self.traffic.tokens, settings.max_length)

    def _training(self, settings: TrainingSettings, parameters: float, length: int, teacher: float = 0) -> tuple[float, float]:
        tokens = self._tokens(settings)
        a_pass = min(settings.tokens_per_step, settings.micro_batch_tokens or MICRO_BATCH_TOKENS)
        passes = ceil(tokens / a_pass) * self.sizes.layers
        length = min(length, settings.max_length)
        operations = STEP * self._forward(parameters, tokens, length)
        return operations + (self._forward(teacher, tokens, length) if teacher else 0), passes * PASS_SECONDS

    def _forward(self, parameters: float, tokens: float, length: int) -> float:
        """Operations of a forward pass over documents of one length, over the share of the speed that it reaches."""
        attention = ATTENTION * self.sizes.width * self.sizes.layers * length / 2
        return tokens * (FORWARD * parameters + attention) / REACHED

    def _decoding(self, prompts: int, new_tokens: int, batch: int, ways: float) -> tuple[float, float]:
        rounds = ways * ceil(prompts / batch) * new_tokens
        read = self._forward(self.sizes.served, ways * prompts * self.traffic.tokens, self.traffic.tokens)
        return (
            read + ways * prompts * new_tokens * FORWARD * self.sizes.served / REACHED_DECODING,
            rounds * self.student_layers * ROUND_SECONDS,
        )


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


def model_sizes(recipe: Recipe, base: Base) -> ModelSizes:
    """The sizes, as far as the config says."""
    if base.kind == "tiny":
        tiny = recipe.tiny
        hidden, vocabulary, layers, width = tiny.hidden_size, tiny.vocab_size, tiny.layers, tiny.heads * tiny.head_dim
        parameters = vocabulary * hidden + layers * (
            2 * hidden * tiny.head_dim * (tiny.heads + tiny.kv_heads) + 3 * hidden * tiny.mlp_size
        )
    else:
        hidden, vocabulary = (int(base.config.get(name) or 0) for name in ("hidden_size", "vocab_size"))
        parameters, layers, width = base.parameters or 0, base.layers or 1, hidden
    share = _share_of_student(recipe, parameters, layers)
    heads = 2 * vocabulary * hidden
    block = max(0, parameters - heads) / layers
    return ModelSizes(
        parameters,
        parameters * share if recipe.student.enabled else 0,
        parameters * (share if recipe.student.enabled else 1),
        block + heads if recipe.speculator.enabled else 0,
        layers,
        block,
        width,
    )


def _share_of_student(recipe: Recipe, parameters: int, layers: int) -> float:
    """Parameters of the student relative to those of the base model; 1 if its own base cannot be read."""
    if recipe.student.base is not None:
        with suppress(BaseModelError):
            return (look_at_base(recipe.student.base).parameters or parameters) / max(1, parameters)
        return 1.0
    kept = recipe.student.kept_layers
    return kept if kept < 1 else min(1.0, kept / layers)

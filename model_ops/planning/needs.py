"""Derives the requirements of a training stage from its model's config and settings: weights, operations per token, tracer.
Only the config is read. Memory is interpolated linearly between two traced micro-batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from model_ops.adapters import adaptable_names, adaptable_parameters, adapted_names
from model_ops.families import blocks_of
from model_ops.jobs import ModelError
from model_ops.machine import Concrete, Precision, concrete_precision
from model_ops.planning.memory_plan import BYTES_FROZEN, BYTES_TRAINED, Method, Needs, Setup, Trace, WeightCounts
from model_ops.planning.step_trace import MicroBatchMemory, TraceSettings, trace_micro_batch
from model_ops.training import ActivationCheckpointing, MatrixWork, attention_widths, needed_flops

TRACED_TOKENS = (2_048, 16_384)
"""Sizes of the two traced micro-batches, in tokens; memory of larger ones is linear in them, smaller ones are traced."""
DEFAULT_RANK = 16
METHODS: tuple[Method, ...] = ("full", "lora", "qlora")
"""Each needs less memory than the one before."""
PROMPT_TOKENS, LOGIT_COPIES, READ_WIDTHS = 256, 3, 8
"""Assumed tokens of a prompt that is answered; float32 copies of the logits of a round of decoding; and tensors as wide as the
residual stream and the MLP together that a forward pass without gradients holds for a token."""


@dataclass(frozen=True)
class Training:
    """The settings of a stage that planning uses, resolved."""

    method: Method
    max_length: int
    tokens_per_step: int
    precision: Precision = "bfloat16"
    optimizer: str = "adamw"
    rank: int = DEFAULT_RANK
    targets: tuple[str, ...] | None = None
    """Names of the layers with adapters, as LoraSettings has them."""
    micro_batch_tokens: int | None = None
    head_share: float = 1.0
    """Share of tokens with a label; 1 if unknown."""
    distilled: bool = False
    sampled: int = 0
    """Answers that the model decodes at once between steps."""
    sampled_tokens: int = 0
    """Tokens of the longest of them."""

    @classmethod
    def of(cls, settings: Any) -> Training:
        """From the resolved TrainingSettings of any stage."""
        lora = getattr(settings, "lora", None)
        targets = getattr(lora, "targets", None)
        sampling = settings if hasattr(settings, "prompts_per_step") else getattr(settings, "on_policy", None)
        answers = getattr(sampling, "prompts_per_step", 0) * getattr(sampling, "answers", 1)
        return cls(
            method=getattr(settings, "method", "full"),
            max_length=settings.max_length,
            tokens_per_step=settings.tokens_per_step,
            precision=settings.precision,
            optimizer=getattr(settings, "optimizer", None) or "adamw",
            rank=getattr(lora, "rank", DEFAULT_RANK),
            targets=None if targets is None else tuple(targets),
            micro_batch_tokens=getattr(settings, "micro_batch_tokens", None),
            distilled=getattr(settings, "label_weight", 1.0) < 1,
            sampled=min(answers, getattr(sampling, "batch_size", answers)),
            sampled_tokens=getattr(sampling, "max_new_tokens", 0),
        )


def needs_of(
    config: PreTrainedConfig,
    training: Training,
    name: str,
    device: Literal["cpu", "cuda"] = "cuda",
    teacher: int = 0,
    fixed: Setup | None = None,
    document_tokens: int | None = None,
) -> Needs:
    """The requirements for `choose`. Raises ModelError if the config is not a causal language model with a list of blocks."""
    counts = count_weights(config, training.rank, training.targets)
    precision: Concrete = "bfloat16"
    if training.precision != "auto" or device == "cpu":
        precision = concrete_precision(training.precision, torch.device(device))
    training = replace(training, precision=precision)
    half = precision == "bfloat16"
    frozen = training.method != "full"

    def tracer(weights: Concrete) -> Trace:
        def traced(tokens: int, checkpointing: ActivationCheckpointing, tp: int) -> MicroBatchMemory:
            def run(some: int) -> MicroBatchMemory:
                return _traced(
                    _Key(config, tp),
                    TraceSettings(
                        tokens=some,
                        head_rows=max(1, round(some * training.head_share)),
                        checkpointing=checkpointing,
                        weights=weights,
                        precision=precision,
                        adapter_rank=training.rank if frozen else 0,
                        device=device,
                        document_tokens=document_tokens,
                        distilled=training.distilled,
                    ),
                )

            return run(tokens) if device == "cpu" or tokens <= TRACED_TOKENS[0] else _line(run, tokens)

        return traced

    work = _work(config, counts, training)
    without = needed_flops(replace(work, attention=()), [training.max_length], round(training.max_length * training.head_share))
    flops = needed_flops(work, [training.max_length], round(training.max_length * training.head_share)) / training.max_length
    forward = needed_flops(_forward_only(work), [training.max_length], 0) / training.max_length / 2
    forward_attention = sum(2 * width * training.max_length for width, _ in work.attention)
    cheaper = METHODS[METHODS.index(training.method) + 1 :]
    others = tuple(replace(training, method=method) for method in cheaper if (device, method) != ("cpu", "qlora"))
    return Needs(
        name=name,
        method=training.method,
        counts=counts,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        max_length=training.max_length,
        tokens_per_step=training.tokens_per_step,
        trace=tracer("bfloat16" if frozen and half else "float32"),
        sharded_trace=tracer("bfloat16") if half else None,
        flops_per_token=flops,
        attention_flops=flops - without / training.max_length,
        moved_bytes=_moved_bytes(config, counts, training),
        forward_share=min(0.5, (forward + forward_attention) / flops),
        optimizer=training.optimizer,
        micro_batch_tokens=training.micro_batch_tokens,
        teacher=teacher,
        frozen_bytes=BYTES_FROZEN if half else BYTES_TRAINED,
        sampling=_sampling_bytes(config, counts, training),
        num_experts=_experts(config) or 0,
        fixed=fixed,
        other_methods=tuple(lambda way=way: needs_of(config, way, name, device) for way in others),
    )


def decoding_bytes(config: PreTrainedConfig, counts: WeightCounts, rows: int, new_tokens: int) -> float:
    """Bytes of a model that decodes so many rows in bfloat16: weights, cache, and what a pass over all prompts holds, among it
    the scores of attention."""
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = rows * (PROMPT_TOKENS + new_tokens) * 2 * counts.layers * kv_heads * head_dim
    passing = rows * PROMPT_TOKENS * READ_WIDTHS * (config.hidden_size + (getattr(config, "intermediate_size", None) or 0))
    scores = 2 * rows * config.num_attention_heads * PROMPT_TOKENS**2
    return BYTES_FROZEN * (counts.all + cache + passing) + BYTES_TRAINED * (scores + rows * config.vocab_size * LOGIT_COPIES)


def _sampling_bytes(config: PreTrainedConfig, counts: WeightCounts, training: Training) -> float:
    return decoding_bytes(config, counts, training.sampled, training.sampled_tokens) if training.sampled else 0.0


def count_weights(config: PreTrainedConfig, rank: int = DEFAULT_RANK, targets: tuple[str, ...] | None = None) -> WeightCounts:
    """Numbers of weights in blocks and outside. targets: of adapters, None for all linear layers of the blocks. Raises
    ModelError if the config is not a causal language model."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    if getattr(small, "layer_types", None):
        small.layer_types = list(small.layer_types)[-1:]
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(small)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"this config is not a causal language model ({reason}); choose another base model") from error
    block = blocks_of(model)[0]
    linear = [module for module in block.modules() if isinstance(module, nn.Linear)]
    named = dict(block.named_parameters())
    of_block = sum(parameter.numel() for parameter in named.values())
    return WeightCounts(
        layers=config.num_hidden_layers,
        block=of_block,
        block_linear=sum(layer.weight.numel() for layer in linear),
        outer=sum(parameter.numel() for parameter in model.parameters()) - of_block,
        adapters=rank * _adapted_widths(model, targets),
        experts=sum(parameter.numel() for name, parameter in named.items() if "experts." in name),
    )


def refuse_unmatched_targets(config: PreTrainedConfig, targets: Sequence[str]) -> None:
    """Raises ModelError for a LoRA target that no layer of the whole model matches; no weight is created."""
    with torch.device("meta"):
        adapted_names(AutoModelForCausalLM.from_config(config), list(targets))


def _adapted_widths(model: PreTrainedModel, targets: tuple[str, ...] | None) -> int:
    """Inputs and outputs of all adapted layers and experts of a model with one block."""
    try:
        names = adapted_names(model, None if targets is None else list(targets))
    except ModelError:  # a target in a later block, or none: then as many as there may be
        names = [*adaptable_names(model), *adaptable_parameters(model)]
    parameters = set(adaptable_parameters(model))
    shapes = [model.get_parameter(name if name in parameters else f"{name}.weight").shape for name in names]
    return sum(math.prod(shape[:-2]) * (shape[-2] + shape[-1]) for shape in shapes)


@dataclass(frozen=True, eq=False)
class _Key:
    """A config sharded over `tp` processes, as a cache key."""

    config: PreTrainedConfig
    tp: int

    def __hash__(self) -> int:
        return hash((id(self.config), self.tp))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.config is other.config and self.tp == other.tp

    def cut(self) -> PreTrainedConfig:
        config = copy.deepcopy(self.config)
        config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        config.num_attention_heads //= self.tp
        config.num_key_value_heads = max(1, (getattr(config, "num_key_value_heads", None) or 1) // self.tp)
        for name in ("intermediate_size", "moe_intermediate_size", "vocab_size"):
            if getattr(config, name, None):
                setattr(config, name, -(-getattr(config, name) // self.tp))
        return config


@cache
def _traced(key: _Key, traced: TraceSettings) -> MicroBatchMemory:
    return trace_micro_batch(key.cut() if key.tp > 1 else key.config, traced)


def _line(run: Any, tokens: int) -> MicroBatchMemory:
    """Linear interpolation of two traced micro-batches at `tokens`."""
    low, high = (run(some) for some in TRACED_TOKENS)
    share = (tokens - TRACED_TOKENS[0]) / (TRACED_TOKENS[1] - TRACED_TOKENS[0])
    return MicroBatchMemory(
        **{
            name: value if name == "layers" else round(value + share * (getattr(high, name) - value))
            for name, value in vars(low).items()
        }
    )


def _work(config: PreTrainedConfig, counts: WeightCounts, training: Training) -> MatrixWork:
    """Weights of the matrices that a token passes through. Includes norms, which are a ten-thousandth of them."""
    experts = _experts(config)
    met = counts.block - counts.experts * (1 - config.num_experts_per_tok / experts if experts else 0)
    blocks = counts.layers * met
    adapters = counts.layers * counts.adapters if training.method != "full" else 0
    full = training.method == "full"
    return MatrixWork(
        trained=blocks if full else adapters,
        frozen=0 if full else blocks,
        head=config.vocab_size * config.hidden_size,
        head_trained=full,
        attention=attention_widths(config),
    )


HIDDEN_BYTES, LOGIT_BYTES = 256, 48
"""Bytes that a step reads or writes: for a number of the residual stream in a block (two norms in float32, two sums; forward
and backward), and in the softmax for a logit."""
HEAD_PASSES, MLP_PASSES, ADAPTER_PASSES = 20, 19, 4
"""How often it reads or writes a number of rotated queries and keys, of gate and up, of an adapted layer's input and output.
From model_ops.tensors.memory_efficient_layers, model_ops.adapters.lora and model_ops.losses.linear_cross_entropy."""


def _moved_bytes(config: PreTrainedConfig, counts: WeightCounts, training: Training) -> float:
    """Bytes of a token between matrix products."""
    heads = config.num_attention_heads + (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    experts = _experts(config)
    mlp = getattr(config, "moe_intermediate_size", None) if experts else None
    mlp = mlp or getattr(config, "intermediate_size", None) or 0
    mlp *= config.num_experts_per_tok if experts else 1
    block = HIDDEN_BYTES * config.hidden_size + 2 * (HEAD_PASSES * heads * head_dim + MLP_PASSES * mlp)
    if training.method != "full":
        block += 2 * ADAPTER_PASSES * counts.adapters / training.rank
    return counts.layers * block + LOGIT_BYTES * config.vocab_size * training.head_share


def _forward_only(work: MatrixWork) -> MatrixWork:
    """The same work with all weights frozen: 4 operations each, twice a forward pass."""
    return MatrixWork(0, work.trained + work.frozen, 0, False, ())


def _experts(config: PreTrainedConfig) -> int | None:
    return getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)

"""Cuts a model's MLP neurons, attention heads (in whole key-value groups) and hidden channels (structured pruning, Minitron,
arXiv 2407.14679): neurons and heads in each layer, channels once for the whole residual stream. An RMSNorm's weight grows by
sqrt(channels / channels kept), since the mean square is over fewer."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from model_ops.documents import MICRO_BATCH_TOKENS, Document, to_batches
from model_ops.families import layer_list
from model_ops.jobs import ModelError
from model_ops.losses import last_hidden
from model_ops.machine import Precision, products_in


@torch.no_grad()
def measure_widths(
    model: PreTrainedModel,
    documents: Sequence[Document],
    precision: Precision = "float32",
    batch_tokens: int = MICRO_BATCH_TOKENS,
) -> Importance:
    """How much neurons, key-value groups and channels matter, summed over all tokens, as in Minitron (section 2.2): a neuron by
    the mean |input of down_proj|, a group of heads by the mean L2 norm of what it hands to o_proj, a channel by the mean
    |output| of the norms, summed over all of them. One forward pass. The model is one of a family that can be cut."""
    config, device, was_training = model.config, next(model.parameters()).device, model.training
    _, layers = layer_list(model)
    groups = config.num_key_value_heads
    width = config.num_attention_heads // groups * head_dim(config)
    mlp = torch.zeros(len(layers), config.intermediate_size, device=device)
    heads = torch.zeros(len(layers), groups, device=device)
    hidden = torch.zeros(config.hidden_size, device=device)
    hooks = []

    def of_neurons(index: int):
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            mlp[index] += given[0].float().abs().flatten(0, -2).sum(0)

        return hook

    def of_heads(index: int):
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            heads[index] += given[0].float().unflatten(-1, (groups, width)).norm(dim=-1).flatten(0, -2).sum(0)

        return hook

    def of_norm(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        hidden.add_(output.float().abs().flatten(0, -2).sum(0))

    for index, layer in enumerate(layers):
        hooks.append(layer.mlp.down_proj.register_forward_pre_hook(of_neurons(index)))
        hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(of_heads(index)))
    hooks += [
        module.register_forward_hook(of_norm)
        for name, module in model.named_modules()
        if NORMS.search(f"{name}.weight") and "self_attn" not in name
    ]
    model.eval()
    try:
        for batch in to_batches(documents, batch_tokens):
            with products_in(precision, device):
                last_hidden(model, batch.to(device))
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return Importance(mlp, heads, hidden)


FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "smollm3", "granite", "seed_oss")
"""Dense families with gated MLPs and grouped attention, whose tensors this file knows."""
SCALED_EMBEDDING = ("gemma", "gemma2", "gemma3_text")
"""Families that multiply embeddings by sqrt(hidden size): fewer channels would change the scale of the residual stream."""
LARGEST_STEP = 128


@dataclass(frozen=True)
class Widths:
    """What remains: neurons of each MLP, attention (query) heads, hidden channels. None: all."""

    mlp: int | None = None
    heads: int | None = None
    hidden: int | None = None


@dataclass(frozen=True)
class Importance:
    """Per layer and neuron, per layer and key-value group, and per hidden channel."""

    mlp: Float[Tensor, "layers mlp"]
    groups: Float[Tensor, "layers kv_heads"]
    hidden: Float[Tensor, " hidden"]


def widths_of(config: PreTrainedConfig, mlp: float | None, heads: float | None, hidden: float | None) -> Widths:
    """Numbers from shares (below 1) or numbers. A share of neurons or channels is rounded to a multiple of the largest power of
    two, up to 128, that divides the teacher's width; one of heads to whole key-value groups. Raises ModelError for a family
    that cannot be cut, more than the teacher has, a share that cuts nothing, or heads that are no whole groups."""
    if mlp is None and heads is None and hidden is None:
        return Widths()
    kind = config.model_type
    if kind not in FAMILIES:
        raise ModelError(
            f"student.mlp_width, heads and hidden_size cut models of {', '.join(FAMILIES)}, and the teacher is a "
            f"{kind}: leave them out and set student.layers"
        )
    if hidden is not None and kind in SCALED_EMBEDDING:
        raise ModelError(
            f"student.hidden_size does not work with {kind}, which scales embeddings by the hidden size: leave it "
            "out and set student.mlp_width or student.heads"
        )
    group = config.num_attention_heads // config.num_key_value_heads
    return Widths(
        _number("mlp_width", mlp, config.intermediate_size, _step(config.intermediate_size)),
        _number("heads", heads, config.num_attention_heads, group),
        _number("hidden_size", hidden, config.hidden_size, _step(config.hidden_size)),
    )


def _step(width: int) -> int:
    return min(LARGEST_STEP, width & -width)


def _number(key: str, wanted: float | None, width: int, step: int) -> int | None:
    if wanted is None:
        return None
    count = max(1, round(wanted * width / step)) * step if wanted < 1 else int(wanted)
    if wanted < 1 and count == width:
        below = int(wanted * width) if key != "heads" else int(wanted * width) // step * step
        remedy = f"give a number, such as {below}, or leave it out" if below else "leave it out"
        raise ModelError(f"student.{key} is {wanted:g}, which in steps of {step} is all {width} of the teacher: {remedy}")
    if count > width:
        raise ModelError(f"student.{key} is {wanted:g}, and the teacher has {width}; give at most {width}, or a share below 1")
    if key == "heads" and count % step:
        raise ModelError(
            f"student.heads is {count}, and the teacher's {width} heads share keys and values in groups of "
            f"{step}; give a multiple of {step}"
        )
    return count


def head_dim(config: PreTrainedConfig) -> int:
    """Width of one attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def narrower_config(config: PreTrainedConfig, widths: Widths) -> PreTrainedConfig:
    """A copy of the config with these widths; the width of a head stays."""
    if widths == Widths():
        return config
    config, of_head, group = copy.deepcopy(config), head_dim(config), config.num_attention_heads // config.num_key_value_heads
    config.intermediate_size = widths.mlp or config.intermediate_size
    config.hidden_size, config.head_dim = widths.hidden or config.hidden_size, of_head
    config.num_attention_heads = widths.heads or config.num_attention_heads
    config.num_key_value_heads = config.num_attention_heads // group
    return config


@torch.no_grad()
def make_narrower(model: PreTrainedModel, widths: Widths, importance: Importance) -> PreTrainedModel:
    """A copy of the model with the most important neurons, groups of heads and channels. Loads in plain transformers."""
    config, of_head, cut = model.config, head_dim(model.config), narrower_config(model.config, widths)
    mlp, hidden, kv_heads = cut.intermediate_size, cut.hidden_size, cut.num_key_value_heads
    channels = _best(importance.hidden, hidden)
    scale = (config.hidden_size / hidden) ** 0.5
    weights = {}
    for name, value in model.state_dict().items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if layer:
            index = int(layer[1])
            neurons, chosen = _best(importance.mlp[index], mlp), _best(importance.groups[index], kv_heads)
            value = _cut_layer(name, value, neurons, chosen, config, of_head)
        value = _cut_channels(name, value, channels, config.hidden_size, scale)
        weights[name] = value.clone()
    parameter = next(model.parameters())
    with parameter.device:
        narrow = type(model)(cut)
    narrow.load_state_dict(weights, strict=True)
    narrow.set_attn_implementation("packed")
    narrow.generation_config = copy.deepcopy(model.generation_config)
    return narrow.to(parameter.device, parameter.dtype)


def _best(importance: Float[Tensor, " units"], count: int) -> Int[Tensor, " count"]:
    """The most important units, in their order; of equal ones the first."""
    return torch.argsort(importance, descending=True, stable=True)[:count].sort().values


def _rows(units: Int[Tensor, " units"], width: int) -> Int[Tensor, " rows"]:
    """The rows of units that are `width` rows each."""
    return (units[:, None] * width + torch.arange(width, device=units.device)).flatten()


def _cut_layer(name: str, value: Tensor, neurons: Tensor, groups: Tensor, config: PreTrainedConfig, of_head: int) -> Tensor:
    """The tensor without the neurons and groups that go."""
    per_group, heads = config.num_attention_heads // config.num_key_value_heads, config.num_attention_heads
    queries, keys = _rows(groups, per_group * of_head), _rows(groups, of_head)
    neurons, queries, keys = (each.to(value.device) for each in (neurons, queries, keys))
    if re.search(r"mlp\.(gate|up)_proj\.(weight|bias)$", name):
        return value[neurons]
    if name.endswith("mlp.gate_up_proj.weight"):
        return value[torch.cat([neurons, neurons + config.intermediate_size])]
    if name.endswith("mlp.down_proj.weight"):
        return value[:, neurons]
    if re.search(r"self_attn\.q_proj\.(weight|bias)$", name):
        return value[queries]
    if re.search(r"self_attn\.[kv]_proj\.(weight|bias)$", name):
        return value[keys]
    if name.endswith("self_attn.qkv_proj.weight"):
        first = heads * of_head
        return value[torch.cat([queries, first + keys, first + config.num_key_value_heads * of_head + keys])]
    if name.endswith("self_attn.o_proj.weight"):
        return value[:, queries]
    return value


READS = re.compile(r"(embed_tokens|lm_head|q_proj|k_proj|v_proj|qkv_proj|gate_proj|up_proj|gate_up_proj)\.weight$")
WRITES = re.compile(r"(o_proj|down_proj)\.(weight|bias)$")
NORMS = re.compile(r"(layernorm|\.norm)\.weight$")
"""Tensors by what they share with the residual stream: their columns, their rows, their only dim. Norms of queries and keys
have their own names (q_norm, k_norm)."""


def _cut_channels(name: str, value: Tensor, channels: Tensor, width: int, scale: float) -> Tensor:
    """The tensor without the channels that go."""
    if len(channels) == width:
        return value
    channels = channels.to(value.device)
    if READS.search(name):
        return value[:, channels]
    if WRITES.search(name):
        return value[channels]
    if NORMS.search(name):
        return value[channels] * scale
    return value

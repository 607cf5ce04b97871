"""QK-Clip: bounds attention logits by scaling query and key weights after the optimizer's step (Kimi K2, arXiv 2507.20534).

    with clip.watch():                                  # around every forward pass of a step
        ...
    numbers |= clip.after_step(changed=True)            # scales; returns attention_logit and clipped_heads

A head whose largest logit of the step (scaled q.k, causal, within the document, without sinks) is above the bound has its
logits multiplied by gamma = bound / logit:

- A query head with its own key head: both projections and their biases times sqrt(gamma), as in the paper.
- Query heads that share a key head: keys times r = sqrt(the smallest gamma of the group), queries of each head times gamma / r.
  A head below the bound computes the same logits as before.
- MLA: parts without rotation times sqrt(gamma), rotated queries times gamma; the rotated key, which all heads share, stays.

Models that normalise queries and keys (which undoes any scaling) or cap logits are refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from transformers import AttentionInterface

from model_ops.jobs import ModelError
from model_ops.models import largest_logits, packed_attention
from model_ops.parallel import World
from model_ops.training.settings import TrainingSettings

LAYOUTS = (("q_b_proj", "kv_b_proj"), ("q_proj", "kv_b_proj"), ("q_proj", "k_proj"), ("qkv_proj",))
"""Names of the projections to scale: MLA with and without a query latent, separate, fused."""


class QkClip:
    """The largest logits of a step by attention module, and the scaling of heads above the bound. Raises ModelError for a model
    whose heads cannot be scaled."""

    def __init__(self, model: nn.Module, settings: TrainingSettings, world: World):
        self.bound, self.world = settings.qk_clip, world
        self.attentions = set() if self.bound is None else _attentions(model)
        self.largest: dict[nn.Module, Float[Tensor, " heads"]] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Measures the model's attention inside the block."""
        if self.bound is None:
            yield
            return
        AttentionInterface.register("packed", self._measured_attention)
        try:
            yield
        finally:
            AttentionInterface.register("packed", packed_attention)

    def after_step(self, changed: bool) -> dict[str, float]:
        """The largest logit of the step and the number of heads that were scaled; {} if nothing was measured. changed: whether
        the step changed the weights; if not, none is scaled."""
        if not self.largest:
            return {}
        attentions, maxima = zip(*self.largest.items(), strict=True)
        self.largest = {}
        every = torch.tensor(self.world.greatest(torch.cat(maxima).tolist()))
        gammas = torch.where(every > self.bound, self.bound / every, 1.0) if changed else torch.ones_like(every)
        for attention, gamma in zip(attentions, gammas.split([len(heads) for heads in maxima]), strict=True):
            if (gamma < 1).any():
                _scale(attention, gamma)
        return {"attention_logit": float(every.max()), "clipped_heads": int((gammas < 1).sum())}

    def _measured_attention(self, module: nn.Module, query: Tensor, key: Tensor, *others: Any, **options: Any) -> Any:
        if module in self.attentions and torch.is_grad_enabled():
            logits = largest_logits(query, key, **options)
            self.largest[module] = torch.maximum(logits, self.largest.get(module, logits))
        return packed_attention(module, query, key, *others, **options)


def _attentions(model: nn.Module) -> set[nn.Module]:
    """The modules that compute packed attention. Raises ModelError if there is none, or one that cannot be scaled."""
    attentions = set()
    for module in model.modules():
        config, layers = getattr(module, "config", None), _projections(module)
        if not layers or getattr(config, "_attn_implementation", None) != "packed":
            continue
        kind, norms = type(module).__name__, [name for name, _ in module.named_children() if name.endswith("norm")]
        norms = [name for name in norms if "_a_" not in name]  # norms of MLA's latents come before the projections to scale
        if norms:
            raise ModelError(
                f"qk_clip: {kind} has {' and '.join(norms)}, which undo any scaling of query and key weights; leave qk_clip out"
            )
        if getattr(config, "attn_logit_softcapping", None) is not None:
            raise ModelError(f"qk_clip: {kind} has a soft cap, which bounds attention logits already; leave qk_clip out")
        if any(type(layer) is not nn.Linear or not layer.weight.requires_grad for layer in layers.values()):
            raise ModelError(f"qk_clip: query and key weights of {kind} are frozen or quantized; leave qk_clip out")
        attentions.add(module)
    if not attentions:
        raise ModelError(
            f"qk_clip: {type(model).__name__} has no attention with known query and key weights; leave qk_clip out"
        )
    return attentions


def _projections(module: nn.Module) -> dict[str, nn.Linear]:
    for names in LAYOUTS:
        layers = {name: layer for name in names if (layer := getattr(module, name, None)) is not None}
        if len(layers) == len(names):
            return layers
    return {}


@torch.no_grad()
def _scale(attention: nn.Module, gamma: Float[Tensor, " heads"]) -> None:
    """Multiplies the logits of each head by its gamma. Rows with factor 1 keep their bits."""
    layers = list(_projections(attention).values())
    if hasattr(attention, "kv_b_proj"):
        root, one = gamma.sqrt(), torch.ones_like(gamma)
        plain, rotated, value = attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.v_head_dim
        _multiply(layers[0], torch.stack([root] * plain + [gamma] * rotated, 1).flatten())
        _multiply(layers[1], torch.stack([root] * plain + [one] * value, 1).flatten())
        return
    shared = attention.num_key_value_groups
    keys = gamma.view(-1, shared).amin(1).sqrt()
    queries = gamma / keys.repeat_interleave(shared)
    parts = [queries, keys] if len(layers) == 2 else [torch.cat([queries, keys, torch.ones_like(keys)])]
    for layer, factors in zip(layers, parts, strict=True):
        _multiply(layer, factors.repeat_interleave(attention.head_dim))


def _multiply(layer: nn.Linear, factors: Float[Tensor, " rows"]) -> None:
    """Multiplies the rows of a layer's weight, and its bias, on every process of a mesh that shards them."""
    for parameter, each in ((layer.weight, factors[:, None]), (layer.bias, factors)):
        if isinstance(parameter, DTensor):
            whole = [Replicate()] * parameter.device_mesh.ndim
            parameter.mul_(distribute_tensor(each.to(parameter.device), parameter.device_mesh, whole, src_data_rank=None))
        elif parameter is not None:
            parameter.mul_(each.to(parameter.device))

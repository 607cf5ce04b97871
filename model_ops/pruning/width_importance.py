"""How much a model's MLP neurons, key-value groups and hidden channels matter, by what they say on given documents.

    importance = measure_widths(model, documents, precision="bfloat16")

As in Minitron (arXiv 2407.14679, section 2.2): a neuron by the mean |input of down_proj|, a group of heads by the mean L2 norm
of what it hands to o_proj, a channel by the mean |output| of the norms, summed over all of them. One forward pass over the
documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.documents import MICRO_BATCH_TOKENS, Document, to_batches
from model_ops.families import layer_list
from model_ops.losses import last_hidden
from model_ops.machine import Precision, products_in
from model_ops.pruning.narrower import NORMS, Importance, head_dim


@torch.no_grad()
def measure_widths(
    model: PreTrainedModel,
    documents: Sequence[Document],
    precision: Precision = "float32",
    batch_tokens: int = MICRO_BATCH_TOKENS,
) -> Importance:
    """Sums over all tokens. The model is one of a family that model_ops.pruning.narrower knows."""
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

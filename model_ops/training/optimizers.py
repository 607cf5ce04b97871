"""Builds the optimizer of a run from its settings, with parameter groups and weight decay.

    optimizer = build_optimizer(model, settings)

- adamw: torch's fused AdamW.
- adamw_8bit: AdamW with both moments in 8 bits, quantized by block (bitsandbytes, arXiv 2110.02861): 2 bytes per weight instead
  of 8. Tensors below 4,096 elements, and embeddings, whose rows are updated at very different rates, have 32-bit moments.
- muon: Muon (model_ops.training.muon) for the matrices of the blocks, including routers, adapters and single experts; AdamW for
  embeddings, head, norms, biases and all other parameters.

Norms, biases and embeddings have no weight decay; neither has a head that is tied to the embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from model_ops.errors import ModelError
from model_ops.precision import products_dtype
from model_ops.training.muon import Muon
from model_ops.training.settings import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters. settings: resolved.

    Raises ModelError for adamw_8bit if bitsandbytes is not installed or weights are sharded.
    """
    groups = parameter_groups(model, settings)
    common = {"lr": settings.learning_rate, "betas": (settings.beta1, settings.beta2), "eps": settings.epsilon}
    match settings.optimizer:
        case "adamw":
            return torch.optim.AdamW([_only(group, "params", "weight_decay") for group in groups], **common, fused=True)
        case "adamw_8bit":
            return _adamw_8bit([_only(group, "params", "weight_decay", "embeddings") for group in groups], common)
        case "muon":
            return Muon([_only(group, "params", "weight_decay", "matrices") for group in groups], **common,
                        adamw_share=settings.adamw_rate_share,
                        products=products_dtype(settings.precision, next(model.parameters()).device))


def parameter_groups(model: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Groups of trained parameters by weight_decay, matrices (of blocks) and embeddings; groups with decay come first.

    Parameters that are sharded over different meshes are in different groups, since no kernel takes both.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = {id(module.weight) for module in _heads(model)}
    groups: dict[tuple, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_embedding, is_bias = id(parameter) in embeddings, "bias" in name.rpartition(".")[2]
        decays = parameter.ndim >= 2 and not is_embedding and not is_bias
        stacked = parameter.ndim == 3 and ".experts." in name
        matrix = decays and id(parameter) not in head and (parameter.ndim == 2 or stacked)
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        kind = (not decays, not matrix, is_embedding, mesh)
        groups.setdefault(kind, {
            "params": [], "weight_decay": settings.weight_decay if decays else 0.0, "matrices": matrix,
            "embeddings": is_embedding,
        })["params"].append(parameter)
    return [groups[kind] for kind in sorted(groups, key=lambda kind: kind[:3])]


def reserve_state(optimizer: torch.optim.Optimizer) -> None:
    """Allocates AdamW's moments before the first step, so that a lack of memory shows before any work is lost, and long-lived
    memory is not fragmented by the temporary memory of a step."""
    if type(optimizer) is not torch.optim.AdamW:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter].update(
                    step=torch.zeros((), device=parameter.device if parameter.is_cuda else "cpu"),
                    exp_avg=torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    exp_avg_sq=torch.zeros_like(parameter, memory_format=torch.preserve_format),
                )


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state in this process after its first step."""
    found = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            elements = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
            found += elements * (4 if group.get("matrices") else 2 if group.get("in_8_bits") and elements >= 4_096 else 8)
    return found


def _heads(model: nn.Module) -> list[nn.Module]:
    """The modules that compute logits, including the heads of a drafter."""
    heads = [module for name, module in model.named_modules() if _is_head(*("", *name.split("."))[-2:])]
    named = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return [module for module in [*heads, named] if isinstance(getattr(module, "weight", None), nn.Parameter)]


def _is_head(owner: str, name: str) -> bool:
    return name == "lm_head" or (name.isdigit() and owner in ("lm_heads", "head"))


def _only(group: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: group[name] for name in names}


def _adamw_8bit(groups: list[dict[str, Any]], common: dict[str, Any]) -> torch.optim.Optimizer:
    try:
        from model_ops.training.adamw_8bit import AdamW8bit
    except ModuleNotFoundError as error:
        if error.name != "bitsandbytes":
            raise
        raise ModelError('optimizer adamw_8bit needs bitsandbytes; install "millrace[qlora]" or choose optimizer: '
                         "adamw") from error
    if any(isinstance(parameter, DTensor) for group in groups for parameter in group["params"]):
        raise ModelError("optimizer adamw_8bit does not support sharded weights; choose optimizer: adamw, or a mesh that does "
                         "not shard")
    return AdamW8bit([{"params": group["params"], "weight_decay": group["weight_decay"], "in_8_bits": not group["embeddings"]}
                      for group in groups], **common)

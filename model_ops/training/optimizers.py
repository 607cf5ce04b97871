"""The optimizer of a run, built from its settings: which weights are trained, which of them decay."""

from __future__ import annotations

import torch
from torch import nn

from model_ops.specs import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW over the parameters that are trained; no decay on embeddings, norms and biases."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [p for p in trained if p.ndim >= 2 and id(p) not in embeddings]
    undecayed = [p for p in trained if p.ndim < 2 or id(p) in embeddings]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay},
              {"params": undecayed, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.learning_rate,
                             betas=(0.9, 0.95), eps=1e-8, fused=True)

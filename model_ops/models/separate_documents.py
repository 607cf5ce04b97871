"""Computes every document of a packed row as a batch row of its own, for models that carry a state along the row.

    separate_documents(model)

The decoder gathers documents of similar length, padded on the right, which no causal layer reads, and puts their hidden states
back in the order of the packed row. Packing, losses and batches stay as they are; the cost is the padding.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from model_ops.errors import ModelError
from model_ops.models.attention import document_groups


def separate_documents(model: nn.Module) -> None:
    """Replaces the forward of the model's decoder, in place."""
    decoder = model.base_model
    decoder.forward = types.MethodType(_forward, decoder)


def _forward(self: nn.Module, input_ids: Int[Tensor, "batch tokens"], position_ids: Tensor | None = None,
             document_lengths: list[int] | None = None, context_parallel: object = None, **options: Any) -> Any:
    if context_parallel is not None:
        raise ModelError(f"a {self.config.model_type} carries a state along its tokens, so they cannot be shared out between "
                         "processes: leave context parallelism out of the mesh")
    run = type(self).forward
    if options.pop("document_prefixes", None) is not None:
        raise ModelError(f"a {self.config.model_type} carries a state along its tokens, so a document cannot continue another")
    if document_lengths is None:
        return run(self, input_ids=input_ids, position_ids=position_ids, **options)
    found: Tensor | None = None
    takes_positions = "position_ids" in inspect.signature(run).parameters
    for group in document_groups(tuple(document_lengths), input_ids.device):
        if takes_positions:
            options["position_ids"] = torch.arange(group.where.shape[1], device=input_ids.device)[None]
        output = run(self, input_ids=input_ids[0, group.where], **options)
        states = output.last_hidden_state
        if found is None:
            found = states.new_zeros(1, sum(document_lengths), states.shape[-1])
        found = found.index_copy(1, group.tokens, states.flatten(0, 1)[group.kept][None])
    return type(output)(last_hidden_state=found)

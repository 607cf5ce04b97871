"""Keeps packed documents of one row apart, also in architectures that carry a state along the row (recurrence, convolution).
The table says which families do; any other is tried: outputs of a second document must have no gradient by the first. Where
they have, documents are computed in groups of similar length; what leaks even then is refused."""

import inspect
import types
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.families import FAMILIES, PACKED, SHARDED
from model_ops.jobs import ModelError
from model_ops.models.attention import document_groups

TRAINED = f"trained are {', '.join(FAMILIES)}, and others whose attention goes through transformers' interface"
FIRST, SECOND = 5, 6
FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError, ModelError)
"""What a model's code raises where it does not support what is tried."""


def isolate_documents(model: PreTrainedModel, directory: Path) -> None:
    """Makes the model keep documents of a row apart. Raises ModelError if that cannot be had, or cannot be tried."""
    kind = model.config.model_type
    if kind not in SHARDED and any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(
            f"{directory}: {kind} cannot be trained on several processes, only {', '.join(SHARDED)}; leave mesh out"
        )
    if kind in FAMILIES:
        if kind not in PACKED:
            separate_documents(model)
        return
    try:
        if not _leaks(model):
            return
        separate_documents(model)
        leaks = _leaks(model)
    except FAILURES as error:
        raise ModelError(
            f"{directory}: {kind} cannot be run on packed documents ({type(error).__name__}); {TRAINED}"
        ) from error
    if leaks:
        raise ModelError(
            f"{directory}: in {kind} packed documents of one row influence each other, and its code does not let "
            f"each be computed as a row of its own, so it cannot be trained; {TRAINED}"
        )


def keeps_apart(model: PreTrainedModel) -> bool:
    """Whether attention is all that connects a model's tokens, so that its attention alone can keep documents apart."""
    kind = model.config.model_type
    if kind in FAMILIES:
        return kind in PACKED
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("packed")
        return not _leaks(model)
    except FAILURES:
        return False
    finally:
        model.set_attn_implementation(before)


def _leaks(model: PreTrainedModel) -> bool:
    embedding = model.get_input_embeddings()
    tokens = torch.arange(FIRST + SECOND, device=embedding.weight.device) % embedding.weight.shape[0]
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)]).to(tokens.device)
    seen: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        seen.append((given[0].detach(), output.detach().requires_grad_()))
        return seen[-1][1]

    hook = embedding.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            read: dict[str, Any] = {"input_ids": tokens[None], "position_ids": positions[None], "use_cache": False}
            if model.get_output_embeddings() is not None:
                states = model(**read, document_lengths=[FIRST, SECOND]).logits
            else:  # a sequence classifier
                states = model.base_model(**read, document_lengths=[FIRST, SECOND]).last_hidden_state
            # not their sum or squares, which a last norm holds fixed: these have no gradient
            said = states[0, FIRST:].float() @ torch.arange(states.shape[-1], device=states.device).float().cos()
            gradients = torch.autograd.grad(said.sum(), [output for _, output in seen], allow_unused=True)
    finally:
        hook.remove()
    by_token = torch.zeros(len(tokens), device=tokens.device)
    for (ids, _), gradient in zip(seen, gradients, strict=True):
        if gradient is not None:
            by_token.index_add_(0, ids.flatten(), gradient.abs().sum(-1).flatten().float())
    return bool(by_token[:FIRST].count_nonzero()) or not by_token[FIRST:].count_nonzero()


def separate_documents(model: nn.Module) -> None:
    """Replaces the forward of the model's decoder, in place."""
    decoder = model.base_model
    decoder.forward = types.MethodType(_forward, decoder)


def _forward(
    self: nn.Module,
    input_ids: Int[Tensor, "batch tokens"],
    position_ids: Tensor | None = None,
    document_lengths: list[int] | None = None,
    context_parallel: object = None,
    **options: Any,
) -> Any:
    if context_parallel is not None:
        raise ModelError(
            f"a {self.config.model_type} carries a state along its tokens, so they cannot be shared out between "
            "processes: leave context parallelism out of the mesh"
        )
    run = type(self).forward
    if options.pop("document_prefixes", None) is not None:
        raise ModelError(f"a {self.config.model_type} carries a state along its tokens, so a document cannot continue another")
    if document_lengths is None:
        return run(self, input_ids=input_ids, position_ids=position_ids, **options)
    hidden: Tensor | None = None
    takes_positions = "position_ids" in inspect.signature(run).parameters
    for group in document_groups(tuple(document_lengths), input_ids.device):
        if takes_positions:
            options["position_ids"] = torch.arange(group.where.shape[1], device=input_ids.device)[None]
        output = run(self, input_ids=input_ids[0, group.where], **options)
        states = output.last_hidden_state
        if hidden is None:
            hidden = states.new_zeros(1, sum(document_lengths), states.shape[-1])
        hidden = hidden.index_copy(1, group.tokens, states.flatten(0, 1)[group.own][None])
    return type(output)(last_hidden_state=hidden)

"""Refuses architectures in which packed documents of one row influence each other.

    refuse_leaks(model, directory)      # after load_model(..., attention="packed")

Only attention gets the document boundaries. A state space model, a linear recurrence, a convolution along the tokens, or
attention outside transformers' interface runs from one document into the next, and the loss does not show it. Tests prove that
packed equals unpacked for the architectures in PROVEN. Any other one is tried here on eleven tokens: outputs of the second
document must have no gradient with respect to the first.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from model_ops.errors import ModelError

PROVEN = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma", "gemma2", "gemma3_text", "gpt_oss")
"""model_type of the architectures in tests/model_ops/architectures.py."""

TRAINED = f"trained are {', '.join(PROVEN)}, and others whose attention goes through transformers' interface"
FIRST, SECOND = 5, 6


def refuse_leaks(model: PreTrainedModel, directory: Path) -> None:
    """Raises ModelError if documents of one row influence each other, or if that cannot be tried."""
    kind = model.config.model_type
    if kind in PROVEN:
        return
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(f"{directory}: {kind} cannot be trained on several processes, only {', '.join(PROVEN)}; leave mesh "
                         "out")
    try:
        leaks = _leaks(model)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError) as error:
        raise ModelError(f"{directory}: {kind} cannot be run on packed documents ({type(error).__name__}); "
                         f"{TRAINED}") from error
    if leaks:
        raise ModelError(f"{directory}: in {kind} packed documents of one row influence each other (by a state, a convolution "
                         f"or its own attention), so it cannot be trained; {TRAINED}")


def _leaks(model: PreTrainedModel) -> bool:
    embedding = model.get_input_embeddings()
    tokens = torch.arange(FIRST + SECOND, device=embedding.weight.device) % embedding.weight.shape[0]
    positions = torch.cat([torch.arange(FIRST), torch.arange(SECOND)]).to(tokens.device)
    seen: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, given: object, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    hook = embedding.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False,
                           document_lengths=[FIRST, SECOND]).logits
            (gradient,) = torch.autograd.grad(logits[0, FIRST:].float().square().sum(), seen)
    finally:
        hook.remove()
    return bool(gradient[0, :FIRST].count_nonzero()) or not gradient[0, FIRST:].count_nonzero()

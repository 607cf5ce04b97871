"""The loss at the head, without ever holding [tokens, vocab] logits.

    output = next_token_loss(model, batch)                        # LossOutput of a causal language model
    nll, kept = token_nll(model, batch)                           # the same per token, for evaluation
    total, losses = chunked_head(hidden, head_weight, rows_loss)  # any loss of a row of logits

Positions without a label are dropped before the head. What is left goes through in chunks; each chunk's logits are
turned into its gradient at once (softmax in float32, products in the precision of autocast) and forgotten. The formula
is logsumexp(h W^T) - h W_y per token; its gradient (softmax - onehot), see Liger-Kernel's fused linear cross entropy.
torch's own F.linear_cross_entropy does the same but weighs classes, not tokens, and has no place for another loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.parallel.context_parallel import pad
from model_ops.parallel.vocabulary import VocabularyShard, cut_cross_entropy_rows, local_head, row_multiple
from model_ops.training.batch import IGNORED, Batch, LossOutput

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Logits held at once, by kind of device: 16 MiB or 512 MiB in float32."""

RowsLoss = Callable[[Float[Tensor, "rows vocab"], slice, bool], tuple[Float[Tensor, " rows"], Tensor | None]]
"""(logits, which rows these are, whether a gradient is wanted) -> (loss of each row, d sum(loss) / d logits).

It may overwrite the logits."""


def next_token_loss(model: nn.Module, batch: Batch) -> LossOutput:
    """Weighted cross-entropy of the labels; count is the sum of their weights."""
    kept = (batch.labels != IGNORED).nonzero()[:, 0]
    labels, weights = batch.labels[kept], batch.weights[kept]
    if plain_head(model):
        hidden = last_hidden(model, batch)[kept]
        head, shard = local_head(model.get_output_embeddings().weight)
        total, _ = chunked_head(hidden, head, cross_entropy_rows(labels, weights, shard))
    else:
        logits = model(**batch.model_inputs, logits_to_keep=kept).logits[0].float()
        total = (nn.functional.cross_entropy(logits, labels, reduction="none") * weights).sum()
    return LossOutput(total, weights.sum())


@torch.no_grad()
def token_nll(model: nn.Module, batch: Batch) -> tuple[Float[Tensor, " kept"], Int[Tensor, " kept"]]:
    """Negative log-likelihood of each label in nats, and the positions that have one."""
    kept = (batch.labels != IGNORED).nonzero()[:, 0]
    labels = batch.labels[kept]
    if not plain_head(model):
        logits = model(**batch.model_inputs, logits_to_keep=kept).logits[0].float()
        return nn.functional.cross_entropy(logits, labels, reduction="none"), kept
    hidden = last_hidden(model, batch)[kept]
    head, shard = local_head(model.get_output_embeddings().weight)
    rows = cross_entropy_rows(labels, torch.ones_like(labels, dtype=torch.float32), shard)
    _, losses = chunked_head(hidden, head, rows)
    return losses, kept


def last_hidden(model: nn.Module, batch: Batch) -> Float[Tensor, "tokens hidden"]:
    """What the head sees, for a model loaded with attention="packed"."""
    padded = pad(batch, row_multiple(model))
    hidden = model.base_model(**padded.model_inputs).last_hidden_state[0]
    return hidden if padded is batch else hidden[:batch.tokens]


def plain_head(model: nn.Module) -> bool:
    """Whether the logits are just hidden times the head's weight: no bias, no scale, no soft cap."""
    head, config = model.get_output_embeddings(), model.config
    scales = (getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"))
    return isinstance(head, nn.Linear) and head.bias is None and all(scale in (None, 1, 1.0) for scale in scales)


def cross_entropy_rows(labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"],
                       shard: VocabularyShard | None = None) -> RowsLoss:
    """Cross-entropy of each row, times its weight; with a `shard`, the logits are those of its tokens only."""
    if shard is not None:
        return cut_cross_entropy_rows(labels, weights, shard)

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        label, weight = labels[where, None], weights[where]
        lse = logits.logsumexp(-1)
        losses = (lse - logits.gather(1, label)[:, 0]) * weight
        if not gradient_wanted:
            return losses, None
        gradient = logits.sub_(lse[:, None]).exp_()
        gradient.scatter_add_(1, label, torch.full_like(label, -1, dtype=gradient.dtype))
        return losses, gradient.mul_(weight[:, None])

    return rows


def chunked_head(
    hidden: Float[Tensor, "rows hidden"], head_weight: Float[Tensor, "vocab hidden"], rows_loss: RowsLoss,
    chunk_rows: int | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, " rows"]]:
    """Sum of a loss over rows of logits, differentiable in `hidden` and `head_weight`; and each row's loss (not so)."""
    if chunk_rows is None:
        chunk_rows = max(32, CHUNK_ELEMENTS.get(hidden.device.type, 1 << 22) // head_weight.shape[0])
    wanted = torch.is_grad_enabled() and (hidden.requires_grad, head_weight.requires_grad)
    return _ChunkedHead.apply(hidden, head_weight, rows_loss, chunk_rows, wanted or (False, False))


class _ChunkedHead(torch.autograd.Function):
    """Gradients are made in the forward pass; the backward pass only multiplies them by the upstream scalar."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, rows_loss: RowsLoss, chunk_rows: int, wanted: tuple[bool, bool]):
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        hidden_gradient = torch.empty_like(hidden) if wanted[0] else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        losses = hidden.new_empty(len(hidden), dtype=torch.float32)
        with torch.autocast(kind, enabled=False):
            products = weight.to(dtype)
            for start in range(0, len(hidden), chunk_rows):
                where = slice(start, min(start + chunk_rows, len(hidden)))
                chunk = hidden[where].to(dtype)
                losses[where], gradient = rows_loss((chunk @ products.T).float(), where, any(wanted))
                if gradient is None:
                    continue
                gradient = gradient.to(dtype)
                if wanted[0]:
                    hidden_gradient[where] = gradient @ products
                if wanted[1]:
                    weight_gradient += gradient.T @ chunk
        ctx.gradients = (hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype))
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx, upstream: Tensor, _: Tensor):
        hidden, weight = (None if part is None else part * upstream.to(part.dtype) for part in ctx.gradients)
        return hidden, weight, None, None, None

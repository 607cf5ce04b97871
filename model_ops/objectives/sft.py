"""Loss of supervised fine-tuning: weighted cross-entropy of a packed batch's labels, and token_accuracy, the share of labels
that had the highest logit."""

import torch
from torch import nn

from model_ops.losses import Head, chunked_head, cross_entropy_rows, last_hidden, local_head
from model_ops.tensors import IGNORED, Batch, LossOutput, one_term


def next_token_loss(model: nn.Module, batch: Batch, z_loss: float = 0.0) -> LossOutput:
    """Weighted cross-entropy of the labels; count is the sum of their weights."""
    places = (batch.labels != IGNORED).nonzero()[:, 0]
    labels, weights = batch.labels[places], batch.weights[places]
    hits = torch.zeros_like(weights)
    head, shard = local_head(Head.of(model))
    if head is not None:
        rows = cross_entropy_rows(labels, weights, z_loss, hits, shard)
        total, _ = chunked_head(last_hidden(model, batch)[places], head, rows)
    else:
        logits = model(**batch.model_inputs, logits_to_keep=places).logits[0].float()
        losses = nn.functional.cross_entropy(logits, labels, reduction="none") + z_loss * logits.logsumexp(-1).square()
        total = (losses * weights).sum()
        hits = (logits.detach().argmax(-1) == labels).float()
    return one_term(total, weights.sum(), {"token_accuracy": (hits * weights).sum()})

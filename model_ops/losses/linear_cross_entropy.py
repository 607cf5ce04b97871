"""Cross-entropy at a model's head, computed only for positions with a label.

    log_probs, places = label_log_probs(model, batch)             # per token, differentiable

Positions without a label are dropped before the head; the others pass it in chunks (`model_ops.losses.head`). The loss of a
token is logsumexp(h W^T) - h W_y, its gradient softmax - onehot. z-loss adds z * logsumexp^2 (PaLM, arXiv 2204.02311, section
5).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.losses.head import Head, RowsLoss, chunked_rows
from model_ops.losses.vocabulary_shards import VocabularyShard, cut_cross_entropy_rows, local_head, row_multiple
from model_ops.parallel import pad
from model_ops.tensors import IGNORED, Batch, fused_rows


@torch.no_grad()
def token_nll(
    model: nn.Module, batch: Batch, temperature: float = 1.0
) -> tuple[Float[Tensor, " targets"], Int[Tensor, " targets"]]:
    """Negative log-likelihood of each label in nats, and the positions that have one."""
    log_probs, places = label_log_probs(model, batch, temperature=temperature)
    return -log_probs, places


def label_log_probs(
    model: nn.Module, batch: Batch, temperature: float = 1.0
) -> tuple[Float[Tensor, " targets"], Int[Tensor, " targets"]]:
    """Log-probability of each label in nats, differentiable, and the positions that have one. temperature: divides logits."""
    places = (batch.labels != IGNORED).nonzero()[:, 0]
    labels = batch.labels[places]
    head, shard = local_head(Head.of(model))
    if head is None:
        logits = model(**batch.model_inputs, logits_to_keep=places).logits[0].float() / temperature
        log_p = torch.log_softmax(logits, -1)
        return log_p.gather(1, labels[:, None])[:, 0], places

    def weighted(weights: Tensor) -> RowsLoss:
        return cross_entropy_rows(labels, weights, shard=shard)

    return -chunked_rows(last_hidden(model, batch)[places], head.cooled(temperature), weighted), places


def last_hidden(model: nn.Module, batch: Batch) -> Float[Tensor, "tokens hidden"]:
    """The input of the head, for a model loaded with attention="packed"."""
    padded = pad(batch, row_multiple(model))
    hidden = model.base_model(**padded.model_inputs).last_hidden_state[0]
    return hidden if padded is batch else hidden[: batch.tokens]


def cross_entropy_rows(
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    z_loss: float = 0.0,
    hits: Float[Tensor, " rows"] | None = None,
    shard: VocabularyShard | None = None,
) -> RowsLoss:
    """(cross-entropy + z_loss * log-normaliser^2) * weight of each row.

    hits: receives 1 if the label has the highest logit, else 0. shard: the vocabulary is sharded, and logits are of its tokens.
    """
    if shard is not None:
        return cut_cross_entropy_rows(labels, weights, z_loss, hits, shard)

    return CrossEntropyRows(labels, weights, z_loss, hits)


class CrossEntropyRows:
    """The rows' loss of a whole vocabulary."""

    def __init__(
        self, labels: Int[Tensor, " rows"], weights: Float[Tensor, " rows"], z_loss: float, hits: Float[Tensor, " rows"] | None
    ):
        self._labels, self._weights, self._z_loss, self._hits = labels, weights, z_loss, hits

    def in_place(self, logits: Tensor, where: slice, gradient_wanted: bool) -> Tensor:
        """Losses of the rows. Overwrites the logits, of any dtype that fused_rows takes, with their gradient."""
        losses, hits = fused_rows.cross_entropy(
            logits, self._labels[where].contiguous(), self._weights[where].contiguous(), self._z_loss, gradient_wanted
        )
        if self._hits is not None:
            self._hits[where] = hits
        return losses

    def __call__(self, logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        label, weight, z_loss = self._labels[where, None], self._weights[where], self._z_loss
        chosen = logits.gather(1, label)[:, 0]
        highest = logits.amax(-1)
        if self._hits is not None:
            self._hits[where] = (chosen >= highest).float()
        exponentials = logits.sub_(highest[:, None]).exp_()
        sums = exponentials.sum(-1)
        normaliser = sums.log() + highest
        losses = (normaliser - chosen + z_loss * normaliser.square()) * weight
        if not gradient_wanted:
            return losses, None
        softmax_weight = weight * (1 + 2 * z_loss * normaliser)
        gradient = exponentials.mul_((softmax_weight / sums)[:, None])
        return losses, gradient.scatter_add_(1, label, -weight[:, None])

"""Scores each target token with a model: its log-probability, and the lead of the likeliest token.

    scores = token_scores(model, documents)        # {row_id: TokenScores(logprobs, gaps, logits)}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.batch import IGNORED, Batch
from model_ops.losses.chunked_head import Head
from model_ops.losses.linear_cross_entropy import last_hidden
from model_ops.training.documents import Document
from model_ops.training.packing import to_batches

ROWS_AT_ONCE = 256
"""Positions whose logits are held at a time."""


@dataclass
class TokenScores:
    """Of a row's target tokens, in order: log-probability, log-probability of the likeliest token minus that, both in nats, and
    the logit itself."""

    logprobs: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)


@torch.no_grad()
def token_scores(model: nn.Module, documents: Sequence[Document]) -> dict[str, TokenScores]:
    """Scores by row. The model must be loaded with attention="packed"; log-probabilities are float32."""
    model.eval()
    scores: dict[str, TokenScores] = defaultdict(TokenScores)
    for batch in to_batches(documents):
        batch = batch.to(next(model.parameters()).device)
        kept = (batch.labels != IGNORED).nonzero()[:, 0]
        lengths = torch.tensor(batch.document_lengths, device=kept.device)
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=kept.device), lengths)[kept]
        logits_at = _logits_of(model, batch)
        for first in range(0, len(kept), ROWS_AT_ONCE):
            where = kept[first:first + ROWS_AT_ONCE]
            logits = logits_at(where).float()
            logs, labels = torch.log_softmax(logits, -1), batch.labels[where, None]
            chosen = logs.gather(1, labels)[:, 0]
            gaps, own = logs.amax(-1) - chosen, logits.gather(1, labels)[:, 0]
            for place, logprob, gap, logit in zip(owner[first:first + ROWS_AT_ONCE].tolist(), chosen.tolist(), gaps.tolist(),
                                                  own.tolist(), strict=True):
                scores[batch.row_ids[place]].logprobs.append(logprob)
                scores[batch.row_ids[place]].gaps.append(gap)
                scores[batch.row_ids[place]].logits.append(logit)
    return dict(scores)


def _logits_of(model: nn.Module, batch: Batch) -> Callable[[Int[Tensor, " rows"]], Float[Tensor, "rows vocab"]]:
    """The logits at positions of a batch, without those of all positions at once where the head is a linear layer."""
    head = Head.of(model)
    if head is None:
        return lambda where: model(**batch.model_inputs, logits_to_keep=where).logits[0]
    hidden = last_hidden(model, batch)
    return lambda where: head.logits(hidden[where])

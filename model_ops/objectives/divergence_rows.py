"""How far a model's distributions are from those of a reference, row by row: KL(reference || model) over the reference's
likeliest tokens (a TeacherCache) and one bucket for all others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from model_ops.documents import Document, to_batches
from model_ops.losses import Head, last_hidden
from model_ops.objectives.divergences import generalised_jsd
from model_ops.objectives.teacher_cache import ROWS_AT_ONCE, CachedBatch, with_tail
from model_ops.tensors import IGNORED


@dataclass(frozen=True)
class RowDivergence:
    """Sums over a row's answer tokens; divergence in nats."""

    row_id: str
    divergence: float
    agreed: int
    """Tokens at which both models have the same likeliest token."""
    tokens: int


@torch.no_grad()
def row_divergences(model: nn.Module, documents: Sequence[Document]) -> list[RowDivergence]:
    """KL(reference || model) of each row. documents: with the reference's cached distributions (TeacherCache.added_to); a row
    may have several."""
    model.eval()
    head, device = Head.required(model), next(model.parameters()).device
    rows = {document.row_id: RowDivergence(document.row_id, 0.0, 0, 0) for document in documents}
    for batch in to_batches(documents, kind=CachedBatch):
        batch = batch.to(device)
        places = (batch.labels != IGNORED).nonzero()[:, 0]
        lengths = torch.tensor(batch.document_lengths, device=device)
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)[places]
        states, values, agreed = last_hidden(model, batch)[places], [], []
        for first in range(0, len(places), ROWS_AT_ONCE):
            where = places[first : first + ROWS_AT_ONCE]
            log_q = torch.log_softmax(head.logits(states[first : first + ROWS_AT_ONCE]).float(), -1)
            likely = batch.teacher_ids[where]
            bucket_p, bucket_q = with_tail(batch.teacher_logs[where].float()), with_tail(log_q.gather(1, likely))
            values.append(generalised_jsd(bucket_p, bucket_q, 0.0, gradient_wanted=False)[0])
            agreed.append(log_q.argmax(-1) == likely[:, 0])
        if not values:
            continue
        sums = torch.zeros(len(lengths), dtype=torch.float64, device=device).index_add_(0, owner, torch.cat(values).double())
        same = torch.zeros(len(lengths), dtype=torch.float64, device=device).index_add_(0, owner, torch.cat(agreed).double())
        counts = torch.bincount(owner, minlength=len(lengths))
        for row_id, each in zip(batch.row_ids, zip(sums.tolist(), same.tolist(), counts.tolist(), strict=True), strict=True):
            before = rows[row_id]
            rows[row_id] = RowDivergence(
                row_id, before.divergence + each[0], before.agreed + round(each[1]), before.tokens + each[2]
            )
    return list(rows.values())


def mean_divergence(rows: Sequence[RowDivergence]) -> float:
    """Nats per target token over all rows; 0 without any."""
    return sum(row.divergence for row in rows) / max(1, sum(row.tokens for row in rows))

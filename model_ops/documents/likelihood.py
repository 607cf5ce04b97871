"""Held-out negative log-likelihood of a model, row by row.

    rows = held_out_loss(model, documents)      # [RowLoss(row_id, nll_sum in nats, tokens), ...]
    mean_loss(rows)                             # nats per target token over all rows

The model must be loaded with attention="packed". Log-probabilities are float32 for any dtype of the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from model_ops.documents.documents import Document
from model_ops.documents.packing import MICRO_BATCH_TOKENS, to_batches
from model_ops.jobs import Progress
from model_ops.losses import token_nll
from model_ops.machine import Precision, faster_on, products_in
from model_ops.parallel import World


@dataclass(frozen=True)
class RowLoss:
    """Sum of the negative log-likelihood (nats) of a row's target tokens, and their number."""

    row_id: str
    nll_sum: float
    tokens: int


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    documents: Sequence[Document],
    batch_tokens: int = MICRO_BATCH_TOKENS,
    precision: Precision | None = None,
    progress: Progress | None = None,
    phase: str = "held-out loss",
) -> list[RowLoss]:
    """The loss of each row, in the order of its first document; a row may have several documents. precision: of matrix
    products. None: float32 on a CPU; bfloat16 on devices that have units for it, where float32 takes about 12 times as long and
    leaves the kernel of packed attention. Softmax and sums are float32."""
    model.eval()
    device = next(model.parameters()).device
    precision = precision or ("float32" if device.type == "cpu" else faster_on(device))
    by_row = {row_id: RowLoss(row_id, 0.0, 0) for row_id in (document.row_id for document in documents)}
    done, total = 0, sum(len(document) for document in documents)
    for batch in to_batches(documents, batch_tokens):
        batch = batch.to(device)
        with products_in(precision, device):
            losses, measured = token_nll(model, batch)
        lengths = torch.tensor(batch.document_lengths, device=device)
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)[measured]
        sums = torch.zeros(len(lengths), dtype=torch.float64, device=device).index_add_(0, owner, losses.double())
        counts = torch.bincount(owner, minlength=len(lengths))
        for row_id, nll_sum, tokens in zip(batch.row_ids, sums.tolist(), counts.tolist(), strict=True):
            before = by_row[row_id]
            by_row[row_id] = RowLoss(row_id, before.nll_sum + nll_sum, before.tokens + tokens)
        done += batch.tokens
        if progress is not None:
            progress.report(phase, done, total, "tokens")
            progress.stop_if_requested()
    return list(by_row.values())


@torch.no_grad()
def held_out_totals(
    model: nn.Module,
    documents: Sequence[Document],
    world: World,
    precision: Precision = "float32",
    batch_tokens: int = MICRO_BATCH_TOKENS,
) -> tuple[float, int]:
    """Sum of the negative log-likelihood (nats) over all documents, and their target tokens, shared by all processes.

    Each process computes its share of the batches. All make the same number of forward passes, because a sharded model gathers
    its weights in each of them: a process with fewer batches computes one without labels.
    """
    model.eval()
    batches = to_batches(documents, batch_tokens)
    mine = batches[world.data_rank :: world.data_ranks]
    rounds = math.ceil(len(batches) / world.data_ranks)
    mine += [batches[0].silenced()] * (rounds - len(mine))
    nll_sum, tokens = torch.zeros((), dtype=torch.float64, device=world.device), 0
    for batch in mine:
        batch = batch.to(world.device)
        with products_in(precision, world.device):
            losses, _ = token_nll(model, batch)
        nll_sum += losses.double().sum()
        tokens += losses.numel()
    total, count = world.totals([float(nll_sum), float(tokens)])
    return total, round(count)


def mean_loss(rows: Sequence[RowLoss]) -> float:
    """Nats per target token over all rows; nan without any target token."""
    tokens = sum(row.tokens for row in rows)
    return sum(row.nll_sum for row in rows) / tokens if tokens else float("nan")

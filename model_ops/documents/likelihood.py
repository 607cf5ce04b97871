"""Held-out negative log-likelihood of a model in nats, row by row, in float32 for any dtype of the weights. The model must be
loaded with attention="packed"."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from model_ops.documents.conversations import read_documents
from model_ops.documents.documents import Document, Documents
from model_ops.documents.packing import MICRO_BATCH_TOKENS, to_batches
from model_ops.families import PACKED
from model_ops.jobs import ModelError, Progress, filled
from model_ops.losses import token_nll
from model_ops.machine import Precision, faster_on, products_in
from model_ops.models import load_tokenizer, read_config, refuse_misfit
from model_ops.parallel import World
from model_ops.rendering import ChatTemplate, EndpointTokens, ReasoningBudget, ServedTokens
from model_ops.training import MOST_VALIDATION_TOKENS, TrainingSettings, first_documents


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
    """Sum of the negative log-likelihood (nats) over all documents, and their target tokens, shared by all processes. All make
    the same number of forward passes, since a sharded model gathers its weights in each: some compute one without labels."""
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


@dataclass(frozen=True)
class Chats:
    """Documents of the training rows, documents of some validation rows, and counts of the rows."""

    tokenizer: PreTrainedTokenizerBase
    documents: Sequence[Document]
    validation: Sequence[Document]
    counts: dict[str, int]


def read_chats(
    dataset: Path,
    model: Path,
    settings: TrainingSettings,
    served: Path | None = None,
    endpoint: EndpointTokens | None = None,
    reasoning_budget: int | None = None,
) -> Chats:
    """Tokenizes a dataset for the model in directory `model`, without loading weights. served: directory with the token ids of
    logged answers (served.parquet), which are learnt where the log's prompts are those of this model. endpoint: a teacher's
    answers as its endpoint wrote them. reasoning_budget: of training rows, only the end of longer reasoning is learnt. Raises
    ModelError if dataset and model do not fit or no token has a loss."""
    tokenizer = load_tokenizer(model)
    refuse_misfit(model, tokenizer)
    ids = endpoint if served is None else ServedTokens.read(served / "served.parquet")
    budget = ReasoningBudget(reasoning_budget) if reasoning_budget else None
    joined = 0 if endpoint else joined_tokens(model, settings)
    max_length = filled(settings.max_length)
    documents, counts = read_documents(dataset, "train", tokenizer, max_length, settings.overflow, ids, joined, budget)
    if budget is not None:
        budget.check(counts["rows"], ChatTemplate.of(tokenizer))
        counts |= {name: value for name, value in asdict(budget).items() if name != "tokens"}
    validation = validation_documents(dataset, tokenizer, max_length)
    refuse_nothing_to_learn(documents, counts)
    for split in (documents, validation):
        refuse_long_documents(model, split)
    return Chats(tokenizer, documents, validation, counts)


def joined_tokens(model: Path, settings: TrainingSettings) -> int:
    """Longest document that contexts of a row may be joined into: the row of tokens that a step computes at once. 0 where
    documents cannot continue each other: the model carries a state along its tokens, or processes share a row."""
    if read_config(model).get("model_type") not in PACKED or settings.mesh.cp > 1:
        return 0
    max_length = filled(settings.max_length)
    return min(max_length, filled(settings.tokens_per_step), settings.micro_batch_tokens or max_length)


def refuse_nothing_to_learn(documents: Sequence[Document], counts: dict[str, int]) -> None:
    """Raises ModelError if no row of the dataset has a token to predict."""
    if not documents:
        raise ModelError(
            f"no row of the dataset holds a token to predict: none of {counts['rows']} rows has an assistant "
            f"message with weight 1 within max_length ({counts['cut_rows']} were cut, {counts['too_long_rows']} "
            "left out for their length); check roles, weights, max_length and the chat template"
        )


def validation_documents(dataset: Path, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[Document]:
    """The first validation rows up to MOST_VALIDATION_TOKENS tokens; [] if the dataset has no such split."""
    if not (dataset / "validation.parquet").exists():
        return []
    documents, _ = read_documents(dataset, "validation", tokenizer, max_length)
    return first_documents(documents, MOST_VALIDATION_TOKENS)


def validation_of(
    model: nn.Module, documents: Sequence[Document], precision: Precision, world: World
) -> Callable[[], dict[str, float]] | None:
    """The validation function for the trainer: the held-out loss, shared by the processes; None without documents."""
    if not documents:
        return None

    def validate() -> dict[str, float]:
        nll_sum, tokens = held_out_totals(model, documents, world, precision)
        return {"validation_loss": nll_sum / tokens if tokens else float("nan")}

    return validate


def context_of(config: dict[str, Any]) -> int | None:
    """The tokens that a model's context holds; None if its config does not say."""
    context = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    return context if type(context) is int else None


def refuse_long_documents(directory: Path, documents: Sequence[Document]) -> None:
    """Raises ModelError with the longest document if it exceeds the model's context."""
    context = context_of(read_config(directory))
    lengths = documents.lengths if isinstance(documents, Documents) else [len(document) for document in documents]
    if not len(lengths) or context is None:
        return
    longest = documents[int(np.argmax(lengths))]
    if len(longest) > context:
        too_long = int((np.asarray(lengths) > context).sum())
        raise ModelError(
            f"row {longest.row_id} has {len(longest)} tokens, but the model's context holds {context} "
            f"(max_position_embeddings); {too_long} rows are too long: set max_length to at most {context} to cut "
            "them, or remove them from the dataset"
        )

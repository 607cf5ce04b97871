"""Reads a dataset of chats for one model: training documents, validation documents, and counts of the rows.

chats = read_chats(dataset, model_directory, settings)      # ModelError if dataset and model do not fit
validate = validation_of(model, chats.validation, settings.precision, world)
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from model_ops.documents.conversations import read_documents
from model_ops.documents.documents import Document, Documents
from model_ops.documents.likelihood import held_out_totals
from model_ops.families import PACKED
from model_ops.jobs import ModelError, filled
from model_ops.machine import Precision
from model_ops.models import load_tokenizer, read_config, refuse_misfit
from model_ops.parallel import World
from model_ops.rendering import ChatTemplate, EndpointTokens, ReasoningBudget, ServedTokens
from model_ops.training import MOST_VALIDATION_TOKENS, TrainingSettings, first_documents


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
    """Tokenizes a dataset for the model in directory `model`, without loading weights.

    served: directory with the token ids of logged answers (served.parquet), which are learnt where the log's prompts are those
    of this model. endpoint: a teacher's answers as its endpoint wrote them. reasoning_budget: of training rows, only the end
    of longer reasoning is learnt. Raises ModelError if dataset and model do not fit or no token has a loss.
    """
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
    """The validation function for the trainer: the held-out loss of `documents`, shared by the processes of a run; None without
    documents."""
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

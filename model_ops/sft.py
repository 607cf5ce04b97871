"""Supervised fine-tuning: the loss of assistant tokens only, packed rows, documents isolated.

Job inputs: `model` (a model directory), `dataset` (train.parquet, and validation.parquet where there is one).
Output: the fine-tuned model with the tokenizer and the chat template it was trained with, and metrics.jsonl. With
method lora or qlora the weights are merged, and the adapter lies in adapter/ in PEFT's form (model_ops.models.tuning).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from model_ops.errors import ModelError
from model_ops.models.model_directory import load_tokenizer
from model_ops.models.model_fit import refuse_long_documents, refuse_misfit
from model_ops.models.tuning import load_to_tune, save_tuned
from model_ops.parallel.world import World
from model_ops.progress import Progress
from model_ops.specs import Job, SftSettings
from model_ops.training.conversations import end_of_turn_ids, read_documents
from model_ops.training.documents import Document
from model_ops.training.likelihood import held_out_loss, mean_loss
from model_ops.training.linear_cross_entropy import next_token_loss
from model_ops.training.loss_heads import chosen_kernel
from model_ops.training.packing import PackedPlan
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import TrainingResult, train

VALIDATION_TOKENS = 50_000
"""Validation during training looks at the first rows up to this many tokens; evaluate looks at all of them."""


def run(job: Job, progress: Progress) -> dict[str, float | int]:
    """Trains, saves and says what it saw. Raises ModelError for a wrong model or dataset, before weights are loaded."""
    settings: SftSettings = job.typed_settings()
    base = input_of(job, "model")
    world = World.start(settings.mesh)
    chats = read_chats(job, base, settings)
    model, numbers = load_to_tune(base, settings, world.loading_device)
    world.place(model, settings.precision)
    work = job.output / ".work"
    kernel = chosen_kernel(settings.loss_head, model, settings.precision, work, settings.z_loss)
    loss = partial(next_token_loss, z_loss=settings.z_loss, kernel=kernel)
    result = train(
        model, PackedPlan(chats.documents, settings), loss, settings, work, progress, "sft",
        validate=validation_of(model, chats.validation, settings.precision), world=world,
    )
    add_end_of_sequence(model, end_of_turn_ids(chats.tokenizer))
    numbers |= save_tuned(model, chats.tokenizer, base, settings, job.output)
    return training_metrics(result, {**chats.counts, **numbers})


@dataclass(frozen=True)
class Chats:
    """What a stage learns from: documents of the training rows, some of the validation rows, what became of the rows."""

    tokenizer: PreTrainedTokenizerBase
    documents: Sequence[Document]
    validation: Sequence[Document]
    counts: dict[str, int]


def read_chats(job: Job, model: Path, settings: TrainingSettings) -> Chats:
    """The job's dataset as the model in `model` reads it. Raises ModelError where the two do not fit, or nothing is learnt;
    no weight is loaded for that."""
    tokenizer = load_tokenizer(model)
    refuse_misfit(model, tokenizer)
    dataset = input_of(job, "dataset")
    documents, counts = read_documents(dataset, "train", tokenizer, settings.max_length, settings.overflow)
    validation = validation_documents(dataset, tokenizer, settings.max_length)
    refuse_nothing_to_learn(documents, counts)
    for split in (documents, validation):
        refuse_long_documents(model, split)
    return Chats(tokenizer, documents, validation, counts)


def refuse_nothing_to_learn(documents: Sequence[Document], counts: dict[str, int]) -> None:
    """Raises ModelError where no row of the dataset has a token to predict."""
    if not documents:
        raise ModelError(f"no row of the dataset holds a token to predict: of {counts['rows']} rows none has an assistant's "
                         f"answer that is to be learnt within max_length ({counts['cut_rows']} were cut, "
                         f"{counts['too_long_rows']} left out for their length); look at roles, weights, max_length and what "
                         "the chat template shows of answers")


def input_of(job: Job, name: str) -> Path:
    """A job's input directory. Raises ModelError where the job names none."""
    if name not in job.inputs:
        raise ModelError(f"job {job.operation} has no input {name!r}; it has {', '.join(job.inputs) or 'none'}")
    return job.inputs[name]


def validation_documents(dataset: Path, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[Document]:
    """The first validation rows up to VALIDATION_TOKENS tokens; none where the dataset has no such split."""
    if not (dataset / "validation.parquet").exists():
        return []
    documents, _ = read_documents(dataset, "validation", tokenizer, max_length)
    chosen, held = [], 0
    for document in documents:
        if chosen and held + len(document) > VALIDATION_TOKENS:
            break
        chosen.append(document)
        held += len(document)
    return chosen


def validation_of(model: nn.Module, documents: Sequence[Document], precision: str) -> Callable[[], dict[str, float]] | None:
    """What the trainer calls to validate: the held-out loss of `documents`; None where there are none."""
    if not documents:
        return None
    return lambda: {"validation_loss": mean_loss(held_out_loss(model, documents, precision=precision))}


def add_end_of_sequence(model: PreTrainedModel, ids: list[int]) -> None:
    """Generation also stops at the token the model was taught to end its answers with."""
    known = model.generation_config.eos_token_id
    known = known if isinstance(known, list) else [] if known is None else [known]
    model.generation_config.eos_token_id = list(dict.fromkeys([*ids, *known])) or None


def training_metrics(result: TrainingResult, counts: dict[str, float | int]) -> dict[str, float | int]:
    """What an operation that trained reports: the run's numbers, validation, and what became of the rows."""
    numbers = asdict(result)
    numbers.update(numbers.pop("validation"))
    taken = numbers.keys() & counts.keys()
    if taken:
        raise ValueError(f"two metrics share the names {', '.join(sorted(taken))}")
    return {**numbers, **counts}

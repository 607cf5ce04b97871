"""Scores each target token with a model, and finds where greedy answers with and without drafting first differ.

A server computes in bfloat16: of 8 significant bits, so its neighbour is 2^(e - 7) away for values from 2^e to 2^(e + 1).
Logits of own layers, in float32, that are at most TIE_STEPS such steps apart tie: one step for the rounding of the two logits,
one for that of the states they are made of. Only the first difference of an answer says anything."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from model_ops.documents import Document, to_batches
from model_ops.losses import Head, last_hidden
from model_ops.models import load_model, training_device
from model_ops.quantization import is_quantized, load_quantized
from model_ops.tensors import IGNORED, Batch

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
    device = next(model.parameters()).device
    batches: Iterable[Batch] = to_batches(documents)
    for batch in (each.to(device) for each in batches):
        scored = (batch.labels != IGNORED).nonzero()[:, 0]
        lengths = torch.tensor(batch.document_lengths, device=scored.device)
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=scored.device), lengths)[scored]
        logits_at = _logits_of(model, batch)
        for first in range(0, len(scored), ROWS_AT_ONCE):
            where = scored[first : first + ROWS_AT_ONCE]
            logits = logits_at(where).float()
            logs, labels = torch.log_softmax(logits, -1), batch.labels[where, None]
            chosen = logs.gather(1, labels)[:, 0]
            gaps, own = logs.amax(-1) - chosen, logits.gather(1, labels)[:, 0]
            for place, logprob, gap, logit in zip(
                owner[first : first + ROWS_AT_ONCE].tolist(), chosen.tolist(), gaps.tolist(), own.tolist(), strict=True
            ):
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


def scored_model(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model on the training device, for packed rows; the layers of a quantized one compute what a server computes."""
    device = training_device()
    if is_quantized(directory):
        return load_quantized(directory, dtype, "packed").to(device)
    return load_model(directory, dtype=dtype, attention="packed", device=device)


TIE_STEPS = 2
Answers = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""Row id -> token ids of prompt and greedy answer."""


@dataclass(frozen=True)
class FirstDifference:
    """The first token that differs."""

    row_id: str
    token: int
    """Position in the answer."""
    one: int | None
    other: int | None
    """one, other: the two token ids; None if that answer ended."""
    signed_gap: float | None = None
    """Logit of the first token minus that of the second, by the project's own layers; None if an answer ended."""
    bound: float | None = None
    """Largest gap that counts as a tie."""

    @property
    def gap(self) -> float | None:
        """Distance of the two logits."""
        return None if self.signed_gap is None else abs(self.signed_gap)

    @property
    def is_tie(self) -> bool:
        return self.gap is not None and self.bound is not None and self.gap <= self.bound


def bfloat16_step(value: float) -> float:
    """Distance of a bfloat16 of this size to its neighbour; 0 for 0."""
    return 2.0 ** (math.floor(math.log2(abs(value))) - 7) if value else 0.0


def tie_bound(one: float, other: float) -> float:
    """Most distance of two logits that tie."""
    return TIE_STEPS * bfloat16_step(max(abs(one), abs(other)))


def difference_at(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place at which two token sequences differ, or at which one of them ends; None if they are equal."""
    place = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return None if place == len(one) == len(other) else place


def first_differences(model: nn.Module, alone: Answers, drafted: Answers) -> list[FirstDifference]:
    """The differences between two sets of answers to the same prompts, by row id; rows of one set alone are left out. model:
    own layers, loaded with attention="packed"."""
    differences, documents = [], []
    for row_id in sorted(alone.keys() & drafted.keys()):
        (prompt, one), (_, other) = alone[row_id], drafted[row_id]
        place = difference_at(one, other)
        if place is None:
            continue
        pair = [ids[place] for ids in (one, other) if place < len(ids)]
        ended = [ids[place] if place < len(ids) else None for ids in (one, other)]
        differences.append(FirstDifference(row_id, place, *ended))
        if len(pair) == 2:
            documents += [_with_last(f"{side} {row_id}", [*prompt, *one[:place]], token) for side, token in enumerate(pair)]
    scores = token_scores(model, documents) if documents else {}
    return [
        _measured(each, *(scores[f"{side} {each.row_id}"].logits[0] for side in (0, 1)))
        if f"0 {each.row_id}" in scores
        else each
        for each in differences
    ]


def _with_last(row_id: str, before: Sequence[int], token: int) -> Document:
    """A document whose only target is its last token."""
    ids = np.array([*before, token], dtype=np.int32)
    return Document(row_id, ids, np.arange(len(ids)) == len(ids) - 1)


def _measured(difference: FirstDifference, one: float, other: float) -> FirstDifference:
    return replace(difference, signed_gap=one - other, bound=tie_bound(one, other))

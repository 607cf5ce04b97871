"""A teacher's distributions on disk, computed once or reported by an endpoint: at every target the likeliest tokens, and
`drawn` tokens from the tail by their probability, each for an equal part of its mass: an estimate of the forward divergence
without bias (arXiv 2503.16870). Without drawn tokens the tail is one bucket: the divergence is at most that over the
vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from model_ops.documents import MICRO_BATCH_TOKENS, Document, lengths_and_targets, to_batch
from model_ops.files import renamed_when_complete
from model_ops.losses import Head, RowsLoss, last_hidden
from model_ops.machine import Precision, products_in
from model_ops.objectives.divergences import generalised_jsd
from model_ops.rendering import PADDED, EndpointTokens
from model_ops.tensors import IGNORED, Batch

ABOUT = "cache.json"
"""Written last: a folder that has it holds a whole cache."""
LEAST_TAIL = 1e-7
"""Smallest mass of a tail: what float32 sums of probabilities leave of 1 when nothing is left."""
ROWS_AT_ONCE = 256
"""Targets whose logits exist at a time while the cache is written."""


@dataclass(frozen=True, kw_only=True)
class CachedBatch(Batch):
    """A batch with what the teacher says at each target: ids of tokens, and their log-probabilities."""

    teacher_ids: Int[Tensor, "tokens top_k"] = field(metadata={"padding": 0})
    teacher_logs: Float[Tensor, "tokens top_k"] = field(metadata={"padding": 0})


@dataclass(frozen=True, kw_only=True)
class DrawnBatch(CachedBatch):
    """Also the mass that each token stands for: its probability, or a drawn token's part of the tail."""

    teacher_masses: Float[Tensor, "tokens top_k"] = field(metadata={"padding": 0})


class TeacherCache:
    """The teacher's distributions at every target of some documents, in memory-mapped files of `folder`."""

    def __init__(self, folder: Path, documents: Sequence[Document]):
        about = json.loads((folder / ABOUT).read_text())
        self.top_k, self.drawn = about["top_k"], about["drawn"]
        self.kind: type[Batch] = DrawnBatch if self.drawn else CachedBatch
        self.starts = np.concatenate([[0], np.cumsum(lengths_and_targets(documents)[1])])
        shape = (max(1, int(self.starts[-1])), self.top_k)
        self.ids = np.memmap(folder / "ids.bin", about["id_dtype"], "r", shape=shape)
        self.logs = np.memmap(folder / "logs.bin", np.float16, "r", shape=shape)

    @classmethod
    def write(
        cls,
        folder: Path,
        teacher: nn.Module,
        documents: Sequence[Document],
        top_k: int,
        temperature: float,
        precision: Precision,
        batch_tokens: int = MICRO_BATCH_TOKENS,
        after_batch: Callable[[int, int], None] | None = None,
        vocabulary: int | None = None,
        drawn: int = 0,
    ) -> TeacherCache:
        """Runs the teacher over every document once. Complete or absent: ABOUT is written last. drawn: how many of the top_k
        tokens are drawn from the tail. after_batch(tokens done, tokens in all). vocabulary: rows of the student's head; further
        rows of the teacher's are padding and left out. The teacher must be loaded with attention="packed" and have a linear
        head."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABOUT).unlink(missing_ok=True)
        head, device = Head.required(teacher), next(teacher.parameters()).device
        if vocabulary is not None and vocabulary < head.weight.shape[0]:
            head = head.rows(0, vocabulary)
        vocabulary = head.weight.shape[0]
        drawn = 0 if top_k >= vocabulary else min(drawn, top_k - 1)
        top_k = min(top_k, vocabulary)
        id_dtype = np.uint16 if vocabulary <= 2**16 else np.int32
        lengths, targets = lengths_and_targets(documents)
        starts = np.concatenate([[0], np.cumsum(targets)])
        shape = (max(1, int(starts[-1])), top_k)
        ids = np.memmap(folder / "ids.bin", id_dtype, "w+", shape=shape)
        logs = np.memmap(folder / "logs.bin", np.float16, "w+", shape=shape)
        teacher.eval()
        generator = torch.Generator(device).manual_seed(0)
        done, total = 0, int(lengths.sum())
        for members in _members(lengths, batch_tokens):
            batch = to_batch([documents[member] for member in members]).to(device)
            batch_ids, batch_logs = _said(teacher, head, batch, top_k, drawn, temperature, precision, generator)
            first = 0
            for member in members:
                place = slice(starts[member], starts[member + 1])
                rows = slice(first, first + int(targets[member]))
                ids[place], logs[place] = batch_ids[rows], batch_logs[rows]
                first = rows.stop
            done += batch.tokens
            if after_batch is not None:
                after_batch(done, total)
        ids.flush()
        logs.flush()
        with renamed_when_complete(folder / ABOUT) as temporary:
            temporary.write_text(json.dumps({"top_k": top_k, "drawn": drawn, "id_dtype": np.dtype(id_dtype).name}))
        return cls(folder, documents)

    @property
    def bytes_per_target(self) -> int:
        """Bytes on disk for one target."""
        return self.top_k * (self.ids.itemsize + self.logs.itemsize)

    def added_to(self, document: Document, index: int) -> Document:
        """The document with the streams of its kind of batch, zeros where it has no target."""
        place = slice(self.starts[index], self.starts[index + 1])
        at = np.flatnonzero(document.targets[1:])  # position t predicts token t + 1
        ids = np.zeros((len(document), self.top_k), np.int64)
        logs = np.zeros((len(document), self.top_k), np.float32)
        ids[at], logs[at] = self.ids[place], self.logs[place]
        streams = {**document.streams, "teacher_ids": ids, "teacher_logs": logs}
        if self.drawn:
            exact = np.exp(logs[at, : -self.drawn])
            tail = np.clip(1 - exact.sum(1, keepdims=True), 0, 1)
            masses = streams["teacher_masses"] = np.zeros_like(logs)
            masses[at] = np.concatenate([exact, np.repeat(tail / self.drawn, self.drawn, 1)], 1)
        return replace(document, streams=streams)


def _members(lengths: Int[np.ndarray, " documents"], batch_tokens: int) -> list[list[int]]:
    """Documents of similar length, at most `batch_tokens` tokens together."""
    parts: list[list[int]] = []
    held = 0
    for member in np.argsort(lengths, kind="stable").tolist():
        if not parts or held + lengths[member] > batch_tokens:
            parts.append([])
            held = 0
        parts[-1].append(member)
        held += int(lengths[member])
    return parts


@torch.no_grad()
def _said(
    teacher: nn.Module,
    head: Head,
    batch: Batch,
    top_k: int,
    drawn: int,
    temperature: float,
    precision: Precision,
    generator: torch.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log-probabilities) of tokens at each target of the batch, [targets, top_k] each: the likeliest, then drawn ones."""
    places = (batch.labels != IGNORED).nonzero()[:, 0]
    kind = batch.labels.device.type
    with products_in(precision, batch.labels.device):
        states = last_hidden(teacher, batch)[places]
        products = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else teacher.dtype
    ids, logs = [], []
    for first in range(0, len(states), ROWS_AT_ONCE):
        log_p = torch.log_softmax(head.logits(states[first : first + ROWS_AT_ONCE].to(products)).div_(temperature), -1)
        chosen = log_p.topk(top_k - drawn, dim=-1).indices
        if drawn:
            chosen = torch.cat([chosen, from_tail(log_p, chosen, drawn, generator)], dim=-1)
        ids.append(chosen.cpu())
        logs.append(log_p.gather(1, chosen).half().cpu())
    if not ids:
        return np.zeros((0, top_k), np.int64), np.zeros((0, top_k), np.float16)
    return torch.cat(ids).numpy(), torch.cat(logs).numpy()


def from_tail(
    log_p: Float[Tensor, "rows vocabulary"], likely: Int[Tensor, "rows likely"], count: int, generator: torch.Generator
) -> Int[Tensor, "rows count"]:
    """Tokens other than the likely ones, drawn by their probability: a systematic sample, so one as likely as its part of the
    mass is drawn at least once, and any may be drawn twice."""
    reached = log_p.exp().scatter_(1, likely, 0).cumsum_(-1)
    start = torch.rand((len(log_p), 1), generator=generator, device=log_p.device)
    places = (torch.arange(count, device=log_p.device) + start) / count * reached[:, -1:]
    return torch.searchsorted(reached, places, right=True).clamp_(max=log_p.shape[1] - 1)


def cached_rows(
    ids: Int[Tensor, "rows top_k"],
    logs: Float[Tensor, "rows top_k"],
    masses: Float[Tensor, "rows top_k"] | None,
    labels: Int[Tensor, " rows"],
    weights: Float[Tensor, " rows"],
    temperature: float,
    label_weight: float,
    beta: float,
    divergences: Float[Tensor, " rows"],
) -> RowsLoss:
    """(1 - label_weight) T^2 D + label_weight cross-entropy of each row, times the row's weight.

    With masses m, of drawn tokens, too, D is sum of m (log p - log q), which estimates the forward divergence (beta is 0); its
    gradient by the logits over T is q - m. With None, D is the divergence over the buckets: the teacher's likeliest tokens, and
    the tail. With G the gradient by the logits of the buckets, that of a likely token's logit is then its bucket's, and that of
    another token is q / q_tail of the tail's."""

    def estimated(mass: Tensor, log_q: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        values = (mass * (logs[where].float() - log_q.gather(1, ids[where]))).sum(-1)
        if not gradient_wanted:
            return values, None
        return values, log_q.exp_().mul_(mass.sum(-1, keepdim=True)).scatter_add_(1, ids[where], -mass)

    def bucketed(log_q: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        likely, log_p = ids[where], logs[where].float()
        empty = log_p <= PADDED  # such a place repeats the first token, whose probability counts once
        bucket_q = with_tail(log_q.gather(1, likely).masked_fill_(empty, PADDED))
        values, of_buckets = generalised_jsd(with_tail(log_p), bucket_q, beta, gradient_wanted)
        if of_buckets is None:
            return values, None
        of_tail = of_buckets[:, -1:] / bucket_q[:, -1:].exp()
        return values, log_q.exp_().mul_(of_tail).scatter_(1, likely, torch.where(empty, of_buckets[:, :1], of_buckets[:, :-1]))

    def rows(logits: Tensor, where: slice, gradient_wanted: bool) -> tuple[Tensor, Tensor | None]:
        log_q = torch.log_softmax(logits / temperature, -1)
        if masses is None:
            divergences[where], gradient = bucketed(log_q, where, gradient_wanted)
        else:
            divergences[where], gradient = estimated(masses[where], log_q, where, gradient_wanted)
        share = (1 - label_weight) * temperature**2
        losses = share * divergences[where]
        if gradient is not None:
            gradient.mul_(share / temperature)
        if label_weight > 0:
            plain, label = torch.log_softmax(logits, -1), labels[where, None]
            losses = losses - label_weight * plain.gather(1, label)[:, 0]
            if gradient is not None:
                gradient.add_(plain.exp_(), alpha=label_weight)
                gradient.scatter_add_(1, label, torch.full_like(label, -label_weight, dtype=gradient.dtype))
        weight = weights[where]
        return losses * weight, None if gradient is None else gradient.mul_(weight[:, None])

    return rows


def with_tail(logs: Float[Tensor, "rows top_k"]) -> Float[Tensor, "rows buckets"]:
    """Log-probabilities of tokens, and that of all others together as the last one."""
    left = (1 - logs.exp().sum(-1, keepdim=True)).clamp(min=LEAST_TAIL)
    return torch.cat([logs, left.log()], dim=-1)


def write_reported(folder: Path, documents: Sequence[Document], reported: EndpointTokens, vocabulary: int) -> TeacherCache:
    """Writes the cache of the documents. reported: has given out their answers. vocabulary: rows of the student's head; an
    alternative beyond them joins the rest of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    targets = lengths_and_targets(documents)[1]
    starts = np.concatenate([[0], np.cumsum(targets)])
    top_k = max((ids.shape[1] for ids, _ in reported.answers.values()), default=1)
    shape = (max(1, int(starts[-1])), top_k)
    ids = np.memmap(folder / "ids.bin", np.int32, "w+", shape=shape)
    logs = np.memmap(folder / "logs.bin", np.float16, "w+", shape=shape)
    for place, document in enumerate(documents):
        rows = slice(starts[place], starts[place + 1])
        labels = document.input_ids[1:][document.targets[1:]]
        ids[rows], logs[rows] = labels[:, None], PADDED
        if document.row_id in reported.answers:
            of_row, its_logs = reported.answers[document.row_id]
            count, width = len(labels), of_row.shape[1]
            ids[rows], logs[rows, :width] = of_row[:count, :1], its_logs[:count]
            ids[rows, :width] = of_row[:count]
        beyond = ids[rows] >= vocabulary
        logs[rows] = np.where(beyond, PADDED, logs[rows])
        _first_in_front(ids[rows], logs[rows], labels)
    ids.flush()
    logs.flush()
    with renamed_when_complete(folder / ABOUT) as temporary:
        temporary.write_text(json.dumps({"top_k": top_k, "drawn": 0, "id_dtype": "int32"}))
    return TeacherCache(folder, documents)


def _first_in_front(ids: np.ndarray, logs: np.ndarray, labels: np.ndarray) -> None:
    """Gives each place without an alternative the id of the first one; a target without any gets its label at probability 1."""
    known = logs > PADDED
    none = ~known.any(1)
    ids[none], logs[none, 0] = labels[none, None], 0.0
    known[none, 0] = True
    first = np.take_along_axis(ids, known.argmax(1)[:, None], 1)
    ids[:] = np.where(known, ids, first)

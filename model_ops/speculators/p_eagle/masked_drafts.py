"""Training forward of P-EAGLE: mask entries of every draft, at all indices or at a sample of them.

    outputs = unroll_masked(model, documents, steps=5)             # one [documents, window, hidden] for each draft
    kept = sampled_entries(windows, shares, order)                 # conditional drop (COD): which entries have draft k

Every index j has a sequence of mask entries, so a document of n entries would have n * K. To save compute, draft k is computed
at a share r ** k of the indices, and only where draft k - 1 is, whose keys and values it reads; that makes at most n / (1 - r)
entries. The loss of a draft is divided by its share, so the gradient is unbiased.

Mask entries of different indices do not attend to each other. Entry k of index j sees the document up to j and one entry of
each of drafts 1..k, the same as step k of the training-time test, and `draft_attention` computes both exactly with memory
linear in length. In the first layer all mask entries have the same projections; only their rotary positions differ.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.speculators.backbone.draft_attention import draft_attention
from model_ops.speculators.backbone.draft_layers import RepeatedBody
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.unrolled_draft_steps import Lines, first_step


class MaskedBody(RepeatedBody):
    """A body that also runs on mask entries, the placeholders of tokens that are not drafted yet."""

    @abstractmethod
    def masked(self) -> tuple[Float[Tensor, "1 hidden"], Float[Tensor, "1 hidden"]]:
        """Input of the first layer at every mask entry: (hidden, embedding)."""


def unroll_masked(model: MaskedBody, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
    """Outputs of the body (before the final norm) for every draft, inside the window; zeros at entries not in
    documents.kept."""
    lines = Lines.of(documents)
    cos, sin = lines.rotary(model, steps)
    output, streams = first_step(model, lines, cos, sin)
    places = _places(lines, documents.kept, steps)
    if steps == 1:
        return [lines.padded(output)]
    sizes = [len(at) for at in places]
    moved = torch.cat([lines.index[at] + draft for draft, at in enumerate(places, 1)])
    # indices of the earlier draft's entries that the entries of a later draft see
    before = [[torch.searchsorted(earlier, at) for earlier in places[: draft + 1]] for draft, at in enumerate(places)]
    hidden, embedding = model.masked()
    for layer, (keys, values) in zip(model.body, streams, strict=True):
        x = layer.reads(hidden, embedding)
        key, value = layer.self_attn.key_value(x, cos[moved], sin[moved])
        query = layer.self_attn.query(x, cos[moved], sin[moved])
        own = list(zip(key.split(sizes), value.expand(len(moved), -1, -1).split(sizes), strict=True))
        attended = [
            draft_attention(
                part,
                keys,
                values,
                [(own[draft][0][seen], own[draft][1][seen]) for draft, seen in enumerate(sees)],
                lines.layout,
                at,
            )
            for part, at, sees in zip(query.split(sizes), places, before, strict=True)
        ]
        hidden = layer.finish(hidden, torch.cat(attended).flatten(1))
    return [lines.padded(output), *(lines.padded(part, at) for part, at in zip(hidden.split(sizes), places, strict=True))]


def _places(lines: Lines, kept: Sequence[Tensor] | None, steps: int) -> list[Int[Tensor, " _"]]:
    """For drafts 1, 2, ...: the entries of the concatenated windows that have the draft."""
    queries = lines.of_query
    if kept is None:
        return [torch.arange(len(queries), device=queries.device)] * (steps - 1)
    return [torch.searchsorted(lines.in_padded, entries) for entries in kept[1:steps]]


def sampled_entries(
    windows: Int[Tensor, " documents"], shares: Sequence[float], order: Int[Tensor, " entries"]
) -> list[Int[Tensor, " _"]]:
    """For each draft the ascending entries of the concatenated windows that have it.

    windows: number of entries of each document's window; draft k has a teacher at all but the last k. shares: share of these
    entries to keep, by draft. order: random rank of every entry, the same for all drafts, so an entry with draft k also has the
    drafts before.
    """
    first = windows.cumsum(0) - windows
    within = torch.arange(len(order), device=windows.device) - first.repeat_interleave(windows)
    left = windows.repeat_interleave(windows) - within
    kept = [torch.arange(len(order), device=windows.device)]
    for draft, share in itertools.islice(enumerate(shares), 1, None):
        wanted = math.ceil(share * int((left > draft).sum()))
        able = kept[-1][left[kept[-1]] > draft]
        kept.append(able[order[able].argsort()[:wanted]].sort().values)
    return kept

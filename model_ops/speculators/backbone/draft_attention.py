"""Attention of a draft step in training: causal over its document, plus one key of each later step, in one softmax.

    layout = WindowLayout.of(lengths_before=[6, 2], windows=[7, 7], device=device)
    output = draft_attention(query, keys, values, later, layout)

A fused kernel computes the causal part and returns the log-sum-exp l of its scores; the scores s_i of later steps are merged:
    L = log(exp(l) + sum_i exp(s_i));   output = exp(l - L) output_causal + sum_i exp(s_i - L) v_i
The backward pass of a fused kernel recomputes probabilities as exp(score - L) and uses the output only in sum(gradient *
output). With the merged L and output it therefore returns the gradients of the merged softmax, as in ring attention (Liu et al.
2023, arXiv 2310.01889). Memory is linear in length."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from model_ops.tensors import Boundaries, same_dtype, takes_varlen_kernel, varlen_backward, varlen_forward

SCORES_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Most scores per block with explicit products, in float32; on a CPU about the size of its cache."""

EXPLICIT_UP_TO = 512
"""On a CPU, documents of up to this many tokens use explicit products, which are faster there."""

PADDING_ALLOWED = 1.25
"""With explicit products, largest ratio of the longest to the shortest document, or window, of a group."""

Streams = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class WindowLayout:
    """Layout of concatenated documents."""

    before: list[int]
    """Keys before each document's window."""
    windows: list[int]
    """Queries of each window."""
    key_starts: list[int]
    query_starts: list[int]
    device: torch.device
    last_seen: Int[Tensor, " queries"] | None = None
    """Last visible key of each query in its document; None: the key at its own position."""

    @classmethod
    def of(cls, before: list[int], windows: list[int], device: torch.device) -> WindowLayout:
        lengths = [prompt + window for prompt, window in zip(before, windows, strict=True)]
        return cls(before, windows, [0, *itertools.accumulate(lengths)], [0, *itertools.accumulate(windows)], device)

    @classmethod
    def at(cls, places: Int[Tensor, " queries"], counts: list[int]) -> WindowLayout:
        """A layout with queries at some positions of each document, ascending and concatenated. counts: number per document.
        A document's keys end at its last query."""
        ends, queries = [], 0
        for count in counts:
            queries += count
            ends.append(int(places[queries - 1]) + 1 if count else 0)
        layout = cls.of([end - count for end, count in zip(ends, counts, strict=True)], counts, places.device)
        if torch.equal(layout.keys()[1][layout.queries_among_keys()], places):
            return layout
        return replace(layout, last_seen=places)

    def keys(self) -> tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]:
        """(document, position in it) of every key."""
        document, place, _ = self._indices
        return document.to(self.device), place.to(self.device)

    def queries_among_keys(self) -> Int[Tensor, " queries"]:
        """Indices of the keys at the queries' own positions."""
        return self._indices[2].to(self.device)

    @cached_property
    def _indices(self) -> tuple[Tensor, Tensor, Tensor]:
        """Document and position of every key, and the queries' keys, in main memory: a device would wait for the counts."""
        starts = torch.tensor(self.key_starts)
        document = torch.arange(len(self.windows)).repeat_interleave(starts.diff())
        place = torch.arange(self.key_starts[-1]) - starts[document]
        return document, place, (place >= torch.tensor(self.before)[document]).nonzero()[:, 0]

    def groups(self) -> list[list[int]]:
        """Groups of documents of similar length and window, longest last."""
        lengths = [after - first for first, after in itertools.pairwise(self.key_starts)]
        groups: list[list[int]] = []
        for document in sorted((d for d, window in enumerate(self.windows) if window), key=lambda d: (lengths[d], d)):
            if groups:
                first, members = groups[-1][0], [*groups[-1], document]
                windows = [self.windows[member] for member in members]
                if lengths[document] <= PADDING_ALLOWED * lengths[first] and max(windows) <= 2 * PADDING_ALLOWED * min(windows):
                    groups[-1].append(document)
                    continue
            groups.append([document])
        return groups


def draft_attention(
    query: Float[Tensor, "queries heads head_dim"],
    keys: Float[Tensor, "tokens kv_heads head_dim"],
    values: Float[Tensor, "tokens kv_heads head_dim"],
    later: list[tuple[Tensor, Tensor]],
    layout: WindowLayout,
) -> Float[Tensor, "queries heads head_dim"]:
    """Exact attention of one draft step. later: (keys, values) [queries, kv_heads, head_dim] of each step after step 0."""
    streams = (query, keys, values, *(stream for pair in later for stream in pair))
    if query.device.type != "cpu":
        streams = same_dtype(*streams)
    return _DraftAttention.apply(layout, *streams)


class _DraftAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout: WindowLayout, query: Tensor, keys: Tensor, values: Tensor, *later: Tensor):
        with torch.autocast(query.device.type, enabled=False):
            output, normaliser = _causal_part((query, keys, values), layout)
            if later:
                grouped, scale = query.unflatten(1, (keys.shape[1], -1)), query.shape[-1] ** -0.5
                scores = [_own_score(grouped, key, scale) for key in later[::2]]
                joined = torch.stack((normaliser, *scores)).logsumexp(0)
                output = output.float().mul_((normaliser - joined).exp_()[..., None])
                for score, value in zip(scores, later[1::2], strict=True):
                    weight = (score - joined).exp_().unflatten(1, (keys.shape[1], -1))
                    output.view_as(grouped).addcmul_(weight[..., None], value[:, :, None].float())
                output, normaliser = output.to(values.dtype), joined
        ctx.layout = layout
        ctx.save_for_backward(query, keys, values, output, normaliser, *later)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        query, keys, values, output, normaliser, *later = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            gradient = gradient.contiguous()
            of_query, of_keys, of_values = _causal_gradients(gradient, (query, keys, values), output, normaliser, ctx.layout)
            if not later:
                return None, of_query, of_keys, of_values
            kv_heads, scale = keys.shape[1], query.shape[-1] ** -0.5
            grouped, upstream = query.unflatten(1, (kv_heads, -1)), gradient.unflatten(1, (kv_heads, -1))
            shared = (gradient.float() * output.float()).sum(-1)
            of_later, of_query = [], of_query.float()
            for key, value in zip(later[::2], later[1::2], strict=True):
                weight = (_own_score(grouped, key, scale) - normaliser).exp_()
                of_weight = (upstream * value[:, :, None]).sum(-1, dtype=torch.float32).flatten(1)
                of_score = (weight * (of_weight - shared)).mul_(scale).unflatten(1, (kv_heads, -1))[..., None]
                of_query.view_as(grouped).addcmul_(of_score, key[:, :, None].float())
                of_later.append((of_score * grouped).sum(2).to(key.dtype))
                of_later.append((weight.view_as(of_score) * upstream).sum(2).to(value.dtype))
        return None, of_query.to(query.dtype), of_keys, of_values, *of_later


def _own_score(
    grouped: Float[Tensor, "queries kv_heads group head_dim"], key: Float[Tensor, "queries kv_heads head_dim"], scale: float
) -> Float32[Tensor, "queries heads"]:
    return (grouped * key[:, :, None]).sum(-1, dtype=torch.float32).mul_(scale).flatten(1)


def _causal_part(streams: Streams, layout: WindowLayout) -> tuple[Tensor, Float32[Tensor, "queries heads"]]:
    """Causal attention: output and log-sum-exp of every query over its document's keys up to its own position."""
    query, keys, values = streams
    if layout.last_seen is None and takes_varlen_kernel(query, keys, values):
        output, normaliser = varlen_forward(query, keys, values, _boundaries(layout), query.shape[-1] ** -0.5)
        return output, normaliser.T.contiguous()
    output = torch.empty_like(query)
    normaliser = query.new_empty(query.shape[:2], dtype=torch.float32)
    for members in layout.groups():
        if _takes_cpu_kernel(query, layout, members):
            for document in members:
                _forward_on_a_cpu(streams, layout, document, output, normaliser)
        else:
            _Explicit.of(streams, layout, members).forward(output, normaliser)
    return output, normaliser


def _causal_gradients(
    gradient: Tensor, streams: Streams, output: Tensor, normaliser: Float32[Tensor, "queries heads"], layout: WindowLayout
) -> Streams:
    """Gradients of the causal part, for a softmax with the given log-sum-exp and output."""
    query, keys, values = streams
    if layout.last_seen is None and takes_varlen_kernel(query, keys, values):
        return varlen_backward(
            gradient, query, keys, values, output, normaliser.T.contiguous(), _boundaries(layout), query.shape[-1] ** -0.5
        )
    gradients = tuple(torch.zeros_like(stream) for stream in streams)
    for members in layout.groups():
        if _takes_cpu_kernel(query, layout, members):
            for document in members:
                _backward_on_a_cpu(gradient, streams, layout, document, output, normaliser, gradients)
        else:
            _Explicit.of(streams, layout, members).backward(gradient, output, normaliser, gradients)
    return gradients


def _boundaries(layout: WindowLayout) -> Boundaries:
    """The kernel's causal mask is aligned at the end of queries and keys, as windows are."""
    return Boundaries.of_starts(layout.query_starts, layout.key_starts, layout.device)


def _takes_cpu_kernel(query: Tensor, layout: WindowLayout, members: list[int]) -> bool:
    longest = max(layout.before[document] + layout.windows[document] for document in members)
    return layout.last_seen is None and query.device.type == "cpu" and longest > EXPLICIT_UP_TO


def _parts(streams: Streams, layout: WindowLayout, document: int) -> tuple[slice, list[tuple[slice, bool]]]:
    """A document's queries, and its keys in two parts: before the window (all visible) and within the window (causal)."""
    first, middle = layout.key_starts[document], layout.key_starts[document] + layout.before[document]
    queries = slice(layout.query_starts[document], layout.query_starts[document + 1])
    parts = [(slice(first, middle), False)] if middle > first else []
    return queries, [*parts, (slice(middle, layout.key_starts[document + 1]), True)]


def _heads_first(stream: Tensor, rows: slice) -> Float[Tensor, "1 heads rows head_dim"]:
    return stream[rows].transpose(0, 1)[None]


def _forward_on_a_cpu(streams: Streams, layout: WindowLayout, document: int, output: Tensor, normaliser: Tensor) -> None:
    queries, parts = _parts(streams, layout, document)
    query, scale = _heads_first(streams[0], queries), streams[0].shape[-1] ** -0.5
    attended = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, _heads_first(streams[1], part), _heads_first(streams[2], part), 0.0, causal, scale=scale
        )
        for part, causal in parts
    ]
    joined = torch.stack([sums for _, sums in attended]).logsumexp(0) if len(attended) > 1 else attended[0][1]
    whole = attended[0][0] if len(attended) == 1 else sum((sums - joined).exp_()[..., None] * part for part, sums in attended)
    output[queries] = whole[0].transpose(0, 1).to(output.dtype)
    normaliser[queries] = joined[0].T


def _backward_on_a_cpu(
    gradient: Tensor,
    streams: Streams,
    layout: WindowLayout,
    document: int,
    output: Tensor,
    normaliser: Tensor,
    gradients: Streams,
) -> None:
    queries, parts = _parts(streams, layout, document)
    query, scale = _heads_first(streams[0], queries), streams[0].shape[-1] ** -0.5
    sums = normaliser[queries].T[None].contiguous()
    for part, causal in parts:
        of_part = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _heads_first(gradient, queries),
            query,
            _heads_first(streams[1], part),
            _heads_first(streams[2], part),
            _heads_first(output, queries),
            sums,
            0.0,
            causal,
            scale=scale,
        )
        for total, rows, one in zip(gradients, (queries, part, part), of_part, strict=True):
            total[rows] += one[0].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class _Explicit:
    """A padded group of documents with explicit scores, computed in blocks of queries with at most SCORES_AT_ONCE scores, each
    with its visible keys. where_*: indices into the concatenated tensors; padding repeats a document's last index."""

    streams: Streams
    where_query: Int[Tensor, "documents window"]
    where_key: Int[Tensor, "documents tokens"]
    last_seen: Int[Tensor, "documents window"]
    real_query: Tensor
    real_key: Tensor
    block: int

    @classmethod
    def of(cls, streams: Streams, layout: WindowLayout, members: list[int]) -> _Explicit:
        device, heads = layout.device, streams[0].shape[1]
        before, windows, key_starts, query_starts = (
            torch.tensor([of_all[d] for d in members], device=device)[:, None]
            for of_all in (layout.before, layout.windows, layout.key_starts, layout.query_starts)
        )
        longest, widest = int((before + windows).max()), int(windows.max())
        place, token = torch.arange(widest, device=device), torch.arange(longest, device=device)
        block = max(1, SCORES_AT_ONCE.get(device.type, SCORES_AT_ONCE["cpu"]) // (len(members) * heads * longest))
        within = torch.minimum(place, windows - 1)
        where_query = query_starts + within
        last_seen = before + within if layout.last_seen is None else layout.last_seen[where_query]
        return cls(
            streams,
            where_query,
            key_starts + torch.minimum(token, before + windows - 1),
            last_seen,
            place < windows,
            token < before + windows,
            min(block, widest),
        )

    def blocks(self):
        """(slice of the window, number of visible keys, queries, keys, values, scaled scores in float32), heads first."""
        query, keys, values = self.streams
        kv_heads, head_dim = keys.shape[1:]
        for first in range(0, self.where_query.shape[1], self.block):
            part = slice(first, first + self.block)
            seen = int(self.last_seen[:, part].max()) + 1
            queries = query[self.where_query[:, part]].unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
            rows = queries.flatten(2, 3)  # [documents, kv_heads, group * queries, head_dim]
            key, value = (stream[self.where_key[:, :seen]].transpose(1, 2) for stream in (keys, values))
            scores = (rows @ key.mT).float().mul_(head_dim**-0.5)
            unseen = torch.arange(seen, device=query.device) > self.last_seen[:, part, None]
            scores.unflatten(2, (-1, unseen.shape[1])).masked_fill_(unseen[:, None, None], float("-inf"))
            yield part, seen, rows, key, value, scores

    def forward(self, output: Tensor, normaliser: Tensor) -> None:
        for part, _, _, _, value, scores in self.blocks():
            top = scores.amax(-1)
            weights = scores.softmax(-1)
            real = self.real_query[:, part]
            where = self.where_query[:, part][real]
            output[where] = self.queries_first(weights.to(value.dtype) @ value, real)
            normaliser[where] = self.queries_first((top - weights.amax(-1).log())[..., None], real)[..., 0]

    def backward(self, gradient: Tensor, output: Tensor, normaliser: Tensor, gradients: Streams) -> None:
        kv_heads = self.streams[1].shape[1]
        shared = (gradient.float() * output.float()).sum(-1)
        of_key, of_value = (
            stream.new_zeros(len(self.where_key), kv_heads, self.where_key.shape[1], stream.shape[-1], dtype=torch.float32)
            for stream in self.streams[1:]
        )
        for part, seen, rows, key, value, scores in self.blocks():
            real, where = self.real_query[:, part], self.where_query[:, part]
            sums = normaliser[where].masked_fill_(~real[..., None], float("inf"))  # padding gets weight 0
            upstream, sums, inner = (
                self.heads_first(stream, kv_heads) for stream in (gradient[where], sums[..., None], shared[where][..., None])
            )
            weights = scores.sub_(sums).exp_()
            of_value[:, :, :seen] += weights.to(value.dtype).mT @ upstream
            of_scores = (upstream @ value.mT).float().sub_(inner).mul_(weights).mul_(rows.shape[-1] ** -0.5).to(value.dtype)
            of_key[:, :, :seen] += of_scores.mT @ rows
            gradients[0][where[real]] = self.queries_first(of_scores @ key, real)
        for total, summed in zip(gradients[1:], (of_key, of_value), strict=True):
            total[self.where_key[self.real_key]] = summed.transpose(1, 2)[self.real_key].to(total.dtype)

    @staticmethod
    def heads_first(stream: Float[Tensor, "documents window heads width"], kv_heads: int) -> Tensor:
        return stream.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def queries_first(self, stream: Float[Tensor, "documents kv_heads rows width"], real: Tensor) -> Tensor:
        """[queries, heads, width] without padding."""
        return stream.unflatten(2, (-1, real.shape[1])).permute(0, 3, 1, 2, 4).flatten(2, 3)[real]

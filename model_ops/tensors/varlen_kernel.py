"""CUDA's flash attention over documents laid end to end, forward and backward. torch's public varlen_attn ignores the
gradient of the log-sum-exp in its backward pass; callers that merge further scores into the softmax call `varlen_backward`
with the merged output and log-sum-exp, from which the kernel recomputes probabilities (FlashAttention-2, arXiv 2307.08691,
section 3)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Float32, Int32
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from model_ops.tensors.torch_internals import FakeTensor, device_kind

WIDEST_HEAD = 256
"""Largest head_dim of the kernel; head_dim must also be a multiple of 8."""


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Cumulative lengths of documents, on the device, and the longest document, for queries and for keys. If a document has
    more keys than queries, its queries are the last positions."""

    queries: Int32[Tensor, " documents_and_one"]
    keys: Int32[Tensor, " documents_and_one"]
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Boundaries:
        """The boundaries of documents with as many queries as keys."""
        starts = (0, *itertools.accumulate(lengths))
        return _boundaries(starts, starts, device)

    @classmethod
    def of_starts(cls, query_starts: Sequence[int], key_starts: Sequence[int], device: torch.device) -> Boundaries:
        """The boundaries for two lists of starts, each ending with the number of its rows."""
        return _boundaries(tuple(query_starts), tuple(key_starts), device)


@lru_cache(maxsize=64)
def _boundaries(query_starts: tuple[int, ...], key_starts: tuple[int, ...], device: torch.device) -> Boundaries:
    """Kept, so that all layers and draft steps share one copy to the device, for which nothing waits."""
    both = query_starts, key_starts
    placed = (torch.tensor(starts, dtype=torch.int32).to(device, non_blocking=True) for starts in both)
    return Boundaries(*placed, *(max(after - start for start, after in itertools.pairwise(starts)) for starts in both))


def same_dtype(*streams: Tensor) -> tuple[Tensor, ...]:
    """The streams in autocast's dtype, if autocast is on. Rotary positions promote queries and keys to the float32 of the
    residual stream, while values have autocast's dtype; fused kernels refuse mixed dtypes."""
    kind = streams[0].device.type
    if not torch.is_autocast_enabled(kind):
        return streams
    return tuple(stream.to(torch.get_autocast_dtype(kind)) for stream in streams)


def takes_varlen_kernel(
    query: Float[Tensor, "queries heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads value_dim"],
) -> bool:
    """Whether the kernel computes these streams, forward and backward, on their device. torch is asked, because the answer
    depends on the device's generation, on head_dim, and on what the caller has switched off."""
    head_dim = query.shape[-1]
    planned = isinstance(query, FakeTensor) and device_kind(query) == "cuda"  # in float32 too: another kernel keeps as much
    fits = (
        (query.is_cuda or planned)
        and query.dtype == key.dtype == value.dtype
        and (query.dtype in (torch.bfloat16, torch.float16) or planned)
        and value.shape[-1] == head_dim
        and head_dim % 8 == 0
        and head_dim <= WIDEST_HEAD
        and query.shape[0] > 0
    )
    if not fits or planned:
        return fits
    # One token of each, since torch refuses a causal mask over streams of different lengths, which this kernel supports.
    # requires_grad: some devices lack the backward pass of wide heads.
    asked = [stream.detach()[:1].requires_grad_().transpose(0, 1)[None] for stream in (query, key, value)]
    return can_use_flash_attention(SDPAParams(*asked, None, 0.0, True, query.shape[1] != key.shape[1]))


def varlen_forward(
    query: Float[Tensor, "queries heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
    boundaries: Boundaries,
    scale: float,
    window: int | None = None,
) -> tuple[Tensor, Float32[Tensor, "heads queries"]]:
    """Causal attention of each document, and the log-sum-exp of each query's scores. window: number of positions that a query
    sees, its own included; None: all before it."""
    output, normaliser, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        boundaries.queries,
        boundaries.keys,
        boundaries.longest_query,
        boundaries.longest_key,
        0.0,
        window is None,
        False,
        scale=scale,
        window_size_left=_left(window),
        window_size_right=0,
    )
    return output, normaliser


def varlen_backward(
    gradient: Float[Tensor, "queries heads head_dim"],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Float[Tensor, "queries heads head_dim"],
    normaliser: Float32[Tensor, "heads queries"],
    boundaries: Boundaries,
    scale: float,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value for a softmax with the given output and log-sum-exp."""
    random_state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # read for dropout only
    unused = torch.empty(0, device=query.device)
    return torch.ops.aten._flash_attention_backward(
        gradient.contiguous(),
        query,
        key,
        value,
        output,
        normaliser,
        boundaries.queries,
        boundaries.keys,
        boundaries.longest_query,
        boundaries.longest_key,
        0.0,
        window is None,
        random_state,
        unused,
        scale=scale,
        window_size_left=_left(window),
        window_size_right=0,
    )


def _left(window: int | None) -> int:
    return -1 if window is None else window - 1

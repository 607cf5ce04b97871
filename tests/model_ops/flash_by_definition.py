"""CUDA's flash attention on a CPU: the two operators, replaced where torch dispatches them, computed from their own arguments.

    with FlashByDefinition() as flash:
        output, normaliser = varlen_forward(...)
    flash.calls          # one for each call of an operator

What this project passes to the kernel (scale, window, boundaries) is thus compared with a definition, without a device.
"""

import itertools

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


def scores_of(query, key, scale, causal, left, right):
    """Scaled scores of one document [heads, queries, keys]; -inf where the kernel's mask, aligned at the end, hides a key.
    left, right: keys before and after a query's own place that it sees; -1: all. causal: none after it."""
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    own = torch.arange(len(query))[:, None] + len(key) - len(query)
    place = torch.arange(len(key))[None]
    hidden = torch.zeros(len(query), len(key), dtype=torch.bool)
    if causal or right >= 0:
        hidden |= place > own + (0 if causal else right)
    if left >= 0:
        hidden |= place < own - left
    return scores.masked_fill(hidden, float("-inf"))


def documents(query, key, value, query_starts, key_starts):
    """Rows of queries and of keys, and the three streams with repeated key heads, per document."""
    shared = query.shape[1] // key.shape[1]
    for (q, q_end), (k, k_end) in zip(
        itertools.pairwise(query_starts.tolist()), itertools.pairwise(key_starts.tolist()), strict=True
    ):
        keys, values = (stream[k:k_end].float().repeat_interleave(shared, 1) for stream in (key, value))
        yield slice(q, q_end), slice(k, k_end), query[q:q_end].float(), keys, values


def forward(
    query,
    key,
    value,
    query_starts,
    key_starts,
    longest_query,
    longest_key,
    dropout,
    causal,
    debug,
    *,
    scale=None,
    window_size_left=-1,
    window_size_right=-1,
):
    _check(query_starts, key_starts, longest_query, longest_key, dropout)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, normaliser = torch.zeros_like(query), query.new_full((query.shape[1], len(query)), -torch.inf, dtype=torch.float32)
    for rows, _, q, k, v in documents(query, key, value, query_starts, key_starts):
        scores = scores_of(q, k, scale, causal, window_size_left, window_size_right)
        output[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(output.dtype)
        normaliser[:, rows] = scores.logsumexp(-1)
    unused = torch.empty(0)
    return output, normaliser, unused, unused, unused


def backward(
    gradient,
    query,
    key,
    value,
    output,
    normaliser,
    query_starts,
    key_starts,
    longest_query,
    longest_key,
    dropout,
    causal,
    state,
    unused,
    *,
    scale=None,
    window_size_left=-1,
    window_size_right=-1,
):
    """FlashAttention-2, arXiv 2307.08691, algorithm 2: probabilities from the given log-sum-exp, D from the given output."""
    _check(query_starts, key_starts, longest_query, longest_key, dropout)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    found = [torch.zeros_like(stream) for stream in (query, key, value)]
    group = query.shape[1] // key.shape[1]
    for rows, columns, q, k, v in documents(query, key, value, query_starts, key_starts):
        up = gradient[rows].float()
        weights = (scores_of(q, k, scale, causal, window_size_left, window_size_right) - normaliser[:, rows, None]).exp()
        inner = (output[rows].float() * up).sum(-1).T[..., None]
        slopes = weights * (torch.einsum("qhd,khd->hqk", up, v) - inner) * scale
        found[0][rows] = torch.einsum("hqk,khd->qhd", slopes, k).to(query.dtype)
        found[1][columns] = torch.einsum("hqk,qhd->khd", slopes, q).unflatten(1, (-1, group)).sum(2).to(key.dtype)
        found[2][columns] = torch.einsum("hqk,qhd->khd", weights, up).unflatten(1, (-1, group)).sum(2).to(value.dtype)
    return tuple(found)


def _check(query_starts, key_starts, longest_query, longest_key, dropout):
    """The kernel computes nothing beyond the longest document that it is told."""
    assert longest_query >= int(query_starts.diff().max()) and longest_key >= int(key_starts.diff().max())
    assert query_starts.dtype == key_starts.dtype == torch.int32 and dropout == 0


OPERATORS = {aten._flash_attention_forward.default: forward, aten._flash_attention_backward.default: backward}


class FlashByDefinition(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        if operator not in OPERATORS:
            return operator(*given, **(named or {}))
        self.calls.append(operator)
        return OPERATORS[operator](*given, **(named or {}))

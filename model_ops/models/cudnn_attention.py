"""cuDNN's attention for rows whose documents all have one length.

    if takes_cudnn(query, key, value, lengths):                       # [tokens, heads, head_dim], documents end to end
        output = cudnn_attention(query, key, value, len(lengths), scaling)

On Hopper it is faster than FlashAttention-2, but it builds a plan for every shape that it meets, in up to a second. So torch's
own choice of it is switched off (model_ops.machine.torch_environment), and it is taken where shapes repeat: rows of long
documents that were cut to one length. Documents of many lengths would need a plan for every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import median

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from model_ops.machine import device_rates
from model_ops.tensors import Boundaries, cuda_rows, flash_3_suits, varlen_backward, varlen_forward

MOST_SHAPES = 8
"""Shapes of rows that it computes in one process; others are left to flash attention."""
SHORTEST = 512
"""Documents of fewer tokens are left to flash attention: a step has little to gain there."""
FIRST_DEVICE, FIRST_VERSION = (9, 0), 91_501
"""Compute capability; cuDNN before 9.15.1 is wrong for some lengths that are no multiple of 128."""
Rows = Float[Tensor, "tokens _ head_dim"]
"""Documents end to end; keys and values have fewer heads than queries, or as many."""

_shapes: set[tuple[object, ...]] = set()


def takes_cudnn(query: Rows, key: Rows, value: Rows, lengths: Sequence[int]) -> bool:
    """Whether cuDNN computes these documents, forward and backward: they have one length, their shape is one of the first
    MOST_SHAPES, torch allows it (not under deterministic algorithms), and it agreed with flash attention and was faster."""
    if not query.is_cuda or not min(lengths) == max(lengths) >= SHORTEST:
        return False
    shape = (len(lengths), lengths[0], query.shape[1:], key.shape[1:], query.dtype, query.device)
    taken = (
        len(_shapes | {shape}) <= MOST_SHAPES
        and can_use_cudnn_attention(SDPAParams(*_stacked((query, key, value), len(lengths)), None, 0.0, True, True))
        and cudnn_suits(query.device, query.shape[1], *key.shape[1:])
    )
    _shapes.update({shape} if taken else ())
    return taken


def cudnn_attention(query: Rows, key: Rows, value: Rows, documents: int, scaling: float) -> Rows:
    """Causal attention within each of so many documents of one length; consecutive query heads share a key head."""
    streams, shared = _stacked((query, key, value), documents), query.shape[1] != key.shape[1]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        output = F.scaled_dot_product_attention(*streams, is_causal=True, scale=scaling, enable_gqa=shared)
    return output.transpose(1, 2).flatten(0, 1)


def _stacked(streams: Sequence[Tensor], documents: int) -> list[Tensor]:
    """Views [documents, heads, length, head_dim]."""
    return [stream.unflatten(0, (documents, -1)).transpose(1, 2) for stream in streams]


@lru_cache(maxsize=16)
def cudnn_suits(device: torch.device, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether cuDNN gives the numbers of flash attention for such heads on this device, in less time. Tried once."""
    version = torch.backends.cudnn.version() or 0
    if torch.cuda.get_device_capability(device) < FIRST_DEVICE or version < FIRST_VERSION or flash_3_suits(device):
        return False
    lengths, scaling, generator = [1_027, 1_027], head_dim**-0.5, torch.Generator(device).manual_seed(0)
    layout, tokens = Boundaries.of(lengths, device), sum(lengths)
    shapes = ((tokens, each, head_dim) for each in (heads, kv_heads, kv_heads))
    query, key, value = (torch.randn(shape, device=device, generator=generator).bfloat16() for shape in shapes)

    def by_flash() -> list[Tensor]:
        output, normaliser = varlen_forward(query, key, value, layout, scaling)
        return [output, *varlen_backward(query, query, key, value, output, normaliser, layout, scaling)]

    def by_cudnn() -> list[Tensor]:
        with torch.enable_grad():
            leaves = one, other, third = [each.detach().requires_grad_() for each in (query, key, value)]
            output = cudnn_attention(one, other, third, len(lengths), scaling)
            return [output.detach(), *torch.autograd.grad(output, leaves, query)]

    if not cuda_rows.near_twins("cuDNN's kernels", device, lambda: [(by_cudnn(), by_flash())]):
        return False
    return median(device_rates.seconds_of(by_cudnn)) < median(device_rates.seconds_of(by_flash))

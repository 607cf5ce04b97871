"""Context parallelism (Ulysses, arXiv 2309.14509): each process has a part of a row's tokens; attention sees all of them.

Around attention two all-to-all exchanges turn some tokens of all heads into all tokens of some heads and back, so any attention
works and packed documents stay separate. With fewer key heads than processes, key heads are repeated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from model_ops.parallel.collectives import heads_to_tokens, tokens_to_heads
from model_ops.tensors import AnyBatch


@dataclass(frozen=True, eq=False)
class Context:
    """The processes that share a row's tokens."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def attend(
        self,
        attention: Callable[..., tuple[Tensor, None]],
        module: nn.Module,
        query: Float[Tensor, "1 heads share head_dim"],
        key: Float[Tensor, "1 kv_heads share head_dim"],
        value: Float[Tensor, "1 kv_heads share head_dim"],
        *arguments: Any,
        s_aux: Tensor | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "1 share heads head_dim"], None]:
        """`attention` over all tokens of this process's heads. s_aux: per-head sinks, sharded like the heads."""
        repeated = self.size // math.gcd(self.size, key.shape[1])
        if repeated > 1:
            key, value = (stream.repeat_interleave(repeated, dim=1) for stream in (key, value))
        query, key, value = (tokens_to_heads(stream, self.group) for stream in (query, key, value))
        if s_aux is not None:
            options["s_aux"] = s_aux.chunk(self.size)[self.rank]
        attended, _ = attention(module, query, key, value, *arguments, **options)
        return heads_to_tokens(attended.transpose(1, 2), self.group).transpose(1, 2), None


def pad(batch: AnyBatch, multiple: int) -> AnyBatch:
    """Pads a batch with a document without labels, so that its number of tokens is a multiple of `multiple`."""
    missing = -batch.tokens % multiple
    if missing == 0:
        return batch
    streams = {name: getattr(batch, name) for name in batch.paddings()}
    padded = {
        name: F.pad(value, (*(0, 0) * (value.ndim - 1), 0, missing), value=batch.paddings()[name])
        for name, value in streams.items()
    }
    padded["position_ids"] = torch.cat([batch.position_ids, torch.arange(missing, device=batch.position_ids.device)])
    prefixes = batch.document_prefixes and [*batch.document_prefixes, (0, 0)]
    return replace(batch, **padded, document_lengths=[*batch.document_lengths, missing], document_prefixes=prefixes)


def cut(batch: AnyBatch, context: Context) -> AnyBatch:
    """This process's tokens of a batch that was padded to a multiple of the processes; document_lengths still describe the
    whole row."""
    share = batch.tokens // context.size
    mine = slice(context.rank * share, (context.rank + 1) * share)
    return replace(batch, **{name: getattr(batch, name)[mine] for name in batch.paddings()}, context=context)

"""Causal attention with sliding window (position i attends to i - window + 1 to i), soft cap (a score s becomes c tanh(s / c),
Gemma 2) and sinks (one logit per head in the softmax, arXiv 2309.17453), which fused kernels do not support on every device.
The backward pass recomputes a block's scores from the log-sum-exp (FlashAttention-2, arXiv 2307.08691, section 3)."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Most scores in a block, by kind of device: 16 MiB or 512 MiB in float32."""

SMALLEST_BLOCK = 64


def block_attention(
    query: Float[Tensor, "documents heads longest head_dim"],
    key: Float[Tensor, "documents kv_heads longest head_dim"],
    value: Float[Tensor, "documents kv_heads longest value_dim"],
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "documents heads longest value_dim"]:
    """Each document attends to itself; consecutive query heads share a key head. Differentiable in all four tensors."""
    return _BlockAttention.apply(*_as_products(query, key, value), sinks, scaling, window, softcap)


def largest_scores(
    query: Float[Tensor, "documents heads longest head_dim"],
    key: Float[Tensor, "documents kv_heads longest head_dim"],
    scaling: float,
    window: int | None = None,
) -> Float[Tensor, " heads"]:
    """The largest score of each head, without soft cap and sinks. Not differentiable."""
    query, key = _as_products(query, key)
    streams = _Streams(query, key, key, scaling, window, None)
    highest = query.new_full((streams.heads,), float("-inf"), dtype=torch.float32)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        for block in streams.blocks():
            of_queries = streams.unfolded(streams.scores(block)[0].amax(-1, keepdim=True), block)
            highest = torch.maximum(highest, of_queries.amax((0, 2, 3)))
    return highest


def _as_products(*streams: Tensor) -> tuple[Tensor, ...]:
    """The streams in the dtype of matrix products."""
    kind = streams[0].device.type
    if not torch.is_autocast_enabled(kind):
        return streams
    return tuple(stream.to(torch.get_autocast_dtype(kind)) for stream in streams)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ):
        streams = _Streams(query, key, value, scaling, window, softcap)
        outputs, normals = [], []
        with torch.autocast(query.device.type, enabled=False):
            for block in streams.blocks():
                scores, _ = streams.scores(block)
                normal = scores.logsumexp(-1)
                if sinks is not None:
                    normal = torch.logaddexp(normal, streams.spread(sinks, block))
                weights = scores.sub_(normal[..., None]).exp_().to(query.dtype)
                outputs.append(streams.unfolded(torch.bmm(weights, streams.values[:, block.keys]), block))
                normals.append(normal)
        output = torch.cat(outputs, 2)
        ctx.save_for_backward(query, key, value, output, *([] if sinks is None else [sinks]), *normals)
        ctx.options = (sinks is not None, scaling, window, softcap)
        return output

    @staticmethod
    def backward(ctx, gradient: Tensor):
        has_sinks, scaling, window, softcap = ctx.options
        query, key, value, output, *rest = ctx.saved_tensors
        sinks, normals = (rest[0], rest[1:]) if has_sinks else (None, rest)
        streams = _Streams(query, key, value, scaling, window, softcap)
        key_gradient = torch.zeros_like(streams.keys, dtype=torch.float32)
        value_gradient = torch.zeros_like(streams.values, dtype=torch.float32)
        sink_gradient = None if sinks is None else torch.zeros_like(sinks, dtype=torch.float32)
        query_gradients = []
        for block, normal in zip(streams.blocks(), normals, strict=True):
            scores, capped = streams.scores(block)
            weights = scores.sub_(normal[..., None]).exp_()
            wanted = streams.folded(gradient, block)
            # sum over keys of weight x (its gradient) equals output . gradient, with and without sinks
            mean = (streams.folded(output, block).float() * wanted.float()).sum(-1, keepdim=True)
            keys = streams.keys[:, block.keys]
            value_gradient[:, block.keys] += torch.bmm(weights.to(query.dtype).transpose(1, 2), wanted)
            slopes = torch.bmm(wanted, streams.values[:, block.keys].transpose(1, 2)).float().sub_(mean).mul_(weights)
            if capped is not None:
                slopes.mul_(1 - capped.square_())
            slopes = slopes.mul_(scaling).to(query.dtype)
            query_gradients.append(streams.unfolded(torch.bmm(slopes, keys), block))
            key_gradient[:, block.keys] += torch.bmm(slopes.transpose(1, 2), streams.folded(query, block))
            if sink_gradient is not None:
                share = (streams.spread(sinks, block) - normal).exp()
                lost = streams.unfolded((share[..., None] * mean), block)
                sink_gradient -= lost.sum((0, 2, 3))
        return (
            torch.cat(query_gradients, 2),
            key_gradient.view_as(key).to(key.dtype),
            value_gradient.view_as(value).to(value.dtype),
            None if sinks is None or sink_gradient is None else sink_gradient.to(sinks.dtype),
            None,
            None,
            None,
        )


class _Block:
    """Queries first:last of every document, and the keys that are visible to any of them."""

    def __init__(self, first: int, last: int, window: int | None):
        self.first, self.last = first, last
        self.keys = slice(0 if window is None else max(0, first - window + 1), last)

    def hidden(self, window: int | None, device: torch.device) -> Bool[Tensor, "queries keys"]:
        """Mask of keys that a query must not see: later positions, and positions before the window."""
        queries = torch.arange(self.first, self.last, device=device)[:, None]
        keys = torch.arange(self.keys.start, self.last, device=device)[None]
        hidden = keys > queries
        return hidden if window is None else hidden | (keys <= queries - window)


class _Streams:
    """Queries grouped by the key head that they share: [documents x kv_heads, shared x block, head_dim]."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float | None):
        self.documents, self.heads, self.longest, self.head_dim = query.shape
        self.kv_heads = key.shape[1]
        self.shared = self.heads // self.kv_heads
        self.query, self.scaling, self.window, self.softcap = query, scaling, window, softcap
        self.keys = key.reshape(self.documents * self.kv_heads, self.longest, self.head_dim)
        self.values = value.reshape(self.documents * self.kv_heads, self.longest, self.head_dim)

    def blocks(self) -> Iterator[_Block]:
        reach = self.longest if self.window is None else min(self.window, self.longest)
        allowed = BLOCK_SCORES.get(self.query.device.type, 1 << 22) // (self.documents * self.heads * reach)
        # a block as long as the window computes twice the necessary scores; longer ones waste more
        size = max(SMALLEST_BLOCK, min(allowed, self.longest if self.window is None else max(self.window, 128)))
        for first in range(0, self.longest, size):
            yield _Block(first, min(first + size, self.longest), self.window)

    def folded(self, stream: Float[Tensor, "documents heads longest head_dim"], block: _Block) -> Tensor:
        part = stream[:, :, block.first : block.last]
        return part.reshape(self.documents * self.kv_heads, -1, stream.shape[-1])

    def unfolded(self, part: Tensor, block: _Block) -> Float[Tensor, "documents heads block head_dim"]:
        return part.view(self.documents, self.heads, block.last - block.first, part.shape[-1])

    def spread(self, sinks: Float[Tensor, " heads"], block: _Block) -> Float[Tensor, "folded queries"]:
        """Each query's sink logit, in the order of `folded`."""
        each = sinks.float().view(1, self.kv_heads, self.shared, 1)
        return each.expand(self.documents, -1, -1, block.last - block.first).reshape(self.documents * self.kv_heads, -1)

    def scores(self, block: _Block) -> tuple[Float[Tensor, "folded queries keys"], Tensor | None]:
        """Masked float32 scores, and tanh(score / softcap) for the derivative (None without a cap)."""
        scores = torch.bmm(self.folded(self.query, block), self.keys[:, block.keys].transpose(1, 2)).float()
        scores.mul_(self.scaling)
        capped = None
        if self.softcap is not None:
            capped = scores.div_(self.softcap).tanh_()
            scores = capped * self.softcap
        hidden = block.hidden(self.window, scores.device).repeat(self.shared, 1)
        return scores.masked_fill_(hidden, float("-inf")), capped

"""Attention for packed rows: each document attends only to itself; the cost is the sum of squared document lengths.

    model = load_model(directory, attention="packed")
    model(input_ids[None], position_ids=position_ids[None], use_cache=False, document_lengths=[120, 64, 200])

On CUDA a row is one call of flash attention where its kernel takes the heads (no soft caps). Elsewhere documents are gathered
into groups of similar length, padded after their end, which causal attention never reads; short ones on a CPU use two batched
products, layers with a window, soft cap or sinks model_ops.models.block_attention. With `document_prefixes` a document
continues the beginning of another one of its row.

A sink is one logit s per head in the softmax, without a value. It changes the log-sum-exp l and the output o to
    L = log(exp(l) + exp(s));   O = exp(l - L) o;   ds = -sum over queries of exp(s - L) (O . gradient)
and the kernel's backward pass with L and O gives the other gradients."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from transformers import AttentionInterface

from model_ops.models.block_attention import block_attention, largest_scores
from model_ops.parallel import Context
from model_ops.tensors import Boundaries, same_dtype, takes_varlen_kernel, torch_internals, varlen_kernel

PADDING_ALLOWED = 1.25
"""Largest ratio of the longest to the shortest document of a group."""

SMALLEST_GROUP = 64
"""Documents of up to this many tokens form one group: padding them costs less than another call."""

EXPLICIT_UP_TO = {torch.float32: 128, torch.bfloat16: 512}
"""On a CPU, documents of up to this many tokens use explicit matrix products, by the dtype of the products. The fused kernel
leaves out what causal attention does not see: in float32 it took 0.54 to 0.75 of the processor time at 512 tokens, and as much
at 128."""


def packed_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch kv_heads tokens head_dim"],
    value: Float[Tensor, "batch kv_heads tokens value_dim"],
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " heads"] | None = None,
    document_lengths: list[int] | None = None,
    document_prefixes: list[tuple[int, int]] | None = None,
    context_parallel: Context | None = None,
    **_: object,
) -> tuple[Float[Tensor, "batch tokens heads value_dim"], None]:
    """Attention with the signature of transformers' attention interface. Raises ValueError for unsupported arguments. With
    `context_parallel`, tokens are this process's share of the row, and document_lengths describe the whole row."""
    if context_parallel is not None:
        if document_prefixes is not None:
            raise ValueError("processes that share a row cannot compute documents that continue others")
        return context_parallel.attend(
            packed_attention,
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            dropout=dropout,
            sliding_window=sliding_window,
            softcap=softcap,
            s_aux=s_aux,
            document_lengths=document_lengths,
        )
    batch, _, tokens, head_dim = query.shape
    lengths = [tokens] if document_lengths is None else list(document_lengths)
    _refuse_unsupported(module, query, key, attention_mask, document_lengths)
    scaling = head_dim**-0.5 if scaling is None else scaling
    if torch_internals.device_kind(query) != "cpu":
        query, key, value = same_dtype(query, key, value)
    if dropout == 0 and softcap is None and takes_varlen_kernel(*(stream[0].transpose(0, 1) for stream in (query, key, value))):
        row = [stream.transpose(1, 2).flatten(0, 1) for stream in (query, key, value)]  # [tokens, heads, head_dim]
        if document_prefixes is None:
            output = varlen_attention(*row, lengths=lengths * batch, scaling=scaling, window=sliding_window, sinks=s_aux)
            return output.unflatten(0, (batch, tokens)), None
        paths = document_paths(tuple(lengths), query.device, tuple(document_prefixes))
        output = varlen_attention(
            *(_Gather.apply(stream, paths) for stream in row),
            lengths=path_lengths(lengths, document_prefixes),
            scaling=scaling,
            window=sliding_window,
            sinks=s_aux,
        )
        return _Scatter.apply([paths], tokens, output)[None], None

    def attend(*streams: Tensor) -> Tensor:
        window = sliding_window if sliding_window is not None and streams[0].shape[2] > sliding_window else None
        if window is None and softcap is None and s_aux is None:
            return _attend(*streams, scaling=scaling, dropout=dropout)
        if dropout > 0:
            raise ValueError("attention with a window, a soft cap or sinks has no dropout; set attention_dropout to 0")
        return block_attention(*streams, scaling=scaling, window=window, softcap=softcap, sinks=s_aux)

    if len(lengths) == 1:
        return attend(query, key, value).transpose(1, 2), None
    groups = document_groups(tuple(lengths), query.device, tuple(document_prefixes) if document_prefixes else None)
    streams = [stream[0].transpose(0, 1) for stream in (query, key, value)]  # [tokens, heads, head_dim]
    outputs = []
    for group in groups:
        gathered = [_Gather.apply(stream, group).transpose(1, 2) for stream in streams]
        outputs.append(attend(*gathered).transpose(1, 2))
    return _Scatter.apply(groups, tokens, *outputs)[None], None


def _refuse_unsupported(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, document_lengths: list[int] | None
) -> None:
    if attention_mask is not None:
        raise ValueError("packed attention takes no attention_mask; load the model with attention='sdpa' to use one")
    if key.shape[2] != query.shape[2]:
        raise ValueError("packed attention takes no cache; load the model with attention='sdpa' to decode")
    if document_lengths is not None and query.shape[0] != 1:
        raise ValueError("document_lengths describe one packed row; the batch must be 1")
    if document_lengths is not None and sum(document_lengths) != query.shape[2]:
        raise ValueError(f"document_lengths add up to {sum(document_lengths)}, but the row has {query.shape[2]} tokens")
    if not getattr(module, "is_causal", True):
        raise ValueError("packed attention is causal; choose a model with causal attention")


def _attend(
    query: Float[Tensor, "documents heads longest head_dim"],
    key: Float[Tensor, "documents kv_heads longest head_dim"],
    value: Float[Tensor, "documents kv_heads longest value_dim"],
    scaling: float,
    dropout: float,
) -> Float[Tensor, "documents heads longest value_dim"]:
    """Causal attention over documents of equal length; consecutive query heads share a key head."""
    documents, heads, longest, head_dim = query.shape
    kv_heads = key.shape[1]
    shared = heads // kv_heads
    of_products = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    if query.device.type != "cpu" or longest > EXPLICIT_UP_TO.get(of_products, 0) or dropout > 0:
        grouped = shared > 1 and _kernel_groups_heads(query, key, value, dropout)
        if shared > 1 and not grouped:
            key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=grouped
        )
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (stream.to(torch.get_autocast_dtype("cpu")) for stream in (query, key, value))
    queries = query.reshape(documents * kv_heads, shared * longest, head_dim)
    keys = key.reshape(documents * kv_heads, longest, head_dim)
    values = value.reshape(documents * kv_heads, longest, value.shape[-1])  # with MLA, values have another width
    scores = torch.baddbmm(_causal(longest, shared, query.dtype), queries, keys.transpose(1, 2), alpha=scaling)
    # A CPU softmax of bfloat16 sums in float32 anyway; asking for float32 would copy the scores once more.
    with torch.autocast("cpu", enabled=False):
        weights = scores.softmax(-1)
    return torch.bmm(weights, values).view(documents, heads, longest, value.shape[-1])


def _kernel_groups_heads(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether a fused kernel supports shared key heads (GQA). Otherwise they are repeated, because torch would fall back to the
    unfused formula with all scores in memory."""
    return query.is_cuda and can_use_flash_attention(SDPAParams(query, key, value, None, dropout, True, True))


@lru_cache(maxsize=64)
def _causal(longest: int, shared: int, dtype: torch.dtype) -> Float[Tensor, "1 queries longest"]:
    mask = torch.full((longest, longest), float("-inf"), dtype=dtype).triu(1)
    return mask.repeat(shared, 1)[None]


@dataclass(frozen=True, eq=False)
class DocumentGroup:
    """Documents of similar length."""

    where: Int[Tensor, "documents longest"] | Int[Tensor, " path"]
    """Indices into the row; padding repeats a document's last token."""
    own: Int[Tensor, " own"]
    """Indices in the flattened group that are neither padding nor a prefix."""
    tokens: Int[Tensor, " own"]
    """Indices of these positions in the row."""
    prefixes: tuple[tuple[int, int, int], ...] = ()
    """For documents that continue another one: (first index in the flattened group, first in the row, number of tokens)."""


Prefixes = tuple[tuple[int, int], ...]
"""(first token, number of tokens) of the row that each document continues."""


def path_lengths(lengths: Sequence[int], prefixes: Sequence[tuple[int, int]]) -> list[int]:
    """Number of tokens of every document with its prefix."""
    return [before + length for (_, before), length in zip(prefixes, lengths, strict=True)]


@lru_cache(maxsize=16)
def document_groups(lengths: tuple[int, ...], device: torch.device, prefixes: Prefixes | None = None) -> list[DocumentGroup]:
    """The documents, each with its prefix, in groups of similar length."""
    prefixes = prefixes or ((0, 0),) * len(lengths)
    starts, paths = [0, *itertools.accumulate(lengths)], path_lengths(lengths, prefixes)
    members: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda d: (paths[d], d)):
        if members and paths[document] <= max(paths[members[-1][0]] * PADDING_ALLOWED, SMALLEST_GROUP):
            members[-1].append(document)
        else:
            members.append([document])
    groups = []
    for group in members:
        length = torch.tensor([paths[d] for d in group])[:, None]
        begins = torch.tensor([prefixes[d][0] for d in group])[:, None]
        before = torch.tensor([prefixes[d][1] for d in group])[:, None]
        start = torch.tensor([starts[d] for d in group])[:, None] - before  # of a document that its prefix precedes in place
        within = torch.arange(int(length.max()))[None]
        place = torch.minimum(within, length - 1)
        where = torch.where(place < before, begins + place, start + place)
        own = ((within >= before) & (within < length)).reshape(-1).nonzero()[:, 0]
        of_group = tuple((row * within.shape[1], *prefixes[d]) for row, d in enumerate(group) if prefixes[d][1])
        groups.append(DocumentGroup(where.to(device), own.to(device), where.reshape(-1)[own].to(device), of_group))
    return groups


@lru_cache(maxsize=16)
def document_paths(lengths: tuple[int, ...], device: torch.device, prefixes: Prefixes) -> DocumentGroup:
    """All documents, each with its prefix, laid end to end."""
    begin, where, new, copied = 0, [], [], []
    for start, length, (first, before) in zip(itertools.accumulate((0, *lengths)), lengths, prefixes, strict=False):
        where += [torch.arange(first, first + before), torch.arange(start, start + length)]
        new.append(torch.arange(begin + before, begin + before + length))
        if before:
            copied.append((begin, first, before))
        begin += before + length
    path, own = torch.cat(where), torch.cat(new)
    return DocumentGroup(path.to(device), own.to(device), path[own].to(device), tuple(copied))


class _Gather(torch.autograd.Function):
    """row[where]. Its gradient is a copy back, because the gradient of padding is zero under causal attention; gradients of
    prefixes are added."""

    @staticmethod
    def forward(ctx, row: Float[Tensor, "tokens heads head_dim"], group: DocumentGroup) -> Tensor:
        ctx.group, ctx.shape = group, row.shape
        return row[group.where]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        group, flat = ctx.group, gradient.reshape(-1, *ctx.shape[1:])
        out = gradient.new_zeros(ctx.shape)
        out[group.tokens] = flat[group.own]
        for place, first, length in group.prefixes:
            out[first : first + length] += flat[place : place + length]
        return out, None


class _Scatter(torch.autograd.Function):
    """Writes the groups' outputs, without padding and prefixes, back in the order of the row."""

    @staticmethod
    def forward(ctx, groups: list[DocumentGroup], tokens: int, *outputs: Float[Tensor, "... heads head_dim"]):
        ctx.groups = groups
        ctx.shapes = [output.shape for output in outputs]
        row = outputs[0].new_empty(tokens, *outputs[0].shape[-2:])
        for group, output in zip(groups, outputs, strict=True):
            row[group.tokens] = output.reshape(-1, *row.shape[1:])[group.own]
        return row

    @staticmethod
    def backward(ctx, gradient: Tensor):
        gradients = []
        for group, shape in zip(ctx.groups, ctx.shapes, strict=True):
            padded = gradient.new_zeros(shape)
            padded.view(-1, *shape[-2:])[group.own] = gradient[group.tokens]
            gradients.append(padded)
        return None, None, *gradients


AttentionInterface.register("packed", packed_attention)


@torch.no_grad()
def largest_logits(
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch kv_heads tokens head_dim"],
    scaling: float | None = None,
    sliding_window: int | None = None,
    document_lengths: list[int] | None = None,
    document_prefixes: list[tuple[int, int]] | None = None,
    **_: object,
) -> Float[Tensor, " heads"]:
    """The largest logit of each head over the pairs of tokens that `packed_attention` compares, without sinks. Computed in
    blocks. Padding repeats tokens of the same document, so it adds no other logit."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if document_lengths is None or len(document_lengths) == 1:
        return largest_scores(query, key, scaling, sliding_window)
    prefixes = tuple(document_prefixes) if document_prefixes else None
    by_group = []
    for group in document_groups(tuple(document_lengths), query.device, prefixes):
        queries, keys = (stream[0][:, group.where].transpose(0, 1) for stream in (query, key))
        by_group.append(largest_scores(queries, keys, scaling, sliding_window))
    return torch.stack(by_group).amax(0)


def varlen_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens kv_heads head_dim"],
    value: Float[Tensor, "tokens kv_heads head_dim"],
    lengths: list[int],
    scaling: float,
    window: int | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "tokens heads head_dim"]:
    """Causal attention within each document; consecutive query heads share a key head. Differentiable in all four tensors.
    lengths: of the documents, laid end to end. window: positions that a query sees, its own included."""
    if window is not None and window >= max(lengths):
        window = None
    return _VarlenAttention.apply(query, key, value, sinks, Boundaries.of(lengths, query.device), scaling, window)


class _VarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        boundaries: Boundaries,
        scaling: float,
        window: int | None,
    ):
        output, normaliser = varlen_kernel.varlen_forward(query, key, value, boundaries, scaling, window)
        if sinks is not None:
            joined = torch.logaddexp(normaliser, sinks.float()[:, None])
            output = output * (normaliser - joined).exp().T[..., None].to(output.dtype)
            normaliser = joined
        ctx.save_for_backward(query, key, value, output, normaliser, *([] if sinks is None else [sinks]))
        ctx.options = (boundaries, scaling, window)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        query, key, value, output, normaliser, *sinks = ctx.saved_tensors
        streams = varlen_kernel.varlen_backward(gradient, query, key, value, output, normaliser, *ctx.options)
        of_sinks = None
        if sinks:
            inner = (output.float() * gradient.float()).sum(-1)  # [tokens, heads]
            of_sinks = -((sinks[0].float() - normaliser.T).exp() * inner).sum(0).to(sinks[0].dtype)
        return *streams, of_sinks, None, None, None

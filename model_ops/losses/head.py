"""Computes a loss at a model's head in chunks of rows, without holding logits of shape [tokens, vocab]: gradients are computed
in the forward pass, overwrite the logits, and the backward pass scales them. Products have autocast's precision, the softmax
float32. Formulas: Liger-Kernel's fused linear cross entropy; soft cap: Gemma 2 (arXiv 2408.00118, section 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model_ops.jobs import ModelError
from model_ops.tensors import fused_rows, torch_internals

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Most logits in a chunk, by kind of device: 8 MiB or 256 MiB in bfloat16; a chunk has at least FEWEST_ROWS rows."""

TRACED_CHUNKS = 2
"""Chunks that a trace of memory runs: it computes nothing, and from the second one on all are alike."""
FEWEST_ROWS = 256
"""Fewest rows in a chunk. Products with fewer rows are slow: with a vocabulary of 151,936 on a CPU of 0.4 TFLOP/s, the weight's
gradient reaches 0.17 TFLOP/s with 128 rows and 0.31 with 256."""

SOFTMAX_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 27}
"""Logits per softmax in float32; on a CPU as many as fit into its cache."""

ADDED_AT_ONCE = 4_096
"""Rows of the weight's gradient that are added at a time on a CPU."""

RowsLoss = Callable[[Float[Tensor, "rows vocab"], slice, bool], tuple[Float[Tensor, " rows"], Tensor | None]]
"""(logits, slice of rows, whether a gradient is needed) -> (loss of each row, d sum(loss) / d logits).

It may overwrite the logits and return them as the gradient."""


@runtime_checkable
class InPlaceLoss(Protocol):
    """A RowsLoss that can also compute a whole chunk in one pass on a CPU."""

    def in_place(self, logits: Tensor, where: slice, gradient_wanted: bool) -> Tensor:
        """Losses of the rows; overwrites the logits (model_ops.tensors.fused_rows.takes) with their gradient."""


@dataclass(frozen=True)
class Head:
    """A head: logits = cap * tanh(scale * (hidden @ weight.T + bias) / cap); without a cap, scale * (...)."""

    weight: Float[Tensor, "vocab hidden"]
    bias: Float[Tensor, " vocab"] | None = None
    scale: float = 1.0
    soft_cap: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Head | None:
        """The head of a causal language model of transformers; None if it is not a linear layer."""
        linear, config = model.get_output_embeddings(), model.config
        if not isinstance(linear, nn.Linear):
            return None
        scale = getattr(config, "logit_scale", None) or 1.0
        divisor = getattr(config, "logits_scaling", None) or 1.0
        return cls(linear.weight, linear.bias, scale / divisor, getattr(config, "final_logit_softcapping", None))

    @classmethod
    def required(cls, model: nn.Module) -> Head:
        """The head of a model that has a linear one. Raises ModelError for another."""
        head = cls.of(model)
        if head is None:
            raise ModelError(f"{type(model).__name__} has a head that is not a linear layer; choose another base model")
        return head

    @property
    def is_plain(self) -> bool:
        """Whether logits are the products."""
        return self.bias is None and self.scale == 1.0 and self.soft_cap is None

    def rows(self, start: int, size: int) -> Head:
        """The head for token ids [start, start + size) only."""
        bias = None if self.bias is None else self.bias[start : start + size]
        return replace(self, weight=self.weight[start : start + size], bias=bias)

    def cooled(self, temperature: float) -> Head:
        """The head whose logits are divided by a temperature."""
        if temperature == 1.0:
            return self
        cap = None if self.soft_cap is None else self.soft_cap / temperature
        return replace(self, scale=self.scale / temperature, soft_cap=cap)

    def shaped(self, products: Float[Tensor, "rows vocab"]) -> tuple[Float[Tensor, "rows vocab"], Tensor | None]:
        """(logits, their derivative with respect to the products) from float32 `products`, which are overwritten. The
        derivative is None if it is just the scale."""
        if self.bias is not None:
            products += self.bias.detach()
        if self.scale != 1.0:
            products *= self.scale
        if self.soft_cap is None:
            return products, None
        capped = products.div_(self.soft_cap).tanh_()
        derivative = capped.square().neg_().add_(1.0)
        return capped.mul_(self.soft_cap), derivative

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """Float32 logits without gradient; products are in the dtype of `hidden`."""
        with torch.no_grad():
            return self.shaped((hidden @ self.weight.to(hidden.dtype).T).float())[0]


def products(hidden: Tensor, head: Head) -> Tensor:
    """Hidden states in the dtype in which a head's products are computed."""
    kind = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype)


def chunked_head(
    hidden: Float[Tensor, "rows hidden"], head: Head, rows_loss: RowsLoss, chunk_rows: int | None = None
) -> tuple[Float[Tensor, ""], Float[Tensor, " rows"]]:
    """(sum of a loss over rows of logits, differentiable in `hidden` and the head; loss of each row, not differentiable)."""
    return _ChunkedHead.apply(*_arguments(hidden, head, rows_loss, chunk_rows))


def chunked_rows(
    hidden: Float[Tensor, "rows hidden"],
    head: Head,
    weighted: Callable[[Float[Tensor, " rows"]], RowsLoss],
    chunk_rows: int | None = None,
) -> Float[Tensor, " rows"]:
    """The loss of each row, differentiable in `hidden` and the head, for an objective that is no sum over rows. weighted: makes
    the rows' loss from a weight for each row, to which the loss is proportional. The coefficients of the rows are known in the
    backward pass only. The forward pass makes the gradient of each row's own loss by its hidden state, which the backward pass
    scales; for a head that is trained, it computes the logits of each chunk once more."""
    return _ChunkedRows.apply(*_arguments(hidden, head, weighted, chunk_rows))


def _arguments(hidden: Tensor, head: Head, loss: Callable, chunk_rows: int | None) -> tuple:
    """Arguments of the autograd functions."""
    kind = hidden.device.type
    if chunk_rows is None:
        chunk_rows = max(
            FEWEST_ROWS, CHUNK_ELEMENTS.get(torch_internals.device_kind(hidden), CHUNK_ELEMENTS["cpu"]) // head.weight.shape[0]
        )
    wanted = (False, False, False)
    if torch.is_grad_enabled():
        wanted = (hidden.requires_grad, head.weight.requires_grad, head.bias is not None and head.bias.requires_grad)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
    return hidden, head.weight, head.bias, head, loss, chunk_rows, wanted, dtype


class _ChunkedHead(torch.autograd.Function):
    """Computes gradients in the forward pass; the backward pass multiplies them by the upstream scalar."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest):
        losses, ctx.gradients = _pass(hidden, weight, bias, *rest)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor, _: Tensor):
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place and returned
        return *(None if gradient is None else gradient.mul_(upstream) for gradient in gradients), *[None] * 5


class _ChunkedRows(torch.autograd.Function):
    """See chunked_rows."""

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        weighted: Callable[[Tensor], RowsLoss],
        chunk_rows: int,
        wanted: tuple[bool, bool, bool],
        dtype: torch.dtype,
    ):
        rows_loss = weighted(hidden.new_ones(len(hidden), dtype=torch.float32))
        losses, (ctx.unit, *_) = _pass(hidden, weight, bias, head, rows_loss, chunk_rows, (wanted[0], False, False), dtype)
        ctx.rest = head, weighted, chunk_rows, (False, *wanted[1:]), dtype
        if any(wanted[1:]):
            ctx.save_for_backward(hidden, weight, *([] if bias is None else [bias]))
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):
        head, weighted, *rest = ctx.rest
        unit, ctx.unit = ctx.unit, None  # scaled in place and returned
        of_head: list[Tensor | None] = [None, None]
        if ctx.saved_tensors:
            hidden, weight, *bias = ctx.saved_tensors
            rows_loss = weighted(upstream.float().contiguous())
            of_head = _pass(hidden, weight, bias[0] if bias else None, head, rows_loss, *rest)[1][1:]
        return None if unit is None else unit.mul_(upstream[:, None]), *of_head, *[None] * 5


def _pass(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    head: Head,
    rows_loss: RowsLoss,
    chunk_rows: int,
    wanted: tuple[bool, bool, bool],
    dtype: torch.dtype,
) -> tuple[Float[Tensor, " rows"], list[Tensor | None]]:
    """(losses of the rows; gradients of their sum by hidden, weight and bias, where they are wanted). dtype: of products."""
    hidden_gradient = torch.empty_like(hidden) if wanted[0] else None
    weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
    bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if wanted[2] and bias is not None else None
    losses = hidden.new_empty(len(hidden), dtype=torch.float32)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        matrix = weight.to(dtype)
        starts = range(0, len(hidden), chunk_rows)
        for start in starts[:TRACED_CHUNKS] if isinstance(hidden, torch_internals.FakeTensor) else starts:
            end = min(start + chunk_rows, len(hidden))
            chunk = hidden[start:end].to(dtype)
            products = chunk @ matrix.T
            if head.is_plain and isinstance(rows_loss, InPlaceLoss) and fused_rows.takes(products):
                losses[start:end] = rows_loss.in_place(products, slice(start, end), any(wanted))
            else:
                losses[start:end] = _in_parts(products, head, rows_loss, start, any(wanted), bias_gradient)
            if hidden_gradient is not None:
                hidden_gradient[start:end] = products @ matrix
            if weight_gradient is not None:
                add_product(weight_gradient, products, chunk)
    gradients = ((hidden_gradient, hidden), (weight_gradient, weight), (bias_gradient, bias))
    return losses, [None if gradient is None or given is None else gradient.to(given.dtype) for gradient, given in gradients]


def _in_parts(
    products: Tensor, head: Head, rows_loss: RowsLoss, start: int, wanted: bool, bias_gradient: Tensor | None
) -> Float[Tensor, " rows"]:
    """Losses of the chunk's rows, a few at a time in float32. Overwrites the products with their gradient if it is wanted.
    start: index of the chunk's first row."""
    elements = SOFTMAX_ELEMENTS.get(torch_internals.device_kind(products), SOFTMAX_ELEMENTS["cpu"])
    at_once, losses = max(1, elements // products.shape[1]), []
    for first in range(0, len(products), at_once):
        within = slice(first, min(first + at_once, len(products)))
        logits, derivative = head.shaped(products[within].float())
        of_part, gradient = rows_loss(logits, slice(start + within.start, start + within.stop), wanted)
        losses.append(of_part)
        if gradient is None:
            continue
        if derivative is not None:
            gradient *= derivative
        if head.scale != 1.0:
            gradient *= head.scale
        products[within] = gradient  # the gradient reuses the memory of the products
        if bias_gradient is not None:
            bias_gradient += gradient.sum(0)
    return torch.cat(losses)


def add_product(
    total: Float[Tensor, "vocab hidden"], gradient: Float[Tensor, "rows vocab"], chunk: Float[Tensor, "rows hidden"]
) -> None:
    """total += gradient.T @ chunk. On a CPU a part of the vocabulary at a time, so that products stay in the cache: adding a
    whole bfloat16 product to a float32 sum takes two to three times as long as the product itself."""
    step = ADDED_AT_ONCE if torch_internals.device_kind(total) == "cpu" else len(total)
    for first in range(0, len(total), step):
        total[first : first + step] += (gradient[:, first : first + step].T @ chunk).float()

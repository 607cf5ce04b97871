"""Triton kernels over rows of activations: RMSNorm with an addition before it, gated activations, rotary positions.

Called by `cuda_rows` only, which allocates what they write. All arithmetic is float32; results are rounded once, to the dtype
of the tensor that they are written to, but where the layer's own code rounds between (`ROUNDED`). With TRITON_INTERPRET=1 in
the environment before the import, the kernels run on a CPU, in numpy.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_rows(
    x,
    added,
    weight,
    summed,
    output,
    scales,
    rows,
    width,
    epsilon,
    offset,
    ADDS: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """summed = x + added; output = (offset + weight) * summed * scale, scale = 1 / sqrt(mean(summed^2) + epsilon).

    x, added, summed, output [rows, width]; weight [width]; scales [rows]. ADDS: without it, summed is x and not written.
    ROUNDED: the normed values are rounded to x's dtype before the product with the weight.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        more = tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        held = (values + more).to(summed.dtype.element_ty)
        tl.store(summed + place, held, mask=inside)
        values = held.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=1) / width + epsilon)
    tl.store(scales + row, scale, mask=row < rows)
    normed = values * scale[:, None]
    if ROUNDED:
        normed = normed.to(x.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32) + offset
    tl.store(output + place, (normed * factor[None, :]).to(output.dtype.element_ty), mask=inside)


@triton.jit
def norm_gradient_rows(
    gradient,
    carried,
    x,
    weight,
    scales,
    x_gradient,
    sums,
    rows,
    width,
    offset,
    CARRIES: tl.constexpr,
    WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x_gradient = carried + the gradient of `norm_rows` by its sum; sums [programs, width]: each program's share of the
    weight's gradient, if WEIGHT. carried: the gradient that reaches the sum on another way, if CARRIES."""
    column = tl.arange(0, BLOCK)
    in_row = column < width
    factor = tl.load(weight + column, mask=in_row, other=0.0).to(tl.float32) + offset
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & in_row[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        given = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
        normed = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale
        inner = given * factor[None, :]
        along = tl.sum(inner * normed, axis=1) / width
        found = (inner - normed * along[:, None]) * scale
        if CARRIES:
            found += tl.load(carried + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(x_gradient + place, found.to(x_gradient.dtype.element_ty), mask=inside)
        if WEIGHT:
            total += tl.sum(given * normed, axis=0)
    if WEIGHT:
        tl.store(sums + tl.program_id(0) * width + column, total, mask=in_row)


@triton.jit
def gated_rows(gate, up, output, numbers, slope, cube, BLOCK: tl.constexpr):
    """output = act(gate) * up, act(x) = x * sigmoid(slope * (x + cube * x^3)); all with so many numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    x = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    raised = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-slope * (x + cube * x * x * x)))
    tl.store(output + place, (x * share * raised).to(output.dtype.element_ty), mask=inside)


@triton.jit
def gated_gradient_rows(
    gradient, gate, up, gate_gradient, up_gradient, output, numbers, slope, cube, AGAIN: tl.constexpr, BLOCK: tl.constexpr
):
    """Gradients of `gated_rows` by gate and up, and its output again if AGAIN."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    given = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    raised = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-slope * (x + cube * x * x * x)))
    active = x * share
    steep = share + active * (1.0 - share) * slope * (1.0 + 3.0 * cube * x * x)
    tl.store(gate_gradient + place, (given * raised * steep).to(gate_gradient.dtype.element_ty), mask=inside)
    tl.store(up_gradient + place, (given * active).to(up_gradient.dtype.element_ty), mask=inside)
    if AGAIN:
        tl.store(output + place, (active * raised).to(output.dtype.element_ty), mask=inside)


@triton.jit
def rotated_rows(x, cos, sin, output, heads, half, sign, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """output = rotary positions of x, [tokens, heads, 2 * half]; cos, sin [tokens, 2 * half], whose halves are equal; sign -1
    turns back, which is the gradient."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    in_half = column < half
    turn = tl.load(cos + token * 2 * half + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
    slant = tl.load(sin + token * 2 * half + column, mask=in_half, other=0.0).to(tl.float32)[None, :] * sign
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    inside = (head < heads)[:, None] & in_half[None, :]
    place = (token * heads + head)[:, None] * 2 * half + column[None, :]
    left = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + place + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, (left * turn - right * slant).to(output.dtype.element_ty), mask=inside)
    tl.store(output + place + half, (right * turn + left * slant).to(output.dtype.element_ty), mask=inside)

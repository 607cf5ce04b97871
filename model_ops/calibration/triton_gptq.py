"""A Triton kernel that rounds a block of columns of GPTQ in one launch; `gptq_codes` says what it computes.

A column needs the errors of those before it, but a row needs no other row: each program has some rows and all columns of the
block. Plain torch starts nine kernels for each column.
"""

from __future__ import annotations

import triton
import triton.language as tl

HALF_EVEN = tl.constexpr(12_582_912.0)
"""1.5 * 2^23: adding it to a small number and subtracting it again rounds to the nearest integer, halves to even."""


@triton.jit
def round_columns(
    block, spread, scales, codes, errors, rows, width, lowest, highest, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """codes, errors [rows, width] of the block's columns, one after another; all contiguous, spread [width, width] upper
    triangular."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    left = tl.load(block + place, mask=inside, other=0.0)
    steps = tl.load(scales + place, mask=inside, other=1.0)
    for at in range(width):
        here = (column == at)[None, :]
        value = tl.sum(tl.where(here, left, 0.0), axis=1)
        step = tl.sum(tl.where(here, steps, 0.0), axis=1)
        code = (tl.div_rn(value, step) + HALF_EVEN) - HALF_EVEN
        code = tl.minimum(tl.maximum(code, lowest), highest)
        error = tl.div_rn(value - code * step, tl.load(spread + at * width + at))
        later = tl.load(spread + at * width + column, mask=(column > at) & (column < width), other=0.0)
        left = tl.where(here, code[:, None], left - error[:, None] * later[None, :])  # finished columns hold their codes
        tl.store(errors + row * width + at, error, mask=row < rows)
    tl.store(codes + place, left, mask=inside)

"""RMSNorm, gated activations and cross-entropy on a CPU, one row at a time in a small float32 buffer that stays in the cache.
Import inside functions only, since it loads numba. bfloat16 rows are passed as uint16 (their bits). A gated activation is x *
sigmoid(slope * (x + cube * x^3)): SiLU for (1, 0); GELU in its tanh form for (sqrt(8 / pi), 0.044715)."""

import numpy as np
from numba import types
from numba.extending import overload

from model_ops.machine import compiled_arithmetic

ONE, HALF = np.float32(1.0), np.float32(0.5)
LARGEST = np.float32(87.0)
"""exp(-87) is near the smallest normal float32; arguments of exp are cut here."""
BOUND = np.float32(1e4)
"""An activation is open or closed to float32 long before; its argument is cut here, so that x^3 stays finite."""
LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
"""Polynomial of exp on [-ln 2 / 2, ln 2 / 2], relative error below 2e-7 (Cephes, Moshier: expf)."""
BLOCK = 4_096
"""Numbers of a long row that are taken at a time, so that they stay in the nearest cache."""
ROUNDS_UP, LOW_BIT, SIXTEEN = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
SIGN_OFF, INFINITE, NAN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint16(0x7FC0)


def _read(source, row, values):
    """Copies one row of float32 or of bfloat16's bits into `values` (float32)."""
    raise NotImplementedError("compiled code only")


@overload(_read, inline="always")
def _(source, row, values):
    if source.dtype == types.uint16:

        def read(source, row, values):
            bits = values.view(np.uint32)
            for place in range(len(values)):
                bits[place] = np.uint32(source[row, place]) << SIXTEEN
    else:

        def read(source, row, values):
            for place in range(len(values)):
                values[place] = source[row, place]

    return read


def _write(values, target, row):
    """Copies `values` into one row of float32, or rounds them to the nearest bfloat16 (ties to even, NaN stays NaN)."""
    raise NotImplementedError("compiled code only")


@overload(_write, inline="always")
def _(values, target, row):
    if target.dtype == types.uint16:

        def write(values, target, row):
            bits = values.view(np.uint32)
            for place in range(len(values)):
                whole = bits[place]
                rounded = np.uint16((whole + ROUNDS_UP + ((whole >> SIXTEEN) & LOW_BIT)) >> SIXTEEN)
                target[row, place] = rounded | np.uint16((whole & SIGN_OFF) > INFINITE) * NAN
    else:

        def write(values, target, row):
            for place in range(len(values)):
                target[row, place] = values[place]

    return write


@compiled_arithmetic
def _exp(values, first, last, power):
    """values[first:last] -> exp, in place. power: float32 buffer of at least last - first."""
    bits = power.view(np.int32)
    for place in range(first, last):
        x = min(max(values[place], -LARGEST), LARGEST)
        whole = np.floor(x * LOG2_E + HALF)
        bits[place - first] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        r = x - whole * LN2_HIGH - whole * LN2_LOW
        values[place] = ((((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5) * r * r) + r + ONE
    for place in range(first, last):
        values[place] *= power[place - first]


@compiled_arithmetic
def _open_shares(x, slope, cube, shares, power):
    """shares = sigmoid(slope * (x + cube * x^3)). power: float32 buffer of the same length."""
    for place in range(len(x)):
        bounded = min(max(x[place], -BOUND), BOUND)
        shares[place] = -slope * (bounded + cube * bounded * bounded * bounded)
    _exp(shares, 0, len(x), power)
    for place in range(len(x)):
        shares[place] = ONE / (ONE + shares[place])


@compiled_arithmetic
def norm_rows(first, last, x, factor, epsilon, output, scales):
    """output = factor * x * scale, with scale = 1 / sqrt(mean(x^2) + epsilon), of the rows from `first` to `last`. x, output
    [rows, width]; factor [width]; scales [rows]."""
    width = x.shape[1]
    values = np.empty(width, dtype=np.float32)
    for row in range(first, last):
        _read(x, row, values)
        total = np.float32(0)
        for place in range(width):
            total += values[place] * values[place]
        scale = ONE / np.sqrt(total / np.float32(width) + epsilon)
        scales[row] = scale
        for place in range(width):
            values[place] = values[place] * scale * factor[place]
        _write(values, output, row)


@compiled_arithmetic
def norm_gradient_rows(first, last, gradient, x, factor, scales, x_gradient, weight_gradient):
    """Gradients of `norm_rows`: of x into x_gradient, of the factor added to weight_gradient [width]."""
    width = x.shape[1]
    values, given = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for row in range(first, last):
        _read(x, row, values)
        _read(gradient, row, given)
        scale, along = scales[row], np.float32(0)
        for place in range(width):
            normed = values[place] * scale
            weight_gradient[place] += given[place] * normed
            inner = given[place] * factor[place]
            along += inner * normed
            values[place], given[place] = normed, inner
        along /= np.float32(width)
        for place in range(width):
            values[place] = (given[place] - values[place] * along) * scale
        _write(values, x_gradient, row)


@compiled_arithmetic
def gated_rows(first, last, gate, up, slope, cube, output):
    """output = act(gate) * up, of the rows from `first` to `last`; all [rows, width]."""
    width = gate.shape[1]
    x, shares, power = (np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32))
    for row in range(first, last):
        _read(gate, row, x)
        _open_shares(x, slope, cube, shares, power)
        _read(up, row, power)
        for place in range(width):
            x[place] *= shares[place] * power[place]
        _write(x, output, row)


@compiled_arithmetic
def gated_gradient_rows(first, last, gradient, gate, up, slope, cube, gate_gradient, up_gradient, output):
    """Gradients of `gated_rows` of gate and up, and its output again, which the gradient of the next matrix needs."""
    width = gate.shape[1]
    x, shares, power = (np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32))
    given, raised = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for row in range(first, last):
        _read(gate, row, x)
        _open_shares(x, slope, cube, shares, power)
        _read(up, row, raised)
        _read(gradient, row, given)
        for place in range(width):
            share, number, slant = shares[place], x[place], given[place]
            active = share * number
            bounded = min(max(number, -BOUND), BOUND)
            steep = slope * (ONE + np.float32(3) * cube * bounded * bounded)
            shares[place] = slant * active
            given[place] = slant * raised[place] * (share + active * (ONE - share) * steep)
            raised[place] *= active
        _write(given, gate_gradient, row)
        _write(shares, up_gradient, row)
        _write(raised, output, row)


@compiled_arithmetic
def cross_entropy_rows(first, last, products, labels, weights, z_loss, with_gradient, losses, hits):
    """losses = (logsumexp - logit of the label + z_loss * logsumexp^2) * weight, of the rows from `first` to `last`. products
    [rows, vocab] are logits; with_gradient overwrites them with the gradient of the sum of losses. hits [rows]: 1 if the label
    has the highest logit, else 0. A row with NaN or positive infinity has a loss of NaN."""
    width = products.shape[1]
    values, power = np.empty(width, dtype=np.float32), np.empty(BLOCK, dtype=np.float32)
    bits = values.view(np.uint32)
    for row in range(first, last):
        _read(products, row, values)
        highest, broken = values[0], 0
        for place in range(width):
            highest = max(highest, values[place])
            broken += ((bits[place] & SIGN_OFF) > INFINITE) | (bits[place] == INFINITE)
        chosen, weight = values[labels[row]], weights[row]
        hits[row] = ONE if chosen >= highest else np.float32(0)
        if broken:
            losses[row] = np.float32(np.nan)
            values[:] = np.float32(np.nan)
            if with_gradient:
                _write(values, products, row)
            continue
        total = 0.0
        for begin in range(0, width, BLOCK):
            end, part = min(begin + BLOCK, width), np.float32(0)
            for place in range(begin, end):
                values[place] -= highest
            _exp(values, begin, end, power)
            for place in range(begin, end):
                part += values[place]
            total += part
        normaliser = np.float32(np.log(total)) + highest
        added = z_loss * normaliser * normaliser if z_loss else np.float32(0)  # 0 x an overflowing square would be NaN
        losses[row] = (normaliser - chosen + added) * weight
        if with_gradient:
            factor = weight * (ONE + np.float32(2) * z_loss * normaliser) / np.float32(total)
            for place in range(width):
                values[place] *= factor
            values[labels[row]] -= weight
            _write(values, products, row)

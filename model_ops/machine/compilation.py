"""Decorators that compile a function of numbers and arrays with numba, without the GIL. The cache is renewed when the
function's own file changes, not when another does: pass values of other modules as arguments. Import modules that use a
decorator inside functions, because importing numba takes most of a second."""

from collections.abc import Callable

import numba

REORDERED = frozenset({"reassoc", "contract", "arcp", "nsz"})
"""Liberties of LLVM in arithmetic: order, fused multiply-add, reciprocals, sign of zero. Infinities and NaN stay."""


def compiled(function: Callable) -> Callable:
    """The function as machine code; several threads can run it at the same time."""
    return _njit(function)


def compiled_arithmetic(function: Callable) -> Callable:
    """The same for arithmetic on floats: rounding may differ between processors, division by zero gives an infinity."""
    return _njit(function, fastmath=set(REORDERED), error_model="numpy")


def _njit(function: Callable, **options: object) -> Callable:
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # numba: "no locator available": there is no folder to keep machine code in
        return numba.njit(nogil=True, **options)(function)

"""Compiles a function of numbers and arrays to machine code (numba), without the interpreter's lock.

    @compiled
    def total(values): ...

The machine code is kept beside the source, or in the user's cache folder; where neither can be written, every process
compiles afresh. It is made anew when its own source file changes, and not when another does: what may change elsewhere
reaches it as an argument, never as a constant of another module. Only modules that are imported inside functions may use
this: importing numba takes most of a second.
"""

from __future__ import annotations

from collections.abc import Callable

import numba


def compiled(function: Callable) -> Callable:
    """The function as machine code; threads may run it side by side."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: "no locator available": there is no folder to keep machine code in
        return numba.njit(nogil=True)(function)

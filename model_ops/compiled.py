"""Decorator that compiles a function of numbers and arrays with numba, without the GIL.

    @compiled
    def total(values): ...

numba caches the machine code next to the source file or in the user's cache folder; if neither is writable, every process
compiles again. The cache is renewed when the function's own source file changes, but not when another file does. So pass
values from other modules as arguments; do not read them as constants. Import modules that use this decorator inside
functions, because importing numba takes most of a second.
"""

from __future__ import annotations

from collections.abc import Callable

import numba


def compiled(function: Callable) -> Callable:
    """The function as machine code; several threads can run it at the same time."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: "no locator available": there is no folder to keep machine code in
        return numba.njit(nogil=True)(function)

"""Cases of a parametrized test of which only some are run by `make test`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def slow_except(fast: Iterable, cases: Iterable) -> list:
    """`cases` with the mark `slow` on all that are not in `fast`. Raises ValueError if `fast` names what is no case."""
    fast, cases = list(fast), list(cases)
    if unknown := [case for case in fast if case not in cases]:
        raise ValueError(f"no case {', '.join(map(str, unknown))}")
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]

"""Cases of a parametrized test of which only some are run by `make test` and by continuous integration."""

from collections.abc import Iterable

import pytest


def thorough_except(usual: Iterable, cases: Iterable) -> list:
    """`cases` with the mark `thorough` on all that are not in `usual`: further families, formats or moments at which the same
    thing is tested. Raises ValueError if `usual` names what is no case."""
    usual, cases = list(usual), list(cases)
    if unknown := [case for case in usual if case not in cases]:
        raise ValueError(f"no case {', '.join(map(str, unknown))}")
    return [case if case in usual else pytest.param(case, marks=pytest.mark.thorough) for case in cases]


def asked_cases(request: pytest.FixtureRequest, parameter: str) -> set:
    """The values of a parameter for which tests of the fixture's file are run: what the fixture has to make."""
    found = [item.callspec.params for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return {params[parameter] for params in found if parameter in params}
